"""The limit of reading ranges over HTTP/1.1 from Python: epoll and ``recv_into`` the slab, and nothing else.

No time limits, no retries, no accounting, no tasks: one thread, one connection per slab, one request at a time on each.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

_HEAD_BYTES: Final = 4096


class BareConnection:
    """One connection and its slab."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, slab: memoryview) -> None:
        plain = socket.create_connection((host, port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = plain if context is None else context.wrap_socket(plain, server_hostname=host)
        self.socket.setblocking(False)
        self._host = f"{host}:{port}"
        self._slab = slab
        self._head = bytearray(_HEAD_BYTES)
        self._view = memoryview(self._head)
        self._size = 0
        self._at = self._end = 0

    def ask(self, target: str, start: int) -> None:
        """Sends a request for as many bytes as the slab holds."""
        stop = start + len(self._slab) - 1
        self._size = self._end = 0
        self.socket.send(
            f"GET {target} HTTP/1.1\r\nHost: {self._host}\r\nRange: bytes={start}-{stop}\r\n"
            "Accept-Encoding: gzip\r\n\r\n".encode()
        )

    def receive(self) -> bool:
        """Takes what there is; True when the range is complete."""
        while True:
            try:
                if not self._end:
                    if not self._receive_head():
                        continue
                else:
                    count = self.socket.recv_into(self._slab[self._at : self._end])
                    if not count:
                        raise ConnectionResetError("the server closed the connection")
                    self._at += count
            except (BlockingIOError, ssl.SSLWantReadError):
                return False
            if self._at == self._end:
                return True
            if not isinstance(self.socket, ssl.SSLSocket):
                return False

    def _receive_head(self) -> bool:
        self._size += self.socket.recv_into(self._view[self._size :])
        stop = self._head.find(b"\r\n\r\n", 0, self._size)
        if stop < 0:
            return False
        lines = bytes(self._head[:stop]).lower().split(b"\r\n")
        if b" 206" not in lines[0]:
            raise OSError(f"the server answers {lines[0]!r}")
        self._end = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        self._at = self._size - stop - 4
        self._slab[: self._at] = self._view[stop + 4 : self._size]
        return True


class BareClient:
    """Connections that are kept between calls of `read_all`."""

    def __init__(self, endpoint: str, context: ssl.SSLContext | None, slabs: Iterable[memoryview]) -> None:
        parts = urlsplit(endpoint)
        self._poll = select.epoll()
        self._open: dict[int, BareConnection] = {}
        for slab in slabs:
            connection = BareConnection(parts.hostname or "", parts.port or 0, context, slab)
            self._open[connection.socket.fileno()] = connection
            self._poll.register(connection.socket.fileno(), select.EPOLLIN)

    def read_all(self, ranges: Iterator[tuple[str, int]]) -> None:
        """Reads every (target, start), as many at a time as there are connections."""
        busy = 0
        for connection in self._open.values():
            busy += self._next(connection, ranges)
        while busy:
            for descriptor, _ in self._poll.poll():
                connection = self._open[descriptor]
                if connection.receive() and not self._next(connection, ranges):
                    busy -= 1

    @staticmethod
    def _next(connection: BareConnection, ranges: Iterator[tuple[str, int]]) -> bool:
        found = next(ranges, None)
        if found is not None:
            connection.ask(*found)
        return found is not None

    def close(self) -> None:
        """Closes every connection."""
        self._poll.close()
        for connection in self._open.values():
            connection.socket.close()
