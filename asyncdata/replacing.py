"""Replaces a local file as a whole: whenever the program or the machine stops, the old file is there or the new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
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


@contextlib.contextmanager
def _replacing(path: Path) -> Generator[BinaryIO]:
    _remove_left_behind(path)
    partial, file = _locked(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # The lock ends with the file: nobody may take it for one that was left behind before that.
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_SUCH_SYNC:
            raise
    finally:
        os.close(folder)


def _locked(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        file = partial.open("xb")
        with contextlib.suppress(OSError):  # a file system without locks: nothing is taken for left behind there
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return partial, file
        file.close()  # another process found it before it was locked


def _remove_left_behind(path: Path) -> None:
    name = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.partial")
    with os.scandir(path.parent) as entries:
        found = [entry.path for entry in entries if name.fullmatch(entry.name)]
    for partial in found:
        with contextlib.suppress(OSError), open(partial, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(partial)
