"""`unbatch`: the rows of every element's leaves, one after the other.

| leaf of a batch            | becomes                                                                      |
|----------------------------|------------------------------------------------------------------------------|
| array                      | its rows: side by side where they are small, else references into the batch  |
| `BytesArray`               | references to its items, which stay where they are                           |
| `RaggedArray` of one level | an array per row                                                             |
| `RaggedArray` of more      | a RaggedArray of one level less                                              |

Batches that are alike are taken apart together. A row's provenance is its batch's, told apart by the sub-index.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from asyncdata.errors import UnbatchableError
from asyncdata.memory.accounts import Foreseen
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, read_table
from asyncdata.memory.layout import refuse_mapping
from asyncdata.memory.leaf import BYTES, STR, Leaf, rounds_integers
from asyncdata.memory.ragged import RaggedArray
from asyncdata.memory.structure import (
    LEAF,
    DictOf,
    RaggedOf,
    RecordOf,
    Structure,
    TupleOf,
    flatten,
    is_ragged,
    leaf_names,
)
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.wording import kind_of

_SMALL_ROW: Final = 64
"""Rows of up to so many bytes are copied out of the arena: a reference to them would cost as much."""

_SUB_FACTOR: Final = 1_000_003
"""Keeps the sub-indices of batches of batches apart."""


class UnbatchStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: Gives batches.
    """

    def __init__(self, context: StageContext, upstream: Stage) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._rows: Block | None = None
        self._rows_per_batch = 0
        context.rows.foresee = lambda: Foreseen(0, 0, 0, splits=self._rows_per_batch)

    async def _pull(self, limit: int) -> Block | None:
        while self._rows is None:
            await self._pause()
            if self._block is None:
                self._block = await self._upstream.pull(max(1, limit // max(1, self._rows_per_batch)))
                if self._block is None:
                    return None
                if not len(self._block):
                    news, self._block = self._block, None
                    return news
            self._spread()
        rows, self._rows = self._rows, None
        if len(rows) > limit:
            rows, self._rows = rows.split(limit)
        return rows

    def _spread(self) -> None:
        """Takes batches that are alike apart; an error comes after the rows before it."""
        batches = self._block
        assert batches is not None
        rest = None
        if len(batches) > 1 and not _alike(batches):
            batches, rest = batches.split(1)
        self._block = batches
        try:
            self._rows = spread(batches)
        except UnbatchableError as error:
            self.context.sources.locate(error, self.label, batches.origin[0])
            if rest is not None:
                rest.release()
            raise
        self._rows_per_batch = max(1, len(self._rows) // len(batches))
        self._block = rest

    @property
    def draining(self) -> bool:
        """When nothing is left over, and the input drains."""
        return self._rows is None and super().draining

    async def aclose(self) -> None:
        if self._rows is not None:
            self._rows.release()
            self._rows = None
        await super().aclose()


def _alike(block: Block) -> bool:
    """Whether all batches can be taken apart at once: no leaf differs, none is ragged."""
    return not is_ragged(block.structure) and all(
        isinstance(column, ArrayColumn)
        or (isinstance(column, RefColumn) and column.leaf is not None and column.leaf.kind in ("array", "table"))
        for column in block.columns
    )


def spread(block: Block) -> Block:
    """The rows of batches that are alike, or of one batch; releases them.

    Raises:
        UnbatchableError: A leaf has no rows, or not as many as the others. The block is not released.
    """
    structure, columns = block.structure, block.columns
    if structure is LEAF and isinstance(columns[0], ObjectColumn) and len(block) == 1:
        leaves, structure = flatten(columns[0].items[0])
        columns = tuple(ObjectColumn([leaf]) for leaf in leaves)
    lengths = _lengths(structure, columns)
    if not lengths:
        raise UnbatchableError("an element without leaves has no rows to unbatch")
    if len(set(lengths.values())) != 1:
        shown = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise UnbatchableError(f"the leaves of one element have different numbers of rows: {shown}")
    count = next(iter(lengths.values()))
    taken = iter(columns)
    structure, parts = _apart(structure, taken)
    counts = np.full(len(block), count, np.int64)
    origin = np.repeat(block.origin, counts, axis=0)
    origin[:, 2] = (origin[:, 2] * _SUB_FACTOR + np.tile(np.arange(count), len(block))) & 0x7FFF_FFFF_FFFF_FFFF
    return Block(structure, tuple(parts), origin, block.advance.expand(counts))


# --- how many rows a batch has -------------------------------------------------------------------------------------


def _lengths(structure: Structure, columns: tuple[Column, ...]) -> dict[str, int]:
    """Rows of a batch by the name of the leaf; of a RaggedArray, by its outermost splits."""
    names = leaf_names(structure)
    position = 0
    found = {}
    for levels in _levels(structure):
        column = columns[position if not levels else position + 1]
        try:
            found[names[position]] = _length(column) - (1 if levels else 0)
        except UnbatchableError as error:
            error.complete(leaf=names[position] or None)
            raise
        position += 1 + levels
    return found


def _levels(structure: Structure) -> list[int]:
    """Ragged levels of every leaf."""
    if isinstance(structure, TupleOf | DictOf | RecordOf):
        return [levels for child in structure.children for levels in _levels(child)]
    return [structure.levels if isinstance(structure, RaggedOf) else 0]


def _length(column: Column) -> int:
    if isinstance(column, ArrayColumn):
        shape: tuple[int, ...] = column.array.shape[1:]
    elif isinstance(column, RefColumn) and column.leaf_at(0).kind in ("array", "table"):
        shape = column.leaf_at(0).shape
    else:
        value = column.element(0)
        if isinstance(value, BytesArray):
            return len(value)
        refuse_mapping(value)
        if isinstance(value, np.ma.MaskedArray):
            raise UnbatchableError(
                "a masked array cannot be taken apart into rows: its mask would be lost; fill it in map()"
            )
        try:
            shape = np.shape(value) if not isinstance(value, bytes | str) else ()
        except ValueError as error:
            raise UnbatchableError(f"{kind_of(value)} that is no regular array has no rows: {error}") from error
    if not shape:
        raise UnbatchableError("a scalar has no rows: every leaf of the elements must have a first axis")
    return shape[0]


# --- taking apart --------------------------------------------------------------------------------------------------


def _apart(structure: Structure, columns: Any) -> tuple[Structure, list[Column]]:
    """The structure and the columns of the rows."""
    if isinstance(structure, TupleOf | DictOf | RecordOf):
        children = [_apart(child, columns) for child in structure.children]
        nest = dataclasses.replace(structure, children=tuple(s for s, _ in children))
        return nest, [column for _, part in children for column in part]
    if isinstance(structure, RaggedOf):
        return _ragged_apart([next(columns) for _ in range(1 + structure.levels)])
    return LEAF, [_column_apart(next(columns))]


def _column_apart(column: Column) -> Column:
    if isinstance(column, ArrayColumn):
        batches, rows, *shape = column.array.shape
        return _array(column.array.reshape(batches * rows, *shape))
    if isinstance(column, RefColumn) and column.leaf_at(0).kind in ("array", "table"):
        return _refs_apart(column, column.leaf_at(0))
    value = column.element(0)
    column.release()
    if isinstance(value, BytesArray):
        return ObjectColumn(value.tolist())
    array = np.asarray(value)
    return ObjectColumn(list(value)) if rounds_integers(array, value) else _array(array, value)


def _array(array: Any, items: Any = None) -> Column:
    if array.dtype.kind in "OUSTV":
        return ObjectColumn(list(array if items is None else items))
    return ArrayColumn(array)


def _refs_apart(column: RefColumn, leaf: Leaf) -> Column:
    arena = column.slabs.arena.array
    if leaf.kind == "table":
        # The items' holds become those of the rows.
        tables = [read_table(arena, at, leaf.shape[0]).copy() for at in column.rows[:, 0].tolist()]
        column.slabs.drop_rows(column.rows[:, 0])
        return RefColumn(column.slabs, np.concatenate(tables), STR if leaf.text else BYTES)
    count, shape = leaf.shape[0], leaf.shape[1:]
    row = Leaf("array", leaf.dtype, shape)
    if row.nbytes <= _SMALL_ROW:
        parts = [arena[at : at + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape) for at in column.rows[:, 0].tolist()]
        array = np.concatenate(parts)
        column.release()
        return ArrayColumn(array)
    rows = np.empty((len(column), count, 2), np.int64)
    rows[:, :, 0] = column.rows[:, :1] + np.arange(count) * row.nbytes
    rows[:, :, 1] = row.nbytes
    fresh = RefColumn(column.slabs, rows.reshape(-1, 2), row)
    fresh.hold()
    column.release()
    return fresh


def _ragged_apart(columns: list[Column]) -> tuple[Structure, list[Column]]:
    """The rows of one RaggedArray."""
    values, *splits = [column.element(0) for column in columns]
    ragged = RaggedArray.from_nested_row_splits(values, splits)
    for column in columns:
        column.release()
    rows = list(ragged)
    if len(splits) == 1:
        return LEAF, [ObjectColumn(rows)]
    structure = RaggedOf(len(splits) - 1)
    parts: list[list[Any]] = [[] for _ in range(len(splits))]
    for row in rows:
        for leaf, part in zip((row.flat_values, *row.nested_row_splits), parts, strict=True):
            part.append(leaf)
    return structure, [ObjectColumn(part) for part in parts]
