"""`batch`: consecutive elements stacked, leaf by leaf, into slabs.

A finished batch lies in one slab, laid out by `memory.layout`: an array per leaf, or for byte strings a table of
references whose payloads stay where they are. Several small batches share a slab; each begins on its own boundary.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.errors import AsyncdataError
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Fold, Mark, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column, RefColumn
from asyncdata.memory.layout import plan_layout
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.slabs import Slab
from asyncdata.memory.structure import leaf_names
from asyncdata.memory.wire import aligned
from asyncdata.runtime.budget import Budget
from asyncdata.runtime.sourcetable import SourceTable
from asyncdata.runtime.stage import BLOCK_ROWS, Pause, Stage
from asyncdata.runtime.stages.stacking import (
    Kept,
    Misfit,
    Payloads,
    Pieces,
    Stack,
    has_nests,
    stack_of,
    structured,
)
from asyncdata.workers.failure import annotate

_SLAB_TARGET: Final = 1 << 18
"""Small batches share slabs of about this size."""


class Collected(NamedTuple):
    """Rows of some batches.

    Attributes:
        block: The rows.
        stops: Where each batch ends.
        marks: Of the batches.
    """

    block: Block
    stops: list[int]
    marks: tuple[tuple[int, Mark], ...]

    def split(self, batches: int) -> tuple[Collected, Collected]:
        """The first so many batches and the rest."""
        cut = self.stops[batches - 1]
        head, tail = self.block.split(cut)
        return (
            Collected(head, self.stops[:batches], tuple(mark for mark in self.marks if mark[0] < batches)),
            Collected(
                tail,
                [stop - cut for stop in self.stops[batches:]],
                tuple((j - batches, mark) for j, mark in self.marks if j >= batches),
            ),
        )


class Collector:
    """Input rows on their way to becoming batches, with the state at every batch's border.

    Args:
        upstream: The input.
        size: Elements of a batch.
        drop_remainder: Whether a last, smaller batch is left out.
    """

    def __init__(self, upstream: Stage, size: int, *, drop_remainder: bool) -> None:
        self._upstream = upstream
        self._size = size
        self._drop = drop_remainder
        self._parts: list[Block] = []
        self._rows = 0
        self._ended = False
        self._fold = Fold()
        self._batches = 0
        self._pause = Pause()

    async def collect(self, most: int) -> Collected | None:
        """Rows for 1 to `most` batches; None at the end.

        Elements that are left out at the end give a last block without rows: they have been used up.
        """
        while self._rows < self._size and not self._ended:
            await self._pause()
            want = self._size * most - self._rows
            block = await self._upstream.pull(min(max(want, 1), max(BLOCK_ROWS, self._size)))
            if block is None:
                self._ended = True
            else:
                self._parts.append(block)
                self._rows += len(block)
        if not self._parts:
            return None
        joined, self._parts = Block.concat(self._parts), []
        count = min(self._rows // self._size, most)
        rows = count * self._size or (0 if self._drop else self._rows)
        if not rows:
            self._rows = 0
            return Collected(joined.select(np.empty(0, np.int64)), [], ())
        stops = list(range(self._size, rows + 1, self._size)) or [rows]
        if rows < len(joined):
            joined, rest = joined.split(rows)
            self._parts = [rest]
        self._rows -= rows
        marks = tuple(
            (j, {"batch": self._batches + j, "input": self._fold.at(joined.advance, j * self._size)})
            for j in range(len(stops))
        )
        self._fold.feed(joined.advance)
        self._batches += len(stops)
        return Collected(joined, stops, marks)

    def release(self) -> None:
        """Gives back what has been collected."""
        for part in self._parts:
            part.release()
        self._parts = []
        self._rows = 0


class BatchStage(Stage):
    """See the module's docstring.

    Args:
        label: The stage's name.
        upstream: The input.
        size: Elements of a batch.
        drop_remainder: Whether a last, smaller batch is left out.
        budget: For slabs.
        account: Charged with finished batches.
        rows_account: Of the rows being collected; says when the stage waits for input.
        sources: For naming a record that does not fit.
    """

    def __init__(
        self,
        label: str,
        upstream: Stage,
        size: int,
        *,
        drop_remainder: bool,
        budget: Budget,
        account: Account,
        rows_account: Account,
        sources: SourceTable,
    ) -> None:
        super().__init__(label, (upstream,))
        self._collector = Collector(upstream, size, drop_remainder=drop_remainder)
        self._size = size
        self._budget = budget
        self._account = account
        self._rows_account = rows_account
        self._sources = sources
        self._waiting: Collected | None = None
        self._now: Collected | None = None
        self._slab: Slab | None = None
        self._most = 1
        self._pause = Pause()

    async def pull(self, limit: int) -> Block | None:
        if self._waiting is None:
            # Said once: also when nobody asks for a batch, what is collected gives nothing back by itself.
            self._budget.wait(self._rows_account)
            self._waiting = await self._collector.collect(min(limit, self._most))
        if self._waiting is None:
            return None
        if not self._waiting.stops:
            news, self._waiting = self._waiting.block, None
            return news
        stacks = self._choose(limit)
        assert self._now is not None
        block, stops, marks = self._now
        columns = await self._write(block, stacks, len(stops), stops[0])
        self._now = None
        starts = np.arange(0, stops[-1], stops[0])
        return Block(block.structure, columns, block.origin[starts], block.advance.group(stops, marks))

    # --- planning ----------------------------------------------------------------------------------------------

    def _choose(self, limit: int) -> list[Stack]:
        """Moves as many batches as are alike from `_waiting` to `_now`."""
        waiting = self._waiting
        assert waiting is not None
        size = waiting.stops[0]
        nests = has_nests(waiting.block)
        count = 1 if nests else min(limit, len(waiting.stops))
        stacks = None
        while stacks is None:
            block = waiting.block
            try:
                if nests:
                    block = structured(block.split(size)[0])
                stacks = _stacks(block, waiting.stops[count - 1], size)
            except Misfit as misfit:
                count = misfit.row // size
                if not count:
                    if isinstance(misfit.error, AsyncdataError):
                        misfit.error.stage = self.label
                    annotate(misfit.error, f"in {self.label}, {self._sources.name_element(block.origin[misfit.row])}")
                    raise misfit.error from misfit.error.__cause__
        self._now, self._waiting = waiting, None
        if count < len(waiting.stops):
            self._now, self._waiting = waiting.split(count)
        if nests:
            self._now = self._now._replace(block=structured(self._now.block))
        return stacks

    # --- writing -----------------------------------------------------------------------------------------------

    async def _write(self, block: Block, stacks: list[Stack], count: int, size: int) -> tuple[Column, ...]:
        slabs = self._budget.slabs
        layout = plan_layout(block.structure, [stack.leaf for stack in stacks])
        step = aligned(layout.nbytes)
        copied = [len(item) for stack in stacks if isinstance(stack, Payloads) for item in stack.items]
        # One byte more than the payloads, so that an empty one at the end begins inside the slab too.
        extra = sum(copied) + 1 if copied else 0
        self._most = max(1, min(BLOCK_ROWS, _SLAB_TARGET // (step + extra // count)))
        slab = self._slab = await self._budget.take(self._account, count * step + extra)
        free = slab.offset + count * step
        for stack, offset in zip(stacks, layout.offsets, strict=True):
            part = _part(slabs.arena.array, slab.offset + offset, step, count, stack.leaf)
            if isinstance(stack, Pieces):
                for row, piece in enumerate(stack.rows):
                    part[row // size, row % size] = piece
                    await self._pause()
            elif isinstance(stack, Payloads):
                table, free = await self._write_payloads(stack.items, free)
                part[...] = table.reshape(part.shape)
            else:
                part[...] = (stack.table if isinstance(stack, Kept) else stack.array).reshape(part.shape)
        # Nothing waits or fails from here on: the holds change hands.
        columns = []
        for column, stack, offset in zip(block.columns, stacks, layout.offsets, strict=True):
            if not isinstance(stack, Kept):
                column.release()
            if isinstance(stack, Payloads):
                slabs.hold_rows(np.full(len(stack.items), slab.offset, np.int64))
            rows = np.empty((count, 2), np.int64)
            rows[:, 0] = slab.offset + offset + np.arange(count) * step
            rows[:, 1] = stack.leaf.nbytes
            slabs.hold_rows(rows[:, 0])
            columns.append(RefColumn(slabs, rows, stack.leaf))
        self._slab = None
        slabs.drop(slab)
        return tuple(columns)

    async def _write_payloads(self, items: list[bytes], at: int) -> tuple[Rows, int]:
        view = self._budget.slabs.arena.view
        table = np.empty((len(items), 2), np.int64)
        for row, item in enumerate(items):
            table[row] = at, len(item)
            view[at : at + len(item)] = item
            at += len(item)
            await self._pause()
        return table, at

    async def aclose(self) -> None:
        self._collector.release()
        for collected in (self._waiting, self._now):
            if collected is not None:
                collected.block.release()
        self._waiting = self._now = None
        if self._slab is not None:
            self._budget.slabs.drop(self._slab)
            self._slab = None
        await super().aclose()


def _stacks(block: Block, rows: int, size: int) -> list[Stack]:
    """How the first `rows` elements are stacked, leaf by leaf."""
    stacks = []
    for column, name in zip(block.columns, leaf_names(block.structure), strict=True):
        try:
            stacks.append(stack_of(column.split(rows)[0], size))
        except Misfit as misfit:
            if name:
                annotate(misfit.error, f"leaf {name!r}")
            raise
    return stacks


def _part(arena: npt.NDArray[np.uint8], offset: int, step: int, count: int, leaf: Leaf) -> npt.NDArray[Any]:
    """One leaf of `count` batches that lie `step` bytes apart, as one array."""
    dtype = np.dtype(np.int64) if leaf.kind == "table" else np.dtype(leaf.dtype)
    shape = (*leaf.shape, 2) if leaf.kind == "table" else leaf.shape
    strides = [dtype.itemsize]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * extent)
    part: npt.NDArray[Any] = np.ndarray((count, *shape), dtype, arena, offset, (step, *strides))
    return part
