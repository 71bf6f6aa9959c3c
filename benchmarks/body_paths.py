"""The two ways a body can come into a slab on an event loop, each with the least that it takes.

*buffered*: ``asyncio.BufferedProtocol``, the transport and its TLS are the loop's. *reader*: ``loop.add_reader`` and a
non-blocking socket; OpenSSL decrypts into the slab. No time limits, no retries, no accounting, no check but the status:
what a client that has all of these is measured against.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

_HEAD_BYTES: Final = 4096
_LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_MOST_AT_ONCE: Final = 1 << 20


class Path(asyncio.BufferedProtocol):
    """What both have in common: one connection, one request at a time on it."""

    def __init__(self) -> None:
        self._head = bytearray(_HEAD_BYTES)
        self._view = memoryview(self._head)
        self._size = self._at = self._end = 0
        self._slab = memoryview(b"")
        self._done: asyncio.Future[None] | None = None
        self._send: Any = None

    def ask(self, request: bytes, slab: memoryview) -> asyncio.Future[None]:
        """Sends the request; what is returned is done when the slab has the body."""
        self._slab = slab
        self._size = self._at = self._end = 0
        self._done = asyncio.get_running_loop().create_future()
        self._send(request)
        return self._done

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 -- the signature is asyncio's
        """See `asyncio.BufferedProtocol`."""
        return self._slab[self._at : self._end] if self._end else self._view[self._size :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._end:
            self._at += nbytes
        else:
            self._size += nbytes
            stop = self._head.find(b"\r\n\r\n", 0, self._size)
            if stop < 0:
                return
            found = _LENGTH.search(self._head, 0, stop)
            if self._head[9:12] != b"206" or found is None:
                raise OSError(f"the server answers {bytes(self._head[:stop])!r}")
            self._end = int(found[1])
            self._at = self._size - stop - 4
            self._slab[: self._at] = self._view[stop + 4 : self._size]
        if self._at == self._end and self._done is not None:
            self._size = self._end = 0
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("the server closed the connection"))

    async def connect(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Connects."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the connection."""
        raise NotImplementedError


class Buffered(Path):
    """The loop's own transport."""

    async def connect(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """See `Path`."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, host, port, ssl=context)
        self._send = self._transport.write

    def close(self) -> None:
        """See `Path`."""
        self._transport.abort()


class Reader(Path):
    """A socket that the loop says is readable."""

    async def connect(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """See `Path`; blocks, for nothing else runs meanwhile."""
        plain = socket.create_connection((host, port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain if context is None else context.wrap_socket(plain, server_hostname=host)
        self._socket.setblocking(False)
        self._tls = context is not None
        self._send = self._socket.send
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._ready)

    def close(self) -> None:
        """See `Path`."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _ready(self) -> None:
        receive = self._socket.recv_into
        left = _MOST_AT_ONCE
        try:
            while left > 0:
                count = receive(self._slab[self._at : self._end] if self._end else self._view[self._size :])
                if not count:
                    self._loop.remove_reader(self._socket.fileno())
                    self.connection_lost(None)
                    return
                self.buffer_updated(count)
                # With TLS one record at a time comes; an answer that is over needs no look whether there is more.
                if not self._tls or (not self._end and not self._size):
                    return
                left -= count
        except (ssl.SSLWantReadError, BlockingIOError):
            return
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._loop.call_soon(self._ready)  # decrypted already: the kernel does not know of it


PATHS: Final = {"buffered": Buffered, "reader": Reader}


class PathClient:
    """Ranges by one of the paths, on connections that are kept."""

    def __init__(self, path: type[Path], endpoint: str, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(endpoint)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._path = path
        self._context = context
        self._idle: list[Path] = []
        self._all: list[Path] = []

    async def get(self, target: str, start: int, slab: memoryview) -> None:
        """Reads as many bytes as the slab holds."""
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = self._path()
            self._all.append(connection)
            await connection.connect(self._host, self._port, self._context)
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Range: bytes={start}-{start + len(slab) - 1}\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        await connection.ask(request.encode(), slab)
        self._idle.append(connection)

    async def aclose(self) -> None:
        """Closes every connection."""
        for connection in self._all:
            connection.close()
