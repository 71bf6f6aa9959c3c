"""A listening server on one event loop: accepts connections and owns everything they share."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
import time
from dataclasses import dataclass

from fake_gcs.answering import http_date
from fake_gcs.connection import Connection
from fake_gcs.journal import Journal
from fake_gcs.pacing import Pacer
from fake_gcs.profiles import Profile
from fake_gcs.service import Service
from fake_gcs.weather import Weather
from fake_gcs.wire import TLSWire, Wire

_BACKLOG = 4096
_ACCEPTS_PER_TURN = 64
_RETRY_ACCEPT_S = 0.1
_SEND_BUFFER_BYTES = 256 << 10
"""Of a socket; the system doubles it. Megabytes for each of many connections leave the caches before they arrive."""

_LOG = logging.getLogger("fake_gcs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may take.

    Attributes:
        connections: Most open connections; further ones wait in the backlog.
        head_timeout_s: A request head must be complete so long after its first byte.
        body_timeout_s: The next bytes of a body must come in this time.
        idle_timeout_s: A connection without a request is closed after this time.
        send_timeout_s: A client that takes nothing for so long is dropped.
    """

    connections: int = 10_000
    head_timeout_s: float = 20.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 300.0
    send_timeout_s: float = 300.0


class Serving:
    """The shared state of all connections of one server.

    Attributes:
        service: What handlers work on.
        weather: What requests meet.
        journal: What was asked.
        pacer: Who may send.
        limits: What a client may take.
        proxy: With this CONNECT is answered by serving the client here, over TLS; None refuses it.
    """

    def __init__(
        self,
        service: Service,
        profile: Profile,
        journal: Journal,
        limits: Limits,
        proxy: ssl.SSLContext | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.service = service
        self.weather = Weather(profile)
        self.journal = journal
        self.pacer = Pacer(self._loop, profile.total_bytes_per_s)
        self.limits = limits
        self.proxy = proxy
        self._date = ""
        self._date_until = 0.0

    def change_weather(self, profile: Profile) -> None:
        """Other weather for the requests that come."""
        self.weather = Weather(profile)
        self.pacer.set_total(profile.total_bytes_per_s)

    def clock(self) -> float:
        """The journal's clock, in seconds."""
        return time.monotonic()

    def date(self) -> str:
        """The ``Date`` header, made once a second."""
        now = time.monotonic()
        if now >= self._date_until:
            self._date = http_date()
            self._date_until = now + 1.0
        return self._date

    def scheme(self, wire: Wire) -> str:
        """``http`` or ``https``."""
        return "https" if wire.tls else "http"

    async def accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        """Accept connections until cancelled; then end those that are open.

        With as many connections as allowed, or without descriptors left, further clients wait in the kernel's backlog
        until one of the open connections ends.
        """
        number = active = 0
        listening = closing = False

        def listen_again() -> None:
            nonlocal listening
            if not listening and not closing:
                listening = True
                self._loop.add_reader(listener.fileno(), ready)

        def rest() -> None:
            nonlocal listening
            if listening:
                listening = False
                self._loop.remove_reader(listener.fileno())

        def ready() -> None:
            nonlocal number, active
            for _ in range(_ACCEPTS_PER_TURN):
                if active >= self.limits.connections:
                    rest()
                    return
                try:
                    sock, _ = listener.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    return
                except OSError:
                    _LOG.exception("a connection can not be accepted")
                    rest()
                    self._loop.call_later(_RETRY_ACCEPT_S, listen_again)
                    return
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
                active += 1
                task = connections.create_task(self._serve(sock, context, number))
                task.add_done_callback(functools.partial(ended, sock))
                number += 1

        def ended(sock: socket.socket, _task: asyncio.Task[None]) -> None:
            nonlocal active
            active -= 1
            sock.close()  # Only a task that was cancelled before it began has left it open.
            listen_again()

        try:
            async with asyncio.TaskGroup() as connections:
                listen_again()
                try:
                    await asyncio.Event().wait()
                finally:
                    closing = True
                    rest()
        finally:
            self.pacer.close()

    async def _serve(self, sock: socket.socket, context: ssl.SSLContext | None, number: int) -> None:
        if context is None:
            wire = Wire(self._loop, sock)
            await Connection(self, wire, number).run()
            if not wire.detached or self.proxy is None:
                return
            context = self.proxy
        await self._serve_tls(sock, context, number)

    async def _serve_tls(self, sock: socket.socket, context: ssl.SSLContext, number: int) -> None:
        wire = TLSWire(self._loop, sock, context)
        try:
            async with asyncio.timeout(self.limits.head_timeout_s):
                await wire.handshake()
        except (OSError, TimeoutError):
            wire.close()
            return
        except BaseException:
            wire.close()
            raise
        await Connection(self, wire, number).run()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
