"""Checks of arguments that several methods take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, overload

from asyncdata.planner.place import is_async

DEFAULT_CYCLE: Final = 16
"""Datasets read in turn unless the caller says how many."""


@overload
def as_url(name: str) -> str: ...
@overload
def as_url(name: Any) -> str: ...
def as_url(name: Any) -> str:
    """The URL of a file name given as str, bytes or path."""
    if isinstance(name, bytes):
        return name.decode()
    if isinstance(name, str):
        return str(name)
    if hasattr(name, "__fspath__"):
        return str(name)
    raise TypeError(f"a file name must be a str, not a {type(name).__name__}")


def check_parallel(name: str, value: int | None) -> None:
    """Refuses a degree of parallelism that is neither AUTOTUNE nor a positive number."""
    if value is not None and value < 1 and value != -1:
        raise ValueError(f"{name} must be AUTOTUNE, or at least 1, not {value}")


def refuse_async(name: str, function: Callable[..., Any]) -> None:
    """Refuses what is no plain function."""
    if not callable(function):
        raise TypeError(f"{name} needs a function, not a {type(function).__name__}")
    if is_async(function):
        raise TypeError(f"{name} needs a plain function: only the functions of map may be async")
