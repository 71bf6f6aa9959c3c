"""Where a worker is: the row of its current call, and its deadline. The parent can read both at any moment.

    crash file:   | row | due | …       one page, mapped by the worker, read by the parent
                  | stacks              what faulthandler writes if the process crashes or is aborted

Each number is one aligned word, and `due` is written last, so that after the end of the process a row with a deadline
is never half written. Both sides read the same monotonic clock, which the system keeps for all processes.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import Final

from asyncdata.workers.channel import open_nameless_file

_HEAD_BYTES: Final = mmap.PAGESIZE
_MOST_STACK_BYTES: Final = 1 << 16
_WORDS: Final = struct.Struct("=qq")


class Mark:
    """What a worker leaves where its parent can see it. Maps the file when it is first used.

    Args:
        fd: The crash file, open as long as this is used.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._words = memoryview(b"")

    def enter(self, row: int, limit_ns: int) -> None:
        """A user function is called for a row, and must return within so many nanoseconds."""
        words = self._words or self._map()
        words[0] = row
        words[1] = time.monotonic_ns() + limit_ns

    def leave(self) -> None:
        """It has returned."""
        if self._words:
            self._words[1] = 0

    def _map(self) -> memoryview:
        self._words = memoryview(mmap.mmap(self._fd, _HEAD_BYTES)).cast("q")
        return self._words


def open_crash_file() -> int:
    """The file for one worker; what shares its descriptor writes behind the head."""
    fd = open_nameless_file("asyncdata-crash")
    os.ftruncate(fd, _HEAD_BYTES)
    os.lseek(fd, _HEAD_BYTES, os.SEEK_SET)
    return fd


def read_mark(fd: int) -> tuple[int, int]:
    """The row, and when its call is due to have ended on the clock of ``time.monotonic_ns``; 0 while in no call."""
    row, due_ns = _WORDS.unpack(os.pread(fd, _WORDS.size, 0))
    return row, due_ns


def read_stacks(fd: int) -> str:
    """What ``faulthandler`` wrote before the process ended; empty if nothing."""
    return os.pread(fd, _MOST_STACK_BYTES, _HEAD_BYTES).decode("utf-8", "replace").strip()
