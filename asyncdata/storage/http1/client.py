"""Ranged GETs over kept connections. Bodies go directly into the caller's buffer.

The client knows HTTP but no objects: backends build the target and the headers, and ``accept`` decides which responses
are theirs. A kept connection that the server has closed costs only a new connection: the request is sent again at once,
because the server did not answer it.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from asyncdata.options import TimeoutOptions
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.http1.connection import Accept, Answer, StaleConnectionError
from asyncdata.storage.http1.connection_pool import ConnectionPool
from asyncdata.storage.http1.known_answers import KnownObject
from asyncdata.storage.urls import Origin

USER_AGENT: Final = "asyncdata"

_RANGE_LINE: Final = 3


def build_frame(origin: Origin, target: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """The head of a GET, with two ``%d`` for the first and the last byte of the range.

    Raises:
        ValueError: A header or the target would break the framing.
    """
    lines = [
        f"GET {target} HTTP/1.1",
        f"Host: {origin.authority}",
        f"User-Agent: {USER_AGENT}",
        "Range: bytes=",
        *(f"{name}: {value}" for name, value in headers),
    ]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a line break inside a request line or header")
    lines = [line.replace("%", "%%") for line in lines]
    lines[_RANGE_LINE] += "%d-%d"
    try:
        return "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeEncodeError:
        # Its own error would carry the whole head about, secrets and all.
        raise ValueError("a character inside a request line or header that cannot be sent") from None


class RangeClient:
    """See the module's text; lives on the event loop that uses it."""

    def __init__(self, *, limits: TimeoutOptions, max_connections: int, tls_context: ssl.SSLContext | None) -> None:
        self._pool = ConnectionPool(limits=limits, max_per_origin=max_connections, tls_context=tls_context)

    def __repr__(self) -> str:
        return f"<RangeClient {self._pool!r}>"

    @property
    def connects(self) -> int:
        """Connections that were opened so far."""
        return self._pool.connects

    async def get(
        self,
        origin: Origin,
        frame: bytes,
        *,
        start: int,
        buffer: memoryview,
        accept: Accept,
        attempt: Attempt | None = None,
        known: KnownObject | None = None,
    ) -> Answer:
        """One attempt; ``buffer`` is untouched once this returned, raised or was cancelled.

        See `build_frame` and `RangeConnection.ask`. The head of a known answer has no ``Content-Range``.

        Returns:
            The answer: its body in ``buffer`` if it is what was asked for, else aside.
        """
        pool = self._pool
        request = frame % (start, start + len(buffer) - 1)
        while True:
            connection = pool.take(origin, attempt) or await pool.acquire(origin, attempt)
            try:
                return await connection.ask(request, start, buffer, accept, attempt, known)
            except asyncio.CancelledError:
                connection.close()
                raise
            except StaleConnectionError:
                if attempt is not None:
                    attempt.resends += 1
            finally:
                pool.release(connection)

    async def warm(self, origin: Origin, count: int) -> None:
        """Opens connections that will soon be needed."""
        await self._pool.warm(origin, count)

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._pool.aclose()
