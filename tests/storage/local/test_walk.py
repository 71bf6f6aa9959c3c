from __future__ import annotations

import os
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
    """Folders in folders, down to the longest path that there is."""
    monkeypatch.chdir(tmp_path)
    folders = ["d/" * depth for depth in range(1, 1050)]
    try:
        for folder in folders:
            os.mkdir(folder)
        file = Path(f"{folders[-1]}x")
        file.write_bytes(b"")
        assert found("**/x") == [str(file)]
        file.unlink()
    finally:
        for folder in reversed(folders):  # what removes the directory of the test may be recursive
            os.rmdir(folder)


@pytest.mark.parametrize("pattern", ["", "/", "{,}"])
def test_an_alternative_without_a_name_matches_nothing(pattern: str) -> None:
    """A file has a name."""
    assert found(pattern) == []


def test_alternatives_without_a_name_do_not_hide_the_others(tmp_path: Path) -> None:
    """``{a,}`` means a, and nothing."""
    (tmp_path / "a").write_bytes(b"")
    assert found(f"{{{tmp_path}/a,}}") == [f"{tmp_path}/a"]
