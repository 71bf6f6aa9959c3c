from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from asyncdata.storage.globs import compile_glob
from asyncdata.storage.local.walk import find_files


def found(pattern: str) -> list[str]:
    """The paths that match, sorted."""
    return sorted(path for item in compile_glob(pattern) for path, _ in find_files(item))


def test_a_pattern_may_be_deeper_than_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without wildcards, and where a link leads in a circle, so that there is something at every depth."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_bytes(b"")
    (tmp_path / "loop").symlink_to(".")
    assert found("a/" * 3000 + "x") == []
    assert found("*/" * 3000 + "x") == []
    assert found("./" * 1500 + "?") == ["./" * 1500 + "x"]


def test_a_tree_may_be_deeper_than_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack is made small instead of the tree deep, which hardly anything could remove again."""
    monkeypatch.chdir(tmp_path)
    deepest = Path(*["d"] * 200)
    deepest.mkdir(parents=True)
    (deepest / "x").write_bytes(b"")
    patterns = ["**/x", "*/" * 200 + "x"]
    assert [found(pattern) for pattern in patterns] == 2 * [[str(deepest / "x")]]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(context=0)) + 100)
    try:
        again = [found(pattern) for pattern in patterns]
    finally:
        sys.setrecursionlimit(limit)
    assert again == 2 * [[str(deepest / "x")]]


@pytest.mark.parametrize("pattern", ["", "/", "{,}"])
def test_an_alternative_without_a_name_matches_nothing(pattern: str) -> None:
    """A file has a name."""
    assert found(pattern) == []


def test_alternatives_without_a_name_do_not_hide_the_others(tmp_path: Path) -> None:
    """``{a,}`` means a, and nothing."""
    (tmp_path / "a").write_bytes(b"")
    assert found(f"{{{tmp_path}/a,}}") == [f"{tmp_path}/a"]
