"""A bounded cache of open files, shared by a few threads.

A file is cached under its path *and* the version that it had when it was opened. If a file was replaced, its path is
opened again, and the old file stays readable for those who listed it. The least recently used file is closed first; a
file in use is never closed.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_MAX_IDLE_FILES: Final = 64
_MOST_OF_LIMIT: Final = 8
"""One in so many of the descriptors that the process may have is for idle files: user functions open files, too."""


def version_of(status: os.stat_result) -> str:
    """The token of a local file's content: inode, modification time, size."""
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def max_idle_files() -> int:
    """How many files a process keeps open that nobody uses."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_IDLE_FILES if limit == resource.RLIM_INFINITY else min(_MAX_IDLE_FILES, limit // _MOST_OF_LIMIT)


def fill(descriptor: int, position: int, buffer: memoryview) -> int:
    """Fills the buffer with what a file has from a position on; returns how many bytes that were."""
    filled = 0
    while filled < len(buffer):
        received = os.preadv(descriptor, [buffer[filled:]], position + filled)
        if received == 0:
            break
        filled += received
    return filled


@dataclass(slots=True, eq=False)
class _OpenFile:
    descriptor: int
    users: int = 0


class Descriptors:
    """See the module's text.

    Args:
        max_idle: How many files that nobody uses stay open.
    """

    def __init__(self, max_idle: int) -> None:
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[str, str], _OpenFile] = OrderedDict()
        self._idle = 0

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def using(self, path: str, version: str | None) -> Iterator[tuple[int, str]]:
        """(descriptor, version) of an open file, which stays open inside the block.

        The version is that of the file that is open, not necessarily the one asked for: the caller compares.
        """
        file: _OpenFile | None = None
        if version is not None:
            with self._lock:
                file = self._files.get((path, version))
                if file is not None:
                    self._use(file)
                    self._files.move_to_end((path, version))
        if file is None:
            file, version = self._open(path)
        try:
            yield file.descriptor, version or ""
        finally:
            self._done(file)

    def close(self) -> None:
        """Closes every file; none may be in use."""
        with self._lock:
            for file in self._files.values():
                os.close(file.descriptor)
            self._files.clear()
            self._idle = 0

    def _use(self, file: _OpenFile) -> None:
        self._idle -= not file.users
        file.users += 1

    def _open(self, path: str) -> tuple[_OpenFile, str]:
        # A path that has become a FIFO is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            version = version_of(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        with self._lock:
            known = self._files.get((path, version))
            if known is not None:  # another thread was faster
                os.close(descriptor)
                self._use(known)
                return known, version
            file = _OpenFile(descriptor, users=1)
            self._files[path, version] = file
            return file, version

    def _done(self, file: _OpenFile) -> None:
        with self._lock:
            file.users -= 1
            self._idle += not file.users
            if self._idle > self._max_idle:
                oldest = next(key for key, item in self._files.items() if not item.users)
                os.close(self._files.pop(oldest).descriptor)
                self._idle -= 1
