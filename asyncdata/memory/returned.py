"""Converts what functions return to elements, in the same way wherever the function ran.

| returned leaf                                            | element                                              |
|----------------------------------------------------------|------------------------------------------------------|
| ``bytes``, ``bytearray``, ``memoryview``, NumPy's        | ``bytes``                                            |
| ``str``, NumPy's                                         | ``str``                                              |
| ``bool``, ``int``, ``float``, ``complex``                | the NumPy number: int64 (uint64 if it is too large   |
|                                                          | for that), float64, bool, complex128                 |
| array of numbers, dates or raw bytes                     | the array, as ``numpy.ndarray``; without axes, its   |
|                                                          | NumPy number                                         |
| array of objects, among them ``memoryview``              | the array with ``bytes`` in their place              |
| list of numbers, arrays or such lists that is a regular  | that array                                           |
| array, and not empty                                     |                                                      |
| any other list, with ``memoryview`` in it                | the list with ``bytes`` in their place               |
| anything else, including subclasses such as enums        | the object itself                                    |

Integers of more than 64 bits belong to the last row, and so do lists that NumPy could only store rounded.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from asyncdata.memory.leaf import is_plain, rounds_integers
from asyncdata.memory.structure import has_structure, map_leaves

_BYTES: Final = frozenset((bytearray, memoryview, np.bytes_))
_NUMBERS: Final = frozenset((bool, int, float, complex))
_LISTS: Final = frozenset((list, tuple))
_SETTLED: Final = frozenset((bytes, str, np.bool_, np.int64, np.int32, np.uint8, np.float32, np.float64))
"""Types that stay what they are, to be looked up at once."""


def returned(value: Any) -> Any:
    """One leaf; see the module's table."""
    kind = type(value)
    if kind in _SETTLED:
        return value
    if isinstance(value, np.ndarray):
        if kind is np.ndarray and value.ndim:
            return _without_views(value) if value.dtype == object else value
        return np.asarray(value)[()] if is_plain(value) else value
    if kind in _NUMBERS:
        return _number(value)
    if kind in _BYTES:
        return bytes(value)
    if kind is np.str_:
        return str(value)
    return _listed(value) if kind is list and value else value


def returned_nest(value: Any) -> Any:
    """The same for every leaf of a nest."""
    return returned(value) if not has_structure(type(value)) else map_leaves(returned, value)


def _without_views(array: Any) -> Any:
    items = array.ravel().tolist()
    if (plain := _views_as_bytes(items)) is items:
        return array
    found = np.empty(len(plain), object)
    found[:] = plain
    return found.reshape(array.shape)


def _views_as_bytes(items: list[Any]) -> list[Any]:
    """The same list, if there is no memoryview in it."""
    if memoryview not in map(type, items):
        return items
    return [bytes(item) if type(item) is memoryview else item for item in items]


def _number(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype == object:
        return value
    # NumPy calls its unsigned type for large integers by another name of the same kind.
    return array[()] if array.dtype.kind != "u" else np.uint64(value)


_EXACT_BITS: Final = 53
"""Of the integers that a float64 holds."""


def _listed(items: list[Any]) -> Any:
    if not _is_numeric(items):
        return _views_as_bytes(items)
    try:
        array = np.asarray(items)
    except ValueError:
        return items
    if not is_plain(array) or not array.size:
        return items
    if array.dtype.kind == "f" and any(type(item) is int and item.bit_length() > _EXACT_BITS for item in items):
        return items
    return items if rounds_integers(array, items) else array


def _is_numeric(items: Any) -> bool:
    """Whether there are only numbers and arrays in nested lists; NumPy would look into many other objects, too."""
    kinds = set(map(type, items))
    if kinds & _LISTS:
        return kinds <= _LISTS and all(map(_is_numeric, items))
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        return False  # the mask would be lost
    return all(kind in _NUMBERS or issubclass(kind, np.ndarray | np.generic) for kind in kinds)
