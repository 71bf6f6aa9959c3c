"""A TCP server that answers with whatever bytes a test wants: the place for answers no honest server gives."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Self, TypeAlias

DATA = bytes(range(256)) * 8192  # 2 MiB; a byte tells its offset modulo 256


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
        self.reader = reader
        self.writer = writer
        self._over = over
        self.requests = 0

    async def send(self, data: bytes) -> None:
        """Sends and flushes to the kernel."""
        self.writer.write(data)
        await self.writer.drain()

    async def stall(self) -> None:
        """Says nothing until the test ends."""
        await self._over.wait()

    @staticmethod
    async def pause(seconds: float) -> None:
        """Says nothing for a while: a slow network."""
        await asyncio.sleep(seconds)

    def reset(self) -> None:
        """Breaks the connection with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        """Ends the connection with FIN."""
        self.writer.close()


class Request:
    """A request as it came."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.line = text.split("\r\n", 1)[0]
        self.target = self.line.split(" ")[1]
        found = re.search(r"(?im)^range: bytes=(\d+)-(\d+)\r?$", text)
        self.start, self.stop = (int(found[1]), int(found[2]) + 1) if found else (0, len(DATA))

    def header(self, name: str) -> str | None:
        """The value of a header, None when absent."""
        found = re.search(rf"(?im)^{re.escape(name)}: (.*?)\r?$", self.text)
        return found[1] if found else None


Script: TypeAlias = Callable[[Request, Peer], Awaitable[None]]


def ranged(request: Request, data: bytes = DATA, extra: str = "") -> tuple[bytes, bytes]:
    """(head, body) of a faultless answer to a ranged GET."""
    stop = min(request.stop, len(data))
    body = data[request.start : stop]
    head = (
        f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(body)}\r\n"
        f"Content-Range: bytes {request.start}-{stop - 1}/{len(data)}\r\n{extra}\r\n"
    )
    return head.encode(), body


async def honest(request: Request, peer: Peer) -> None:
    """Answers every request as it should be."""
    head, body = ranged(request)
    await peer.send(head + body)


class RawServer:
    """``async with RawServer(script) as server``: the script is called once per request of a connection."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._tls = tls
        self._over = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._over.set()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("outside a task")
        self._tasks.add(task)
        self.connections += 1
        peer = Peer(reader, writer, self._over)
        try:
            while not writer.is_closing():
                text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                request = Request(text)
                self.requests.append(request)
                peer.requests += 1
                await self.script(request, peer)
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
