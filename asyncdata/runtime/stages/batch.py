"""`batch`: consecutive elements stacked, leaf by leaf, into slabs.

A finished batch lies in one slab, laid out by `memory.layout`: an array per leaf, or for byte strings a table of
references whose payloads stay where they are. Several small batches share a slab; each begins on its own boundary.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Fold, Mark, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, RefColumn
from asyncdata.memory.layout import Layout, mismatch, parts_of, plan_layout, structure_mismatch, value_leaf
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.slabs import Slab
from asyncdata.memory.structure import leaf_names
from asyncdata.memory.wire import aligned
from asyncdata.runtime.budget import Budget
from asyncdata.runtime.sourcetable import SourceTable
from asyncdata.runtime.stage import BLOCK_ROWS, Stage
from asyncdata.workers.failure import annotate

_SLAB_TARGET: Final = 1 << 18
"""Small batches share slabs of about this size."""


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

    def __len__(self) -> int:
        return self._rows

    async def collect(self, most: int) -> tuple[Block, list[int], tuple[tuple[int, Mark], ...]] | None:
        """Rows for 1 to `most` batches, where each of them ends, and their marks; None at the end."""
        while self._rows < self._size and not self._ended:
            want = self._size * most - self._rows
            block = await self._upstream.pull(min(max(want, 1), max(BLOCK_ROWS, self._size)))
            if block is None:
                self._ended = True
            elif len(block):
                self._add(block)
            else:
                self._parts.append(block)
        if not self._rows or (self._drop and self._rows < self._size):
            self.release()
            return None
        count = min(self._rows // self._size, most)
        rows = count * self._size or self._rows
        joined = self._join(self._parts)
        block, rest = joined.split(rows) if rows < len(joined) else (joined, None)
        self._parts = [] if rest is None else [rest]
        self._rows -= rows
        stops = list(range(self._size, rows + 1, self._size)) or [rows]
        marks = tuple(
            (j, {"batch": self._batches + j, "input": self._fold.at(block.advance, j * self._size)})
            for j in range(len(stops))
        )
        self._fold.feed(block.advance)
        self._batches += len(stops)
        return block, stops, marks

    def _add(self, block: Block) -> None:
        first = next((part for part in self._parts if len(part)), None)
        if first is not None and first.structure != block.structure:
            error = structure_mismatch(first.structure, block.structure, self._rows)
            block.release()
            raise error
        self._parts.append(block)
        self._rows += len(block)

    def _join(self, parts: list[Block]) -> Block:
        return Block.concat(parts)

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
        self._held: Block | None = None
        self._most = 1

    async def pull(self, limit: int) -> Block | None:
        self._budget.wait(self._rows_account)
        try:
            collected = await self._collector.collect(min(limit, self._most))
        finally:
            self._budget.wait(self._rows_account, False)
        if collected is None:
            return None
        block, stops, marks = collected
        self._held = block
        count = len(stops)
        size = stops[0]
        layout, payloads = self._plan(block, size)
        step = aligned(layout.nbytes)
        extra = sum(len(item) for items in payloads for item in items)
        self._most = max(1, min(BLOCK_ROWS, _SLAB_TARGET // max(1, step + extra // count)))
        slab = await self._budget.take(self._account, count * step + extra)
        out = self._write(block, slab, layout, payloads, count, step)
        self._held = None
        self._budget.slabs.drop(slab)
        starts = np.arange(0, count * size, size)
        return Block(block.structure, out, block.origin[starts], block.advance.group(stops, marks))

    def _plan(self, block: Block, size: int) -> tuple[Layout, list[list[bytes]]]:
        """The layout of one batch, and the byte strings that must be copied because they lie nowhere yet."""
        leaves = []
        payloads: list[list[bytes]] = []
        for index, column in enumerate(block.columns):
            leaf, raw = self._leaf(block, index, column, size)
            leaves.append(leaf)
            payloads.append(raw)
        return plan_layout(block.structure, leaves), payloads

    def _leaf(self, block: Block, index: int, column: Column, size: int) -> tuple[Leaf, list[bytes]]:
        if isinstance(column, ArrayColumn):
            if column.array.dtype.kind in "OUS":
                return self._object_leaf(block, index, list(column.array), size)
            return Leaf("array", column.array.dtype.str, (size, *column.array.shape[1:])), []
        if isinstance(column, RefColumn):
            first = column.leaf_at(0)
            if column.leaf is None:
                for row in range(1, len(column)):
                    if column.leaf_at(row) != first:
                        found = _stacked(column.leaf_at(row), size)
                        raise self._misfit(block, index, _stacked(first, size), found, row)
            if first.kind in ("bytes", "str", "array"):
                return _stacked(first, size), []
            return self._object_leaf(block, index, [column.element(i) for i in range(len(column))], size)
        return self._object_leaf(block, index, column.items, size)

    def _object_leaf(self, block: Block, index: int, items: list[Any], size: int) -> tuple[Leaf, list[bytes]]:
        first = value_leaf(items[0], size)
        raw: list[bytes] = []
        for row, item in enumerate(items):
            leaf = value_leaf(item, size)
            if leaf != first:
                raise self._misfit(block, index, first, leaf, row)
            if leaf.kind == "table":
                raw.append(item.encode() if isinstance(item, str) else bytes(item))
        return first, raw

    def _misfit(self, block: Block, index: int, first: Leaf, found: Leaf, row: int) -> UnbatchableError:
        name = leaf_names(block.structure)[index]
        error = mismatch(None, [first], [found], row % self._size)
        if name:
            annotate(error, f"leaf {name!r}")
        annotate(error, f"in {self.label}, {self._sources.name_element(block.origin[row])}")
        return error

    def _write(
        self, block: Block, slab: Slab, layout: Layout, payloads: list[list[bytes]], count: int, step: int
    ) -> tuple[Column, ...]:
        arena = self._budget.slabs.arena.array
        size = layout.leaves[0].shape[0]
        extra = slab.offset + count * step
        out: list[Column] = []
        for index, (column, leaf) in enumerate(zip(block.columns, layout.leaves, strict=True)):
            at = layout.offsets[index]
            starts = slab.offset + at + np.arange(count, dtype=np.int64) * step
            if leaf.kind == "table":
                table, extra = self._table(column, payloads[index], extra)
                _assign(arena, slab.offset, count, step, at, leaf, table.reshape(count, size, 2))
            elif isinstance(column, ArrayColumn) and column.array.dtype.kind not in "OUS":
                shape = (count, *leaf.shape)
                _assign(arena, slab.offset, count, step, at, leaf, column.array.reshape(shape))
            else:
                for j in range(count):
                    part = arena[starts[j] : starts[j] + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
                    _fill(part, arena, column, j * size)
            rows = np.stack((starts, np.full(count, leaf.nbytes, np.int64)), 1)
            # Payloads that stay where they are stay held: their rows have moved into the table.
            if not (leaf.kind == "table" and isinstance(column, RefColumn)):
                column.release()
                self._hold_payloads(leaf, payloads[index], slab)
            self._budget.slabs.hold_rows(starts)
            out.append(RefColumn(self._budget.slabs, rows, leaf))
        return tuple(out)

    def _hold_payloads(self, leaf: Leaf, raw: list[bytes], slab: Slab) -> None:
        """Byte strings that were copied lie in the batch's own slab."""
        if leaf.kind == "table":
            self._budget.slabs.hold_rows(np.full(len(raw), slab.offset, np.int64))

    def _table(self, column: Column, raw: list[bytes], extra: int) -> tuple[Rows, int]:
        if isinstance(column, RefColumn) and not raw:
            return column.rows, extra
        arena = self._budget.slabs.arena.array
        table = np.empty((len(raw), 2), np.int64)
        for row, item in enumerate(raw):
            table[row] = extra, len(item)
            arena[extra : extra + len(item)] = np.frombuffer(item, np.uint8)
            extra += len(item)
        return table, extra

    async def aclose(self) -> None:
        self._collector.release()
        if self._held is not None:
            self._held.release()
            self._held = None
        await super().aclose()


def _stacked(leaf: Leaf, size: int) -> Leaf:
    """What `size` rows of this leaf become as a batch."""
    if leaf.kind == "array":
        return Leaf("array", leaf.dtype, (size, *leaf.shape))
    return Leaf("table", shape=(size,), text=leaf.kind == "str")


def _assign(
    arena: npt.NDArray[np.uint8], base: int, count: int, step: int, at: int, leaf: Leaf, values: npt.NDArray[Any]
) -> None:
    """Writes the leaf of `count` batches, which lie `step` bytes apart, in one assignment."""
    dtype = np.dtype(np.int64) if leaf.kind == "table" else np.dtype(leaf.dtype)
    target: npt.NDArray[Any] = np.ndarray(
        values.shape,
        dtype,
        arena,  # type: ignore[arg-type]  # any buffer will do
        offset=base + at,
        strides=(step, *np.empty(values.shape[1:], dtype).strides) if values.ndim > 1 else (step,),
    )
    target[...] = values


def _fill(part: npt.NDArray[Any], arena: npt.NDArray[np.uint8], column: Column, first: int) -> None:
    """Copies `len(part)` rows into one batch, one by one."""
    if isinstance(column, RefColumn):
        size = part[0].nbytes if len(part) else 0
        flat = part.reshape(len(part), -1).view(np.uint8)
        for row, offset in enumerate(column.rows[first : first + len(part), 0].tolist()):
            flat[row] = arena[offset : offset + size]
        return
    for row in range(len(part)):
        part[row] = column.element(first + row)


