"""Third-party packages: the base install is enough to import everything, and each extra has one door."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import OPTIONAL_PACKAGES, imported_packages, name_of, parse, project, python_files

FILES = python_files("asyncdata")

IMPORT_NAMES = {
    "opencv-python-headless": "cv2",
    "apache-beam": "apache_beam",
    "backports.zstd": "backports",
    "hdfs-native": "hdfs_native",
    "google-auth": "google",
}
"""Where the name of a distribution is not the name that is imported."""


def distributions(requirements: list[str]) -> set[str]:
    """The import names of a list of requirements, versions and markers left out."""
    names = {re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0] for requirement in requirements}
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


@pytest.mark.parametrize("package", sorted(OPTIONAL_PACKAGES))
def test_an_optional_package_has_one_door(package: str) -> None:
    """Each optional third-party package is imported in at most one file of asyncdata."""
    doors = [name_of(path) for path in FILES if package in imported_packages(parse(path))]
    assert len(doors) <= 1


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_import_is_declared(path: Path) -> None:
    """What a file imports is Python's, the project's, of the base install, or an optional package with its extra."""
    base = distributions(project()["project"]["dependencies"])
    known = set(sys.stdlib_module_names) | base | OPTIONAL_PACKAGES | {"asyncdata"}
    assert imported_packages(parse(path)) - known == set()


def test_every_optional_package_has_an_extra() -> None:
    """A package that is imported optionally can be installed by an extra."""
    extras = project()["project"]["optional-dependencies"]
    installable = set().union(*(distributions(requirements) for requirements in extras.values()))
    assert installable >= OPTIONAL_PACKAGES


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_stand_on_top(path: Path) -> None:
    """No cycle is dodged and no dependency hidden by an import inside a function, but in a door of an extra.

    Python's own modules are left to the linter, which wants a reason for each.
    """
    base = distributions(project()["project"]["dependencies"])
    local = {
        package
        for function in ast.walk(parse(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name != "__getattr__"
        for package in imported_packages(function)
    }
    assert local.isdisjoint(base | {"asyncdata", "fake_gcs"})
