"""Explains the `TypeError` of a user function that does not fit: its signature, or what it returned.

What can be read only once, or must be awaited, is no element: steps may read an element again, or not at all. It is
refused in the same words wherever the function runs.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from types import CoroutineType, MappingProxyType
from typing import Any, Final

import numpy as np

from asyncdata.memory.structure import flatten

_ELEMENTS: Final = frozenset(
    (bytes, str, int, float, bool, type(None), np.ndarray, np.bool_, np.int64, np.int32, np.uint8, np.float32)
)
"""Types that need no further look."""
_NESTS: Final = frozenset((dict, tuple, list))
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def explain_call(
    error: BaseException,
    function: Callable[..., Any] | None,
    passed: tuple[Any, ...],
    named: Mapping[str, Any] = _NOTHING,
    given: str | None = None,
) -> None:
    """Adds the cure to a `TypeError` that says only that a function does not take its arguments.

    Args:
        error: What the call raised.
        function: The user's.
        passed: Its arguments: the items of an element that is a tuple.
        named: Those given by keyword.
        given: What the arguments are, if they are not an element or its items.
    """
    if type(error) is not TypeError or function is None or not passed or not error.args:
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    if _takes(signature, passed, named):
        return
    cure = _cure(signature, passed, named, given)
    if cure is not None:
        error.args = (f"{error.args[0]}; {cure}",)


def _cure(
    signature: inspect.Signature, passed: tuple[Any, ...], named: Mapping[str, Any], given: str | None
) -> str | None:
    if given is not None:
        return f"it is called with {given}"
    if len(passed) > 1 and _takes(signature, passed[:1], named):
        return (
            f"the element is a tuple, whose {len(passed)} items are passed as separate arguments: make the function "
            f"take {len(passed)}, or *items"
        )
    if "rng" in signature.parameters and "rng" not in named and _takes(signature, passed, {**named, "rng": None}):
        return "map passes a random generator as rng if it has the argument rng=True"
    (element, *others) = passed
    if others or not _takes(signature, (element,) * _wanted(signature, named), named):
        return None
    if isinstance(element, Mapping):
        return "a dict is one argument: make the function take one, and look up the values in it"
    if isinstance(element, tuple):
        return "a namedtuple is one argument: make the function take one, and use its fields"
    return None


def _wanted(signature: inspect.Signature, named: Mapping[str, Any]) -> int:
    """How many arguments by position must be given."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        each.kind in by_position and each.default is inspect.Parameter.empty and name not in named
        for name, each in signature.parameters.items()
    )


def _takes(signature: inspect.Signature, passed: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*passed, **named)
    except TypeError:
        return False
    return True


def as_element(value: Any) -> Any:
    """What a user function returned, if it can be an element.

    Raises:
        TypeError: It is something that can be read only once, or must be awaited, or a nest or list of such.
    """
    kind = type(value)
    if kind in _ELEMENTS:
        return value
    if kind in _NESTS:
        for part in value if kind is not dict else value.values():
            if type(part) not in _ELEMENTS:
                as_element(part)
        return value
    if isinstance(value, Awaitable):
        return no_coroutine(value)
    if isinstance(value, Iterator | AsyncIterator) and not isinstance(value, io.IOBase):
        raise TypeError(
            f"the function returned {_a(kind.__name__)}, which can be read only once and is therefore no element: "
            "return a list or an array, or use flat_map() with a function that returns a Dataset"
        )
    for leaf in flatten(value)[0]:
        if leaf is not value:
            as_element(leaf)
    return value


def no_coroutine(value: Any) -> Any:
    """The value, unless it is a coroutine, or something like it, that nobody awaits.

    Raises:
        TypeError: It is one.
    """
    if type(value) not in _NESTS and type(value) not in _ELEMENTS and isinstance(value, Awaitable):
        if type(value) is CoroutineType:
            value.close()
        raise TypeError(
            f"the function returned {_a(type(value).__name__)}, which is not awaited: give map() the `async def` "
            "function itself, not a plain function or lambda that calls it"
        )
    return value


def _a(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"
