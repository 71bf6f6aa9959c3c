"""Laws of what a worker leaves for its parent to read: where it is, and its stacks behind that."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterator

import pytest

from asyncdata.workers.whereabouts import Mark, open_crash_file, read_mark, read_stacks


@pytest.fixture
def crash_fd() -> Iterator[int]:
    fd = open_crash_file()
    yield fd
    os.close(fd)


def test_a_mark_says_the_row_and_when_its_call_is_due(crash_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From entering to leaving; a worker that never entered is in no call."""
    mark = Mark(crash_fd)
    mark.leave()
    assert read_mark(crash_fd) == (0, 0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5_000)
    mark.enter(7, 1000)
    assert read_mark(crash_fd) == (7, 6_000)
    mark.enter(8, 1000)
    assert read_mark(crash_fd)[0] == 8
    mark.leave()
    assert read_mark(crash_fd)[1] == 0


def test_stacks_are_written_behind_the_mark(crash_fd: int) -> None:
    """What faulthandler writes does not touch the mark, and the other way round."""
    assert read_stacks(crash_fd) == ""
    mark = Mark(crash_fd)
    mark.enter(3, 10)
    mine = read_mark(crash_fd)
    faulthandler.dump_traceback(crash_fd, all_threads=False)
    assert read_mark(crash_fd) == mine
    mark.enter(4, 10)
    assert "in test_stacks_are_written_behind_the_mark" in read_stacks(crash_fd)
