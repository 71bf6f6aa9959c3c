"""`from_generator`: what a user's generator yields, read in a thread (plain generators) or on the loop (async ones)."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final

from asyncdata.memory.block import Block
from asyncdata.runtime.stage import BLOCK_ROWS, Stage
from asyncdata.runtime.stages.arrays import block_of_elements, source_advance, source_origin
from asyncdata.workers.failure import annotate
from asyncdata.runtime.offload import Offload

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_PATIENCE_S: Final = 0.002
"""A slow generator's elements are passed on after this long instead of being collected."""


class GeneratorStage(Stage):
    """Elements of a plain generator (or any iterable a function returns).

    Args:
        label: The stage's name.
        source: Number of the source.
        function: Returns an iterable.
        args: For the function.
        threads: Where the generator runs; one call at a time.
    """

    def __init__(
        self, label: str, source: int, function: Callable[..., Any], args: tuple[Any, ...], threads: Offload
    ) -> None:
        super().__init__(label)
        self._source = source
        self._function = function
        self._args = args
        self._threads = threads
        self._iterator: Iterator[Any] | None = None
        self._at = 0
        self._ended = False
        self._error: BaseException | None = None

    def _collect(self, limit: int) -> list[Any]:
        items: list[Any] = []
        try:
            if self._iterator is None:
                self._iterator = iter(self._function(*self._args))
            until = time.monotonic() + _PATIENCE_S
            while len(items) < limit:
                items.append(next(self._iterator))
                if time.monotonic() >= until:
                    break
        except StopIteration:
            self._ended = True
        except Exception as error:  # noqa: BLE001 -- raised once the elements before it are delivered
            annotate(error, f"in {self.label}, after element {self._at + len(items)}")
            self._error = error
        return items

    async def pull(self, limit: int) -> Block | None:
        if self._error is None and not self._ended:
            items = await self._threads.run(self._collect, min(limit, BLOCK_ROWS))
            if items:
                origin = source_origin(self._source, self._at, len(items))
                advance = source_advance(origin, self._at)
                self._at += len(items)
                return block_of_elements(items, origin, advance)
        if self._error is not None:
            raise self._error
        return None

    async def aclose(self) -> None:
        iterator, self._iterator = self._iterator, None
        self._ended = True
        close = getattr(iterator, "close", None)
        if close is not None:
            await self._threads.run(close)


class AsyncGeneratorStage(Stage):
    """Elements of an async generator, awaited on the stage loop by a task of its own.

    Args:
        label: The stage's name.
        source: Number of the source.
        function: Returns an async iterable.
        args: For the function.
        spawn: Starts a task of the pipeline.
    """

    def __init__(
        self, label: str, source: int, function: Callable[..., Any], args: tuple[Any, ...], spawn: Spawn
    ) -> None:
        super().__init__(label)
        self._source = source
        self._function = function
        self._args = args
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._items: list[Any] = []
        self._at = 0
        self._wanted = 1
        self._ended = False
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def _run(self) -> None:
        iterator: AsyncIterator[Any] | None = None
        try:
            iterator = aiter(self._function(*self._args))
            async for item in iterator:
                self._items.append(item)
                self._news.set()
                while len(self._items) >= self._wanted:
                    self._room.clear()
                    await self._room.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- raised once the elements before it are delivered
            annotate(error, f"in {self.label}, after element {self._at + len(self._items)}")
            self._error = error
        finally:
            self._ended = True
            self._news.set()
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    async def pull(self, limit: int) -> Block | None:
        if self._task is None:
            self._task = self._spawn(self._run())
        self._wanted = min(limit, BLOCK_ROWS)
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()
        items, self._items = self._items[:limit], self._items[limit:]
        self._room.set()
        origin = source_origin(self._source, self._at, len(items))
        advance = source_advance(origin, self._at)
        self._at += len(items)
        return block_of_elements(items, origin, advance)

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function gives an async iterator."""
    return inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(getattr(function, "__call__", None))
