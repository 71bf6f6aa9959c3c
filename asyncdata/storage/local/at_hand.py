"""What the system has in memory of a local file, copied by somebody else: a worker process, into the shared arena.

    request   where in the arena, how much, from which position of the file, its version, its path
    answer    FOUND: all of it was copied, of that version; else why not, and nothing may be made of the bytes

It never waits for a disk or a network: bytes that the page cache lacks are left to those who have threads to wait in
(``RWF_NOWAIT``, preadv2(2)). Nor does it report what is wrong with a file: whoever asked reads it again, and finds out.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Final

from asyncdata.storage.local.descriptors import Descriptors, fill, max_idle_files, version_of

FOUND: Final = b"\x01"
MISSING: Final = b"\x00"
"""Some of it is not in memory, or the file is another one, or there is none."""

UNSUPPORTED: Final = b"\x02"
"""The system, or this file system, cannot tell what it has in memory."""

_HEAD: Final = struct.Struct("<QQQQ")
_UNABLE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def encode_request(path: str, version: str, position: int, offset: int, length: int) -> bytes:
    """The message for `CopyAtHand.run`.

    Args:
        path: Of the file.
        version: See `version_of`.
        position: Of the first byte in the file.
        offset: Of its place in the arena.
        length: Bytes.

    Raises:
        UnicodeError: A path, or a version, that no file can have.
    """
    token = version.encode()
    return _HEAD.pack(offset, length, position, len(token)) + token + os.fsencode(path)


class CopyAtHand:
    """Copies, one request at a time; see the module's text. Picklable before its first use."""

    def __init__(self) -> None:
        self._files: Descriptors | None = None

    def run(self, arena: memoryview, request: bytes) -> bytes:
        """Copies what one request asks for, if it is at hand."""
        offset, length, position, token_bytes = _HEAD.unpack_from(request)
        border = _HEAD.size + token_bytes
        wanted, path = request[_HEAD.size : border].decode(), os.fsdecode(request[border:])
        if not hasattr(os, "RWF_NOWAIT"):
            return UNSUPPORTED
        if self._files is None:
            self._files = Descriptors(max_idle_files())
        try:
            with self._files.using(path, wanted) as (descriptor, version):
                if version != wanted:
                    return MISSING
                if fill(descriptor, position, arena[offset : offset + length], os.RWF_NOWAIT) < length:
                    return MISSING
                return FOUND if version_of(os.fstat(descriptor)) == wanted else MISSING
        except OSError as error:
            return UNSUPPORTED if error.errno in _UNABLE else MISSING

    def close(self) -> None:
        """Closes the files; the end of the worker process does so, too."""
        if self._files is not None:
            self._files.close()
            self._files = None
