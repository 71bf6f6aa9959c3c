"""Files that are replaced as a whole, and what killed writers leave."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from asyncdata.errors import SystemResourceError
from asyncdata.replacing import replacing
from tests.faults.programs import program


def partials(folder: Path) -> list[str]:
    """What unfinished writers have there."""
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".partial"))


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    """And nothing else."""
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), replacing(path, "the state", "test") as file:
        file.write(cast("Any", "no bytes"))
    assert path.read_bytes() == b"old"
    assert partials(tmp_path) == []


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "directory"])
def test_what_is_no_regular_file_is_not_replaced(kind: str, tmp_path: Path) -> None:
    """Renaming would put a file there, also in the place of a device."""
    path = tmp_path / "x"
    if kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to("pipe") if kind == "link to a pipe" else (tmp_path / "pipe").rename(path)
    before = sorted(tmp_path.iterdir()), path.lstat()
    words = "directory" if kind == "directory" else "no regular file"
    with pytest.raises(SystemResourceError, match=words), replacing(path, "the state", "test"):
        raise AssertionError("it began")
    assert before == (sorted(tmp_path.iterdir()), path.lstat())


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """What a living one has, and what only looks like it, stays."""
    path = tmp_path / "state[1].json"
    body = f"""
from pathlib import Path
from asyncdata.replacing import replacing
with replacing(Path({str(path)!r}), "the state", "test") as file:
    file.write(b"half")
    file.flush()
    say("writing")
    threading.Event().wait()
"""
    with program(body) as running:
        running.expect("writing")
        running.popen.kill()
        running.popen.wait()
    (left,) = partials(tmp_path)
    others = [".other.json.0123abcd.partial", ".state[1].json.notes.partial", ".state1.json.0123abcd.partial"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    with replacing(path, "the state", "test") as living:
        living.write(b"one")
        assert left not in partials(tmp_path)
        (mine,) = set(partials(tmp_path)) - set(others)
        with replacing(path, "the state", "test") as file:
            file.write(b"two")
        assert mine in partials(tmp_path)
    assert path.read_bytes() == b"one"
    assert partials(tmp_path) == sorted(others)


def test_many_writers_of_one_path(tmp_path: Path) -> None:
    """Each replaces the file, none takes another's for left behind; one that was removed early is made again."""
    path = tmp_path / "state"
    body = f"""
from pathlib import Path
from asyncdata.replacing import replacing

def write(number):
    for _ in range(50):
        with replacing(Path({str(path)!r}), "the state", "test") as file:
            file.write(b"%d" % number * 1000)

threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say("done")
"""
    with program(body) as one, program(body) as other:
        one.expect("done")
        other.expect("done")
    data = path.read_bytes()
    assert len(data) == 1000
    assert len(set(data)) == 1
    assert partials(tmp_path) == []
