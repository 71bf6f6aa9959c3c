"""Small files, one after the other into one buffer: what a file costs beside its bytes is a few calls of the system.

What is in any way unusual (empty, no regular file, changed, not to be opened) ends the run, and is left to be read by
itself. A file is compared with its listing, and with itself before and after it was read, as the reader of single files
does.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from typing import Final

from asyncdata.errors import StorageError
from asyncdata.storage.local.descriptors import fill, version_of
from asyncdata.storage.local.paths import path_of
from asyncdata.storage.reader import RunOfFiles
from asyncdata.types import ObjectInfo

_LONG_S: Final = 0.005
"""A run ends behind the file that is read then: on a slow file system more threads read fewer files each."""


def read_run(urls: Sequence[str], versions: Sequence[str | None], buffer: memoryview) -> RunOfFiles:
    """See `asyncdata.storage.reader.RunReader`; blocks."""
    began = time.monotonic()
    infos: list[ObjectInfo] = []
    filled, need, seconds = 0, None, 0.0
    for url, version in zip(urls, versions, strict=True):
        if seconds > _LONG_S:
            break
        try:
            info, need = _read(url, version, buffer[filled:])
        except (OSError, ValueError, StorageError):
            info, need = None, 0
        if info is None:
            break
        infos.append(info)
        filled += info.size
        seconds = time.monotonic() - began
    return RunOfFiles(infos, need, seconds)


def _read(url: str, version: str | None, buffer: memoryview) -> tuple[ObjectInfo | None, int | None]:
    """The file, None where it was not read, and why not."""
    descriptor = os.open(path_of(url), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        size, found = status.st_size, version_of(status)
        if not stat.S_ISREG(status.st_mode) or not size or version not in {None, found}:
            return None, 0
        if size > len(buffer):
            return None, size
        if fill(descriptor, 0, buffer[:size]) < size or version_of(os.fstat(descriptor)) != found:
            return None, 0
    finally:
        os.close(descriptor)
    return ObjectInfo(url=url, size=size, version=found), None
