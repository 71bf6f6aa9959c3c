"""`from_generator`: what a user's generator yields, read in a thread (plain generators) or on the loop (async ones)."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

from asyncdata.memory.block import Block
from asyncdata.runtime.life.threads import Offload
from asyncdata.runtime.memory.activity import Outside
from asyncdata.runtime.stage import BLOCK_BYTES, BLOCK_ROWS, LONG_STEP_S, Pause, Spawn, Stage
from asyncdata.runtime.stages.sources.arrays import block_of_elements, source_advance, source_origin
from asyncdata.runtime.user_code import element_bytes
from asyncdata.workers.failure import annotate, as_raisable

_END: Final = object()


class GeneratorStage(Stage):
    """Elements of a plain generator (or any iterable a function returns).

    What a slow generator has yielded is passed on after 2 ms instead of being collected, also while the generator is
    busy with its next element::

        pull ─▶ a call in a thread: next(), next(), … ─▶ items ─▶ the block, when the call returns or 2 ms are over

    Args:
        label: The stage's name.
        source: Number of the source.
        function: Returns an iterable.
        args: For the function.
        threads: Where the generator runs; one call at a time.
        spawn: Starts a task of the pipeline.
        most_bytes: What elements that wait may take, unless it is one.
    """

    def __init__(
        self,
        label: str,
        source: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        threads: Offload,
        spawn: Spawn,
        most_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(label)
        self._source = source
        self._function = function
        self._args = args
        self._threads = threads
        self._spawn = spawn
        self._most_bytes = most_bytes
        self._iterator: Iterator[Any] | None = None
        self._items: deque[Any] = deque()
        self._call: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._hungry = False
        self._at = 0
        self._yielded = 0
        self._ended = False
        self._error: BaseException | None = None

    def _collect(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: takes up to `limit` elements, for 2 ms or until the first one."""
        taken = nbytes = 0
        try:
            if self._iterator is None:
                made = self._function(*self._args)
                if not isinstance(made, Iterable) and not hasattr(made, "__getitem__"):
                    raise TypeError(f"a generator function must return an iterable, not a {type(made).__name__}")
                self._iterator = iter(made)
            until = time.monotonic() + LONG_STEP_S
            while not taken or (taken < limit and nbytes < self._most_bytes and time.monotonic() < until):
                item = next(self._iterator, _END)
                if item is _END:
                    self._ended = True
                    break
                self._items.append(item)
                taken += 1
                nbytes += element_bytes(item)
                self._yielded += 1
                if self._hungry:
                    self._hungry = False
                    loop.call_soon_threadsafe(self._news.set)
        except BaseException as error:  # noqa: BLE001 -- raised once the elements before it are delivered
            self._error = _named(error, self.label, self._yielded)

    async def _run_call(self, limit: int) -> None:
        try:
            await self._threads.run(self._collect, limit, asyncio.get_running_loop())
        finally:
            self._call = None
            self._news.set()

    async def pull(self, limit: int) -> Block | None:
        while not self._items and self._error is None and not self._ended:
            call = self._call = self._call or self._spawn(self._run_call(min(limit, BLOCK_ROWS)))
            await asyncio.wait({call}, timeout=LONG_STEP_S)
            if not call.done() and not self._items:
                self._news.clear()
                self._hungry = True
                # The thread may have come between the look at the items and the flag.
                if not self._items:
                    await self._news.wait()
        if self._call is not None and not self._items:
            # The end was met by a call that is about to return.
            await asyncio.wait({self._call})
        count = min(limit, len(self._items))
        if count:
            items = [self._items.popleft() for _ in range(count)]
            origin = source_origin(self._source, self._at, count)
            advance = source_advance(origin, self._at)
            self._at += count
            return block_of_elements(items, origin, advance)
        if self._error is not None:
            raise self._error
        return None

    async def aclose(self) -> None:
        self._ended = True
        if self._call is not None:
            await asyncio.wait({self._call})
        self._items.clear()
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
        most_bytes: What elements that wait may take, unless it is one.
    """

    def __init__(
        self,
        label: str,
        source: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        spawn: Spawn,
        most_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(label)
        self._source = source
        self._function = function
        self._args = args
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None
        self._items: list[Any] = []
        self._most_bytes = most_bytes
        self._nbytes = 0
        self._at = 0
        self._wanted = 0
        self._ended = False
        self._error: Exception | None = None
        self._late: Exception | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def _run(self) -> None:
        iterator: AsyncIterator[Any] | None = None
        pause = Pause()
        try:
            iterator = aiter(self._function(*self._args))
            while True:
                try:
                    with Outside():
                        item = await anext(iterator)
                except StopAsyncIteration:
                    break
                self._items.append(item)
                self._nbytes += element_bytes(item)
                self._news.set()
                await pause()
                while len(self._items) >= self._wanted or self._nbytes >= self._most_bytes:
                    self._room.clear()
                    await self._room.wait()
        except BaseException as error:
            task = asyncio.current_task()
            leaving = task is not None and bool(task.cancelling())
            if isinstance(error, asyncio.CancelledError) and leaving:
                raise
            named = _named(error, self.label, self._at + len(self._items))
            if leaving:
                self._late = named  # nobody pulls any more
            else:
                self._error = named
        finally:
            self._ended = True
            self._news.set()
            await self._close(iterator)

    async def _close(self, iterator: AsyncIterator[Any] | None) -> None:
        """Closes the user's generator; what it raises then is raised by `aclose`."""
        close = getattr(iterator, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- see above
            self._late = self._late or _named(error, self.label, self._at + len(self._items))

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
        self._nbytes = sum(map(element_bytes, self._items))
        origin = source_origin(self._source, self._at, len(items))
        advance = source_advance(origin, self._at)
        self._at += len(items)
        return block_of_elements(items, origin, advance)

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        late, self._late = self._late, None
        if late is not None:
            raise late


def _named(error: BaseException, label: str, position: int) -> Exception:
    """What a pull raises for an exception of the generator."""
    raised = as_raisable(error)
    annotate(raised, f"in {label}, after element {position}")
    return raised


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function gives an async iterator."""
    call = getattr(function, "__call__", None)  # noqa: B004 -- the method itself is wanted, not whether there is one
    return inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call)
