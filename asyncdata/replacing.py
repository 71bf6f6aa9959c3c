"""Replaces a local file as a whole: whenever the program or the machine stops, the old file is there or the new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, Final

from asyncdata.errors import AsyncdataError, refused

_NO_SUCH_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP})
"""Some network file systems cannot make a directory durable."""


@contextlib.contextmanager
def replacing(path: Path, what: str, stage: str) -> Generator[BinaryIO]:
    """A new file for writing, which takes the place of `path` when the block ends without an error.

    It lies in the same directory until then, as ``.name.….partial``, and is locked. If the process is killed, the next
    call for the same path removes it.

    Args:
        path: The file.
        what: It is, for an error.
        stage: Who writes it, for an error.

    Raises:
        SystemResourceError: It cannot be written; names the path, and what can be done.
    """
    try:
        with _replacing(path) as file:
            yield file
    except AsyncdataError:
        raise
    except OSError as error:
        raise refused(f"{what} cannot be written", error, url=str(path), stage=stage) from error


def check_replaceable(path: Path) -> None:
    """Whether a file may take this place: it is free, or there is a regular file.

    Renaming a file puts it in the place of a pipe or a device as well, such as ``/dev/null``.

    Raises:
        OSError: There is something else, or nobody can know.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "the path is no regular file", str(path))


def open_partial(path: Path) -> tuple[Path, BinaryIO]:
    """A new file in the same directory, ``.name.….partial``, which is locked until it is closed.

    It must have its final name before that, because files of this kind without a lock are taken for left behind.
    """
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        file = partial.open("xb")
        with contextlib.suppress(OSError):  # a file system without locks: nothing is taken for left behind there
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return partial, file
        file.close()  # another process found it before it was locked


def remove_left_behind(folder: Path, name: str) -> None:
    """Removes what killed programs left of files that they were writing in a directory.

    Args:
        folder: The directory.
        name: A regular expression for the names that the files would have had.
    """
    partials = re.compile(rf"\.(?:{name})\.[0-9a-f]{{8}}\.partial")
    with os.scandir(folder) as entries:
        found = [entry.path for entry in entries if partials.fullmatch(entry.name)]
    for partial in found:
        with contextlib.suppress(OSError), open(partial, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(partial)


@contextlib.contextmanager
def _replacing(path: Path) -> Generator[BinaryIO]:
    check_replaceable(path)
    remove_left_behind(path.parent, re.escape(path.name))
    partial, file = open_partial(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # The lock ends with the file: nobody may take it for one that was left behind before that.
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a directory durable, where the file system can."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # it may be written to, and not be listed
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_SUCH_SYNC:
            raise
    finally:
        os.close(folder)
