"""`map` on the stage loop: plain functions called one after the other, async ones awaited several at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np

from asyncdata.memory.advance import Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.runtime.sourcetable import SourceTable
from asyncdata.runtime.stage import BLOCK_ROWS, Stage
from asyncdata.runtime.stages.arrays import block_of_elements
from asyncdata.runtime.usercode import UserFunction
from asyncdata.workers.failure import annotate

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class InlineMapStage(Stage):
    """Calls a plain function for every element of a block."""

    def __init__(self, label: str, upstream: Stage, function: UserFunction) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._function = function

    async def pull(self, limit: int) -> Block | None:
        block = await self._upstream.pull(limit)
        if block is None or not len(block):
            return block
        try:
            values = [self._function(block.element(row), block.origin[row]) for row in range(len(block))]
        finally:
            block.release()
        return block_of_elements(values, block.origin, block.advance)


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
    ) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._function = function
        self._parallelism = parallelism
        self._ordered = ordered
        self._setup = setup
        self._entered: AbstractAsyncContextManager[Any] | None = None
        self._resource: Any = None
        self._sources = sources
        self._spawn = spawn
        self._calls: deque[_Call] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._feeder: asyncio.Task[None] | None = None
        self._block: Block | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def _feed(self) -> None:
        try:
            if self._setup is not None:
                manager = self._setup()
                self._resource = await manager.__aenter__()
                self._entered = manager
            while (block := await self._upstream.pull(min(BLOCK_ROWS, self._parallelism))) is not None:
                self._block = block
                if not len(block):
                    self._finished(_Call(block.origin, block.advance))
                for row in range(len(block)):
                    while len(self._calls) >= self._parallelism:
                        self._room.clear()
                        await self._room.wait()
                    self._begin(block, row)
                self._block = None
                block.release()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- raised by the pull that reaches this point
            self._error = error
        finally:
            self._ended = True
            self._news.set()

    def _finished(self, call: _Call) -> None:
        call.done = True
        self._calls.append(call)
        self._news.set()

    def _begin(self, block: Block, row: int) -> None:
        call = _Call(block.origin[row : row + 1], block.advance.split(row)[1].split(1)[0])
        if row == len(block) - 1:
            call.advance = block.advance.split(row)[1]
        self._calls.append(call)
        task = self._spawn(self._run(call, block.element(row)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: _Call, element: Any) -> None:
        try:
            arguments = element if isinstance(element, tuple) else (element,)
            if self._setup is not None:
                call.value = await self._function(*arguments, self._resource)
            else:
                call.value = await self._function(*arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- raised by the pull that delivers this element
            annotate(error, f"in {self.label}, {self._sources.name_element(call.origin[0])}")
            call.error = error
        call.done = True
        self._news.set()

    async def pull(self, limit: int) -> Block | None:
        if self._feeder is None:
            self._feeder = self._spawn(self._feed())
        while True:
            ready = self._ready(limit)
            if ready:
                self._room.set()
                return self._deliver(ready)
            if self._ended and not self._calls:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()

    def _ready(self, limit: int) -> list[_Call]:
        ready: list[_Call] = []
        if self._ordered:
            while self._calls and self._calls[0].done and len(ready) < limit:
                if self._calls[0].error is not None and ready:
                    break
                ready.append(self._calls.popleft())
            return ready
        ready = [call for call in self._calls if call.done][:limit]
        for call in ready:
            self._calls.remove(call)
        return ready

    def _deliver(self, calls: list[_Call]) -> Block:
        for call in calls:
            if call.error is not None:
                raise call.error
        values = [call.value for call in calls if len(call.origin)]
        advance = Advance.concat([call.advance for call in calls])
        if not values:
            return Block.empty(advance)
        return block_of_elements(values, np.concatenate([call.origin for call in calls]), advance)

    async def aclose(self) -> None:
        tasks = [*self._tasks, *([self._feeder] if self._feeder is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._calls.clear()
        if self._block is not None:
            self._block.release()
            self._block = None
        if self._entered is not None:
            manager, self._entered = self._entered, None
            await manager.__aexit__(None, None, None)
        await super().aclose()
