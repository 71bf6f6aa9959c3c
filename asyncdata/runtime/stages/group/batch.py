"""`batch`: consecutive elements stacked, leaf by leaf, into slabs.

A finished batch lies in one slab, laid out by `memory.layout`: an array per leaf, or for byte strings a table of
references whose payloads stay where they are. Several small batches share a slab; each begins on its own boundary.
Batches of byte strings become arrays of objects when they are batched again; these are ordinary Python memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column, ObjectColumn, RefColumn
from asyncdata.memory.layout import plan_layout, refuse_ragged
from asyncdata.memory.leaf import rows_in
from asyncdata.memory.structure import leaf_names
from asyncdata.memory.wire import aligned
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.group.collecting import CollectingStage
from asyncdata.runtime.stages.group.stacking import (
    Misfit,
    Payloads,
    Pieces,
    Referred,
    Stack,
    Texts,
    halved,
    stack_of,
    structured,
)

_SLAB_TARGET: Final = 1 << 18
"""Small batches share slabs of about this size."""

_JOINED: Final = 1 << 15
"""Byte strings and small arrays are written in pieces of about so many bytes."""

_SMALL_PIECE: Final = 1024
"""Arrays of up to so many bytes are small."""


class BatchStage(CollectingStage):
    """See the module's docstring; the batches of one pull are of one size.

    Args:
        context: What every stage is given.
        upstream: The input.
        sizes: Elements of the batches, in turn.
        drop_remainder: Whether a last batch that is smaller than its size is left out.
        narrow: Whether numbers of 64 bits are written in 32, see `memory.narrow`.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        sizes: Sequence[int],
        *,
        drop_remainder: bool,
        narrow: bool = False,
    ) -> None:
        super().__init__(context, upstream, sizes, drop_remainder=drop_remainder)
        self._narrow = narrow

    async def _make(self, limit: int) -> Block:
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
        nests = waiting.block.has_nests
        count = 1 if nests else min(limit, len(waiting.stops))
        stacks = None
        block = waiting.block
        while stacks is None:
            try:
                if nests:
                    block = structured(block.split(size)[0])
                stacks = _stacks(block, waiting.stops[count - 1], size, narrow=self._narrow)
            except Misfit as misfit:
                count = misfit.row // size
                if not count:
                    self.context.sources.locate(misfit.error, self.label, block.origin[misfit.row])
                    raise misfit.error from misfit.error.__cause__
        self._now, self._waiting = waiting, None
        if count < len(waiting.stops):
            self._now, self._waiting = waiting.split(count)
        if nests:
            rows = self._now.block
            self._now = self._now._replace(block=Block(block.structure, block.columns, rows.origin, rows.advance))
        return stacks

    # --- writing -----------------------------------------------------------------------------------------------

    async def _write(self, block: Block, stacks: list[Stack], count: int, size: int) -> tuple[Column, ...]:
        slabs = self._budget.slabs
        stored = [stack for stack in stacks if not isinstance(stack, Texts)]
        layout = plan_layout(block.structure, [given.leaf for given in stored])
        step = aligned(layout.nbytes)
        copied = [len(item) for stack in stacks if isinstance(stack, Payloads) for item in stack.items]
        # One byte more than the payloads, so that an empty one at the end begins inside the slab too.
        extra = sum(copied) + 1 if copied else 0
        self._most = max(1, min(BLOCK_ROWS, _SLAB_TARGET // (step + extra // count)))
        moved = self._budget.moved
        slab = self._slab = await self._budget.take(self._account, count * step + extra)
        if self._budget.moved != moved:
            stacks = _stacks(block, count * size, size, narrow=self._narrow)
            stored = [stack for stack in stacks if not isinstance(stack, Texts)]
        free = slab.offset + count * step
        for given, offset in zip(stored, layout.offsets, strict=True):
            part = rows_in(slabs.arena.array, slab.offset + offset, step, count, given.leaf)
            if isinstance(given, Pieces):
                await self._write_pieces(part, given.rows, size)
            elif isinstance(given, Payloads):
                table, free = await self._write_payloads(given.items, free)
                part[...] = table.reshape(part.shape)
            else:
                part[...] = (given.table if isinstance(given, Referred) else given.array).reshape(part.shape)
        # Nothing waits or fails from here on: the holds change hands.
        columns: list[Column] = []
        offsets = iter(layout.offsets)
        for column, stack in zip(block.columns, stacks, strict=True):
            if not isinstance(stack, Referred):
                column.release()
            if isinstance(stack, Texts):
                columns.append(ObjectColumn(list(stack.batches)))
                continue
            offset = next(offsets)
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

    async def _write_pieces(self, part: npt.NDArray[Any], pieces: list[npt.NDArray[Any]], size: int) -> None:
        """Copies a row after the other; small ones are joined first: one copy more, and nothing else to do for each."""
        row_bytes = pieces[0].nbytes
        several = _JOINED // max(row_bytes, 1) if row_bytes <= _SMALL_PIECE else 1
        for batch, start in enumerate(range(0, len(pieces), size)):
            for row in range(0, size, several):
                rows = part[batch, row : row + several]
                if several > 1:
                    joined = np.concatenate(pieces[start + row : start + row + len(rows)], axis=None)
                    rows[...] = joined.reshape(rows.shape)
                else:
                    rows[0] = pieces[start + row]
                await self._pause()

    async def _write_payloads(self, items: list[bytes], at: int) -> tuple[Rows, int]:
        view = self._budget.slabs.arena.view
        table = np.empty((len(items), 2), np.int64)
        table[:, 1] = list(map(len, items))
        ends = np.cumsum(table[:, 1]) + at
        table[:, 0] = ends - table[:, 1]
        # Small ones are joined first: one copy more, and nothing else to do for each.
        several = max(_JOINED * len(items) // max(int(ends[-1]) - at, 1), 1)
        for begin in range(0, len(items), several):
            joined = items[begin] if several == 1 else b"".join(items[begin : begin + several])
            view[at : at + len(joined)] = joined
            at += len(joined)
            await self._pause()
        return table, at


def _stacks(block: Block, rows: int, size: int, *, narrow: bool) -> list[Stack]:
    """How the first `rows` elements are stacked, leaf by leaf."""
    stacks = []
    try:
        refuse_ragged(block.structure)
    except UnbatchableError as error:
        raise Misfit(0, error) from error
    for column, name in zip(block.columns, leaf_names(block.structure), strict=True):
        try:
            stack = stack_of(column.split(rows)[0], size)
            stacks.append(halved(stack) if narrow else stack)
        except Misfit as misfit:
            misfit.error.complete(leaf=name or None)
            raise
    return stacks
