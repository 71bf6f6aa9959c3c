"""Sends functions to the worker processes: pickled by value, or an error that names what cannot be pickled."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import cloudpickle  # type: ignore[import-untyped]  # ships no types

from asyncdata.errors import FunctionTransferError
from asyncdata.memory import pickling_by_value
from asyncdata.wording import with_article

_MAX_DEPTH: Final = 8
_MAX_TRIALS: Final = 500
_MAX_CHILDREN: Final = 64

WORKERS: Final = "the worker processes"
LOADER: Final = "the loader process"
_WAY_OUT: Final = {
    WORKERS: 'or run the function in threads with executor="thread"',
    LOADER: "or run the pipeline without isolate=True",
}


def dumps(value: object, **options: Any) -> bytes:
    """The pickle of something that may hold functions, for another process of the pipeline.

    What the script defines, lambdas and closures travel by value; functions of importable modules by name. A child that
    multiprocessing has spawned is no exception: its script is a module that no other process can import.

    Args:
        value: What is to be pickled.
        options: Of ``pickle.dumps``.
    """
    script = sys.modules.get("__main__")
    if script is not None and script.__name__ == pickling_by_value.SCRIPT_OF_CHILD:
        cloudpickle.register_pickle_by_value(script)
    return pickling_by_value.dumps(cloudpickle, value, **options)


def dump_program(program: object, destination: str = WORKERS) -> bytes:
    """As `dumps`, of a function or a structure that holds functions.

    Args:
        program: The function.
        destination: `WORKERS` or `LOADER`, for the message.

    Raises:
        FunctionTransferError: It cannot be pickled. The message names the object in the way and how it is reached.
    """
    try:
        return dumps(program)
    except Exception as exc:
        raise FunctionTransferError(_explain(program, exc, destination)) from exc


def _explain(program: object, failure: Exception, destination: str) -> str:
    path, culprit, reason = _find_culprit(program, failure)
    subject = f"{_describe(program)} cannot be sent to {destination}"
    inside = f": {' → '.join(path)} is {_article(culprit)}" if path else ""
    return (
        f"{subject}{inside} ({type(reason).__name__}: {reason}). "
        "Make such an object inside the function or on its first call there, pass its ingredients (a path, an "
        f"option) instead, {_WAY_OUT[destination]}."
    )


def _describe(program: object) -> str:
    code = getattr(program, "__code__", None)
    if isinstance(code, types.CodeType):
        return f"function {code.co_qualname!r} ({code.co_filename}:{code.co_firstlineno})"
    return f"{type(program).__qualname__} object"


def _article(culprit: object) -> str:
    kind = type(culprit)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return with_article(f"{module}{kind.__qualname__}")


def _failure_of(value: object) -> Exception | None:
    try:
        dumps(value)
    except Exception as exc:  # noqa: BLE001 -- any __reduce__ may run here, and any of its failures is the answer
        return exc
    return None


def _find_culprit(program: object, failure: Exception) -> tuple[list[str], object, Exception]:
    """Goes down from ``program`` as long as one of the parts fails by itself."""
    path: list[str] = []
    value, reason = program, failure
    trials = 0
    seen = {id(program)}
    for _ in range(_MAX_DEPTH):
        for name, part in _parts(value):
            if id(part) in seen or trials >= _MAX_TRIALS:
                continue
            seen.add(id(part))
            trials += 1
            part_failure = _failure_of(part)
            if part_failure is not None:
                path.append(name)
                value, reason = part, part_failure
                break
        else:
            break
    return path, value, reason


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    """What pickling ``value`` would reach next, each with the name a user knows it by."""
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
        return
    if isinstance(value, types.MethodType):
        yield f"the object of the method {value.__name__!r}", value.__self__
        yield f"the method {value.__name__!r}", value.__func__
        return
    if isinstance(value, functools.partial):
        yield "the function of the partial", value.func
        yield from ((f"argument {i}", part) for i, part in enumerate(value.args))
        yield from ((f"argument {name!r}", part) for name, part in value.keywords.items())
    elif isinstance(value, Mapping):
        yield from (
            (f"item {key!r}", part) for (key, part), _ in zip(value.items(), range(_MAX_CHILDREN), strict=False)
        )
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {i}", part) for i, part in zip(range(_MAX_CHILDREN), value, strict=False))
    yield from ((f"attribute {name!r}", part) for name, part in _attributes(value))


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"captured variable {name!r}", cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    for name in _global_names(code):
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]
    for i, default in enumerate(function.__defaults__ or ()):
        yield (
            f"default of argument {code.co_varnames[code.co_argcount - len(function.__defaults__ or ()) + i]!r}",
            default,
        )
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f"default of argument {name!r}", default
    yield from ((f"attribute {name!r}", part) for name, part in vars(function).items())


def _global_names(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.extend(_global_names(constant))
    return names


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type | types.ModuleType):
        return
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)
