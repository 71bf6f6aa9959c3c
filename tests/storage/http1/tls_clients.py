"""Both ends of the TLS transport: the range client's connection, or a protocol that notes what it is told."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from asyncdata.storage.http1.connection import Answer, RangeConnection
from asyncdata.storage.http1.head import ResponseHead
from asyncdata.storage.http1.tls import make_tls_context
from asyncdata.storage.http1.tls_transport import TlsTransport, open_tls
from asyncdata.storage.urls import Origin
from tests.storage.http1.range_requests import build_get
from tests.storage.http1.sealing_server import Script, SealingServer


def accept_all(head: ResponseHead) -> None:
    """Refuses nothing."""


async def dialled(port: int) -> socket.socket:
    """A connected socket."""
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


@asynccontextmanager
async def connected(
    script: Script, certificate: tuple[Path, ssl.SSLContext]
) -> AsyncIterator[tuple[RangeConnection, Callable[[int, memoryview], asyncio.Future[Answer]]]]:
    """A connection to a server that runs the script, and how to ask for a range on it."""
    lost = asyncio.Event()
    client = make_tls_context(verify=True, ca_file=str(certificate[0]))
    async with SealingServer(script, certificate[1]) as server:
        connection = RangeConnection(lambda _: lost.set())
        await open_tls(connection, await dialled(server.port), client, "127.0.0.1")

        def ask(start: int, buffer: memoryview) -> asyncio.Future[Answer]:
            request = build_get(Origin("127.0.0.1", server.port, True), "/o", (), start, len(buffer))
            return connection.ask(request, start, buffer, accept_all, None)

        try:
            yield connection, ask
        finally:
            connection.close()
            await lost.wait()


class Notes(asyncio.BufferedProtocol):
    """Notes what it is told, in buffers of any size."""

    def __init__(self, room: int = 1 << 16) -> None:
        self.made = 0
        self.data = bytearray()
        self.ends = 0
        self.lost: list[Exception | None] = []
        self.over = asyncio.Event()
        self._grown = asyncio.Event()
        self._view = memoryview(bytearray(room))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: ARG002 -- asyncio's
        """See `asyncio.BufferedProtocol`."""
        self.made += 1

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 -- asyncio's
        """See `asyncio.BufferedProtocol`."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self.data += self._view[:nbytes]
        self._grown.set()

    async def until(self, size: int) -> bytes:
        """So many bytes have come, or more."""
        while len(self.data) < size:
            self._grown.clear()
            await self._grown.wait()
        return bytes(self.data)

    def eof_received(self) -> bool:
        """See `asyncio.BufferedProtocol`."""
        self.ends += 1
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BufferedProtocol`."""
        self.lost.append(exc)
        self.over.set()


@asynccontextmanager
async def noted(script: Script, certificate: tuple[Path, ssl.SSLContext], notes: Notes) -> AsyncIterator[TlsTransport]:
    """A transport to a server that runs the script."""
    client = make_tls_context(verify=True, ca_file=str(certificate[0]))
    async with SealingServer(script, certificate[1]) as server:
        transport = await open_tls(notes, await dialled(server.port), client, "127.0.0.1")
        try:
            yield transport
        finally:
            transport.abort()
            transport.abort()
            await notes.over.wait()
            assert len(notes.lost) == 1
