"""Batches of elements that are not alike: the frame of `padded_batch` and `ragged_batch`.

    rows ─▶ Collector ─▶ rows of each batch ─▶ values per leaf ─▶ layout ─▶ one slab of several batches ─▶ references

How a batch is laid out is a pure function of its elements (`padding`, `raggedness`), so the law of any blocking holds
whatever batches share a slab. Batches are small or large; several small ones share a slab, each leaf on a boundary of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column, ObjectColumn, RefColumn
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import Structure, leaf_names
from asyncdata.memory.wire import aligned
from asyncdata.runtime.stage import BLOCK_ROWS, Pause, Stage, StageContext
from asyncdata.runtime.stages.group.collecting import CollectingStage
from asyncdata.runtime.stages.group.materialized import rows_of
from asyncdata.runtime.stages.group.stacking import Misfit, structured
from asyncdata.runtime.stages.group.values import Numbers, Strings, Values, values_of

_SLAB_TARGET: Final = 1 << 18
"""Small batches share slabs of about this size."""

Write: TypeAlias = Callable[[npt.NDArray[Any], Pause], Coroutine[Any, Any, None]]


class Stored(NamedTuple):
    """A leaf of a batch that lies in the slab.

    Attributes:
        leaf: Of the whole batch.
        write: Fills its array.
        payloads: Of a table: byte strings to copy behind it, whose references `write` is not asked for.
        kept: Of a table: references to byte strings that stay where they are.
    """

    leaf: Leaf
    write: Write | None
    payloads: list[bytes] | None = None
    kept: Rows | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the slab, payloads included; one more than these, so that an empty one begins inside."""
        extra = sum(map(len, self.payloads)) + 1 if self.payloads is not None else 0
        return aligned(max(self.leaf.nbytes, 1)) + aligned(extra)


class Loose(NamedTuple):
    """A leaf of a batch that is a Python object."""

    value: Any


Part: TypeAlias = Stored | Loose


class Plan(NamedTuple):
    """One batch: how its leaves nest, and what they are."""

    structure: Structure
    parts: list[Part]

    @property
    def nbytes(self) -> int:
        """Bytes in the slab."""
        return sum(part.nbytes for part in self.parts if isinstance(part, Stored))

    def goes_with(self, other: Plan) -> bool:
        """Whether both batches may stand in one block."""
        return self.structure == other.structure and all(
            type(a) is type(b) for a, b in zip(self.parts, other.parts, strict=True)
        )


Lay: TypeAlias = Callable[[Structure, Sequence[Values]], Plan]


def strings_part(values: Strings) -> Part:
    """Byte strings or texts, one per element (or per value)."""
    count = len(values.items) if values.table is None else len(values.table)
    leaf = Leaf("table", shape=(count,), text=values.text)
    return Stored(leaf, None, values.items if values.table is None else None, values.table)


class Stack:
    """Writes arrays of one shape side by side."""

    def __init__(self, values: Numbers) -> None:
        self._values = values

    async def __call__(self, out: npt.NDArray[Any], pause: Pause) -> None:
        arrays = self._values.arrays
        if isinstance(arrays, np.ndarray):
            out[...] = arrays
        else:
            np.stack(arrays, out=out)
        await pause()


class UnevenBatchStage(CollectingStage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        size: Elements of a batch.
        lay: Says how a batch is laid out.
        drop_remainder: Whether a last, smaller batch is left out.
    """

    def __init__(self, context: StageContext, upstream: Stage, size: int, lay: Lay, *, drop_remainder: bool) -> None:
        super().__init__(context, upstream, (size,), drop_remainder=drop_remainder)
        self._lay = lay

    async def _make(self, limit: int) -> Block:
        plans, parts = await self._plan(limit)
        columns = await self._write(plans, parts)
        assert self._now is not None
        block, stops, marks = self._now
        self._now = None
        starts = np.array([0, *stops[:-1]], np.int64)
        return Block(plans[0].structure, columns, block.origin[starts], block.advance.group(stops, marks))

    # --- planning ----------------------------------------------------------------------------------------------

    async def _plan(self, limit: int) -> tuple[list[Plan], list[tuple[Column, ...]]]:
        """Moves batches that go into one slab from `_waiting` to `_now`; per batch its plan and its input columns."""
        waiting = self._waiting
        assert waiting is not None
        plans: list[Plan] = []
        inputs: list[tuple[Column, ...]] = []
        nbytes = 0
        start = 0
        for stop in waiting.stops[:limit]:
            await self._pause()
            try:
                plan, columns = self._lay_out(waiting.block, start, stop)
            except UnbatchableError:
                if not plans:
                    raise
                break
            if plans and (nbytes + plan.nbytes > _SLAB_TARGET or not plan.goes_with(plans[0])):
                break
            plans.append(plan)
            inputs.append(columns)
            nbytes += plan.nbytes
            start = stop
        self._most = max(1, min(BLOCK_ROWS, _SLAB_TARGET * len(plans) // max(nbytes, 1)))
        self._now, self._waiting = waiting, None
        if len(plans) < len(waiting.stops):
            self._now, self._waiting = waiting.split(len(plans))
        return plans, inputs

    def _lay_out(self, block: Block, start: int, stop: int) -> tuple[Plan, tuple[Column, ...]]:
        rows = slice(start, stop)
        row, structure = 0, block.structure
        values: list[Values] = []
        try:
            columns = tuple(rows_of(column, rows) for column in block.columns)
            part = Block(structure, columns, block.origin[rows], block.advance)
            if part.has_nests:
                part = structured(part)
                structure, columns = part.structure, part.columns
            for column in columns:
                values.append(values_of(column))  # noqa: PERF401 -- the error says at which leaf it was
            return self._lay(structure, values), columns
        except Misfit as misfit:
            row, error = misfit.row, misfit.error
            error.complete(leaf=leaf_names(structure)[len(values)] or None)
        except UnbatchableError as caught:
            error = caught
        self.context.sources.locate(error, self.label, block.origin[start + row])
        raise error

    def _plan_again(self) -> tuple[list[Plan], list[tuple[Column, ...]]]:
        """The same for rows that were moved while memory was waited for."""
        assert self._now is not None
        block, stops, _ = self._now
        found = [self._lay_out(block, start, stop) for start, stop in pairwise((0, *stops))]
        return [plan for plan, _ in found], [columns for _, columns in found]

    # --- writing -----------------------------------------------------------------------------------------------

    async def _write(self, plans: list[Plan], inputs: list[tuple[Column, ...]]) -> tuple[Column, ...]:
        slabs = self._budget.slabs
        total = sum(plan.nbytes for plan in plans)
        slab = None
        if total:
            moved = self._budget.moved
            slab = self._slab = await self._budget.take(self._account, total)
            if self._budget.moved != moved:
                plans, inputs = self._plan_again()
        at = 0 if slab is None else slab.offset
        places: list[list[int]] = []
        for plan in plans:
            offsets = []
            for part in plan.parts:
                offsets.append(at)
                if isinstance(part, Stored):
                    await self._write_part(part, at)
                    at += part.nbytes
            places.append(offsets)
        # Nothing waits or fails from here on: the holds change hands.
        for plan, columns in zip(plans, inputs, strict=True):
            kept = {id(part.kept) for part in plan.parts if isinstance(part, Stored) and part.kept is not None}
            for column in columns:
                if not (isinstance(column, RefColumn) and id(column.rows) in kept):
                    column.release()
            for part in plan.parts:
                if isinstance(part, Stored) and part.payloads and slab is not None:
                    slabs.hold_rows(np.full(len(part.payloads), slab.offset, np.int64))
        out = tuple(self._column(plans, places, index) for index in range(len(plans[0].parts)))
        if slab is not None:
            self._slab = None
            slabs.drop(slab)
        return out

    async def _write_part(self, part: Stored, at: int) -> None:
        arena = self._budget.slabs.arena
        raw = arena.array[at : at + part.leaf.nbytes]
        if part.leaf.kind == "table":
            table = raw.view(np.int64).reshape(part.leaf.shape[0], 2)
            if part.kept is not None:
                table[...] = part.kept
                return
            assert part.payloads is not None
            free = at + aligned(max(part.leaf.nbytes, 1))
            for row, item in enumerate(part.payloads):
                table[row] = free, len(item)
                arena.view[free : free + len(item)] = item
                free += len(item)
                if not row & 63:
                    await self._pause()
            return
        assert part.write is not None
        await part.write(raw.view(part.leaf.dtype).reshape(part.leaf.shape), self._pause)

    def _column(self, plans: list[Plan], places: list[list[int]], index: int) -> Column:
        parts = [plan.parts[index] for plan in plans]
        if isinstance(parts[0], Loose):
            return ObjectColumn([part.value for part in parts if isinstance(part, Loose)])
        leaves = [part.leaf for part in parts if isinstance(part, Stored)]
        rows = np.array([(offsets[index], leaf.nbytes) for offsets, leaf in zip(places, leaves, strict=True)], np.int64)
        self._budget.slabs.hold_rows(rows[:, 0])
        if all(leaf == leaves[0] for leaf in leaves):
            return RefColumn(self._budget.slabs, rows, leaves[0])
        kinds = np.empty(len(leaves), object)
        kinds[:] = leaves
        return RefColumn(self._budget.slabs, rows, None, kinds)
