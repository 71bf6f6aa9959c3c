"""The public face: every public name is importable, documented, in one place, and costs nothing until it is used."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture.tree import PUBLIC_PACKAGES, ROOT, listed_names, name_of, parse, public_names, python_files
from tests.patience import LIMIT_S

INIT_FILES = [path for path in python_files("asyncdata", "fake_gcs") if path.name == "__init__.py"]


@pytest.mark.parametrize(("package", "name"), public_names())
def test_a_public_name_is_there_and_documented(package: str, name: str) -> None:
    """Each name of ``__all__`` can be imported, has no underscore, and says what it is when it is code."""
    module = importlib.import_module(package)
    thing = getattr(module, name)
    assert not name.startswith("_")
    assert name in dir(module)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        assert (thing.__doc__ or "").strip(), f"{package}.{name} has no docstring"


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_a_name_is_listed_once(package: str) -> None:
    """``__all__`` has no duplicates."""
    names = [name for home, name in public_names() if home == package]
    assert len(names) == len(set(names))


def test_a_thing_is_public_in_one_place() -> None:
    """No class or function can be imported from two public packages: there is one way to write an import."""
    homes: dict[int, list[str]] = defaultdict(list)
    for package, name in public_names():
        thing = getattr(importlib.import_module(package), name)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            homes[id(thing)].append(f"{package}.{name}")
    assert [places for places in homes.values() if len(places) > 1] == []


def test_importing_asyncdata_is_cheap() -> None:
    """``import asyncdata`` loads no network stack, no event loop and no image library."""
    script = "import asyncdata, sys; print(*sys.modules)"
    outcome = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    loaded = {name.partition(".")[0] for name in outcome.stdout.split()}
    assert "asyncdata" in loaded
    assert loaded.isdisjoint({"aiohttp", "cv2", "gcsfs", "google", "pyarrow", "torch", "uvloop"})


@pytest.mark.parametrize("path", INIT_FILES, ids=name_of)
def test_an_init_file_only_exports(path: Path) -> None:
    """``__init__.py`` holds a docstring, imports, ``__all__`` and at most the two functions of lazy exports."""
    for node in parse(path).body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case ast.FunctionDef(name="__getattr__" | "__dir__"):
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.Assign(targets=[ast.Name()]) | ast.AnnAssign(target=ast.Name()):
                pass  # __all__, __version__, the table of lazy exports
            case _:
                pytest.fail(f"{name_of(path)}:{node.lineno} does more than export: {ast.unparse(node)[:80]}")


@pytest.mark.parametrize("path", INIT_FILES, ids=name_of)
def test_what_an_init_file_imports_is_exported(path: Path) -> None:
    """A package lists all it imports from the project's modules in ``__all__``: nothing is half public."""
    tree = parse(path)
    listed = listed_names(".".join(path.parent.relative_to(ROOT).parts), path)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("asyncdata", "fake_gcs"))
        for alias in node.names
    }
    assert imported <= set(listed)
