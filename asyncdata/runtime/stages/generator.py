"""`from_generator`: what a user's generator yields, read in a thread (plain generators) or on the loop (async ones)."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from asyncdata.memory.block import Block
from asyncdata.runtime.offload import Offload
from asyncdata.runtime.stage import BLOCK_ROWS, LONG_STEP_S, Pause, Spawn, Stage
from asyncdata.runtime.stages.arrays import block_of_elements, source_advance, source_origin
from asyncdata.workers.failure import annotate, as_raisable

_END: Final = object()


class GeneratorStage(Stage):
    """Elements of a plain generator (or any iterable a function returns).

    What a slow generator has yielded is passed on after 2 ms instead of being collected.

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
            until = time.monotonic() + LONG_STEP_S
            while len(items) < limit and time.monotonic() < until:
                item = next(self._iterator, _END)
                if item is _END:
                    self._ended = True
                    break
                items.append(item)
        except BaseException as error:  # noqa: BLE001 -- raised once the elements before it are delivered
            self._error = _named(error, self.label, self._at + len(items))
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
        self._ended = True
        close = getattr(self._iterator, "close", None)
        if close is not None:
            await self._threads.run(close)
        self._iterator = None


class AsyncGeneratorStage(Stage):
    """Elements of an async generator, awaited on the stage loop by a task of its own.

    The generator runs while somebody waits for its elements; by then it is at most one element ahead.

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
        self._wanted = 0
        self._ended = False
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def _run(self) -> None:
        iterator: AsyncIterator[Any] | None = None
        pause = Pause()
        try:
            iterator = aiter(self._function(*self._args))
            async for item in iterator:
                self._items.append(item)
                self._news.set()
                await pause()
                while len(self._items) >= self._wanted:
                    self._room.clear()
                    await self._room.wait()
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            self._error = _named(error, self.label, self._at + len(self._items))
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
        self._room.set()
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()
        self._wanted = 0
        items, self._items = self._items[:limit], self._items[limit:]
        origin = source_origin(self._source, self._at, len(items))
        advance = source_advance(origin, self._at)
        self._at += len(items)
        return block_of_elements(items, origin, advance)

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _named(error: BaseException, label: str, position: int) -> Exception:
    """What a pull raises for an exception of the generator."""
    raised = as_raisable(error)
    annotate(raised, f"in {label}, after element {position}")
    return raised


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function gives an async iterator."""
    call = getattr(function, "__call__", None)  # noqa: B004 -- the method itself is wanted, not whether there is one
    return inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call)
