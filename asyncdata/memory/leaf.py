"""The description of one leaf of an element in the arena: picklable data, a few bytes per block.

| kind     | a row's bytes                                             | the element                                  |
|----------|-----------------------------------------------------------|----------------------------------------------|
| `bytes`  | the payload                                               | ``bytes``                                    |
| `str`    | the payload, UTF-8                                        | ``str``                                      |
| `array`  | one C-contiguous array of `dtype` and `shape`             | ``numpy.ndarray``, or a scalar if ``()``     |
| `object` | a pickle (protocol 5) made by a worker of this pipeline   | the original object                          |
| `table`  | ``int64[n, 2]`` offsets and lengths of n other rows       | `BytesArray`                                 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

LeafKind: TypeAlias = Literal["bytes", "str", "array", "object", "table"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """See the module's table.

    Attributes:
        kind: How to read a row.
        dtype: Element type of an `array`, as numpy writes it (``<f4``).
        shape: Shape of an `array`; of a `table`, ``(n,)``.
        text: Of a `table`: whether its rows are ``str``.
        unchecked: For `bytes`: the payload's masked CRC-32C follows it, and the worker task that reads it verifies it.
        wide: Of an `array`: the type of twice the size that it was written from; empty if that is its own. Elements
            that differ in it differ in type.
    """

    kind: LeafKind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    text: bool = False
    unchecked: bool = False
    wide: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of one row, for the kinds that have a fixed size."""
        if self.kind == "table":
            return 16 * self.shape[0]
        size = np.dtype(self.dtype).itemsize
        for extent in self.shape:
            size *= extent
        return size


CHECKSUM_BYTES: Final = 4
"""Behind a payload that is `unchecked`."""

BYTES: Final = Leaf("bytes")
UNCHECKED_BYTES: Final = Leaf("bytes", unchecked=True)
STR: Final = Leaf("str")
OBJECT: Final = Leaf("object")


def is_plain(array: Any) -> bool:
    """Whether `Leaf.dtype` and `Leaf.shape` say all about an array (or numpy scalar).

    They do not of types with fields, whose short name is that of raw bytes, of types of other packages, and of masked
    arrays; texts and objects have no place in a row of fixed size at all.
    """
    dtype = array.dtype
    if dtype.kind not in _PLAIN_KINDS or isinstance(array, np.ma.MaskedArray):
        return False
    try:
        return bool(np.dtype(dtype.str) == dtype)
    except TypeError:
        return False


_PLAIN_KINDS: Final = "biufcmMV"


def rows_in(arena: npt.NDArray[np.uint8], offset: int, step: int, count: int, leaf: Leaf) -> npt.NDArray[Any]:
    """So many values like this, which lie `step` bytes apart, as one array: a view."""
    dtype = np.dtype(np.int64) if leaf.kind == "table" else np.dtype(leaf.dtype)
    shape = (*leaf.shape, 2) if leaf.kind == "table" else leaf.shape
    strides: list[int] = []
    inner = dtype.itemsize
    for extent in reversed(shape):
        strides.insert(0, inner)
        inner *= extent
    rows: npt.NDArray[Any] = np.ndarray((count, *shape), dtype, arena, offset, (step, *strides))
    return rows


def rounds_integers(array: Any, value: Any) -> bool:
    """Whether an array has floats for the integers of a list, because no type of 64 bits holds all of them."""
    return array.dtype.kind == "f" and _has_only_integers(value)


def _has_only_integers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_has_only_integers, value))
    return isinstance(value, int) or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iu")


def array_leaf(array: Any) -> Leaf:
    """The leaf that describes an array (or numpy scalar)."""
    return Leaf("array", array.dtype.str, tuple(array.shape))
