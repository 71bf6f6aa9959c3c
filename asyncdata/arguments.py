"""Checks of arguments. A wrong argument raises an error where it is passed, and the error names it.

Every check takes the argument's name and value, and returns the value converted to the type that is kept. A value of
the wrong type raises `TypeError`; a value out of range raises `ValueError`.
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

from asyncdata.redaction import redact, redact_value
from asyncdata.wording import with_article

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

_SMALLEST: Final = -(1 << 63)
_LARGEST: Final = (1 << 63) - 1
_SHOWN: Final = 60
"""The most characters of a value in a message."""


def integer(name: str, value: Any, *, least: int | None = None, most: int | None = None, autotune: bool = False) -> int:
    """Returns an integer of any type that declares itself one; rejects bool and float.

    Args:
        name: Name of the argument.
        value: The value.
        least: The smallest accepted value.
        most: The largest accepted value.
        autotune: Whether AUTOTUNE (-1) is accepted, too.
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
    """Like `integer`, but also accepts None."""
    if value is None:
        return None
    try:
        return integer(name, value, least=least, most=most, autotune=autotune)
    except TypeError:
        raise TypeError(f"{name} must be an integer or None, not {shown(value)}") from None


def integers(name: str, values: Any, *, least: int | None = None) -> tuple[int, ...]:
    """Returns a list of integers."""
    if isinstance(values, str | bytes | Mapping | AbstractSet) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of integers, not {shown(values)}")
    return tuple(integer(f"every item of {name}", value, least=least) for value in values)


def seed(name: str, value: Any) -> int | None:
    """Returns an integer of any size, or None; rejects bool."""
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
    """Returns a number, at least `least`, at most `most`, and greater than `above`; NaN only without any of these."""
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
    """Returns True or False; also accepts 1 and 0, as tf.data does, unless it is `strict`."""
    number = not strict and isinstance(value, int) and value in (0, 1)
    if number or isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"{name} must be True or False, not {shown(value)}")


def flag_or_none(name: str, value: Any) -> bool | None:
    """Returns True, False or None."""
    if value is None:
        return None
    try:
        return flag(name, value)
    except TypeError:
        raise TypeError(f"{name} must be True, False or None, not {shown(value)}") from None


def function(name: str, value: Any) -> Any:
    """Returns a function, plain or async."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {shown(value)}")
    return value


def plain_function(name: str, value: Any) -> Any:
    """Returns a function that is not async."""
    if is_async(function(name, value)):
        raise TypeError(f"{name} must be a plain function: only the functions of map may be async")
    return value


def is_async_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function gives an async iterator."""
    call = getattr(function, "__call__", None)  # noqa: B004 -- the method itself is wanted, not whether there is one
    return inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call)


def is_async(function: Callable[..., Any]) -> bool:
    """Returns whether calling the function returns an awaitable."""
    call = getattr(function, "__call__", None)  # noqa: B004 -- the method itself is wanted, not whether there is one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def dtype(name: str, value: Any, kinds: str = "biufc") -> np.dtype[Any]:
    """Returns a dtype of numpy; accepts those of TensorFlow.

    Args:
        name: Name of the argument.
        value: Anything ``numpy.dtype`` accepts except None.
        kinds: The accepted kinds of dtype.
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
    """Returns the URL of a file name given as str, bytes or path."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, os.PathLike):
        found = os.fspath(value)
        return found if isinstance(found, str) else found.decode()
    raise TypeError(f"{name} must be a str or a path, not {shown(value)}{_if_open(value)}")


def urls(name: str, value: Any) -> tuple[str, ...]:
    """Returns one file name, or several in a list."""
    if isinstance(value, str | bytes | os.PathLike):
        return (url(name, value),)
    if isinstance(value, Mapping | AbstractSet) or not isinstance(value, Iterable) or hasattr(value, "read"):
        raise TypeError(f"{name} must be a str, a path or a list of them, not {shown(value)}{_if_open(value)}")
    return tuple(url(f"every item of {name}", each) for each in value)


def _if_open(value: Any) -> str:
    return ": pass the file's name, not an open file" if hasattr(value, "read") else ""


def texts(name: str, values: Any) -> tuple[str, ...]:
    """Returns a list of str."""
    if isinstance(values, str | bytes | Mapping | AbstractSet) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of str, not {shown(values)}")
    return tuple(instance(f"every item of {name}", value, str, "a str") for value in values)


def choice(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    """Returns one of the allowed values."""
    for each in allowed:
        if type(value) is type(each) and value == each:
            return each
    words = [repr(each) for each in allowed]
    raise ValueError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, not {shown(value)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean 'x'?`` if a known word is similar, or has it as a part; else an empty text."""
    names = {name.lower(): name for name in known}
    # Of a short word one letter is much: half of 's4' is right.
    said = word.lower()
    nearest = difflib.get_close_matches(said, names, n=1, cutoff=0.5 if len(said) <= _SHORT else 0.6)
    nearest = nearest or [name for name in names if said in name.split("_") or name.startswith(f"{said}_")]
    return f"; did you mean {names[nearest[0]]!r}?" if nearest else ""


_SHORT: Final = 3
"""Letters of a word of which half may be wrong."""


def unexpected_keyword(owner: str, word: str, known: Iterable[str]) -> TypeError:
    """Returns the error for a keyword that a function does not have."""
    return TypeError(f"{owner}() got an unexpected keyword argument {shown(word)}{suggestion(word, known)}")


def suggesting(cls: type[C]) -> type[C]:
    """Decorates a class: the error for a wrong keyword of its constructor or a public method suggests the nearest one.

    The methods keep their names; errors name the constructor after the class.
    """
    for name, method in list(vars(cls).items()):
        if isinstance(method, staticmethod):
            setattr(cls, name, staticmethod(_suggesting(method.__func__)))
        elif inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            method.__qualname__ = cls.__name__ if name == "__init__" else method.__qualname__
            setattr(cls, name, _suggesting(method))
    return cls


def suggests(function: F) -> F:
    """Decorates a function, or the constructor of a class with its name, in the same way."""
    return _suggesting(function)  # type: ignore[return-value]  # takes and returns the same


def _suggesting(function: Callable[..., R]) -> Callable[..., R]:
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    owner = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> R:
        try:
            return function(*args, **given)
        except TypeError:
            for word in given:
                if word not in parameters:
                    raise unexpected_keyword(owner, word, parameters) from None
            raise

    return call


def instance(name: str, value: Any, kind: Any, what: str) -> Any:
    """Returns an object of a class, or of one of several classes."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, not {shown(value)}")
    return value


def shown(value: Any) -> str:
    """Returns a value as a message shows it: its type, and the value itself if it is short."""
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, str | bytes | int | float | list | tuple | dict | complex | np.generic):
        text = redact(repr(redact_value(value)))
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({kind})"
    if isinstance(value, type):
        return f"the class {kind if value is type else value.__qualname__}"
    return with_article(kind)
