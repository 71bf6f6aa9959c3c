"""One sparse, unnamed shared-memory file, which the parent and every worker map as a whole.

The offset space is many times larger than the usable memory. Pages exist only where data was written, and `punch`
returns them to the kernel. The file has no name, so nothing is left behind after any kind of exit. Worker processes
receive its descriptor, and processes exchange offsets, not pointers.

This module has the only operating-system calls that create, map or free shared memory. It also sees to it that the
private copies which a consumer makes of what lies here do not take new pages every time.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Final

import numpy as np

from asyncdata.errors import SystemResourceError, refused

_SHARED: Final = "/dev/shm"  # noqa: S108 -- shared memory is what is wanted
GRANULE: Final = 1 << 16
"""Spans begin and end on multiples of this many bytes, so that one table look-up leads from an offset to its slab."""

_FREED_BYTES: Final = 16 << 20
_MADV_POPULATE_WRITE: Final = 23
_POPULATED_BYTES: Final = 1 << 20
"""At a time: whoever changes the mappings of the process waits for so many."""


class Arena:
    """The mapping, and the descriptor while its owner keeps it open.

    Views of the mapping (numpy arrays, memoryviews) keep it alive after `close`; it goes when the last of them does.

    Attributes:
        nbytes: Size of the offset space, not of the memory in use.
        view: The whole space as writable bytes.
        array: The same as a numpy ``uint8`` array.
        sparse: Whether pages can be given back with `punch`.
    """

    def __init__(self, nbytes: int, *, named_fallback: bool = False) -> None:
        """Creates the file and maps it.

        Args:
            nbytes: Size of the offset space, a multiple of `GRANULE`.
            named_fallback: Use a temporary file that is unlinked at once, as on platforms without ``memfd_create``.
                Its pages are reserved before use (`prepare`), so that a full file system is an error, not a SIGBUS.
        """
        if nbytes <= 0 or nbytes % GRANULE:
            raise ValueError(f"the arena's size must be a positive multiple of {GRANULE}, not {nbytes}")
        use_memfd = hasattr(os, "memfd_create") and not named_fallback
        try:
            self._fd = os.memfd_create("asyncdata", os.MFD_CLOEXEC) if use_memfd else _unlinked_file()
            try:
                os.ftruncate(self._fd, nbytes)
                self._map(nbytes)
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise _refused(nbytes, error, "memfd:asyncdata" if use_memfd else _SHARED) from error
        self._reserve_first = not use_memfd

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> Arena:
        """Maps an arena that another process made; takes over the descriptor.

        Raises:
            SystemResourceError: The limit of this process's memory does not allow it; the descriptor is closed.
        """
        self = cls.__new__(cls)
        self._fd = fd
        try:
            self._map(nbytes)
        except OSError as error:
            os.close(fd)
            raise _refused(nbytes, error, "memfd:asyncdata") from error
        self._reserve_first = False
        return self

    def _map(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._mmap = mmap.mmap(self._fd, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.view = memoryview(self._mmap)
        self.array = np.frombuffer(self._mmap, np.uint8)
        self.sparse = hasattr(mmap, "MADV_REMOVE")
        _keep_freed_memory()

    @property
    def fd(self) -> int:
        """The descriptor to hand to a worker; -1 after `close`."""
        return self._fd

    def prepare(self, offset: int, nbytes: int) -> None:
        """Makes sure that writing to a span cannot fail for lack of space (``OSError`` ENOSPC instead of SIGBUS)."""
        if not self._reserve_first:
            return
        try:
            os.posix_fallocate(self._fd, offset, nbytes)
        except OSError as error:
            raise refused(f"{nbytes} bytes of shared memory cannot be reserved", error, url=_SHARED) from error

    def punch(self, offset: int, nbytes: int) -> None:
        """Gives the pages of a span back to the system, where it can take them; the span then reads as zeros."""
        if self.sparse:
            try:
                self._mmap.madvise(mmap.MADV_REMOVE, offset, nbytes)
            except OSError:
                self.sparse = False  # a file system without holes; its pages are the page cache's to drop

    def close(self) -> None:
        """Closes the descriptor; the mapping lives on for those who still view it, and ends with the last of them.

        The arena lets go of it too, so that nobody who merely refers to the arena, in a cycle perhaps, prolongs it.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self.array = np.empty(0, np.uint8)
            self.view = memoryview(b"")
            del self._mmap


def _refused(nbytes: int, error: OSError, where: str) -> SystemResourceError:
    return refused(f"shared memory of {nbytes} bytes cannot be mapped", error, url=where, stage="arena")


def populate(view: memoryview) -> None:
    """Takes the pages of a part of an arena from the system before anybody writes to them. Any thread may call it.

    The bytes stay as they are. Without the interpreter's lock, unlike ``mmap.madvise``. Where the system cannot do this
    (Linux before 5.14, others), the first write to each page takes it, as always.
    """
    advise = _madvise()
    if advise is None or not view:
        return
    # The view keeps the mapping alive as long as this exports it.
    first = ctypes.c_char.from_buffer(view)
    start = ctypes.addressof(first)
    stop = (start + len(view)) & -mmap.PAGESIZE
    start = (start + mmap.PAGESIZE - 1) & -mmap.PAGESIZE
    for at in range(start, stop, _POPULATED_BYTES):
        if advise(at, min(_POPULATED_BYTES, stop - at), _MADV_POPULATE_WRITE):
            return


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The system's function, where it knows the advice."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found: Callable[[int, int, int], int] = function
    return found


@functools.cache
def _keep_freed_memory() -> None:
    """Lets glibc keep up to 32 MiB that were freed at the end of its heap.

    By default it gives them back to the system beyond 128 KiB, so that a consumer that copies batch after batch takes
    every page of every batch anew. glibc raises that limit by itself to twice the largest block that was mapped and
    freed (``M_MMAP_THRESHOLD`` in mallopt(3)), which most programs do sooner or later: it is done here at once. Limits
    that the user has set stay what they are. No page of the block is touched.
    """
    np.empty(_FREED_BYTES, np.uint8)


def memory_files() -> list[int]:
    """Every descriptor of this process that leads to an arena or another memfd of this package, mmap's own included."""
    found: list[int] = []
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return found  # no procfs
    for name in names:
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:asyncdata"):
                found.append(int(name))
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def _unlinked_file() -> int:
    directory = _SHARED if os.path.isdir(_SHARED) else None
    if directory is not None and hasattr(os, "O_TMPFILE"):
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fd, path = tempfile.mkstemp(prefix="asyncdata-", dir=directory)
    os.unlink(path)
    return fd
