from __future__ import annotations

import errno
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
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


def test_what_cannot_be_listed_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder named in the pattern is an error; one below a wildcard a warning, unless the disk fails."""
    for folder in ("open", "closed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_bytes(b"")
    scan, why = os.scandir, PermissionError(errno.EACCES, "refused")

    def scandir(path: str) -> Any:
        if path.rstrip("/").endswith("closed"):
            raise why
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for pattern in ("*/*", "**/x"):
        caplog.clear()
        assert found(f"{tmp_path}/{pattern}") == [f"{tmp_path}/open/x"]
        assert "closed" in caplog.text
    with pytest.raises(PermissionError):
        found(f"{tmp_path}/closed/*")
    with pytest.raises(ad.AccessDeniedError, match="closed"):
        list(ad.Dataset.list_files(f"{tmp_path}/closed/*"))
    why = OSError(errno.EIO, "Input/output error")  # type: ignore[assignment]  # of another kind
    for pattern in ("*/*", "**/x"):
        with pytest.raises(OSError, match="Input"):
            found(f"{tmp_path}/{pattern}")
    stat, status = os.stat, PermissionError(errno.EACCES, "refused")

    def refusing(path: str) -> os.stat_result:
        if path.endswith("open/x"):
            raise status
        return stat(path)

    monkeypatch.setattr(os, "stat", refusing)
    with pytest.raises(PermissionError):
        found(f"{tmp_path}/open/x")
