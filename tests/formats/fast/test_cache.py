"""Compiled code is kept where only this user can put it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncdata.formats.fast import cache
from asyncdata.options import user_cache_directory


def test_the_directory_is_private_and_named_by_versions(tmp_path: Path) -> None:
    """It is made with no rights for others; another compiler or another source has another one."""
    source = tmp_path / "kernels.py"
    source.write_text("one")
    made = cache.directory(tmp_path / "home", source, "0.60")
    assert made is not None
    assert os.stat(made).st_mode & 0o077 == 0
    assert cache.directory(tmp_path / "home", source, "0.60") == made
    assert cache.directory(tmp_path / "home", source, "0.61") != made
    source.write_text("two")
    assert cache.directory(tmp_path / "home", source, "0.60") != made


@pytest.mark.parametrize("part", ["asyncdata", "asyncdata/compiled"])
def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path, part: str) -> None:
    """Nor one that is a link to somewhere else, nor one below a home in which others could replace it."""
    source = tmp_path / "kernels.py"
    source.write_text("one")
    home = tmp_path / "home"
    assert cache.directory(home, source, "1") is not None
    (home / part).chmod(0o777)
    assert cache.directory(home, source, "1") is None
    (home / part).chmod(0o700)
    assert cache.directory(home, source, "1") is not None
    (home / part).rename(tmp_path / "away")
    (home / part).symlink_to(tmp_path / "away")
    assert cache.directory(home, source, "1") is None
    (home / part).unlink()
    home.chmod(0o777)
    assert cache.directory(home, source, "1") is None


def test_a_place_that_cannot_be_made_is_none(tmp_path: Path) -> None:
    """A file in the way means that nothing is kept."""
    source = tmp_path / "kernels.py"
    source.write_text("one")
    (tmp_path / "home").write_text("a file")
    assert cache.directory(tmp_path / "home", source, "1") is None


def test_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME if it is an absolute path, else .cache in the user's home."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_directory() == tmp_path
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache_directory() == Path.home() / ".cache"
