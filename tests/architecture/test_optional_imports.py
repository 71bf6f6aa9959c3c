"""Third-party packages: the base install is enough to import everything, and each extra has one door."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass

import pytest

from tests.architecture.tree import OPTIONAL_PACKAGES, imported_packages, name_of, parse, project, python_files

IMPORT_NAMES = {
    "opencv-python-headless": "cv2",
    "backports.zstd": "backports",
    "hdfs-native": "hdfs_native",
    "orbax-checkpoint": "orbax",
    "google-auth": "google",
}
"""Where the name of a distribution is not the name that is imported."""


def distributions(requirements: list[str]) -> set[str]:
    """The import names of a list of requirements, versions and markers left out."""
    names = {re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0] for requirement in requirements}
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


@dataclass(frozen=True)
class Imports:
    """The packages a file imports.

    Attributes:
        anywhere: All of them.
        inside: Those imported inside functions.
    """

    anywhere: set[str]
    inside: set[str]


@pytest.fixture(scope="module")
def imports() -> dict[str, Imports]:
    """What each file of asyncdata imports."""
    return {name_of(path): _imports(parse(path)) for path in python_files("asyncdata")}


def _imports(tree: ast.Module) -> Imports:
    functions = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__getattr__"
    )
    return Imports(imported_packages(tree), {package for node in functions for package in imported_packages(node)})


@pytest.mark.parametrize("package", sorted(OPTIONAL_PACKAGES))
def test_an_optional_package_has_one_door(package: str, imports: dict[str, Imports]) -> None:
    """Each optional third-party package is imported in one file of asyncdata; an unused extra is not offered."""
    doors = [name for name, of_file in imports.items() if package in of_file.anywhere]
    assert len(doors) == 1


def test_every_import_is_declared(imports: dict[str, Imports]) -> None:
    """What a file imports is Python's, the project's, of the base install, or an optional package with its extra."""
    base = distributions(project()["project"]["dependencies"])
    known = set(sys.stdlib_module_names) | base | OPTIONAL_PACKAGES | {"asyncdata"}
    assert len(imports) > 100
    assert {name: unknown for name, of_file in imports.items() if (unknown := of_file.anywhere - known)} == {}


def test_every_optional_package_has_an_extra() -> None:
    """A package that is imported optionally can be installed by an extra."""
    extras = project()["project"]["optional-dependencies"]
    installable = set().union(*(distributions(requirements) for requirements in extras.values()))
    assert installable >= OPTIONAL_PACKAGES


def test_imports_stand_on_top(imports: dict[str, Imports]) -> None:
    """No cycle is dodged and no dependency hidden by an import inside a function, but in a door of an extra.

    Python's own modules are left to the linter, which wants a reason for each.
    """
    top = distributions(project()["project"]["dependencies"]) | {"asyncdata", "fake_gcs"}
    assert {name: local for name, of_file in imports.items() if (local := of_file.inside & top)} == {}


def test_an_import_inside_a_function_is_found() -> None:
    """It counts in both ways; one of a lazy export, or on top, only in the first."""
    tree = ast.parse("import a\ndef f():\n    from b.c import d\ndef __getattr__(name):\n    import e")
    assert _imports(tree) == Imports({"a", "b", "e"}, {"b"})
