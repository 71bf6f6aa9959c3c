"""Local files: ``os.preadv`` directly into the buffer, in a few threads.

A read is pinned to inode, modification time and size, which are checked on the open file before and after the read. A
file that is written to meanwhile raises ``ObjectChangedError``. A file that was replaced stays readable while it is
open.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Final

from asyncdata.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StorageError,
    refused,
)
from asyncdata.redaction import redact_url
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.blocking_jobs import ThreadJobs
from asyncdata.storage.changed import object_changed, object_deleted, object_resized
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.storage.globs import compile_glob
from asyncdata.storage.local.descriptors import Descriptors, fill, max_idle_files, version_of
from asyncdata.storage.local.paths import path_of
from asyncdata.storage.local.small_files import read_run
from asyncdata.storage.local.walk import find_files
from asyncdata.storage.reader import ReaderSpec, RunOfFiles
from asyncdata.types import ObjectInfo

MAX_THREADS: Final = 8
_TRANSIENT_ERRNOS: Final = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE})


def open_reader(spec: ReaderSpec) -> LocalReader:
    """Makes the reader; called by ``ReaderSpec.open``."""
    return LocalReader(max_threads=min(MAX_THREADS, spec.max_connections))


class LocalReader:
    """A ``RangeReader`` for paths and ``file://`` URLs; URLs come back in the form they were asked for."""

    def __init__(self, *, max_threads: int) -> None:
        self._jobs = ThreadJobs(max_threads, "asyncdata-file")
        self._files = Descriptors(max_idle_files())

    def __repr__(self) -> str:
        return f"<LocalReader {len(self._files)} files open>"

    async def stat(self, url: str) -> ObjectInfo:
        """Size and version of a regular file."""
        return await self._jobs.run(_stat, url)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The regular files that match."""
        return await self._jobs.run(_glob, pattern)

    async def read_into(
        self,
        info: ObjectInfo,
        start: int,
        buffer: memoryview,
        attempt: Attempt | None = None,  # noqa: ARG002 -- this store has no wire to watch
    ) -> int:
        """Reads in a thread; a cancellation waits until the thread is done with the buffer."""
        return await self._jobs.run(self._read, info, start, buffer)

    async def open_read(
        self,
        url: str,
        buffer: memoryview,
        attempt: Attempt | None = None,  # noqa: ARG002 -- this store has no wire to watch
    ) -> tuple[ObjectInfo, int]:
        """Opens the file and reads its beginning, in one job."""
        return await self._jobs.run(self._open_read, url, buffer)

    async def read_run(self, urls: Sequence[str], versions: Sequence[str | None], buffer: memoryview) -> RunOfFiles:
        """See `RunReader`; in one job."""
        return await self._jobs.run(read_run, urls, versions, buffer)

    async def aclose(self) -> None:
        """Ends the threads and closes the files."""
        await self._jobs.aclose()
        self._files.close()

    def _open_read(self, url: str, buffer: memoryview) -> tuple[ObjectInfo, int]:
        info = _stat(url)
        wanted = buffer[: min(info.size, len(buffer))]
        return info, self._read(info, 0, wanted)

    def _read(self, info: ObjectInfo, start: int, buffer: memoryview) -> int:
        try:
            with self._files.using(path_of(info.url), info.version) as (descriptor, version):
                self._check(info, version, start)
                filled = fill(descriptor, start, buffer)
                status = os.fstat(descriptor)
                self._check(info, version_of(status), start)
                if 0 <= info.size != status.st_size:
                    raise object_resized(info, status.st_size, start=start, found=version)
        except OSError as error:
            if info.version is not None and isinstance(error, FileNotFoundError):
                raise object_deleted(info, start=start) from None
            raise _typed(error, info.url) from None
        if filled < len(buffer):
            raise StorageError(
                f"the file ends at {start + filled}, {len(buffer) - filled} bytes before the end of the read",
                url=info.url,
                version=info.version,
                offset=start + filled,
            )
        return filled

    @staticmethod
    def _check(info: ObjectInfo, version: str, start: int) -> None:
        if info.version is not None and version != info.version:
            raise object_changed(info, version, start=start, note=" (inode-mtime-size)")


def _stat(url: str) -> ObjectInfo:
    try:
        status = os.stat(path_of(url))
    except OSError as error:
        raise _typed(error, url) from None
    if not stat.S_ISREG(status.st_mode):
        raise _irregular(status, url)
    _check_empty(status, path_of(url), url)
    return ObjectInfo(url=url, size=status.st_size, version=version_of(status))


def _glob(pattern: str) -> list[ObjectInfo]:
    text = path_of(pattern)
    lead = pattern[: len(pattern) - len(text)] if pattern.endswith(text) else "file://"
    found: dict[str, ObjectInfo] = {}
    try:
        for item in compile_glob(text):
            for path, status in find_files(item):
                url = lead + path
                _check_empty(status, path, url)
                found[url] = ObjectInfo(url=url, size=status.st_size, version=version_of(status))
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise _typed(error, lead + os.fsdecode(error.filename or text)) from None
    if not found and os.path.exists(text):
        raise _irregular(os.stat(text), pattern)
    return [found[url] for url in sorted(found)]


def _irregular(status: os.stat_result, url: str) -> ObjectNotFoundError:
    if stat.S_ISREG(status.st_mode):
        return ObjectNotFoundError(
            "no file matches the pattern. One has these very characters as its name, but here they are wildcards: "
            "give its name to a reader such as FileDataset",
            url=url,
        )
    if stat.S_ISDIR(status.st_mode):
        inside = url.rstrip("/") + "/*"
        return ObjectNotFoundError(f"a directory, not a regular file; use list_files({redact_url(inside)!r})", url=url)
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "something else")
    return ObjectNotFoundError(
        f"{kind}, not a regular file: it has no size and cannot be read twice; Dataset.from_generator can read it",
        url=url,
    )


def _check_empty(status: os.stat_result, path: str, url: str) -> None:
    """Refuses a file that has content although it states a size of 0, as those of ``/proc`` do."""
    if status.st_size:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return  # reading says why
    try:
        content = os.read(descriptor, 1)
    except OSError as error:
        raise _typed(error, url) from None
    finally:
        os.close(descriptor)
    if content:
        raise StorageError(
            "the file reports a size of 0 bytes but has content, as files of /proc do: read a copy of it", url=url
        )


def _typed(error: OSError, url: str) -> StorageError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ObjectNotFoundError("no such file", url=url)
    if isinstance(error, IsADirectoryError):
        return ObjectNotFoundError("a directory, not a regular file", url=url)
    if isinstance(error, PermissionError):
        return AccessDeniedError("the file may not be read", url=url)
    if error.errno in _TRANSIENT_ERRNOS:
        return read_failed(refused("reading failed", error).message, FailureCause.BACKEND, url=url)
    return StorageError(f"reading failed: {error.strerror}", url=url)
