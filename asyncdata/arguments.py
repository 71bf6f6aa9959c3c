"""Checks of arguments: what is wrong with one is said where it is given, and by its name.

Every check takes the argument's name and its value, and returns the value in the type that is kept. A value of another
type is a `TypeError`, one of the type that is out of range a `ValueError`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

import numpy as np

from asyncdata.redaction import redact

C = TypeVar("C")
R = TypeVar("R")

_SMALLEST: Final = -(1 << 63)
_LARGEST: Final = (1 << 63) - 1
_SHOWN: Final = 60
"""Characters of a value that a message shows."""


def integer(name: str, value: Any, *, least: int | None = None, most: int | None = None, autotune: bool = False) -> int:
    """A whole number of any type that says it is one; no bool, and no float.

    Args:
        name: Of the argument.
        value: What was given.
        least: The smallest that will do.
        most: The largest.
        autotune: Whether AUTOTUNE (-1) will do, too.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {shown(value)}") from None
    if autotune and found == -1:
        return found
    if least is not None and found < least:
        raise ValueError(f"{name} must be {'AUTOTUNE, or ' if autotune else ''}at least {least}, not {found}")
    if most is not None and found > most:
        raise ValueError(f"{name} must be at most {most}, not {found}")
    if not _SMALLEST <= found <= _LARGEST:
        raise ValueError(f"{name} must fit in 64 bits, but it is {found}")
    return found


def integer_or_none(
    name: str, value: Any, *, least: int | None = None, most: int | None = None, autotune: bool = False
) -> int | None:
    """Likewise, or None."""
    if value is None:
        return None
    try:
        return integer(name, value, least=least, most=most, autotune=autotune)
    except TypeError:
        raise TypeError(f"{name} must be an integer or None, not {shown(value)}") from None


def integers(name: str, values: Any, *, least: int | None = None) -> tuple[int, ...]:
    """A list of whole numbers."""
    if isinstance(values, str | bytes | Mapping | AbstractSet) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of integers, not {shown(values)}")
    return tuple(integer(f"every item of {name}", value, least=least) for value in values)


def seed(name: str, value: Any) -> int | None:
    """A whole number of any size, or None; no bool."""
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer or None, not {shown(value)}") from None


def number(
    name: str, value: Any, *, least: float | None = None, most: float | None = None, above: float | None = None
) -> float:
    """A number: not NaN, and no smaller than `least`, no larger than `most`, larger than `above`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, not {shown(value)}")
    if least is not None and most is not None and not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {value}")
    if least is not None and not value >= least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    if above is not None and not value > above:
        raise ValueError(f"{name} must be greater than {above}, not {value}")
    return value if isinstance(value, int | float) else value.item()


def flag(name: str, value: Any, *, strict: bool = False) -> bool:
    """True or False; 1 and 0 will do where tf.data takes them, and not where it is `strict`."""
    number = not strict and isinstance(value, int) and value in (0, 1)
    if number or isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"{name} must be True or False, not {shown(value)}")


def flag_or_none(name: str, value: Any) -> bool | None:
    """True, False or None."""
    if value is None:
        return None
    try:
        return flag(name, value)
    except TypeError:
        raise TypeError(f"{name} must be True, False or None, not {shown(value)}") from None


def function(name: str, value: Any) -> Any:
    """A function, plain or async."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {shown(value)}")
    return value


def plain_function(name: str, value: Any) -> Any:
    """A function that is not async."""
    if is_async(function(name, value)):
        raise TypeError(f"{name} must be a plain function: only the functions of map may be async")
    return value


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function gives something to await."""
    call = getattr(function, "__call__", None)  # noqa: B004 -- the method itself is wanted, not whether there is one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def dtype(name: str, value: Any, kinds: str = "biufc") -> np.dtype[Any]:
    """A dtype of numpy's, or one of TensorFlow's, which knows numpy's.

    Args:
        name: Of the argument.
        value: Anything ``numpy.dtype`` takes, but None.
        kinds: What the dtype's `kind` may be.
    """
    try:
        if value is None:
            raise TypeError
        found: np.dtype[Any] = np.dtype(getattr(value, "as_numpy_dtype", value))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a dtype of numpy's, not {shown(value)}") from None
    if found.kind not in kinds:
        raise TypeError(f"{name} must be a dtype of numbers, not {found}")
    return found


def url(name: str, value: Any) -> str:
    """The URL of a file name given as str, bytes or path."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, os.PathLike):
        found = os.fspath(value)
        return found if isinstance(found, str) else found.decode()
    raise TypeError(f"{name} must be a str or a path, not {shown(value)}")


def urls(name: str, value: Any) -> tuple[str, ...]:
    """One file name, or several in a list."""
    if isinstance(value, str | bytes | os.PathLike):
        return (url(name, value),)
    if isinstance(value, Mapping | AbstractSet) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a str, a path or a list of them, not {shown(value)}")
    return tuple(url(f"every item of {name}", each) for each in value)


def texts(name: str, values: Any) -> tuple[str, ...]:
    """A list of str."""
    if isinstance(values, str | bytes | Mapping | AbstractSet) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of str, not {shown(values)}")
    return tuple(instance(f"every item of {name}", value, str, "a str") for value in values)


def choice(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    """One of the values that are allowed."""
    for each in allowed:
        if type(value) is type(each) and value == each:
            return each
    words = [repr(each) for each in allowed]
    raise ValueError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, not {shown(value)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, where one of the known words is like this one, else nothing."""
    nearest = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def unexpected_keyword(owner: str, word: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that a function does not have."""
    return TypeError(f"{owner}() got an unexpected keyword argument {word!r}{suggestion(word, known)}")


def suggesting(cls: type[C]) -> type[C]:
    """Decorates a class: a wrong keyword of its constructor or of a public method is answered with the nearest one.

    The methods keep their names; the constructor is named after the class, as its callers know it.
    """
    for name, method in list(vars(cls).items()):
        if isinstance(method, staticmethod):
            setattr(cls, name, staticmethod(_suggesting(method.__func__)))
        elif inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            method.__qualname__ = cls.__name__ if name == "__init__" else method.__qualname__
            setattr(cls, name, _suggesting(method))
    return cls


def _suggesting(function: Callable[..., R]) -> Callable[..., R]:
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> R:
        try:
            return function(*args, **given)
        except TypeError:
            for word in given:
                if word not in parameters:
                    raise unexpected_keyword(function.__qualname__, word, parameters) from None
            raise

    return call


def instance(name: str, value: Any, kind: Any, what: str) -> Any:
    """An object of a class, or of one of several."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, not {shown(value)}")
    return value


def shown(value: Any) -> str:
    """A value as a message shows it: its type, and what it is where that is short."""
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, str | bytes | int | float | list | tuple | dict | complex | np.generic):
        text = redact(repr(value))
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({kind})"
    if isinstance(value, type):
        return f"the class {kind if value is type else value.__qualname__}"
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    return f"{article} {kind}"
