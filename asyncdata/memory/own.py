"""What a function is given belongs to the function, what it has returned to the pipeline: each may write to its own.

This holds wherever the function runs. A worker process reads and sends copies anyway. On the pipeline's loop elements
are views of what the pipeline or the user holds, a list of elements that was pickled whole has each object once,
however often it occurs, and a function or generator may fill the same array again for its next element.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.structure import map_leaves

_FIXED: Final = frozenset(
    (bytes, str, int, float, bool, type(None), np.bool_, np.int64, np.int32, np.uint8, np.float32, np.float64)
)
"""Types that cannot be written to, to be looked up at once."""


def own(value: Any) -> Any:
    """A copy of the arrays, lists, sets and bytearrays in an element; other objects are passed on as they are.

    Views become ``bytes``.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if isinstance(value, np.ndarray | np.void):
        copied = value.copy()
        if kind is np.ndarray and value.dtype == object and not _FIXED.issuperset(map(type, value.flat)):
            _owned(value, out=copied)
        return copied
    if kind in _COPIES:
        return _COPIES[kind](value)
    if isinstance(value, np.generic):
        return value
    if isinstance(value, dict):
        # Of the same class: where elements are not alike, a dict is a bare object.
        same = copy.copy(value)
        if same is value:  # it cannot be changed
            return {key: own(item) for key, item in value.items()}
        for key, item in value.items():
            same[key] = own(item)
        return same
    return map_leaves(lambda leaf: leaf if leaf is value else own(leaf), value)


_COPIES: Final[dict[type, Callable[[Any], Any]]] = {
    dict: lambda value: {key: own(item) for key, item in value.items()},
    tuple: lambda value: tuple([own(item) for item in value]),
    list: lambda value: [own(item) for item in value],
    set: set.copy,
    bytearray: bytearray.copy,
    memoryview: bytes,
}
_owned: Final = np.frompyfunc(own, 1, 1)


def settled(value: Any) -> Any:
    """What a function has returned, or a generator yielded, as it is now: see `own`.

    An array that has just been made for it is not copied, neither alone nor in a dict or tuple that has just been made.
    This can be told if the caller has the value in one variable.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is np.ndarray:
        return value if sys.getrefcount(value) <= _ALONE and _is_whole(value) else own(value)
    if (kind is dict or kind is tuple) and sys.getrefcount(value) <= _ALONE:
        items = _settled_items(value if kind is tuple else value.values())
        return tuple(items) if kind is tuple else dict(zip(value, items, strict=True))
    return own(value)


def _settled_items(items: Iterable[Any]) -> list[Any]:
    """The items of something that nobody else has."""
    kept = []
    for item in items:
        kind = type(item)
        is_new = kind in _FIXED or (kind is np.ndarray and sys.getrefcount(item) <= _HELD_ONCE and _is_whole(item))
        kept.append(item if is_new else own(item))
    return kept


def _is_whole(array: npt.NDArray[Any]) -> bool:
    """Whether nobody can reach what is in an array but through itself."""
    return array.flags.owndata and not array.dtype.hasobject and not weakref.getweakrefcount(array)


def _references(value: Any) -> int:
    return sys.getrefcount(value)


def _references_of_items(items: Iterable[Any]) -> list[int]:
    counts = []
    for item in items:
        counts.append(sys.getrefcount(item))  # noqa: PERF401 -- as `_settled_items` has it
    return counts


def _least_references() -> int:
    """Those of a value in one variable that is passed to a function; Python versions count differently."""
    value, counts = np.empty(0), []
    for _ in range(100):  # as callers have it, in a plain local variable, from which some versions lend the value
        counts.append(_references(value))  # noqa: PERF401 -- see above
    return min(counts)


def _least_references_of_items() -> int:
    """Those of a value that one dict or tuple holds, in `_settled_items`."""
    value = {number: np.empty(0) for number in range(100)}
    return min(_references_of_items(value.values()))


_ALONE: Final = _least_references()
_HELD_ONCE: Final = _least_references_of_items()
