"""The two things a backing must provide for object bodies: finished ones to read and open ones to write.

A ``Body`` never changes once it exists. Readers of a body that has been dropped keep reading it to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fake_gcs.checksums import Checksum

READ_BYTES = 1 << 20
"""How much of a body is handled at once where it is copied or hashed."""


class Source(Protocol):
    """An open body."""

    @property
    def fd(self) -> int | None:
        """File descriptor for os.sendfile, or None when the body is in memory."""

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Up to ``size`` bytes from ``offset``."""

    def close(self) -> None:
        """Let go of what was opened."""


class Body(Protocol):
    """The bytes of one generation of an object."""

    @property
    def size(self) -> int:
        """Number of bytes."""

    def open(self) -> Source:
        """Open it for reading."""


class BodyWriter(Protocol):
    """A body that is being written."""

    @property
    def size(self) -> int:
        """Bytes taken so far."""

    checksum: Checksum
    """Over the bytes taken so far."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""

    def cut(self, size: int, checksum: Checksum) -> None:
        """Forget what was written behind ``size``, where ``checksum`` was the checksum (a copy of it)."""

    def rest(self) -> None:
        """Hold nothing open until the next write: it may be a long time until then."""

    def finish(self) -> Body:
        """No more bytes will come; the body may be committed."""

    def abort(self) -> None:
        """Forget it. Does nothing after ``finish``."""


def pieces(body: Body, start: int = 0, stop: int | None = None) -> Iterator[bytes | memoryview]:
    """The bytes of a body, a piece at a time."""
    source = body.open()
    try:
        end = body.size if stop is None else stop
        while start < end:
            piece = source.read(start, min(READ_BYTES, end - start))
            if not piece:
                return
            start += len(piece)
            yield piece
    finally:
        source.close()
