"""Kept connections by origin, on one loop.

``release`` adds connections whose exchange ended cleanly. They leave through ``acquire``, last in first out, so that
the extra connections of a burst age at the bottom; through the idle limit, with one timer; and through ``aclose``. If
an origin has ``max_per_origin`` connections, further callers wait in order of arrival. A cancelled ``acquire`` leaves
no trace.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import aiohappyeyeballs

from asyncdata.errors import PipelineClosedError, StorageError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.failures import FailureCause, read_failed
from asyncdata.storage.http1.connection import Phase, RangeConnection
from asyncdata.storage.http1.known_answers import KnownAnswers
from asyncdata.storage.http1.tls_transport import TlsTransport, open_tls
from asyncdata.storage.http1.watchdog import Watchdog
from asyncdata.storage.urls import Origin

IDLE_LIMIT_S: Final = 60.0
FRESH_S: Final = 1.0
"""A second attempt at a read that is silent trusts a kept connection only if it was in use this lately."""
AGE_LIMIT_S: Final = 900.0
"""A connection this old is not kept after its exchange: its server may be on its way out, others are never found."""


@dataclass(slots=True)
class _Lane:
    """The connections of one origin.

    Attributes:
        idle: Clean connections, the most recently used last.
        open: Connections that exist or are being made.
        waiters: Callers that wait for room.
        session: Of TLS, for new connections; None until the server has sent one.
    """

    idle: list[RangeConnection] = field(default_factory=list)
    open: int = 0
    waiters: deque[asyncio.Future[None]] = field(default_factory=deque)
    session: ssl.SSLSession | None = None


class ConnectionPool:
    """See the module's text.

    Args:
        limits: Time limits; ``connect_s`` covers name look-up, TCP and TLS.
        max_per_origin: Upper limit of connections per origin.
        tls_context: For origins that are encrypted.
    """

    def __init__(self, *, limits: TimeoutOptions, max_per_origin: int, tls_context: ssl.SSLContext | None) -> None:
        self._limits = limits
        self._max_per_origin = max_per_origin
        self._tls_context = tls_context
        self._answers = KnownAnswers()
        self._lanes: dict[Origin, _Lane] = {}
        self._lane_of: dict[RangeConnection, _Lane] = {}
        self._busy: set[RangeConnection] = set()
        self._watchdog = Watchdog(limits, lambda: self._busy)
        self._eviction: asyncio.TimerHandle | None = None
        self._all_lost: asyncio.Event = asyncio.Event()
        self._closed = False
        self.connects = 0
        """Connections that were opened."""

    def __repr__(self) -> str:
        idle = sum(len(lane.idle) for lane in self._lanes.values())
        return f"<ConnectionPool {len(self._busy)} busy, {idle} idle, {self.connects} opened>"

    def take(self, origin: Origin, attempt: Attempt | None = None) -> RangeConnection | None:
        """A kept connection, if there is one and it is good enough; else ``acquire`` is to be asked."""
        lane = self._lanes.get(origin)
        if lane is None or not lane.idle or self._closed or (attempt is not None and attempt.detour):
            return None
        connection = lane.idle.pop()
        if connection.phase is not Phase.IDLE:
            return None
        self._busy.add(connection)
        if not self._watchdog.looks:
            self._watchdog.wake()
        return connection

    async def acquire(self, origin: Origin, attempt: Attempt | None = None) -> RangeConnection:
        """A clean connection, kept or new; to be given to ``release`` whatever happens."""
        detour = attempt is not None and attempt.detour
        while True:
            if self._closed:
                raise PipelineClosedError("the storage layer was closed")
            lane = self._lanes.get(origin)
            if lane is None:
                lane = self._lanes[origin] = _Lane()
            has_room = lane.open < self._max_per_origin
            while lane.idle and not (detour and has_room and self._is_old(lane.idle[-1])):
                connection = lane.idle.pop()
                if connection.is_clean:
                    return self._use(connection)
            if has_room:
                return self._use(await self._connect(origin, lane, attempt))
            await self._wait_for_room(lane)

    def release(self, connection: RangeConnection) -> None:
        """Takes a connection back: kept when it is clean, closed otherwise."""
        self._busy.discard(connection)
        # One that its transport is about to lose is taken out when it is lost; until then its next use finds out.
        if self._closed or connection.phase is not Phase.IDLE or connection.transport is None:
            connection.close()
            return
        loop = connection.loop
        now = loop.time()
        if now - connection.opened_at > AGE_LIMIT_S:
            connection.close()
            return
        lane = self._lane_of[connection]
        connection.idle_since = now
        lane.idle.append(connection)
        if lane.session is None and isinstance(connection.transport, TlsTransport):
            lane.session = connection.transport.session
        if lane.waiters:
            self._wake_one(lane)
        if self._eviction is None:
            self._eviction = loop.call_later(IDLE_LIMIT_S, self._evict)

    async def warm(self, origin: Origin, count: int) -> None:
        """Sees to it that ``count`` connections exist, so that the first requests need not wait for handshakes.

        One that cannot be made is left to the first request, which will say what is wrong.
        """
        lane = self._lanes.setdefault(origin, _Lane())

        async def make() -> None:
            try:
                self.release(await self._connect(origin, lane, None))
            except StorageError:
                return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(count, self._max_per_origin) - lane.open):
                group.create_task(make())

    async def aclose(self) -> None:
        """Closes every connection and returns when the event loop has let go of them."""
        self._closed = True
        self._watchdog.close()
        if self._eviction is not None:
            self._eviction.cancel()
            self._eviction = None
        for lane in self._lanes.values():
            while lane.waiters:
                self._wake_one(lane)
        for connection in list(self._lane_of):
            connection.fail(StorageError("the storage layer was closed"))
        while self._lane_of:
            self._all_lost.clear()
            await self._all_lost.wait()

    def _use(self, connection: RangeConnection) -> RangeConnection:
        self._busy.add(connection)
        self._watchdog.wake()
        return connection

    @staticmethod
    def _is_old(connection: RangeConnection) -> bool:
        return asyncio.get_running_loop().time() - connection.idle_since > FRESH_S

    @staticmethod
    def _distrust(lane: _Lane, since: float) -> None:
        """A kept connection was silent: others that were idle already when it was used may be as dead as it was.

        A router that forgets connections forgets all of them at once, and tells nobody.
        """
        for connection in [each for each in lane.idle if each.idle_since <= since]:
            lane.idle.remove(connection)
            connection.close()

    async def _wait_for_room(self, lane: _Lane) -> None:
        waiter = asyncio.get_running_loop().create_future()
        lane.waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_one(lane)  # the turn was ours already: pass it on
            raise
        finally:
            if waiter in lane.waiters:
                lane.waiters.remove(waiter)

    async def _connect(self, origin: Origin, lane: _Lane, attempt: Attempt | None) -> RangeConnection:
        loop = asyncio.get_running_loop()
        limits = attempt.limits if attempt is not None else None
        limit_s = self._limits.connect_s if limits is None else limits.connect_s
        began = loop.time()
        tls = self._tls_for(origin)
        lane.open += 1
        connection = RangeConnection(self._lost, self._answers)
        self._lane_of[connection] = lane
        try:
            async with asyncio.timeout(limit_s):
                sock = await dial(origin.host, origin.port)
                # From here on the socket is the transport's: closed by anybody else it would be another's number soon.
                if tls is not None:
                    transport = await open_tls(connection, sock, tls, origin.host, lane.session)
                    if not transport.resumed:
                        lane.session = None  # too old, or of a server that knows none
                else:
                    await loop.create_connection(lambda: connection, sock=sock)
        except BaseException as error:
            # An event loop may close a half-made connection without a word: the books do not wait for it.
            connection.close()
            self._lost(connection)
            if isinstance(error, TimeoutError):
                raise read_failed(
                    f"no connection to {origin.authority} within {limit_s:g} s",
                    FailureCause.CONNECT_TIMEOUT,
                ) from None
            if isinstance(error, ssl.SSLCertVerificationError):
                raise StorageError(
                    f"the certificate of {origin.authority} is not trusted: {error.verify_message}"
                ) from None
            if isinstance(error, OSError):
                raise read_failed(
                    f"cannot connect to {origin.authority}: {error.strerror or type(error).__name__}",
                    FailureCause.CONNECT,
                ) from None
            raise
        self.connects += 1
        connection.opened_at = loop.time()
        if attempt is not None:
            attempt.connect_s = loop.time() - began
        return connection

    def _tls_for(self, origin: Origin) -> ssl.SSLContext | None:
        if origin.tls and self._tls_context is None:
            raise RuntimeError("an encrypted origin for a pool without a TLS context")
        return self._tls_context if origin.tls else None

    def _lost(self, connection: RangeConnection) -> None:
        lane = self._lane_of.pop(connection, None)
        if lane is not None:
            lane.open -= 1
            if connection in lane.idle:
                lane.idle.remove(connection)
            if connection.was_silent:
                self._distrust(lane, connection.quiet_since)
            self._wake_one(lane)
        if not self._lane_of:
            self._all_lost.set()

    @staticmethod
    def _wake_one(lane: _Lane) -> None:
        while lane.waiters:
            waiter = lane.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _evict(self) -> None:
        """Closes what was idle too long; looks again when the next one is due."""
        self._eviction = None
        loop = asyncio.get_running_loop()
        oldest: float | None = None
        for lane in self._lanes.values():
            for connection in list(lane.idle):
                if loop.time() - connection.idle_since >= IDLE_LIMIT_S:
                    lane.idle.remove(connection)
                    connection.close()
                elif oldest is None or connection.idle_since < oldest:
                    oldest = connection.idle_since
        if oldest is not None:
            self._eviction = loop.call_at(oldest + IDLE_LIMIT_S, self._evict)


_NEXT_AFTER_S: Final = 0.25


async def dial(host: str, port: int) -> socket.socket:
    """Connects to whichever address of a host answers first; cancelled, it leaves no socket.

    A name may mean several addresses, of which some lead nowhere: an IPv6 route that swallows packets, a machine that
    is gone. Waiting for the first until the time limit, attempt after attempt, would never reach the second. So the
    next address is tried as well when one has not answered within a quarter of a second (RFC 8305).

    Raises:
        OSError: The name is not known, or no address of it can be connected to.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # One family after the other, as each may be broken as a whole.
    return await aiohappyeyeballs.start_connection(
        [(family, kind, number, "", address) for family, kind, number, _, address in found],
        happy_eyeballs_delay=_NEXT_AFTER_S,
        interleave=1,
        loop=loop,
    )
