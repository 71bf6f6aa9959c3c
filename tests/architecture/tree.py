"""The source files of the repository as the architecture tests see them; what is missing is simply not there."""

from __future__ import annotations

import ast
import functools
import importlib
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]

PUBLIC_PACKAGES: Final = (
    "asyncdata",
    "asyncdata.feed",
    "asyncdata.formats",
    "asyncdata.observe",
    "asyncdata.record",
    "asyncdata.service",
    "asyncdata.state",
    "asyncdata.storage",
    "asyncdata.testing",
    "fake_gcs",
)

OPTIONAL_PACKAGES: Final = frozenset(
    {
        "backports",
        "cv2",
        "hdfs_native",
        "jax",
        "keras",
        "lightning",
        "obstore",
        "orbax",
        "prometheus_client",
        "pyarrow",
        "tensorflow",
        "tqdm",
        "torch",
        "transformers",
    }
)
"""Third-party packages that only an extra installs, by the name under which they are imported."""


def python_files(*folders: str) -> list[Path]:
    """All Python files below these folders of the repository, in a fixed order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """The path inside the repository, for messages and test ids."""
    return str(path.relative_to(ROOT))


@functools.lru_cache(maxsize=32)  # not every file's: garbage collections would have to look at them for the whole run
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_packages(tree: ast.AST) -> set[str]:
    """The first component of everything imported anywhere below a node."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found


def public_names() -> list[tuple[str, str]]:
    """Every (package, name) that some public package lists in ``__all__``.

    A package is imported only to read a computed list: one that is broken fails its own tests, not the collection.
    """
    files = {package: ROOT / package.replace(".", "/") / "__init__.py" for package in PUBLIC_PACKAGES}
    return [(package, name) for package, path in files.items() if path.exists() for name in listed_names(package, path)]


def listed_names(package: str, path: Path) -> list[str]:
    """What ``__all__`` of a package holds; empty where it has none."""
    for node in parse(path).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and target.id == "__all__":
            if isinstance(node.value, ast.List | ast.Tuple):
                return [str(ast.literal_eval(item)) for item in node.value.elts]
            return list(importlib.import_module(package).__all__)
    return []


@functools.cache
def project() -> dict[str, Any]:
    """The content of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)
