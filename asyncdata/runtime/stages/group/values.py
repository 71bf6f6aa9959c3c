"""What one leaf of the elements of one batch is, whatever column it came in: the input of batches of uneven elements.

| rows of the column                  | values                                                            |
|-------------------------------------|-------------------------------------------------------------------|
| numbers, arrays, lists of numbers   | `Numbers`: an array per element, views of the arena where it can  |
| byte strings, texts                 | `Strings`: references that stay where they are, or the items      |
| `BytesArray`, lists of byte strings | `StringLists`: lists of them                                      |
| arrays of byte strings, 2 axes on   | `StringArrays`: arrays of objects                                 |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.advance import Rows
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, RefColumn
from asyncdata.memory.layout import as_array, as_bytes, text_array
from asyncdata.memory.leaf import rounds_integers
from asyncdata.runtime.stages.group.stacking import Misfit

_STRINGS: Final = (bytes, bytearray, memoryview, str)
_NO_NUMBERS: Final = "OUSTV"
_ONE_NUMBER: Final = frozenset((int, float, bool, np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64))


class Numbers(NamedTuple):
    """Arrays of one dtype and rank.

    Attributes:
        arrays: One per element; itself an array when all have one shape.
        dtype: Of all of them.
        rank: Number of axes.
    """

    arrays: Sequence[npt.NDArray[Any]] | npt.NDArray[Any]
    dtype: np.dtype[Any]
    rank: int

    def shapes(self) -> npt.NDArray[np.int64]:
        """``int64[n, rank]``."""
        if isinstance(self.arrays, np.ndarray):
            return np.tile(np.array(self.arrays.shape[1:], np.int64), (len(self.arrays), 1))
        return np.array([array.shape for array in self.arrays], np.int64).reshape(len(self.arrays), self.rank)

    def describe(self) -> str:
        """In words."""
        return f"{_name_of(self.dtype)} of rank {self.rank}"


class Strings(NamedTuple):
    """Byte strings or texts.

    Attributes:
        table: ``int64[n, 2]`` references into the arena; their holds belong to the column. None: `items`.
        items: Elsewhere, encoded.
        text: Whether they are ``str``.
    """

    table: Rows | None
    items: list[bytes]
    text: bool

    def describe(self) -> str:
        """In words."""
        return "str" if self.text else "bytes"


class StringLists(NamedTuple):
    """Lists of byte strings or texts, one per element."""

    lists: list[list[Any]]
    text: bool

    def describe(self) -> str:
        """In words."""
        return f"{'str' if self.text else 'bytes'} of rank 1"


class StringArrays(NamedTuple):
    """Arrays of byte strings or texts, one per element, all of one rank above 1."""

    arrays: list[npt.NDArray[Any]]
    text: bool
    rank: int

    def describe(self) -> str:
        """In words."""
        return f"{'str' if self.text else 'bytes'} of rank {self.rank}"


@functools.lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # NumPy puts it together each time


Values: TypeAlias = Numbers | Strings | StringLists | StringArrays


def values_of(column: Column) -> Values:
    """The rows of a column, without a copy where they are in the arena.

    Raises:
        Misfit: A row is of another kind, dtype or rank than the first one, or cannot be batched at all.
    """
    if isinstance(column, ArrayColumn) and column.array.dtype.kind not in _NO_NUMBERS:
        return Numbers(column.array, column.array.dtype, column.array.ndim - 1)
    if isinstance(column, RefColumn):
        found = _of_references(column)
        if found is not None:
            return found
    items = [column.element(row) for row in range(len(column))]
    return _of_items(items)


def _of_references(column: RefColumn) -> Values | None:
    """None where Python objects must be made of the rows."""
    first = column.leaf_at(0)
    if first.kind in ("bytes", "str"):
        if column.leaf is None and any(column.leaf_at(row).kind != first.kind for row in range(len(column))):
            return None
        return Strings(column.rows, [], first.kind == "str")
    if first.kind != "array" or np.dtype(first.dtype).kind in _NO_NUMBERS:
        return None
    rank = len(first.shape)
    small = column.small_rows()
    if small is not None:
        return Numbers(small, small.dtype, rank)
    arena = column.slabs.arena.array
    arrays = []
    for row, at in enumerate(column.rows[:, 0].tolist()):
        leaf = column.leaf_at(row)
        if leaf.kind != "array" or leaf.dtype != first.dtype or len(leaf.shape) != rank:
            return None
        arrays.append(arena[at : at + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape))
    return Numbers(arrays, np.dtype(first.dtype), rank)


def _of_items(items: list[Any]) -> Values:
    kinds = set(map(type, items))
    if len(kinds) == 1 and next(iter(kinds)) in _ONE_NUMBER:
        array = np.array(items)
        if array.dtype.kind not in _NO_NUMBERS and not rounds_integers(array, items):
            return Numbers(array, array.dtype, 0)
    if kinds == {np.ndarray}:
        dtypes, ranks = {item.dtype for item in items}, {item.ndim for item in items}
        if len(dtypes) == len(ranks) == 1 and (dtype := dtypes.pop()).kind not in _NO_NUMBERS:
            return Numbers(items, dtype, ranks.pop())
    found = [_read(item, row) for row, item in enumerate(items)]
    first = next((value for value in found if value is not None and not _is_empty(value)), None)
    first = first or next((value for value in found if value is not None), None)
    if first is None:
        if any(isinstance(item, BytesArray | np.ndarray) for item in items):
            return StringLists([[] for _ in items], text=any(_text_of(item) for item in items))
        return Numbers([np.empty(0, np.float32)] * len(items), np.dtype(np.float32), 1)
    typed: list[Any] = []
    for row, value in enumerate(found):
        alike = _empty_like(first, value) if value is None or _is_empty(value) else value
        if alike is None or alike.describe() != first.describe():
            raise Misfit(row, uneven(first.describe(), "an empty list" if value is None else value.describe(), row))
        typed.append(alike)
    if isinstance(first, Strings):
        return Strings(None, [text for value in typed for text in value.items], first.text)
    if isinstance(first, StringLists):
        return StringLists([part for value in typed for part in value.lists], first.text)
    if isinstance(first, StringArrays):
        return StringArrays([value.arrays[0] for value in typed], first.text, first.rank)
    return Numbers([value.arrays[0] for value in typed], first.dtype, first.rank)


def _read(item: Any, row: int) -> Values | None:
    """One element; None for an empty list, and an array that TensorFlow takes for one of strings, of any kind."""
    if isinstance(item, list | BytesArray) and not len(item):
        return None
    if isinstance(item, np.ndarray) and item.shape == (0,) and item.dtype.kind in "OUS":
        return None
    try:
        return _of_item(item)
    except UnbatchableError as error:
        raise Misfit(row, error) from error


def _text_of(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype.kind == "U"


def _is_empty(value: Values) -> bool:
    """Whether these are arrays of strings without a string, which go with bytes and with texts."""
    return isinstance(value, StringArrays) and not value.arrays[0].size


def _empty_like(value: Values, empty: Values | None) -> Values | None:
    """An empty list of the same kind, or this empty array as one, if there is such a thing."""
    if empty is not None:
        if isinstance(value, StringArrays) and isinstance(empty, StringArrays) and value.rank == empty.rank:
            return StringArrays(empty.arrays, value.text, value.rank)
        return empty
    if isinstance(value, StringLists):
        return StringLists([[]], value.text)
    if isinstance(value, Numbers) and value.rank == 1:
        return Numbers([np.empty(0, value.dtype)], value.dtype, 1)
    return None


def _of_item(item: Any) -> Values:
    """One element."""
    if isinstance(item, _STRINGS):
        return Strings(None, [as_bytes(item)], isinstance(item, str))
    if isinstance(item, BytesArray):
        return StringLists([item.tolist()], isinstance(item[0], str))
    array = as_array(item)
    if array.dtype.kind in "US" and isinstance(item, list):
        array = _each_as_it_is(item)
    if array.dtype.kind in "OUS" and array.ndim == 1 and len(array):
        strings = list(item)
        if all(isinstance(string, str) for string in strings):
            return StringLists([[str(string) for string in strings]], text=True)
        if all(isinstance(string, bytes) for string in strings):
            return StringLists([[bytes(string) for string in strings]], text=False)
    texts = text_array(array) if array.ndim > 1 else None
    if texts is not None:
        return StringArrays([texts], texts.size > 0 and isinstance(texts.flat[0], str), texts.ndim)
    if array.dtype.kind in _NO_NUMBERS:
        dtype = f" of dtype {array.dtype}" if isinstance(item, np.ndarray) else ""
        raise UnbatchableError(
            f"a value of type {type(item).__name__}{dtype} cannot be batched; return numbers, numpy arrays, bytes or "
            "str, or lists of them"
        )
    return Numbers([array], array.dtype, array.ndim)


def _each_as_it_is(nested: list[Any]) -> npt.NDArray[Any]:
    """The objects in lists of strings: NumPy's own strings end before zeros, and make texts of numbers."""
    array = np.array(nested, object)
    items = np.empty(array.size, object)
    items[:] = [
        str(item) if isinstance(item, str) else bytes(item) if isinstance(item, bytes) else item for item in array.flat
    ]
    return items.reshape(array.shape)


def uneven(want: str, have: str, row: int) -> UnbatchableError:
    """The error for an element whose leaf is something else than in the first element."""
    return UnbatchableError(
        f"elements of one batch differ: {want} in the batch's first element but {have} in element {row} of the batch; "
        "only lengths may differ"
    )
