"""One leaf of some elements becomes one leaf of their batches: what is written into the batch slab, and how.

| rows of the column         | leaf of the batch | written                                                           |
|----------------------------|-------------------|-------------------------------------------------------------------|
| one array                  | array             | in one assignment (`Values`)                                      |
| arrays, here and there     | array             | row by row (`Pieces`)                                             |
| byte strings in the arena  | table             | their references; the payloads stay where they are (`Referred`)   |
| byte strings elsewhere     | table             | their references, and the payloads behind all leaves (`Payloads`) |
| arrays of byte strings     | array of objects  | nothing: the batches are Python objects (`Texts`)                 |

Rows are alike or a `Misfit` says which is not.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.layout import as_bytes, mismatch, structure_mismatch, text_array, texts_leaf, value_leaf
from asyncdata.memory.leaf import Leaf, is_plain
from asyncdata.memory.narrow import fits, halved_leaf, too_large
from asyncdata.memory.structure import LEAF, DictOf, Structure, flatten, flatten_as, leaf_count

_NO_ARRAYS: Final = "OUSTV"
"""Kinds of dtype whose values are batched one by one, or not at all."""


_PLAIN: Final = frozenset((bytes, str, int, float, bool, list, np.ndarray, np.int64, np.float32, np.float64))
"""Types that are leaves, whatever is in them."""


class Misfit(Exception):  # noqa: N818 -- a signal: says at which row a batch must end
    """A row that does not go with the rows before it.

    Attributes:
        row: Which.
        error: What to tell the user if they belong to one batch.
    """

    def __init__(self, row: int, error: UnbatchableError) -> None:
        super().__init__(row)
        self.row = row
        self.error = error


class Values(NamedTuple):
    """All rows in one array."""

    leaf: Leaf
    array: npt.NDArray[Any]


class Pieces(NamedTuple):
    """An array per row."""

    leaf: Leaf
    rows: list[npt.NDArray[Any]]


class Referred(NamedTuple):
    """References to byte strings that stay where they are; their holds move into the batch."""

    leaf: Leaf
    table: Rows


class Payloads(NamedTuple):
    """Byte strings to copy."""

    leaf: Leaf
    items: list[bytes]


class Texts(NamedTuple):
    """Arrays of byte strings, or of texts: one array of objects per batch, outside the arena."""

    leaf: Leaf
    batches: list[npt.NDArray[Any]]


Stack: TypeAlias = Values | Pieces | Referred | Payloads | Texts


def stack_of(column: Column, size: int) -> Stack:
    """How the rows of a column are stacked into batches of `size`.

    Raises:
        Misfit: A row is not like the first one, or cannot be batched at all.
    """
    if isinstance(column, ArrayColumn):
        array = column.array
        if array.dtype.kind in _NO_ARRAYS:
            return _of_objects(list(array), size)
        return Values(Leaf("array", array.dtype.str, (size, *array.shape[1:])), array)
    if isinstance(column, RefColumn):
        return _of_references(column, size)
    return _of_objects(list(column.items), size)


def _of_references(column: RefColumn, size: int) -> Stack:
    first = column.leaf_at(0)
    if column.leaf is None and any(column.leaf_at(row) != first for row in range(len(column))):
        return _of_objects(_elements(column), size)
    if first.kind in ("object", "table") or (first.kind == "array" and np.dtype(first.dtype).kind in _NO_ARRAYS):
        return _of_objects(_elements(column), size)
    if first.kind in ("bytes", "str"):
        return Referred(Leaf("table", shape=(size,), text=first.kind == "str"), column.rows)
    small = column.small_rows()
    if small is not None:
        return Values(Leaf("array", first.dtype, (size, *first.shape)), small)
    arena = column.slabs.arena.array
    dtype, shape, nbytes = np.dtype(first.dtype), first.shape, first.nbytes
    rows = [arena[at : at + nbytes].view(dtype).reshape(shape) for at in column.rows[:, 0].tolist()]
    return Pieces(Leaf("array", first.dtype, (size, *shape)), rows)


def halved(stack: Stack) -> Stack:
    """The same, to be written with numbers of 32 bits instead of 64.

    Raises:
        Misfit: A value does not fit.
    """
    if not isinstance(stack, Values | Pieces):
        return stack
    leaf = halved_leaf(stack.leaf)
    if not leaf.wide:
        return stack
    half = np.dtype(leaf.dtype)
    rows = stack.rows if isinstance(stack, Pieces) else stack.array
    if isinstance(rows, list) or not fits(rows, half):
        for row, values in enumerate(rows):
            if not fits(np.asarray(values), half):
                raise Misfit(row, too_large(np.dtype(leaf.wide), half))
    return stack._replace(leaf=leaf)


def _elements(column: RefColumn) -> list[Any]:
    return [column.element(row) for row in range(len(column))]


def structured(block: Block) -> Block:
    """Bare objects that are nests, taken apart into leaves as the first of them is.

    Raises:
        Misfit: An element nests differently.
    """
    column = block.columns[0]
    assert isinstance(column, ObjectColumn)
    structure = flatten(column.items[0])[1]
    flat = _flat_columns(structure, column.items)
    if flat is not None:
        return Block(structure, tuple(map(ObjectColumn, flat)), block.origin, block.advance)
    columns: list[list[Any]] = [[] for _ in range(leaf_count(structure))]
    for row, item in enumerate(column.items):
        leaves: list[Any] = []
        if not flatten_as(structure, item, leaves):
            raise Misfit(row, structure_mismatch(structure, flatten(item)[1], row))
        for leaf, part in zip(leaves, columns, strict=True):
            part.append(leaf)
    return Block(structure, tuple(map(ObjectColumn, columns)), block.origin, block.advance)


def _flat_columns(structure: Structure, items: list[Any]) -> list[list[Any]] | None:
    """The leaves of flat dicts, column by column, which is much cheaper; None where an element is something else."""
    if not isinstance(structure, DictOf) or any(child is not LEAF for child in structure.children):
        return None
    keys = set(structure.keys)
    if not all(type(item) is dict and item.keys() == keys for item in items):
        return None
    columns = [[item[key] for item in items] for key in structure.keys]
    return columns if all(set(map(type, column)) <= _PLAIN for column in columns) else None


def _of_objects(items: list[Any], size: int) -> Stack:
    array = _numbers(items)
    if array is not None:
        return Values(Leaf("array", array.dtype.str, (size,)), array)
    kinds = set(map(type, items))
    if kinds in ({bytes}, {str}):
        text = kinds == {str}
        return Payloads(Leaf("table", shape=(size,), text=text), _encoded(items) if text else items)
    if kinds == {np.ndarray} and (alike := _alike(items, size)) is not None:
        return alike
    first: Leaf | None = None
    for row, item in enumerate(items):
        texts = text_array(item)
        if texts is not None:
            items[row] = texts
        try:
            leaf = value_leaf(item, size) if texts is None else texts_leaf(texts, size)
        except UnbatchableError as error:
            raise Misfit(row, error) from error
        first = first or leaf
        if leaf != first:
            raise Misfit(row, mismatch(LEAF, [first], [leaf], row % size))
    assert first is not None
    if first.kind == "object":
        return Texts(first, [np.stack(items[at : at + size]) for at in range(0, len(items), size)])
    if first.kind == "table":
        return Payloads(first, _encoded(items))
    return Pieces(first, [np.asarray(item) for item in items])


def _alike(arrays: list[npt.NDArray[Any]], size: int) -> Pieces | None:
    """Arrays of one type and shape, at once; None where they have to be looked at one by one."""
    dtype, shape = arrays[0].dtype, arrays[0].shape
    if dtype.kind in _NO_ARRAYS or not shape or any(each.dtype != dtype or each.shape != shape for each in arrays):
        return None
    return Pieces(Leaf("array", dtype.str, (size, *shape)), arrays) if is_plain(arrays[0]) else None


def _encoded(items: list[Any]) -> list[bytes]:
    encoded: list[bytes] = []
    for row, item in enumerate(items):
        try:
            encoded.append(as_bytes(item))
        except UnbatchableError as error:
            raise Misfit(row, error) from error
    return encoded


def batch_of(items: list[Any]) -> Column:
    """A column of one row: the only batch, of Python objects.

    Raises:
        Misfit: See `stack_of`.
    """
    stack = _of_objects(list(items), len(items))
    if isinstance(stack, Texts):
        return ObjectColumn(list(stack.batches))
    if isinstance(stack, Payloads):
        return ObjectColumn([BytesArray.from_items(items)])
    assert isinstance(stack, Values | Pieces)
    return ArrayColumn((stack.array if isinstance(stack, Values) else np.stack(stack.rows))[None])


def _numbers(items: list[Any]) -> npt.NDArray[Any] | None:
    """All items in one array, if they are numbers of one type that numpy knows at once."""
    kinds = set(map(type, items))
    kind = kinds.pop()
    if kinds or not (kind in (int, float, bool) or issubclass(kind, np.number | np.bool_)):
        return None
    if issubclass(kind, np.timedelta64):  # of which each may have a unit of its own
        return None
    array = np.array(items)
    return None if kind is int and array.dtype != np.int64 else array
