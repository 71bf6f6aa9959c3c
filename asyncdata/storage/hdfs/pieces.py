"""Reads a range of an HDFS file piece by piece. Each piece shows that the read is alive.

hdfs-native returns all bytes of a request at once and reports nothing before. A range is therefore divided into
requests, and the time since the last piece is the silence that limits and second attempts check. After a failure the
read continues behind the last piece. The size of pieces follows from how long they take: pieces are small on a slow
link, because a limit on silence must not become a limit on speed.

::

    asked ─▶ piece ─▶ copied, first byte ─▶ piece ─▶ copied … silence ─▶ limit, or a second attempt that is ahead
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from asyncdata.errors import StorageError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.failures import FailureCause, ReadFailedError, read_failed

LEAST_BYTES: Final = 64 << 10
"""What a DataNode sends at a time."""
MOST_BYTES: Final = 1 << 20
"""Small enough that memory is reused warm and a failure loses little, large enough that requests do not count."""
_BEGIN: Final = 512 << 10
_LONG: Final = 1 / 8
_SHORT: Final = 1 / 32


class PieceLength:
    """How many bytes are asked for at a time: such that a piece takes a small part of its time limit. Pure."""

    def __init__(self) -> None:
        self.bytes = _BEGIN

    def came(self, length: int, seconds: float, limit_s: float) -> None:
        """A piece of this length came after a time; how long it could have taken."""
        if seconds > _LONG * limit_s:
            self.failed(length)
        elif seconds < _SHORT * limit_s and length >= self.bytes:
            self.bytes = min(2 * self.bytes, MOST_BYTES)

    def failed(self, length: int) -> None:
        """A piece of this length did not come in time."""
        self.bytes = max(min(self.bytes, length) // 2, LEAST_BYTES)


class PieceSource(Protocol):
    """Where pieces come from."""

    async def read(self, start: int, length: int) -> bytes:
        """The bytes ``[start, start + length)``; cancelled, it leaves nothing that writes anywhere."""
        ...


class PiecewiseRead:
    """One attempt at a range; it is the attempt's wire while pieces are awaited.

    Args:
        attempt: Where to tell what was seen.
        limits: The first piece has ``first_byte_s``; each other one has the longer of ``first_byte_s`` and ``idle_s``,
            for it may come from another DataNode.
        length: How the range is cut; learns.

    Attributes:
        filled: Bytes that are in the buffer.
    """

    def __init__(self, attempt: Attempt, limits: ReadLimits | TimeoutOptions, length: PieceLength) -> None:
        self.filled = 0
        self._attempt = attempt
        self._first_s = limits.first_byte_s
        self._next_s = max(limits.first_byte_s, limits.idle_s)
        self._length = length
        self._scope: asyncio.Timeout | None = None
        self._error: StorageError | None = None

    async def run(self, source: PieceSource, start: int, buffer: memoryview) -> None:
        """Fills the buffer; on return, raise or cancellation nothing writes into it any more.

        Raises:
            ReadFailedError: A piece did not come in time, or another attempt was ahead; ``filled`` is set.
            StorageError: What the source raises.
        """
        loop = asyncio.get_running_loop()
        attempt, size = self._attempt, len(buffer)
        asked = attempt.asked_at = loop.time()
        attempt.wire = self
        limit_s, length = self._first_s, 0
        try:
            async with asyncio.timeout(None) as self._scope:
                while self.filled < size:
                    length = min(self._length.bytes, size - self.filled)
                    self._scope.reschedule(asked + limit_s)
                    piece = await source.read(start + self.filled, length)
                    if self._error is not None:
                        break
                    if len(piece) != length:
                        raise read_failed(f"{len(piece)} of {length} bytes arrived", FailureCause.SHORT_BODY)
                    buffer[self.filled : self.filled + length] = piece
                    self.filled += length
                    now = loop.time()
                    if attempt.first_byte_at < 0:
                        attempt.first_byte_at = now
                    self._length.came(length, now - asked, limit_s)
                    asked, limit_s = now, self._next_s
        except TimeoutError:
            if self._error is None:
                self._length.failed(length)
                cause = FailureCause.IDLE_TIMEOUT if self.filled else FailureCause.FIRST_BYTE_TIMEOUT
                text = f"HDFS sent nothing for {limit_s:.3g} s"
                self._error = read_failed(text, cause, filled=self.filled)
        finally:
            attempt.wire, self._scope = None, None
            attempt.received = self.filled
        if self._error is not None:
            raise self._error

    def has_input(self) -> bool:
        """Not known: what hdfs-native has received of a piece it keeps to itself."""
        return False

    def nudge(self) -> None:
        """There is nothing to deliver."""

    def fail(self, error: StorageError) -> None:
        """Ends the attempt with an error; of a ``ReadFailedError``, ``filled`` is set."""
        scope = self._scope
        if scope is None or self._error is not None or scope.expired():
            return
        if isinstance(error, ReadFailedError):
            error.filled = self.filled
        self._error = error
        scope.reschedule(0.0)  # long past
