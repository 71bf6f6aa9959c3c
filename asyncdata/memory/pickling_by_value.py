"""Pickles by value what decorators of the standard library make in a script, as cloudpickle does with functions.

``functools.cache`` and ``typing.NewType`` make objects that pickle sends by name, which says nothing to a process that
does not run the script. ``functools.cached_property`` holds a lock in Python 3.11, so its class cannot be sent. What
they were made of can.
"""

from __future__ import annotations

import collections
import functools
import io
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

SCRIPT_OF_CHILD: Final = "__mp_main__"
"""What multiprocessing calls the script's module in a child it spawned."""


def dumps(cloudpickle: Any, value: object, **options: Any) -> bytes:
    """As ``cloudpickle.dumps``.

    Args:
        cloudpickle: The module, which a worker process loads only if it needs it.
        value: What is to be pickled.
        options: Of ``pickle.dumps``.
    """
    pickled = io.BytesIO()
    _pickler(cloudpickle)(pickled, **{"protocol": 5, **options}).dump(value)
    return pickled.getvalue()


@functools.cache
def _pickler(cloudpickle: Any) -> Any:
    def by_value(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
        registered = cloudpickle.list_registry_pickle_by_value
        return lambda value: value.__reduce__() if _is_known_by_name(value, registered()) else reduce(value)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # ships no types
        dispatch_table: ClassVar = collections.ChainMap(
            {
                types.CodeType: functools.partial(_reduce_code, cloudpickle.Pickler.dispatch_table[types.CodeType]),
                _CACHE: by_value(_reduce_cache),
                typing.NewType: by_value(_reduce_new_type),
                functools.cached_property: _reduce_property,
            },
            cloudpickle.Pickler.dispatch_table,
        )

    return Pickler


def _is_known_by_name(value: Any, by_value: set[str]) -> bool:
    """Whether another process finds the object in its module."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or name is None or module in {"__main__", SCRIPT_OF_CHILD, *by_value}:
        return False
    try:
        return operator.attrgetter(name)(sys.modules[module]) is value
    except (AttributeError, KeyError):
        return False


_NO_FILE: Final = "<dynamic-code>"
"""What cloudpickle 3.1.3 says instead of the file's name, so that pickles are the same wherever the file lies."""


def _reduce_code(reduce: Callable[[types.CodeType], Any], code: types.CodeType) -> tuple[Any, tuple[Any, ...]]:
    """Keeps the name of the file, without which no traceback shows where a function of the script failed or hung."""
    make, given = reduce(code)
    return make, tuple(code.co_filename if each == _NO_FILE else each for each in given)


_CACHE: Final = type(functools.cache(int))
"""What ``functools.cache`` and ``lru_cache`` make."""


def _reduce_cache(cached: Any) -> tuple[Any, ...]:
    made_here = ("__wrapped__", "cache_parameters")
    state = {name: value for name, value in vars(cached).items() if name not in made_here}
    return _make_cache, (cached.__wrapped__, cached.cache_parameters()), state


def _make_cache(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_new_type(new: Any) -> tuple[Any, ...]:
    return typing.NewType, (new.__name__, new.__supertype__), vars(new)


def _reduce_property(cached: functools.cached_property[Any]) -> tuple[Any, ...]:
    state = {name: value for name, value in vars(cached).items() if name not in ("func", "lock")}
    return functools.cached_property, (cached.func,), state
