"""`map` on the stage loop: plain functions called one after the other, async ones awaited several at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import numpy as np

from asyncdata.memory.advance import NO_ORIGINS, Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn
from asyncdata.memory.own import settled
from asyncdata.memory.returned import returned, returned_nest
from asyncdata.memory.structure import element_bytes
from asyncdata.runtime.memory.activity import Outside
from asyncdata.runtime.meter import Timed
from asyncdata.runtime.stage import BLOCK_ROWS, Ahead, Stage, StageContext, cancelled_task, is_ended_by_pipeline
from asyncdata.runtime.stages.rows.rowwise import RowwiseStage
from asyncdata.runtime.stages.sources.arrays import block_of_elements
from asyncdata.runtime.tuning.knob import Knob, as_knob
from asyncdata.runtime.user_code import UserFunction
from asyncdata.types import Element
from asyncdata.workers.calling import as_element, explain_call
from asyncdata.workers.failure import annotate, as_raisable
from asyncdata.workers.program import generator

_CALLS_PER_SAMPLE: Final = 16
"""Of all calls, those whose elements and results are measured."""


class InlineMapStage(RowwiseStage):
    """Calls a plain function for every element of a block.

    Args:
        context: What every stage is given.
        upstream: The input.
        function: The user's.
        keys: Key of the random generators, when the function takes one.
        depth: Of the function's step in the plan.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        function: Callable[..., Any],
        keys: tuple[int, int] | None = None,
        depth: int = 0,
    ) -> None:
        super().__init__(context, upstream)
        self._function = UserFunction(function, context, keys, depth)

    def _call(self, element: Element, origin: Rows) -> Any:
        return self._function.element(element, origin)

    def _made(self, block: Block, values: list[Any]) -> Block:
        block.release()
        return block_of_results(values, block.origin, block.advance)


class _Call:
    """One element on its way through an async function."""

    __slots__ = ("advance", "done", "error", "origin", "row", "value")

    def __init__(self, origin: Rows, advance: Advance, row: int = -1) -> None:
        self.row = row
        self.origin = origin
        self.advance = advance
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    def is_good(self) -> bool:
        """Whether it has returned."""
        return self.done and self.error is None


class AsyncMapStage(Stage):
    """Awaits an async function for several elements at a time.

    Args:
        context: What every stage is given; results leave in the order of the input, or as they are ready.
        upstream: The input.
        function: The user's coroutine function.
        parallelism: Calls awaited at a time; finished results that wait for an earlier one count.
        setup: Makes an async context manager that is entered before the first call and left at the end.
        keys: Key of the random generators, when the function takes one.
        depth: Of the function's step in the plan.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        function: Callable[..., Coroutine[Any, Any, Any]],
        *,
        parallelism: int | Knob,
        setup: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        keys: tuple[int, int] | None = None,
        depth: int = 0,
    ) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._function = function
        self._parallelism = as_knob(parallelism)
        self._setup = setup
        self._entered: AbstractAsyncContextManager[Any] | None = None
        self._resources: tuple[Any, ...] = ()
        self._keys = keys
        self._depth = depth
        self._guard = context.guard
        self._ahead: Ahead[_Call] = Ahead(context, self._fill)
        self._calls = self._ahead.items
        self._tasks: set[asyncio.Task[None]] = set()
        context.meter.runs, context.meter.parallel = "coroutine", self._parallelism.value
        self._rows = 0

    @property
    def ordered(self) -> bool:
        """Where results leave in the order of the input."""
        return self.context.ordered and super().ordered

    # --- calling -----------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        if self._setup is not None:
            try:
                manager = self._setup()
                with Outside():
                    self._resources = (await manager.__aenter__(),)
            except BaseException as error:
                annotate(error, f"in {self.label}, entering the async context manager that setup= returns")
                raise
            self._entered = manager
        while True:
            await self._ahead.room(self._is_full, self._is_ready)
            await self._pause()
            self._block = await self._upstream.pull(min(BLOCK_ROWS, self._parallelism.value))
            if self._block is None:
                return
            await self._begin_all(self._block)
            block, self._block = self._block, None
            block.release()

    def _is_full(self) -> bool:
        return len(self._calls) >= self._parallelism.value

    async def _begin_all(self, block: Block) -> None:
        rest = block.advance
        for row in range(len(block)):
            await self._ahead.room(self._is_full, self._is_ready)
            advance, rest = rest.split(1)
            call = _Call(block.origin[row : row + 1], advance, self._rows)
            self._rows += 1
            self._calls.append(call)
            task = self.context.spawn(self._run(call, block.private(row)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if rest.has_news:
            news = _Call(NO_ORIGINS, rest)
            news.done = True
            self._ahead.put(news)

    async def _run(self, call: _Call, element: Any) -> None:
        arguments = element if type(element) is tuple else (element,)
        named: dict[str, Any] = {}
        try:
            if self._keys is not None:
                named["rng"] = generator(self._keys, call.origin[0], self._depth)
            with Outside():
                value = await Timed(self._function(*arguments, *self._resources, **named), self.context.meter)
            as_element(value)
            call.value = settled(value)
        except BaseException as error:
            explain_call(error, self._function, (*arguments, *self._resources), named)
            ended = is_ended_by_pipeline(error)
            call.error = cancelled_task() if ended else as_raisable(_as_raised(error))
            self.context.sources.locate(call.error, self.label, call.origin[0])
            if ended:
                raise
        finally:
            call.done = True
            self._ahead.tell()
        if self._parallelism.done % _CALLS_PER_SAMPLE == 0:
            self._parallelism.bytes_each = element_bytes(element) + element_bytes(call.value)
        self._parallelism.done += 1

    # --- delivering --------------------------------------------------------------------------------------------

    async def _pull(self, limit: int) -> Block | None:
        while await self._ahead.wait(self._is_ready):
            ready = self._ready(limit)
            if ready:
                self._ahead.begin()
                return self._block_of(ready)
            self._leave_out(self._calls[0])
        return None

    def _is_ready(self) -> bool:
        if self.context.ordered:
            return len(self._calls) > 0 and self._calls[0].done
        return any(call.done for call in self._calls)

    def _ready(self, limit: int) -> list[_Call]:
        """Takes finished calls out of the list; a failed one stays at its head once those before it are delivered."""
        if self.context.ordered:
            ready = self._first(itertools.takewhile(_Call.is_good, self._calls), limit)
            for _ in ready:
                self._calls.popleft()
            return ready
        ready = self._first(filter(_Call.is_good, self._calls), limit)
        for call in ready:
            self._calls.remove(call)
        if self.context.choices is not None and not self.context.ordered:
            self.context.choices.note([(call.row, 1) for call in ready if call.row >= 0])
        failed = next((call for call in self._calls if call.error is not None), None)
        if failed is not None:
            self._calls.remove(failed)
            self._calls.appendleft(failed)
        return ready

    def _first(self, calls: Iterable[_Call], limit: int) -> list[_Call]:
        """As many as a block may have: what leaves makes room for other calls, and is in memory that nobody counts."""
        first: list[_Call] = []
        nbytes = 0
        for call in calls:
            first.append(call)
            nbytes += element_bytes(call.value)
            if len(first) == limit or nbytes >= self.context.block_bytes:
                break
        return first

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
        if not self.context.ordered:
            advance = advance.unordered()
        if not values:
            return Block.empty(advance)
        return block_of_results(values, np.concatenate([call.origin for call in calls]), advance)

    async def aclose(self) -> None:
        await self._ahead.aclose()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._calls.clear()
        try:
            if self._entered is not None:
                manager, self._entered = self._entered, None
                await manager.__aexit__(None, None, None)
        finally:
            await super().aclose()


def _as_raised(error: BaseException) -> BaseException:
    """The ``StopIteration`` that a coroutine raised; Python makes a ``RuntimeError`` of it."""
    translated = type(error) is RuntimeError and error.args == ("coroutine raised StopIteration",)
    cause = error.__cause__ if translated else None
    return cause if isinstance(cause, StopIteration) else error


_NUMBERS: Final = frozenset({bool, int, float, complex})
_NUMPY_NUMBERS: Final = frozenset({np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64})
_SETTLED: Final = _NUMPY_NUMBERS | {bytes, str}


def block_of_results(results: list[Any], origin: Rows, advance: Advance) -> Block:
    """As `block_of_elements`, for what a function returned."""
    block = block_of_elements(results, origin, advance)
    columns = tuple(
        column_of_results(column.items) if isinstance(column, ObjectColumn) else column for column in block.columns
    )
    return Block(block.structure, columns, block.origin, block.advance)


def column_of_results(items: list[Any]) -> Column:
    """One leaf of what a function returned."""
    kinds = set(map(type, items))
    if len(kinds) == 1 and kinds <= _NUMPY_NUMBERS:
        return ArrayColumn(np.array(items))
    if len(kinds) == 1 and kinds <= _NUMBERS:
        try:
            return ArrayColumn(np.array(items, np.int64 if int in kinds else kinds.pop()))
        except OverflowError:
            pass
    # Where elements are not alike, each may be a nest.
    if kinds == {np.ndarray}:
        return ObjectColumn([returned(item) if not item.ndim or item.dtype.hasobject else item for item in items])
    return ObjectColumn(items if kinds <= _SETTLED else [returned_nest(item) for item in items])
