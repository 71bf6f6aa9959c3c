"""The modules that code imports while it runs, found and read without being imported.

Nothing here executes a module: the function may never come to its ``import``, and a module may do anything. So modules
are compared by their source files, also those that are loaded: the digest of a function must not change because the
function ran. What a name in a module stands for is not known without executing it, so the whole module counts, with the
modules that it imports.
"""

from __future__ import annotations

import dis
import importlib.util
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final, NamedTuple

_OUR_OWN: Final = __name__.partition(".")[0]
_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))
_BY_NAME: Final = frozenset(("__import__", "import_module"))
_NO_OPERATION: Final = ("CACHE", "EXTENDED_ARG", "NOP")


class Source(NamedTuple):
    """A module of the user's.

    Attributes:
        code: What its source is compiled to; None if it has no source.
        data: The bytes of its file otherwise.
        package: What its relative imports start from.
    """

    code: types.CodeType | None
    data: bytes
    package: str


def is_installed(module: str) -> bool:
    """Whether a module is of the standard library, or of an installed package that is loaded."""
    top = module.partition(".")[0]
    if top in (_OUR_OWN, "builtins") or (top in sys.stdlib_module_names and top != "__main__"):
        return True
    place = getattr(sys.modules.get(top), "__file__", None)
    return place is not None and not _INSTALLED.isdisjoint(Path(place).parts)


def imports_by_name(code: types.CodeType) -> bool:
    """Whether code, or a function inside of it, imports modules whose names are values."""
    return not _BY_NAME.isdisjoint(code.co_names) or any(map(imports_by_name, _codes_in(code)))


def imported(code: types.CodeType, package: str) -> Iterator[str]:
    """The modules that code and the functions inside of it import, and the packages around each.

    Args:
        code: Of a function or module.
        package: What relative imports start from.

    Raises:
        ImportError: A relative import leads out of the package.
        TypeError: An import is written in a way that is not known.
    """
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _NO_OPERATION]
    for number, instruction in enumerate(instructions):
        if instruction.opname != "IMPORT_NAME":
            continue
        level, names = (each.argval for each in instructions[number - 2 : number])
        if not isinstance(level, int) or not isinstance(names, tuple | None):
            raise TypeError("neither a level nor names in front of an import")
        module = importlib.util.resolve_name("." * level + instruction.argval, package or None)
        parts = module.split(".")
        yield from (".".join(parts[: count + 1]) for count in range(len(parts)))
        for name in names or ():
            # Whether it is a module or something in one, only the package's folders can tell.
            if _spec_of(f"{module}.{name}") is not None:
                yield f"{module}.{name}"
    for inner in _codes_in(code):
        yield from imported(inner, package)


def source_of(module: str) -> Source | None:
    """What a module is made of; None if it is installed.

    Raises:
        ImportError: It cannot be found; it may be where the program looks only later.
        OSError: It cannot be read.
    """
    if is_installed(module):
        return None
    spec = _spec_of(module)
    if spec is None:
        raise ImportError(module)
    folders = list(spec.submodule_search_locations or ())
    if any(not _INSTALLED.isdisjoint(Path(place).parts) for place in (spec.origin or "", *folders)):
        return None
    package = spec.parent or ""
    if spec.origin is None and folders:
        return Source(None, b"", package)  # folders without an __init__.py
    if spec.origin is None or not spec.has_location:
        raise ImportError(module)
    read = getattr(spec.loader, "get_data", None)  # of an archive, too
    data: bytes = Path(spec.origin).read_bytes() if read is None else read(spec.origin)
    if not spec.origin.endswith(".py"):
        return Source(None, data, package)
    try:
        return Source(compile(data, "<module>", "exec", dont_inherit=True), data, package)
    except (SyntaxError, ValueError):
        return Source(None, data, package)


def package_of(function: types.FunctionType) -> str:
    """What relative imports of a function start from."""
    names = function.__globals__
    package, spec = names.get("__package__"), names.get("__spec__")
    if package is None and spec is not None:
        package = spec.parent
    if package is None:
        package = str(names.get("__name__", ""))
        package = package if "__path__" in names else package.rpartition(".")[0]
    return str(package)


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def _spec_of(module: str) -> ModuleSpec | None:
    """Where a module is. `importlib.util.find_spec` would import the packages around it."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        found = getattr(loaded, "__spec__", None)
        return importlib.util.spec_from_file_location(module, file) if found is None and file is not None else found
    around = module.rpartition(".")[0]
    if not around:
        return importlib.util.find_spec(module)
    package = _spec_of(around)
    folders = None if package is None else package.submodule_search_locations
    return None if folders is None else PathFinder.find_spec(module, list(folders))
