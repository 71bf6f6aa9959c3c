"""Explains the `TypeError` of a user function whose signature does not fit the elements, and how to write it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import CoroutineType, MappingProxyType
from typing import Any, Final

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def explain_call(
    error: BaseException,
    function: Callable[..., Any] | None,
    passed: tuple[Any, ...],
    named: Mapping[str, Any] = _NOTHING,
) -> None:
    """Adds the cure to a `TypeError` that says only that a function does not take its arguments.

    Args:
        error: What the call raised.
        function: The user's.
        passed: Its arguments: the items of an element that is a tuple.
        named: Those given by keyword.
    """
    if type(error) is not TypeError or function is None or len(passed) < 2 or not error.args:
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    if _takes(signature, passed, named) or not _takes(signature, passed[:1], named):
        return
    cure = (
        f"the element is a tuple, whose {len(passed)} items are passed as separate arguments: make the function take "
        f"{len(passed)}, or *items"
    )
    error.args = (f"{error.args[0]}; {cure}",)


def _takes(signature: inspect.Signature, passed: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*passed, **named)
    except TypeError:
        return False
    return True


def no_coroutine(value: Any) -> Any:
    """The value, unless it is a coroutine that nobody awaits.

    Raises:
        TypeError: It is one.
    """
    if type(value) is CoroutineType:
        value.close()
        raise TypeError(
            "the function returned a coroutine, which is not awaited: give map() the `async def` function itself, not "
            "a plain function or lambda that calls it"
        )
    return value
