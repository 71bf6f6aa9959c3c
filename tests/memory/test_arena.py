"""The arena: sparse, unnamed, shared by descriptor."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from asyncdata.errors import SystemResourceError
from asyncdata.memory.arena import GRANULE, Arena, _unlinked_file, populate
from asyncdata.testing import check, snapshot


@pytest.fixture(params=[False, True], ids=["memfd", "named"])
def arena(request: pytest.FixtureRequest) -> Arena:
    """An arena of either kind."""
    return Arena(64 * GRANULE, named_fallback=request.param)


def pages(arena: Arena) -> int:
    """Bytes the file really takes."""
    return os.fstat(arena.fd).st_blocks * 512


def test_it_is_sparse_and_gives_pages_back(arena: Arena) -> None:
    """Untouched space costs nothing; punched space reads as zeros and costs nothing again."""
    assert pages(arena) == 0
    arena.prepare(0, GRANULE)
    arena.array[:GRANULE] = 7
    assert pages(arena) == GRANULE
    arena.punch(0, GRANULE)
    assert pages(arena) == 0
    assert not arena.array[:GRANULE].any()
    arena.close()


@pytest.mark.skipif(sys.platform != "linux", reason="no system call for it")
def test_pages_are_taken_before_they_are_written(arena: Arena) -> None:
    """Those that lie inside of the view as a whole; what is there stays."""
    arena.view[3 * GRANULE] = 7
    before = pages(arena)
    populate(arena.view[GRANULE + 1 : 5 * GRANULE - 1])
    assert pages(arena) == before + 4 * GRANULE - 3 * mmap.PAGESIZE
    assert arena.view[3 * GRANULE] == 7
    assert not arena.array[GRANULE : 3 * GRANULE].any()
    populate(arena.view[:0])
    arena.close()


def test_a_system_without_the_call_takes_pages_one_by_one(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an optimisation."""
    monkeypatch.setattr("asyncdata.memory.arena._madvise", lambda: None)
    populate(arena.view[: 2 * GRANULE])
    monkeypatch.setattr("asyncdata.memory.arena._madvise", lambda: lambda *_: -1)
    populate(arena.view[: 2 * GRANULE])
    assert pages(arena) == 0
    arena.view[0] = 1
    arena.close()


def test_it_has_no_name(arena: Arena) -> None:
    """Nothing is left in any directory, whatever happens to the process."""
    assert os.fstat(arena.fd).st_nlink == 0
    arena.close()


def test_another_process_without_memory_to_map_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error with the remedy, and the descriptor that it was given is closed."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    arena = Arena(GRANULE)
    before = snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refuse)
        with pytest.raises(SystemResourceError, match="memory_limit_bytes"):
            Arena.attach(os.dup(arena.fd), arena.nbytes)
    assert not check(before, only=("descriptor",))
    arena.close()


def test_another_mapping_sees_the_same_bytes(arena: Arena) -> None:
    """Handed over as a descriptor, both mappings are the same memory."""
    other = Arena.attach(os.dup(arena.fd), arena.nbytes)
    arena.view[5:8] = b"abc"
    assert bytes(other.view[5:8]) == b"abc"
    other.array[6] = 0
    assert bytes(arena.view[5:8]) == b"a\x00c"
    other.close()
    arena.close()


def test_views_outlive_it(arena: Arena) -> None:
    """After close, and without the arena, what was taken from it stays readable."""
    arena.array[10:20] = 3
    array = arena.array[10:20]
    arena.close()
    arena.close()
    assert arena.fd == -1
    del arena
    assert array.tolist() == [3] * 10


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory lies elsewhere")
def test_a_full_file_system_is_an_error() -> None:
    """Reserving more than there is raises ENOSPC instead of killing the process on first touch."""
    room = os.statvfs("/dev/shm")
    total = room.f_blocks * room.f_frsize
    arena = Arena((total // GRANULE + 2) * GRANULE, named_fallback=True)
    with pytest.raises(OSError, match="shared memory cannot be reserved") as caught:
        arena.prepare(0, arena.nbytes)
    assert caught.value.errno == errno.ENOSPC
    assert pages(arena) == 0
    arena.close()


def test_without_holes_punching_is_given_up(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot punch keeps its pages, and is not asked again."""

    class Refusing:
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "not here")

    with monkeypatch.context() as patched:
        patched.setattr(arena, "_mmap", Refusing())
        arena.punch(0, GRANULE)
    assert not arena.sparse
    arena.close()


@pytest.mark.parametrize("nbytes", [0, -GRANULE, GRANULE + 1])
def test_sizes_are_multiples_of_the_granule(nbytes: int) -> None:
    """Anything else is refused before a file is made."""
    with pytest.raises(ValueError, match="multiple"):
        Arena(nbytes)


def test_a_failed_mapping_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """When mapping fails, the file is closed again."""
    before = snapshot()

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOMEM, "no")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(OSError, match="no"):
        Arena(GRANULE)
    assert not check(before, only=("descriptor",))


def test_files_without_o_tmpfile_are_unlinked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where unnamed files do not exist, a named one loses its name before anything is written."""
    monkeypatch.delattr(os, "O_TMPFILE")
    fd = _unlinked_file()
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)


_BATCHES = """
import resource
from asyncdata.memory.arena import Arena
arena = Arena(1 << 20)
text = bytes(40_000)
def batch():
    return [text[:-1] for _ in range(64)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    kept = batch()
before = faults()
for _ in range(100):
    kept = batch()
print(faults() - before)
"""


@pytest.mark.sampled
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a property of glibc")
@pytest.mark.parametrize("given", [{}, {"MALLOC_TRIM_THRESHOLD_": str(128 << 10)}], ids=["unset", "set by the user"])
def test_batches_of_private_copies_use_the_same_pages(given: dict[str, str]) -> None:
    """Each batch takes 625 pages. A limit that the user has set stays what it is."""
    run = subprocess.run(
        [sys.executable, "-c", _BATCHES], env={**os.environ, **given}, capture_output=True, text=True, check=True
    )
    assert (int(run.stdout) > 10_000) is bool(given)
