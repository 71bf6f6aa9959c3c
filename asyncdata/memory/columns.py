"""Columns: one leaf of many elements.

* `RefColumn`: rows of (offset, length) into the arena; the bytes themselves are never touched here.
* `ArrayColumn`: one ndarray whose first axis is the row.
* `ObjectColumn`: a list of Python objects.

One block owns a column. Each row of a `RefColumn` holds its slab once: `split`, `pick`, `put` and `concat` pass the
holds on, `gather` takes new ones for its result, and `release` returns the column's own. Nothing else changes the
counts.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.leaf import Leaf, is_plain, rows_in
from asyncdata.memory.own import own
from asyncdata.memory.slabs import Slabs
from asyncdata.memory.structure import element_bytes

_SMALL_BYTES: Final = 1 << 20
"""So much is copied at once, which nobody counts."""
_SMALL_ROW: Final = 1024
"""Up to so many bytes, a row takes longer to be looked at than to be copied."""


class ArrayColumn:
    """Elements side by side in one array."""

    __slots__ = ("array",)

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.array.nbytes)

    def split(self, row: int) -> tuple[ArrayColumn, ArrayColumn]:
        """The first `row` rows, and the rest."""
        return ArrayColumn(self.array[:row]), ArrayColumn(self.array[row:])

    def gather(self, indices: Rows) -> ArrayColumn:
        """The rows at these indices."""
        return ArrayColumn(self.array.take(indices, axis=0))

    def pick(self, indices: Any) -> ArrayColumn:
        """The rows at these indices (or slice), each of which moves at most once."""
        return ArrayColumn(self.array[indices] if isinstance(indices, slice) else self.array.take(indices, axis=0))

    def put(self, indices: Rows, other: ArrayColumn, rows: Rows) -> None:
        """Rows `rows` of `other` move to `indices`, whose own rows have moved away; `owned` must have been called."""
        self.array[indices] = other.array.take(rows, axis=0)

    def owned(self) -> ArrayColumn:
        """The column in memory of its own, for `put`."""
        return ArrayColumn(self.array.copy())

    def release(self) -> None:
        """Nothing is held."""

    def element(self, row: int) -> Any:
        """One row, for reading only."""
        return self.array[row]

    def private(self, row: int) -> Any:
        """One row as a function is given it."""
        return own(self.array[row])

    def privates(self) -> Iterator[Any]:
        """All rows as a function is given them, each made when its turn comes."""
        is_of_numbers = self.array.ndim == 1 and self.array.dtype.kind != "V" and is_plain(self.array)
        return iter(self.array) if is_of_numbers else map(own, self.array)


class ObjectColumn:
    """Any Python objects."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    @property
    def nbytes(self) -> int:
        """Bytes of arrays, bytes and str, also in lists; 64 for anything else."""
        if set(map(type, self.items)) == {np.ndarray} and not any(item.dtype.hasobject for item in self.items):
            return sum([item.nbytes or 64 for item in self.items])
        return sum([element_bytes(item) or 64 for item in self.items])

    def split(self, row: int) -> tuple[ObjectColumn, ObjectColumn]:
        """The first `row` rows, and the rest."""
        return ObjectColumn(self.items[:row]), ObjectColumn(self.items[row:])

    def gather(self, indices: Rows) -> ObjectColumn:
        """The rows at these indices."""
        items = self.items
        return ObjectColumn([items[i] for i in indices.tolist()])

    def pick(self, indices: Rows) -> ObjectColumn:
        """The rows at these indices, each of which moves at most once."""
        return self.gather(indices)

    def put(self, indices: Rows, other: ObjectColumn, rows: Rows) -> None:
        """Rows `rows` of `other` move to `indices`, whose own rows have moved away."""
        for index, row in zip(indices.tolist(), rows.tolist(), strict=True):
            self.items[index] = other.items[row]

    def owned(self) -> ObjectColumn:
        """The column in a list of its own, for `put`."""
        return ObjectColumn(list(self.items))

    def release(self) -> None:
        """Nothing is held."""

    def element(self, row: int) -> Any:
        """One row, for reading only."""
        return self.items[row]

    def private(self, row: int) -> Any:
        """One row as a function is given it."""
        return own(self.items[row])

    def privates(self) -> Iterator[Any]:
        """All rows as a function is given them, each made when its turn comes."""
        return map(own, self.items)


class RefColumn:
    """References into the arena.

    Attributes:
        slabs: Whose arena it is.
        rows: ``int64[n, 2]``: offset and length in bytes.
        leaf: What every row is, or None when `leaves` says it row by row.
        leaves: Object array of `Leaf`, where rows differ (images of different sizes, a last, smaller batch).
    """

    __slots__ = ("leaf", "leaves", "rows", "slabs")

    def __init__(
        self, slabs: Slabs, rows: Rows, leaf: Leaf | None, leaves: npt.NDArray[np.object_] | None = None
    ) -> None:
        self.slabs = slabs
        self.rows = rows
        self.leaf = leaf
        self.leaves = leaves

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, not of the slabs they pin."""
        if self.leaf is not None and self.leaf.kind == "array":
            return len(self.rows) * self.leaf.nbytes  # a sum of few numbers takes several times as long
        return int(self.rows[:, 1].sum())

    def leaf_at(self, row: int) -> Leaf:
        """What row `row` is."""
        if self.leaf is not None:
            return self.leaf
        assert self.leaves is not None
        leaf: Leaf = self.leaves[row]
        return leaf

    def small_rows(self) -> npt.NDArray[Any] | None:
        """All rows as one array, if they are small arrays of one shape: a view of the arena, or a copy."""
        leaf, offsets = self.leaf, self.rows[:, 0]
        if leaf is None or leaf.kind != "array" or not 0 < leaf.nbytes <= _SMALL_ROW or not len(offsets):
            return None
        arena = self.slabs.arena.array
        steps = np.diff(offsets)
        step = int(steps[0]) if len(steps) else leaf.nbytes
        if step > 0 and (steps == step).all():
            return rows_in(arena, int(offsets[0]), step, len(offsets), leaf)
        if leaf.nbytes % 8 or (offsets % 8).any() or len(offsets) * leaf.nbytes > _SMALL_BYTES:
            return None
        words = arena.view(np.int64)[(offsets >> 3)[:, None] + np.arange(leaf.nbytes >> 3)]
        rows: npt.NDArray[Any] = words.view(leaf.dtype).reshape(len(offsets), *leaf.shape)
        return rows

    def pick(self, indices: Any) -> RefColumn:
        """The rows at these indices (or slice), each of which moves at most once: no hold is taken or given back."""
        leaves = None if self.leaves is None else self.leaves[indices]
        rows = self.rows[indices] if isinstance(indices, slice) else self.rows.take(indices, axis=0)
        return RefColumn(self.slabs, rows, self.leaf, leaves)

    def put(self, indices: Rows, other: RefColumn, rows: Rows) -> None:
        """Rows `rows` of `other` move to `indices`, whose own rows have moved away; leaves must agree (`alike`)."""
        self.rows[indices] = other.rows.take(rows, axis=0)
        if self.leaves is not None and other.leaves is not None:
            self.leaves[indices] = other.leaves[rows]

    def owned(self) -> RefColumn:
        """The column with rows of its own, for `put`."""
        return RefColumn(self.slabs, self.rows.copy(), self.leaf, None if self.leaves is None else self.leaves.copy())

    def with_leaves(self) -> RefColumn:
        """The same rows with a leaf for each."""
        if self.leaves is not None:
            return self
        leaves = np.empty(len(self.rows), object)
        leaves[:] = [self.leaf] * len(self.rows)
        return RefColumn(self.slabs, self.rows, None, leaves)

    def split(self, row: int) -> tuple[RefColumn, RefColumn]:
        """The first `row` rows, and the rest."""
        return self.pick(slice(None, row)), self.pick(slice(row, None))

    def gather(self, indices: Rows) -> RefColumn:
        """The rows at these indices, each holding its slab once more."""
        out = self.pick(indices)
        out.hold()
        return out

    def hold(self) -> None:
        """Adds one hold per row, for new rows or a second reference."""
        self.slabs.hold_rows(self.rows[:, 0])
        for table in self.tables():
            self.slabs.hold_rows(table[:, 0])

    def release(self) -> None:
        """Gives back what the rows hold."""
        for table in self.tables():
            self.slabs.drop_rows(table[:, 0])
        self.slabs.drop_rows(self.rows[:, 0])

    def tables(self) -> list[Rows]:
        """The rows that `table` rows point to, in one array or several."""
        if self.leaf is not None:
            if self.leaf.kind != "table" or not len(self.rows):
                return []
            if len(self.rows) > 1:
                return [read_tables(self.slabs.arena.array, self.rows[:, 0], self.leaf.shape[0])]
        return [
            read_table(self.slabs.arena.array, offset, self.leaf_at(i).shape[0])
            for i, offset in enumerate(self.rows[:, 0].tolist())
            if self.leaf_at(i).kind == "table"
        ]

    def element(self, row: int) -> Any:
        """One row, a private copy."""
        arena, leaf, (offset, length) = self.slabs.arena.array, self.leaf_at(row), self.rows[row].tolist()
        assert not leaf.unchecked, "a payload is read before its checksum is verified"
        return read_leaf(arena, offset, length, leaf)

    private = element
    """One row as a function is given it."""

    def privates(self) -> Iterator[Any]:
        """All rows as a function is given them, each made when its turn comes."""
        return map(self.element, range(len(self)))


Column: TypeAlias = ArrayColumn | ObjectColumn | RefColumn


def read_table(arena: npt.NDArray[np.uint8], offset: int, count: int) -> Rows:
    """The ``int64[count, 2]`` rows of a `table`, as a view of the arena."""
    return arena[offset : offset + 16 * count].view(np.int64).reshape(count, 2)


def read_tables(arena: npt.NDArray[np.uint8], offsets: Rows, count: int) -> Rows:
    """The rows of tables of equal length, end to end, as a copy."""
    first, steps = int(offsets[0]), np.diff(offsets)
    if (steps == steps[0]).all():
        # One behind the other, as batches are written: row by row a plain copy.
        tables = np.ndarray((len(offsets), 2 * count), np.int64, arena, first, (int(steps[0]), 8))
        return tables.copy().reshape(-1, 2)
    rows: Rows = arena.view(np.int64)[(offsets >> 3)[:, None] + np.arange(2 * count)].reshape(-1, 2)
    return rows


def read_leaf(arena: npt.NDArray[np.uint8], offset: int, length: int, leaf: Leaf) -> Any:
    """A private copy of what one row is."""
    if leaf.kind == "bytes":
        return arena[offset : offset + length].tobytes()
    if leaf.kind == "str":
        return str(arena[offset : offset + length].data, "utf-8")
    if leaf.kind == "object":
        # Written by a worker process of this pipeline, never by storage.
        return pickle.loads(arena[offset : offset + length].data)  # noqa: S301 -- see above
    if leaf.kind == "table":
        table = read_table(arena, offset, leaf.shape[0])
        return BytesArray.copied(arena, table, text=leaf.text)
    array = arena[offset : offset + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape).copy()
    return array[()] if leaf.shape == () else array


def concat(columns: Sequence[Column]) -> Column:
    """One column of all rows; takes over what they hold. Unlike columns become objects."""
    first = columns[0]
    if len(columns) == 1:
        return first
    if isinstance(first, RefColumn) and all(isinstance(c, RefColumn) for c in columns):
        return _concat_refs([c for c in columns if isinstance(c, RefColumn)])
    if isinstance(first, ArrayColumn):
        arrays = [c.array for c in columns if isinstance(c, ArrayColumn)]
        same = all(a.dtype == first.array.dtype and a.shape[1:] == first.array.shape[1:] for a in arrays)
        if same and len(arrays) == len(columns):
            # Without a type it would be in the byte order of this machine, and rows of one dataset would differ.
            return ArrayColumn(np.concatenate(arrays, dtype=first.array.dtype))
    return ObjectColumn([item for column in columns for item in as_objects(column).items])


def _concat_refs(columns: list[RefColumn]) -> RefColumn:
    slabs = columns[0].slabs
    rows = np.concatenate([c.rows for c in columns])
    leaf = columns[0].leaf
    if leaf is not None and all(c.leaf == leaf for c in columns):
        return RefColumn(slabs, rows, leaf)
    return RefColumn(slabs, rows, None, np.concatenate([c.with_leaves().leaves for c in columns]))


def alike(one: Column, other: Column) -> tuple[Column, Column]:
    """The same rows in two columns of one kind, so that rows can move between them."""
    if isinstance(one, RefColumn) and isinstance(other, RefColumn):
        if one.leaf is not None and one.leaf == other.leaf:
            return one, other
        return one.with_leaves(), other.with_leaves()
    if isinstance(one, ObjectColumn) and isinstance(other, ObjectColumn):
        return one, other
    if (
        isinstance(one, ArrayColumn)
        and isinstance(other, ArrayColumn)
        and one.array.dtype == other.array.dtype
        and one.array.shape[1:] == other.array.shape[1:]
    ):
        return one, other
    return as_objects(one), as_objects(other)


def as_objects(column: Column) -> ObjectColumn:
    """The rows as Python objects; what they held is given back."""
    if isinstance(column, ObjectColumn):
        return column
    items = [column.element(i) for i in range(len(column))]
    column.release()
    return ObjectColumn(items)


def merge(held: Column, fresh: Column, source: Rows) -> Column:
    """Row i is row ``source[i]`` of `held` followed by `fresh`; every row moves at most once. See `alike`."""
    size = len(held)
    new = np.flatnonzero(source >= size)
    merged = held.pick(np.minimum(source, size - 1))
    merged.put(new, fresh, source[new] - size)  # type: ignore[arg-type]  # `alike` made them of one kind
    return merged
