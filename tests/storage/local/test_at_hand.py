"""Copies of what the system has in memory of a file: the right bytes or none, and no waiting for a disk."""

from __future__ import annotations

import os
import pickle
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncdata.storage.local.at_hand import FOUND, MISSING, UNSUPPORTED, CopyAtHand, encode_request
from asyncdata.storage.local.descriptors import version_of
from asyncdata.testing import check, snapshot

CONTENT = bytes(range(256)) * 64
MARGIN = 100
POISON = 0xA5

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system has no RWF_NOWAIT")


def version(path: str | Path) -> str:
    """The token of the file as it is now."""
    return version_of(os.stat(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that was just written, and is in memory."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def copy() -> Iterator[CopyAtHand]:
    """What a worker has."""
    copy = CopyAtHand()
    yield copy
    copy.close()


def copied(copy: CopyAtHand, path: str | Path, token: str, position: int, length: int) -> tuple[bytes, bytearray]:
    """The answer, and what lies in memory afterwards, `MARGIN` bytes in."""
    memory = bytearray([POISON]) * (2 * len(CONTENT))
    answer = copy.run(memoryview(memory), encode_request(str(path), token, position, MARGIN, length))
    return answer, memory


def test_a_range_and_nothing_else_is_written(file: Path, copy: CopyAtHand) -> None:
    """A range inside the file arrives whole; one that ends behind it is not found; around it nothing is touched."""
    drawn = random.Random(1)
    for _ in range(300):
        position, length = drawn.randint(0, len(CONTENT)), drawn.randint(1, len(CONTENT))
        answer, memory = copied(copy, file, version(file), position, length)
        inside = position + length <= len(CONTENT)
        assert answer == (FOUND if inside else MISSING)
        if inside:
            assert memory[MARGIN : MARGIN + length] == CONTENT[position : position + length]
        assert set(memory[:MARGIN]) | set(memory[MARGIN + length :]) == {POISON}


@pytest.mark.parametrize("name", ["plain", "a b", "ünï", "line\nbreak", os.fsdecode(b"\xff\xfe")])
def test_any_name_will_do(tmp_path: Path, copy: CopyAtHand, name: str) -> None:
    """Names are bytes to the system, whatever they mean to others."""
    path = os.path.join(tmp_path, name)
    with open(path, "wb") as file:
        file.write(CONTENT)
    answer, memory = copied(copy, path, version(path), 0, len(CONTENT))
    assert answer == FOUND
    assert memory[MARGIN : MARGIN + len(CONTENT)] == CONTENT


def test_another_file_is_not_copied(file: Path, tmp_path: Path, copy: CopyAtHand) -> None:
    """A path whose file was replaced, rewritten, removed, or never was one, is left to who can say what is wrong."""
    token = version(file)
    arena = memoryview(bytearray(len(CONTENT)))
    request = encode_request(str(file), token, 0, 0, len(CONTENT))
    assert copy.run(arena, request) == FOUND
    os.utime(file, ns=(1, 1))
    assert copy.run(arena, request) == MISSING
    renamed = tmp_path / "new"
    renamed.write_bytes(CONTENT)
    renamed.rename(file)
    assert copy.run(arena, encode_request(str(file), token, 0, 0, 1)) == MISSING
    assert copy.run(arena, encode_request(str(file), version(file), 0, 0, 1)) == FOUND
    file.unlink()
    assert copy.run(arena, request) == MISSING
    assert copied(copy, tmp_path, version(tmp_path), 0, 1)[0] != FOUND


def test_what_is_not_in_memory_is_not_waited_for(file: Path, copy: CopyAtHand) -> None:
    """Once the page cache has dropped a file, it is left to those who have threads to wait in."""
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    # Not looked at before: looking is enough for some kernels to begin reading it.
    answer, memory = copied(copy, file, version(file), 0, len(CONTENT))
    if answer == FOUND:
        assert memory[MARGIN : MARGIN + len(CONTENT)] == CONTENT
        pytest.skip("this file system keeps its files in memory")
    assert answer == MISSING


def test_whatever_stands_in_a_request_it_is_understood(file: Path, copy: CopyAtHand) -> None:
    """Versions of any length are told from the path; what cannot be written down is refused where it is asked."""
    assert copied(copy, file, "1" * 70_000, 0, 1)[0] == MISSING
    assert copied(copy, "/" + "a" * 70_000, version(file), 0, 1)[0] == MISSING
    for path, token in (("\ud800", "1"), ("a", "\ud800")):
        with pytest.raises(UnicodeError):
            encode_request(path, token, 0, 0, 1)


@pytest.fixture(params=[None, 256], ids="limit={}".format)
def most_open(request: pytest.FixtureRequest) -> Iterator[int]:
    """The most files that may stay open, under the system's limit as it is or a low one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = soft if request.param is None else request.param
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield 64 if limit == resource.RLIM_INFINITY else min(64, limit // 8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_few_files_stay_open(tmp_path: Path, copy: CopyAtHand, most_open: int) -> None:
    """However many files are read, and read again; `close` closes them, and what is asked later opens them anew."""
    paths = [tmp_path / f"{number}" for number in range(80)]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    before = snapshot()
    for path in paths + paths[::-1]:
        answer, memory = copied(copy, path, version(path), 0, 100)
        assert answer == FOUND
        assert memory[MARGIN : MARGIN + 100] == path.read_bytes()[:100]
    assert len(check(before, only=("descriptor",))) == most_open
    copy.close()
    assert not check(before, only=("descriptor",))
    assert copied(copy, paths[0], version(paths[0]), 0, 100)[0] == FOUND


def test_file_systems_that_cannot_tell(copy: CopyAtHand) -> None:
    """They are told apart: who asks need not ask again."""
    path = "/proc/version"
    if not os.path.exists(path):
        pytest.skip("no procfs")
    assert copied(copy, path, version(path), 0, 16)[0] == UNSUPPORTED


def test_it_travels_to_another_process() -> None:
    """What is sent to the workers is small, and whole on the other side."""
    body = pickle.dumps(CopyAtHand())
    assert len(body) < 200
    assert isinstance(pickle.loads(body), CopyAtHand)
