"""A TLS server that hands out its records sealed, for tests to cut, spoil and hold back before they are sent."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Self, TypeAlias

from tests.storage.raw_server import Request


class SealingPeer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
        self.reader = reader
        self.writer = writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def shake_hands(self) -> None:
        """The server's part of the handshake."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.send(self._outgoing.read())
                self._incoming.write(await self._more())
            else:
                await self.send(self._outgoing.read())
                return

    async def receive(self, nbytes: int) -> bytes:
        """So many bytes, or fewer where there are not more now."""
        while True:
            try:
                return self._tls.read(nbytes)
            except ssl.SSLWantReadError:
                self._incoming.write(await self._more())

    async def request(self) -> Request:
        """The next request."""
        text = b""
        while not text.endswith(b"\r\n\r\n"):
            text += await self.receive(65536)
        return Request(text.decode("latin-1"))

    def seal(self, data: bytes) -> bytes:
        """The records of these bytes, of 16 KiB at most."""
        self._tls.write(data)
        return self._outgoing.read()

    def seal_end(self) -> bytes:
        """The record that says that no more comes."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()

    async def send(self, sealed: bytes) -> None:
        """Sends what was sealed, or anything else."""
        self.writer.write(sealed)
        await self.writer.drain()

    async def _more(self) -> bytes:
        data = await self.reader.read(1 << 16)
        if not data:
            raise ConnectionResetError("the client is gone")
        return data


Script: TypeAlias = Callable[[SealingPeer], Awaitable[None]]


class SealingServer:
    """``async with SealingServer(script, context) as server``: the script is called for each connection."""

    def __init__(self, script: Script, context: ssl.SSLContext, *, shakes_hands: bool = True) -> None:
        self._script = script
        self._context = context
        self._shakes_hands = shakes_hands
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = SealingPeer(reader, writer, self._context)
        try:
            if self._shakes_hands:
                await peer.shake_hands()
            await self._script(peer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
