"""Replaces a local file as a whole: whenever the program or the machine stops, the old file is there or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, Final

_NO_SUCH_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP})
"""Some network file systems cannot make a directory durable."""


@contextlib.contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """A new file for writing, which takes the place of `path` when the block ends without an error.

    It lies in the same directory until then. If the process is killed, it stays there as ``.name.….partial``.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
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
