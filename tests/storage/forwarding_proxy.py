"""A forwarding proxy as they stand in offices: absolute-form requests for http, CONNECT tunnels for everything else.

It alone knows where hosts are, so a client that goes around it finds nothing.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit

_PIECE = 1 << 16


class ForwardingProxy:
    """``async with ForwardingProxy({"host": port}) as proxy``.

    Args:
        hosts: The port of 127.0.0.1 where each host is in truth.
        password: ``user:password`` that is asked for; None for none.
    """

    def __init__(self, hosts: Mapping[str, int], *, password: str | None = None) -> None:
        self._hosts = hosts
        self._wanted = None if password is None else "Basic " + base64.b64encode(password.encode()).decode()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.lines: list[str] = []
        """The request lines that came."""

    @property
    def url(self) -> str:
        """For clients."""
        return f"http://127.0.0.1:{self.port}"

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
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        self.lines.append(lines[0])
        method, target, version = lines[0].split(" ")
        given = next(
            (line.split(": ", 1)[1] for line in lines if line.lower().startswith("proxy-authorization: ")), None
        )
        if self._wanted is not None and given != self._wanted:
            writer.write(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        host = target.partition(":")[0] if method == "CONNECT" else urlsplit(target).hostname or ""
        port = self._hosts.get(host)
        if port is None:
            writer.write(b"HTTP/1.1 502 Unknown host\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                parts = urlsplit(target)
                path = parts.path + (f"?{parts.query}" if parts.query else "")
                kept = [line for line in lines[1:] if not line.lower().startswith("proxy-")]
                there_writer.write("\r\n".join([f"{method} {path} {version}", *kept]).encode("latin-1"))
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, there_writer))
                group.create_task(_copy(there_reader, writer))
        finally:
            there_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
