"""`map` on the stage loop: plain functions called one after the other, async ones awaited several at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np

from asyncdata.memory.advance import NO_ORIGINS, Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.runtime.error_policy import Guard
from asyncdata.runtime.memory.activity import Outside
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.stage import BLOCK_BYTES, BLOCK_ROWS, Pause, Spawn, Stage
from asyncdata.runtime.stages.rows.results import block_of_results
from asyncdata.runtime.stages.rows.rowwise import RowwiseStage
from asyncdata.runtime.user_code import UserFunction
from asyncdata.workers.calling import explain_call
from asyncdata.workers.failure import as_raisable
from asyncdata.workers.program import generator


class InlineMapStage(RowwiseStage):
    """Calls a plain function for every element of a block."""

    def __init__(
        self,
        label: str,
        upstream: Stage,
        function: UserFunction,
        guard: Guard | None = None,
        most_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(label, upstream, function, guard, most_bytes)

    def _made(self, block: Block, values: list[Any]) -> Block:
        block.release()
        return block_of_results(values, block.origin, block.advance)


class _Call:
    """One element on its way through an async function."""

    __slots__ = ("advance", "done", "error", "origin", "value")

    def __init__(self, origin: Rows, advance: Advance) -> None:
        self.origin = origin
        self.advance = advance
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None


class AsyncMapStage(Stage):
    """Awaits an async function for several elements at a time.

    Args:
        label: The stage's name.
        upstream: The input.
        function: The user's coroutine function.
        parallelism: Calls awaited at a time; finished results that wait for an earlier one count.
        ordered: Whether results leave in the order of the input.
        setup: Makes an async context manager that is entered before the first call and left at the end.
        sources: For naming the element that failed.
        spawn: Starts a task of the pipeline.
        keys: Key of the random generators, when the function takes one.
        depth: Of the function's step in the plan.
        guard: Says whether an element may fail; None lets none.
    """

    def __init__(
        self,
        label: str,
        upstream: Stage,
        function: Callable[..., Coroutine[Any, Any, Any]],
        *,
        parallelism: int,
        ordered: bool,
        setup: Callable[[], AbstractAsyncContextManager[Any]] | None,
        sources: SourceTable,
        spawn: Spawn,
        keys: tuple[int, int] | None = None,
        depth: int = 0,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._function = function
        self._parallelism = parallelism
        self._ordered = ordered
        self._setup = setup
        self._entered: AbstractAsyncContextManager[Any] | None = None
        self._resources: tuple[Any, ...] = ()
        self._sources = sources
        self._spawn = spawn
        self._keys = keys
        self._depth = depth
        self._guard = guard
        self._calls: deque[_Call] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._feeder: asyncio.Task[None] | None = None
        self._block: Block | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._pause = Pause()

    # --- calling -----------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        try:
            if self._setup is not None:
                manager = self._setup()
                with Outside():
                    self._resources = (await manager.__aenter__(),)
                self._entered = manager
            while True:
                await self._wait_for_room()
                await self._pause()
                self._block = await self._upstream.pull(min(BLOCK_ROWS, self._parallelism))
                if self._block is None:
                    break
                await self._begin_all(self._block)
                block, self._block = self._block, None
                block.release()
        except BaseException as error:  # noqa: BLE001 -- raised by the pull that reaches this point
            self._error = _raisable(error)
        finally:
            self._ended = True
            self._news.set()

    async def _wait_for_room(self) -> None:
        while len(self._calls) >= self._parallelism:
            self._room.clear()
            await self._room.wait()

    async def _begin_all(self, block: Block) -> None:
        rest = block.advance
        for row in range(len(block)):
            await self._wait_for_room()
            advance, rest = rest.split(1)
            call = _Call(block.origin[row : row + 1], advance)
            self._calls.append(call)
            task = self._spawn(self._run(call, block.element(row)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if rest.has_news:
            news = _Call(NO_ORIGINS, rest)
            news.done = True
            self._calls.append(news)
            self._news.set()

    async def _run(self, call: _Call, element: Any) -> None:
        arguments = element if type(element) is tuple else (element,)
        named: dict[str, Any] = {}
        try:
            if self._keys is not None:
                named["rng"] = generator(self._keys, call.origin[0], self._depth)
            with Outside():
                call.value = await self._function(*arguments, *self._resources, **named)
        except BaseException as error:  # noqa: BLE001 -- raised by the pull that delivers this element
            explain_call(error, self._function, (*arguments, *self._resources), named)
            call.error = _raisable(error)
            self._sources.locate(call.error, self.label, call.origin[0])
        call.done = True
        self._news.set()

    # --- delivering --------------------------------------------------------------------------------------------

    async def pull(self, limit: int) -> Block | None:
        if self._feeder is None:
            self._feeder = self._spawn(self._feed())
        while True:
            ready = self._ready(limit)
            if ready:
                self._room.set()
                return self._block_of(ready)
            if self._calls and self._calls[0].error is not None:
                self._leave_out(self._calls[0])
                continue
            if self._ended and not self._calls:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()

    def _ready(self, limit: int) -> list[_Call]:
        """Takes finished calls out of the list; a failed one stays at its head once those before it are delivered."""
        ready: list[_Call] = []
        if self._ordered:
            while self._calls and self._calls[0].done and self._calls[0].error is None and len(ready) < limit:
                ready.append(self._calls.popleft())
            return ready
        ready = [call for call in self._calls if call.done and call.error is None][:limit]
        for call in ready:
            self._calls.remove(call)
        failed = next((call for call in self._calls if call.error is not None), None)
        if failed is not None:
            self._calls.remove(failed)
            self._calls.appendleft(failed)
        return ready

    def _leave_out(self, call: _Call) -> None:
        """An element that failed becomes the news that it is used up; raises if it may not fail."""
        error = call.error
        assert error is not None
        over = error if self._guard is None else self._guard.skip(error, call.origin[0])
        if over is not None:
            raise over
        call.error = None
        call.advance = call.advance.select(np.empty(0, np.int64))
        call.origin = NO_ORIGINS

    def _block_of(self, calls: list[_Call]) -> Block:
        values = [call.value for call in calls if len(call.origin)]
        if self._guard is not None:
            self._guard.passed(len(values))
        advance = Advance.concat([call.advance for call in calls])
        if not values:
            return Block.empty(advance)
        return block_of_results(values, np.concatenate([call.origin for call in calls]), advance)

    async def aclose(self) -> None:
        tasks = [*self._tasks, *([self._feeder] if self._feeder is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._calls.clear()
        if self._block is not None:
            self._block.release()
            self._block = None
        try:
            if self._entered is not None:
                manager, self._entered = self._entered, None
                await manager.__aexit__(None, None, None)
        finally:
            await super().aclose()


def _raisable(error: BaseException) -> Exception:
    """What a pull raises for an error of a task of the stage; a cancellation by the pipeline goes on at once.

    A function may also raise ``CancelledError`` of its own accord, by awaiting something that was cancelled: this is an
    error like any other.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    return as_raisable(error)
