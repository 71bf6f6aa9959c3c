"""`group_by_window`: elements are collected per key, and a full window becomes a dataset of the user's making.

    input ─▶ key of each element ─▶ a group per key ─▶ full: reduce(key, window) ─▶ its elements, then the next input

When the input has ended, what is left in the groups is reduced in order of the keys. Rows wait as references, charged
to the stage; while a window is being reduced they are read where they are. A window that user code has kept becomes a
private copy when its turn is over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncdata.errors import PipelineError
from asyncdata.memory.accounts import Foreseen
from asyncdata.memory.advance import Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column, RefColumn
from asyncdata.runtime.memory.evacuate import Evacuator
from asyncdata.runtime.memory.outside_slabs import OutsideSlabs
from asyncdata.runtime.stage import Stage, StageContext, close_all
from asyncdata.runtime.stages.group.materialized import Materialized
from asyncdata.runtime.state.marker import FirstMark
from asyncdata.runtime.user_code import UserFunction, as_int, call_rows, leave_out

_EVACUATE_EVERY = 1024
"""Input rows between two looks at what the groups pin."""

Reduce = Callable[[int, Materialized, int, Rows], Stage]
"""``reduce(key, contents, number of the window, origin of its first element)`` makes the inner dataset's stage."""


@dataclass
class _Group:
    """Rows with one key.

    Attributes:
        size: Elements of a full window.
        parts: Rows of earlier blocks.
        rows: How many.
        fresh: Places of further rows in the current block.
    """

    size: int
    parts: list[Block] = field(default_factory=list)
    rows: int = 0
    fresh: list[int] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.rows + len(self.fresh) >= self.size


class _Window:
    """A window that is being reduced: its rows, and the dataset made of them."""

    def __init__(self, key: int, block: Block) -> None:
        self.key = key
        self.block = block
        self.contents: Materialized | None = Materialized(block.structure, block.columns, block.origin, attached=True)
        self.inner: Stage | None = None

    async def aclose(self) -> None:
        """Ends the dataset and gives the rows back; contents that somebody still refers to become private."""
        if self.inner is not None:
            await self.inner.aclose()
            self.inner = None
        if self.contents is not None:
            kept = weakref.ref(self.contents)
            self.contents = None
            if (contents := kept()) is not None:
                contents.detach()
            self.block.release()


class GroupByWindowStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        key: Gives an element's key.
        window_size: ``window_size(key)`` is asked once per key.
        reduce: Makes the inner dataset of a window; does not start it.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        *,
        key: Callable[..., int],
        window_size: Callable[[int], int],
        reduce: Reduce,
    ) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._key = UserFunction(key, context)
        self._window_size = UserFunction(window_size, context, given="one argument, the key")
        self._reduce = reduce
        self._rows_account = context.rows
        self._evacuate = Evacuator(context.budget, self._rows_account)
        self._outside = OutsideSlabs(context.budget, self._rows_account)
        self._guard = context.guard
        self._sizes: dict[int, int] = {}
        self._groups: dict[int, _Group] = {}
        self._pending: Block | None = None
        self._keys: list[int] = []
        self._at = 0
        self._gone: list[int] = []
        self._error: Exception | None = None
        self._window: _Window | None = None
        self._windows = 0
        self._ended = False
        self._first_mark = FirstMark()
        self._since_evacuation = 0
        self._rows_account.foresee = self._foresee
        context.budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """See `runtime.memory.budget.Holder`: not those of the window that is read now."""
        return [column for group in self._groups.values() for part in group.parts for column in part.columns]

    def _foresee(self) -> Foreseen:
        parts = [part for group in self._groups.values() for part in group.parts]
        sizes = [group.size for group in self._groups.values()]
        if self._window is not None:
            sizes.append(len(self._window.block))
            parts.append(self._window.block)
        nbytes = sum(part.payload_bytes(len(part)) for part in parts) + self._outside.charged_bytes
        return Foreseen(sum(sizes), sum(map(len, parts)), nbytes, max(sizes, default=0))

    async def _pull(self, limit: int) -> Block | None:
        while True:
            await self._pause()
            if self._window is not None:
                block = await self._pull_inner(limit)
                if block is not None:
                    return block
            elif not await self._next_window():
                return None

    # --- the window that is being reduced ----------------------------------------------------------------------

    async def _pull_inner(self, limit: int) -> Block | None:
        """Elements of the current window; None when it has ended."""
        window = self._window
        assert window is not None
        assert window.inner is not None
        block = await window.inner.pull(limit)
        if block is None:
            self._outside.drop(window.block)
            await window.aclose()
            self._window = None
            return None
        marks = self._first_mark.marks(len(block)) if self.ordered else ()
        block.advance = block.advance.with_marks(marks) if self.ordered else block.advance.unordered()
        return block

    async def _next_window(self) -> bool:
        """Makes the next window the current one; False at the end."""
        while True:
            await self._pause()
            if self._block is not None:
                key = self._distribute()
                if key is not None:
                    self._begin(key)
                    return True
                self._put_away()
            elif self._error is not None:
                self._leave_out(self._error)
            elif self._pending is not None:
                self._find_keys()
            elif self._ended:
                if not self._groups:
                    return False
                self._begin(min(self._groups))
                return True
            else:
                await self._read()

    def _begin(self, key: int) -> None:
        group = self._groups.pop(key)
        parts = group.parts
        if group.fresh:
            parts.append(self._pick(group.fresh))
        self._window = window = _Window(key, Block.concat(parts))
        number, self._windows = self._windows, self._windows + 1
        assert window.contents is not None
        window.inner = self._reduce(key, window.contents, number, window.block.origin[0])

    # --- input -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        if self._since_evacuation >= _EVACUATE_EVERY:
            self._since_evacuation = 0
            parts = [part for group in self._groups.values() for part in group.parts]
            await self._evacuate([c for part in parts for c in part.columns if isinstance(c, RefColumn)])
        block = await self._upstream.pull(_EVACUATE_EVERY)
        if block is None:
            self._ended = True
            return
        if block.advance.ordered:
            self._first_mark.feed(block.advance)
        if len(block):
            self._pending = block
            self._since_evacuation += len(block)
            await self._outside.add(block)

    def _leave_out(self, error: Exception) -> None:
        """Goes on without the element for which the key function failed, or raises its error."""
        assert self._pending is not None
        self._outside.drop(self._pending)
        _, rest = leave_out(self._pending, error, self._guard)
        self._outside.put_back(rest)
        self._error = None
        self._pending = rest if len(rest) else None

    def _find_keys(self) -> None:
        """Asks for the keys of some rows that were read; an error is raised when those before it are reduced."""
        block = self._pending
        assert block is not None
        keys, self._error = call_rows(self._key, block, len(block))
        if self._guard is not None:
            self._guard.passed(len(keys))
        self._pending = None
        if len(keys) < len(block):
            block, self._pending = block.split(len(keys)) if keys else (block, block)
        if keys:
            self._block, self._keys, self._at, self._gone = block, keys, 0, []

    def _distribute(self) -> int | None:
        """Puts rows into their groups until one is full: its key; None at the end of the block."""
        assert self._block is not None
        groups, sizes, origin = self._groups, self._sizes, self._block.origin
        for row in range(self._at, len(self._keys)):
            key = self._keys[row]
            group = groups.get(key)
            if group is None:
                if key not in sizes:
                    sizes[key] = self._window_size.answer(key, origin[row], self._as_size)
                group = groups[key] = _Group(sizes[key])
            group.fresh.append(row)
            if group.is_full:
                self._at = row + 1
                return key
        self._at = len(self._keys)
        return None

    def _as_size(self, answer: Any) -> int:
        size = as_int(answer, "window_size_func")
        if size < 1:
            raise PipelineError(f"a window must hold at least 1 element, not {size}", stage=self.label)
        return size

    def _pick(self, rows: list[int]) -> Block:
        """Some rows of the current block, which move out of it."""
        assert self._block is not None
        self._gone += rows
        index = np.array(rows, np.int64)
        columns = tuple(column.pick(index) for column in self._block.columns)
        return Block(self._block.structure, columns, self._block.origin[index], Advance(len(index)))

    def _put_away(self) -> None:
        """The block is used up: its rows stay in their groups."""
        assert self._block is not None
        for group in self._groups.values():
            if group.fresh:
                group.parts.append(self._pick(group.fresh))
                group.rows += len(group.fresh)
                group.fresh = []
        self._block = None

    @property
    def ordered(self) -> bool:
        """When the input is, and what is made of the current window."""
        window = self._window
        return super().ordered and (window is None or window.inner is None or window.inner.ordered)

    @property
    def draining(self) -> bool:
        """When no window is left to begin, and the current one drains."""
        if not self._ended or self._groups:
            return False
        return self._window is None or self._window.inner is None or self._window.inner.draining

    async def aclose(self) -> None:
        self._retire()
        if self._pending is not None:
            self._pending.release()
            self._pending = None
        if self._block is not None:
            stay = np.ones(len(self._block), bool)
            stay[self._gone] = False
            for column in self._block.columns:
                column.pick(np.flatnonzero(stay)).release()
            self._block = None
        for group in self._groups.values():
            for part in group.parts:
                part.release()
        self._groups.clear()
        self._outside.close()
        window = self._window
        try:
            if window is not None:
                await window.aclose()
        finally:
            await close_all(self.inputs)
        self._window = None
        self._ended = True
