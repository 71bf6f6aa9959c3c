"""Digests of functions and values that are equal in every process and change with what they represent.

A function is digested as its code, its constants and its references (closures, defaults, globals), recursively with the
functions among them. Each has a part of its own, so that a difference can be named::

    def scale(x):            "code of scale"
        return f(x) * RATE   "RATE in scale", "f in scale", "code of f"

A module that a function imports while it runs, or uses as a value, is digested as its source file ("module helper"),
with the modules that it imports; see `imports`.

Functions and classes of installed packages, and those without Python code, are identified by their names. Nothing
depends on ids, hashes, line numbers, paths of files or the order of a dict, which may come from that of a set. Objects
that cannot be taken apart (a lock, an open file) have
no digest.
"""

from __future__ import annotations

import contextlib
import copyreg
import dis
import functools
import hashlib
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np

from asyncdata.plan.node import Node
from asyncdata.planner.imports import imported, imports_by_name, is_installed, package_of, source_of

Parts = dict[str, str | None]
"""Digests by what they are of; None where there is none."""

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice)
_STATE_IS_CHANCE: Final = (random.Random, np.random.Generator, np.random.RandomState)
_DESCRIPTORS: Final = ("fget", "fset", "fdel", "func", "__func__")
_NOTHING: Final = object()


def parts_of(named: Iterable[tuple[str, Any]], of_node: Callable[[Node], str]) -> Parts:
    """The digests of values, and of the functions that they refer to.

    Args:
        named: Values and what to call them.
        of_node: Returns a text that represents a dataset's plan.
    """
    digester = _Digester(of_node)
    for name, value in named:
        digester.add(name, value, given=True)
    return digester.finish()


class _Digester:
    def __init__(self, of_node: Callable[[Node], str]) -> None:
        self._of_node = of_node
        self._parts: Parts = {}
        self._names: dict[int, str] = {}
        self._waiting: deque[tuple[str, Any]] = deque()
        self._modules: dict[str, None] = {}  # names, in the order in which they were found
        self._alive: list[Any] = []  # no other object must get an id that is remembered
        self._digests: dict[int, bytes] = {}

    def finish(self) -> Parts:
        """Follows all references."""
        while self._waiting:
            name, value = self._waiting.popleft()
            try:
                (self._add_class if isinstance(value, type) else self._add_function)(name, value)
            except Exception:  # noqa: BLE001 -- the attributes of classes may run anything
                self._parts[f"code of {name}"] = None
        done = 0
        while done < len(self._modules):
            for module in list(self._modules)[done:]:
                self._add_module(module)
                done += 1
        return self._parts

    def add(self, name: str, value: Any, *, given: bool = False) -> None:
        """A part of its own, and one per attribute of an object."""
        try:
            if given and isinstance(value, types.FunctionType):
                self._parts[name] = self._follow(value).hex()
                return
            state = _attributes(value)
            self._parts[name] = self._digest(value if state is None else type(value)).hex()
        except Exception:  # noqa: BLE001 -- any __reduce__ may run here, and what fails cannot be compared
            self._parts[name] = None
            return
        variable, space, rest = name.partition(" ")
        for attribute, part in (state or {}).items():
            if not attribute.startswith("__") or attribute == "__wrapped__":
                known = given and isinstance(part, types.FunctionType)
                self._parts[f"{variable}.{attribute}{space}{rest}"] = (
                    self._follow(part).hex() if known else self._safely(part)
                )

    def _safely(self, value: Any) -> str | None:
        try:
            return self._digest(value).hex()
        except Exception:  # noqa: BLE001 -- see above
            return None

    # --- functions and classes -------------------------------------------------------------------------------------

    def _follow(self, value: Any) -> bytes:
        """A reference to a function or class that has parts of its own."""
        if id(value) not in self._names:
            name = value.__qualname__.rpartition("<locals>.")[2]
            count = sum(known == name or known.startswith(f"{name} (") for known in self._names.values())
            self._names[id(value)] = name = f"{name} ({count + 1})" if count else name
            self._alive.append(value)
            self._waiting.append((name, value))
        return _hash("follow", self._names[id(value)])

    def _add_function(self, name: str, function: types.FunctionType) -> None:
        self._parts[f"code of {name}"] = self._code(function.__code__).hex()
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # empty
                self.add(f"{variable} in {name}", cell.cell_contents)
        for variable, value in _globals_used(function):
            self.add(f"{variable} in {name}", value)
        if function.__defaults__:
            self.add(f"defaults of {name}", function.__defaults__)
        if function.__kwdefaults__:
            self.add(f"defaults by name of {name}", function.__kwdefaults__)
        for attribute, value in list(vars(function).items()):
            self.add(f"{attribute} of {name}", value)
        self._add_imports(name, function.__code__, package_of(function))

    def _add_imports(self, name: str, code: types.CodeType, package: str) -> None:
        try:
            self._modules.update(dict.fromkeys(imported(code, package)))
        except Exception:  # noqa: BLE001 -- of a relative import without a package, and whatever finders raise
            self._parts[f"imports of {name}"] = None
        if imports_by_name(code):
            self._parts[f"modules that {name} imports by name"] = None

    def _add_module(self, module: str) -> None:
        part = f"module {module}"
        try:
            source = source_of(module)
            if source is None:
                return
            if source.code is None:
                self._parts[part] = _hash("file", source.data).hex()
                return
            self._parts[part] = self._code(source.code).hex()
            self._add_imports(part, source.code, source.package)
        except Exception:  # noqa: BLE001 -- it cannot be found or read, or a finder fails
            self._parts[part] = None

    def _add_class(self, name: str, kind: type[Any]) -> None:
        self._parts[f"bases of {name}"] = self._safely(kind.__bases__)
        for attribute, value in sorted(vars(kind).items()):
            inner = [found for of in _DESCRIPTORS if (found := getattr(value, of, None)) is not None]
            if isinstance(value, types.FunctionType):
                inner = [value]
            functions = [each for each in inner if isinstance(each, types.FunctionType)]
            for function in functions:
                self._follow(function)
            made_by_python = attribute.startswith(("__", "_abc_")) or isinstance(
                value, types.MemberDescriptorType | types.GetSetDescriptorType
            )
            if isinstance(value, functools.singledispatchmethod):
                self.add(f"functions of {attribute} of {name}", dict(value.dispatcher.registry))
            # Descriptors of other installed classes hold locks and what they made.
            is_more = isinstance(value, functools.partialmethod) or not _has_known_name(type(value))
            if (not functions or is_more) and not made_by_python:
                self.add(f"{attribute} of {name}", value)

    def _code(self, code: types.CodeType) -> bytes:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_flags, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount)
        constants = b"".join(self._digest(constant) for constant in code.co_consts)
        return _hash("code", code.co_code, code.co_exceptiontable, constants, repr(names), repr(counts))

    # --- values ----------------------------------------------------------------------------------------------------

    def _digest(self, value: Any) -> bytes:
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, value if isinstance(value, bytes) else repr(value))
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.FunctionType | type):
            return _hash("name", _name_of(value)) if _has_known_name(value) else self._follow(value)
        if isinstance(value, types.ModuleType):
            self._modules[value.__name__] = None  # what is taken from it is not known
            return _hash("module", value.__name__)
        if isinstance(value, _STATE_IS_CHANCE):
            return _hash("name", _name_of(type(value)))
        if isinstance(value, Node):
            return _hash("plan", self._of_node(value))
        found = self._digests.get(id(value))
        if found is None:
            self._alive.append(value)
            self._digests[id(value)] = _hash("cycle")  # for what is inside of it and refers to it
            self._digests[id(value)] = found = self._compound(value)
        return found

    def _compound(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (tuple, list):
            return _hash(kind.__name__, *map(self._digest, value))
        if kind in (set, frozenset):
            return _hash(kind.__name__, *sorted(map(self._digest, value)))
        if kind in (dict, types.MappingProxyType):
            return _hash("dict", *sorted(self._digest(key) + self._digest(item) for key, item in value.items()))
        if kind is np.ndarray:
            whole = value.tolist() if value.dtype.hasobject else None
            body = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if whole is None and value.size else b""
            return _hash("array", _text_of(value.dtype), repr(value.shape), self._digest(whole), body)
        if isinstance(value, np.generic):
            return _hash("scalar", _text_of(value.dtype), value.tobytes())
        if isinstance(value, np.dtype):
            return _hash("dtype", value.str, repr(value.fields or value.subdtype))
        return self._callable(value)

    def _callable(self, value: Any) -> bytes:
        if isinstance(value, types.MethodType):
            owner, name = value.__self__, getattr(value, "__name__", "")
            # Of a class method that was sent to another process, the function is a copy of the one in the class.
            function = name if hasattr(owner if isinstance(owner, type) else type(owner), name) else value.__func__
            return _hash("method", self._digest(function), self._digest(owner))
        if isinstance(value, types.BuiltinFunctionType):
            owner = None if isinstance(value.__self__, types.ModuleType | type) else value.__self__
            return _hash("name", _name_of(value), self._digest(owner))
        if _is_transparent(value):
            return _hash("wrapper", _name_of(type(value)), self._digest(value.__wrapped__))
        if isinstance(value, functools.partial) and callable(getattr(value, "__wrapped__", None)):
            # What else is in its dict was copied from the function.
            return _hash("wrapper", "partial", *map(self._digest, (value.func, value.args, value.keywords)))
        return self._reduced(value)

    def _reduced(self, value: Any) -> bytes:
        """What pickle would make of it; raises when it would refuse."""
        reduced = _reduce(value)
        if isinstance(reduced, str):
            return _hash("name", str(getattr(value, "__module__", "")), reduced)
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        return _hash("made", *map(self._digest, (make, arguments, state, list(items or ()), dict(pairs or ()))))


def _text_of(dtype: np.dtype[Any]) -> str:
    return dtype.str if dtype.kind != "V" else repr(dtype)  # the other one knows no fields


def _hash(*pieces: str | bytes | memoryview) -> bytes:
    whole = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        data = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.digest()


def _reduce(value: Any) -> Any:
    registered = copyreg.dispatch_table.get(type(value))
    return value.__reduce_ex__(4) if registered is None else registered(value)


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that are all it is; None for anything else."""
    kind = type(value)
    ready = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, Node)
    if kind in _PLAIN or kind.__module__ in ("builtins", "numpy") or isinstance(value, (*ready, *_STATE_IS_CHANCE)):
        return None
    if _is_transparent(value):
        return None
    reduced = _reduce(value)
    whole = isinstance(reduced, str) or tuple(reduced[:2]) != (copyreg.__newobj__, (kind,))  # type: ignore[attr-defined]  # typeshed lacks it
    state = {} if whole or reduced[2] is None else reduced[2]
    return None if whole or not isinstance(state, dict) or any(part is not None for part in reduced[3:]) else state


def _is_transparent(value: Any) -> bool:
    """Whether a callable counts as the one that it wraps.

    What wrappers of installed packages hold besides, such as results and compiled code, changes with calls. A partial,
    and an object of a class of the user's, are more than the function.
    """
    wraps = callable(value) and callable(getattr(value, "__wrapped__", None))
    return wraps and not isinstance(value, functools.partial) and _has_known_name(type(value))


def _globals_used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that code refers to, and what it takes from modules of the user's: ``config.SIZE``."""
    seen = set()
    for path in _paths(function.__code__):
        found, name = function.__globals__.get(path[0], _NOTHING), path[0]
        if found is _NOTHING:
            continue  # a builtin, or not there yet
        for attribute in path[1:]:
            if not isinstance(found, types.ModuleType) or is_installed(found.__name__):
                break
            found, name = getattr(found, attribute, None), f"{name}.{attribute}"
        if name not in seen:
            seen.add(name)
            yield name, found


def _paths(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, instruction.argval)
            continue
        if path:
            yield path
        path = (instruction.argval,) if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    if path:
        yield path
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _paths(constant)


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}"


def _has_known_name(value: Any) -> bool:
    """Whether a function or class is found by its name in an installed package.

    Functions of the user's may have the names of others that they wrap, but not their globals.
    """
    made_in = value.__globals__.get("__name__") if isinstance(value, types.FunctionType) else None
    is_other = made_in is not None and not is_installed(made_in)
    return not is_other and "<" not in value.__qualname__ and is_installed(value.__module__ or "")
