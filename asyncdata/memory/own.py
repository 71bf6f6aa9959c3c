"""What a function is given belongs to it: it may write to it, and nobody else sees that, wherever it runs.

A worker process reads copies anyway. On the pipeline's loop elements are views of what the pipeline or the user holds,
and a list of elements that was pickled whole has each object once, however often it occurs.
"""

from __future__ import annotations

import copy
from typing import Any, Final

import numpy as np

from asyncdata.memory.structure import map_leaves

_FIXED: Final = frozenset(
    (bytes, str, int, float, bool, type(None), np.bool_, np.int64, np.int32, np.uint8, np.float32, np.float64)
)
"""Types that cannot be written to, to be looked up at once."""


def own(value: Any) -> Any:
    """A copy of the arrays, lists, sets and bytearrays in an element; other objects are passed on as they are."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if isinstance(value, np.ndarray | np.void):
        copied = value.copy()
        if kind is np.ndarray and value.dtype == object and not _FIXED.issuperset(map(type, value.flat)):
            _owned(value, out=copied)
        return copied
    if isinstance(value, np.generic):
        return value
    if kind is list:
        return [own(item) for item in value]
    if kind is bytearray or kind is set:
        return value.copy()
    if isinstance(value, dict):
        # Of the same class: where elements are not alike, a dict is a bare object.
        same = copy.copy(value)
        for key, item in value.items():
            same[key] = own(item)
        return same
    return map_leaves(lambda leaf: leaf if leaf is value else own(leaf), value)


_owned: Final = np.frompyfunc(own, 1, 1)
