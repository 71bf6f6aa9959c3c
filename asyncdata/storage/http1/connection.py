"""One HTTP/1.1 connection that receives a ranged body directly into the caller's buffer.

::

    IDLE ──exchange──▶ HEAD ──head complete──▶ BODY (caller's buffer, or aside) ──▶ IDLE, clean
                        │                      COLLECT (error text without length) ──▶ CLOSED
                        └── failure, cancellation, anything unexpected ──▶ CLOSED, never reused

Invariant: `_target` is the only access to the caller's buffer, and it is dropped *before* the waiter learns the
outcome. Bytes that arrive later go to the head buffer and are ignored. The head buffer always has room, because an
event loop asks for a buffer once more after a body has ended, and an empty buffer closes the transport.

Small pieces: on a slow stream every segment would wake the loop, so SO_RCVLOWAT lets the kernel gather up to 256 KiB.
To prevent a hang, the low-water mark never exceeds the bytes still to come of this body, and is back at 1 before the
next head. If a stream stalls below a raised mark, the watchdog lowers the mark, so that the received bytes are
delivered.
"""

from __future__ import annotations

import asyncio
import enum
import select
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, cast

from asyncdata.errors import StorageError
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.failures import FailureCause, ReadFailedError, UnreadableHeadError, read_failed
from asyncdata.storage.http1.body_plan import MAX_ASIDE_BYTES, BodyPlan, join_chunks, plan_body
from asyncdata.storage.http1.head import MAX_HEAD_BYTES, MalformedHeadError, ResponseHead, parse_head
from asyncdata.storage.http1.kernel_buffers import holds_input
from asyncdata.storage.http1.known_answers import KnownAnswers, KnownObject
from asyncdata.storage.http1.tls_transport import TlsTransport

LOW_WATER_BYTES: Final = 256 << 10
HEAD_BUFFER_BYTES: Final = 4 << 10
# A TLS record that has arrived in part is out of the kernel's sight: its size is kept from every mark.
TLS_MARGIN_BYTES: Final = 32 << 10

_RCVLOWAT: Final[int | None] = getattr(socket, "SO_RCVLOWAT", None)
_BEGINNING: Final = b"HTTP/1."
_HEAD_END: Final = b"\r\n\r\n"
_SILENT: Final = frozenset({FailureCause.FIRST_BYTE_TIMEOUT, FailureCause.OVERTAKEN})

Accept: TypeAlias = Callable[[ResponseHead], None]
"""Looks at the head before any byte of the body is placed; raises a StorageError to refuse the answer."""


class Phase(enum.Enum):
    """Where a connection is in its exchange."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    COLLECT = "collect"
    CLOSED = "closed"


class Answer(NamedTuple):
    """A complete answer.

    Attributes:
        head: Status and headers.
        filled: Bytes written to the caller's buffer.
        total: Size of the whole object, where the answer says it.
        aside: The collected body of an answer that is not what was asked for, cut at 64 KiB.
    """

    head: ResponseHead
    filled: int
    total: int | None
    aside: bytes


class StaleConnectionError(StorageError):
    """A kept connection turned out to be closed before one byte of the answer came; the request was not answered."""


def _nothing(timeout: float) -> object:  # noqa: ARG001 -- as poll has it
    """Looks at a socket that is not there yet."""
    return None


class RangeConnection(asyncio.BufferedProtocol):
    """See the module's text. One exchange at a time; every method runs on the connection's loop.

    Args:
        on_lost: Called once, when the event loop has let go of it.
        answers: Heads that need not be parsed again; connections may share them.
    """

    def __init__(self, on_lost: Callable[[RangeConnection], None], answers: KnownAnswers | None = None) -> None:
        self._on_lost = on_lost
        self._answers = KnownAnswers() if answers is None else answers
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        """Where the bytes come from; None before it is connected."""
        self._socket: socket.socket | None = None
        self._tls: TlsTransport | None = None
        self._look: Callable[[float], object] = _nothing
        self._margin = 0
        self._head = bytearray(HEAD_BUFFER_BYTES)
        self._head_view = memoryview(self._head)
        self._head_size = 0
        self._interim_bytes = 0
        self._target: memoryview | None = None
        self._at = 0
        self._end = 0
        self._mark = 0
        self._low_water = 1
        # Of the running exchange.
        self._waiter: asyncio.Future[Answer] | None = None
        self._buffer: memoryview | None = None
        self._start = 0
        self._accept: Accept | None = None
        self._known: KnownObject | None = None
        self._answer_head: ResponseHead | None = None
        self._attempt: Attempt | None = None
        self._wanted = False
        self._total: int | None = None
        self._aside = bytearray()
        self.phase = Phase.IDLE
        self.exchanges = 0
        """Exchanges that were begun; above 1 the connection was kept from an earlier one."""
        self.opened_at = 0.0
        self.idle_since = 0.0
        self.was_silent = False
        """It was kept from an earlier exchange, and nothing came of the answer to the next request."""
        self.quiet_since = 0.0
        self.seen = -1
        # For the watchdog: since when, and from which byte of the body on, its pace is looked at.
        self.paced_since = 0.0
        self.paced_from = 0
        self.spared = 0

    def __repr__(self) -> str:
        return f"<RangeConnection {self.phase.value}, {self._at} of {self._end} bytes, exchange {self.exchanges}>"

    # --- the caller's side -------------------------------------------------------------------------------------------

    @property
    def is_clean(self) -> bool:
        """It may serve another exchange."""
        return self.phase is Phase.IDLE and self.transport is not None and not self.transport.is_closing()

    @property
    def progress(self) -> int:
        """A number that changes whenever a byte behind the head of the running exchange arrives."""
        if self.phase is Phase.HEAD:
            return 0
        return 1 + (self._at if self.phase is Phase.BODY else len(self._aside))

    @property
    def awaits_head(self) -> bool:
        """The head of the answer has not come yet."""
        return self.phase is Phase.HEAD

    @property
    def in_body(self) -> bool:
        """What follows the head is being received."""
        return self.phase in (Phase.BODY, Phase.COLLECT)

    @property
    def filled(self) -> int:
        """Bytes of the running exchange that are in the caller's buffer."""
        return self._at if self._wanted else 0

    @property
    def limits(self) -> ReadLimits | None:
        """The time limits of the running exchange; None for those of the pool."""
        return None if self._attempt is None else self._attempt.limits

    async def exchange(
        self, request: bytes, start: int, buffer: memoryview, accept: Accept, attempt: Attempt | None = None
    ) -> Answer:
        """Sends one request and receives its answer; ``buffer`` is untouched once this returned or raised.

        See `ask`.
        """
        try:
            return await self.ask(request, start, buffer, accept, attempt)
        except asyncio.CancelledError:
            self.close()
            raise

    def ask(
        self,
        request: bytes,
        start: int,
        buffer: memoryview,
        accept: Accept,
        attempt: Attempt | None,
        known: KnownObject | None = None,
    ) -> asyncio.Future[Answer]:
        """Sends one request; what is returned is done when ``buffer`` is let go of.

        A caller that is cancelled while waiting for it must ``close`` the connection.

        Args:
            request: The whole head of a GET of ``[start, start + len(buffer))``.
            start: Offset of the first byte asked for.
            buffer: Where a body that is what was asked for goes.
            accept: Called with the head.
            attempt: Limits, and where to tell what was seen.
            known: The object, if ``accept`` takes a head or not by this alone: it is not called for a known answer.

        Raises:
            ReadFailedError: Connection lost, malformed answer, time limit (set by ``abort``).
            StaleConnectionError: A kept connection was closed already.
            StorageError: What ``accept`` or the framing refused.
        """
        transport = self.transport
        if transport is None or self.phase is not Phase.IDLE or transport.is_closing():
            self.close()  # for it must not be taken for a clean one once more
            if not self.exchanges:
                # Not kept, but new: a server that hangs up on everybody is not to be called again at once.
                raise read_failed("the server closed a new connection", FailureCause.CONNECTION_LOST)
            raise StaleConnectionError("the connection is closed")
        kept = self.exchanges
        if kept and self._look(0) and not self._is_housekeeping():
            # Bytes nobody asked for, or an end: an answer to the next request would begin in the middle of these.
            self.close()
            raise StaleConnectionError("the server closed a kept connection, or kept sending")
        loop = self.loop
        self.exchanges = kept + 1
        self.phase = Phase.HEAD
        self._start, self._buffer, self._accept, self._known = start, buffer, accept, known
        self._head_size = self._interim_bytes = self._at = self._end = 0
        self._wanted, self._total, self._answer_head = False, None, None
        self.quiet_since, self.seen, self.spared = loop.time(), -1, 0
        if attempt is not None:
            self._attempt, attempt.wire, attempt.asked_at = attempt, self, self.quiet_since
        waiter: asyncio.Future[Answer] = loop.create_future()
        self._waiter = waiter
        transport.write(request)
        return waiter

    def close(self) -> None:
        """Drops the caller's buffer and aborts the transport; nothing of this connection is used again."""
        self._forget_exchange()
        self.phase = Phase.CLOSED
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()

    def fail(self, error: StorageError) -> None:
        """Ends the running exchange with an error and closes the connection."""
        if isinstance(error, ReadFailedError):
            error.filled = self.filled
            self.was_silent = self.exchanges > 1 and self.phase is Phase.HEAD and error.cause in _SILENT
        waiter = self._waiter
        self.close()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def release_low_water(self) -> bool:
        """Sets the low-water mark to one byte if it is raised, so that what has arrived is delivered; True if it was.

        The rest of this body is received without a mark.
        """
        if self._low_water == 1:
            return False
        self._set_low_water(1)
        self._mark = self._end
        return True

    def nudge(self) -> None:
        """Has what arrived delivered, however little it is."""
        self.release_low_water()

    def has_input(self) -> bool:
        """Whether the kernel, or OpenSSL, holds bytes or an end for this connection, whatever the low-water mark."""
        tls = self._tls
        return (tls is not None and tls.pending() > 0) or holds_input(self.fileno())

    def _is_housekeeping(self) -> bool:
        """Whether what has arrived on an idle connection is TLS's own: a ticket for a session, a change of keys."""
        if self._tls is None:
            return False
        self._tls.receive()
        return self.is_clean

    def fileno(self) -> int:
        """The socket's descriptor, -1 when closed."""
        return -1 if self._socket is None or self.phase is Phase.CLOSED else self._socket.fileno()

    # --- the event loop's side ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport = cast("asyncio.Transport", transport)
        if self.phase is Phase.CLOSED:  # given up while it was being made
            self.transport.abort()
            return
        self._socket = transport.get_extra_info("socket")
        if isinstance(transport, TlsTransport):
            self._tls, self._margin = transport, TLS_MARGIN_BYTES
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        self._look = poll.poll

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 -- the signature is asyncio's
        """The rest of the body, or room for a head; called by the event loop before each receive."""
        target = self._target
        if target is not None:
            return target[self._at : self._end]
        return self._head_view[self._head_size :]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop after each receive; within a body one addition and one comparison."""
        if self._target is not None:
            self._at = at = self._at + nbytes
            if at >= self._mark:
                if at >= self._end:
                    self._finish()
                else:
                    self._milestone()
        elif self.phase is Phase.HEAD:
            self._head_updated(nbytes)
        elif self.phase is Phase.COLLECT:
            self._aside += self._head_view[:nbytes]
            self._collected()
        else:
            # Bytes nobody asked for: after a body, or on an idle connection. The stream is out of step.
            self.close()

    def eof_received(self) -> bool:
        """Called by the event loop; the transport closes itself."""
        if self.phase is Phase.COLLECT:
            self._finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop, last."""
        waiter = self._waiter
        if self.in_body and not self._wanted:
            # The status is known; only the words of the error are cut short.
            if self.phase is Phase.BODY:
                self._aside = self._aside[: self._at]
                self.phase = Phase.COLLECT  # not to be kept
            self._finish()
        elif waiter is not None and not waiter.done():
            self.fail(self._lost_error(exc))
        else:
            self.close()
        self._on_lost(self)

    def _lost_error(self, exc: Exception | None) -> StorageError:
        if self.phase is Phase.HEAD and self._head_size == 0 and self.exchanges > 1:
            return StaleConnectionError("the server closed a kept connection")
        how = f"the connection broke ({type(exc).__name__})" if exc is not None else "the server closed the connection"
        if self.phase is Phase.BODY:
            cause = FailureCause.CONNECTION_LOST if exc is not None else FailureCause.SHORT_BODY
            return read_failed(f"{how} after {self._at} of {self._end} bytes of the body", cause)
        return read_failed(f"{how} before the response's head was complete", FailureCause.CONNECTION_LOST)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _head_updated(self, nbytes: int) -> None:
        before = self._head_size
        self._head_size = before + nbytes
        try:
            while True:
                size = self._head_size
                end = self._head.find(_HEAD_END, max(0, before - 3), size)
                if end < 0:
                    if self._head.find(b"\n\n", max(0, before - 1), size) >= 0:
                        # Its own end would never come: told at once, not by the time limit.
                        raise UnreadableHeadError("not an HTTP response: lines without CR")
                    if size >= len(_BEGINNING) and not self._head.startswith(_BEGINNING):
                        raise UnreadableHeadError(f"not an HTTP/1 response: it begins with {bytes(self._head[:7])!r}")
                    if size == len(self._head):
                        self._grow_head()
                    return
                if self._known is not None and self._buffer is not None:
                    length = len(self._buffer)
                    known = self._answers.find(self._head, end, self._start, length, self._known)
                    if known is not None:
                        plan = BodyPlan(wanted=True, size=length, total=self._known.size)
                        self._begin_body(known, plan, end + 4)
                        return
                head = parse_head(bytes(self._head_view[:end]))
                if head.status >= 200:
                    break
                self._skip_interim(end + 4)
                before = 0
            if self._accept is not None:
                self._accept(head)
            self._begin_body(head, self._plan_for(head, end), end + 4)
        except MalformedHeadError as error:
            self.fail(UnreadableHeadError(f"not an HTTP response: {error}"))
        except StorageError as error:
            self.fail(error)

    def _grow_head(self) -> None:
        if len(self._head) >= MAX_HEAD_BYTES:
            raise read_failed(f"a head of more than {MAX_HEAD_BYTES} bytes", FailureCause.MALFORMED)
        grown = bytearray(4 * len(self._head))
        grown[: self._head_size] = self._head_view[: self._head_size]
        self._head, self._head_view = grown, memoryview(grown)

    def _skip_interim(self, end: int) -> None:
        """Drops an interim (1xx) head; what follows it moves to its place."""
        self._interim_bytes += end
        if self._interim_bytes > MAX_HEAD_BYTES:
            raise read_failed(f"interim heads of more than {MAX_HEAD_BYTES} bytes", FailureCause.MALFORMED)
        rest = bytes(self._head_view[end : self._head_size])
        self._head_view[: len(rest)] = rest
        self._head_size = len(rest)

    def _plan_for(self, head: ResponseHead, end: int) -> BodyPlan:
        if self._buffer is None:
            raise RuntimeError("a response outside of an exchange")
        length = len(self._buffer)
        plan = plan_body(head, start=self._start, length=length)
        if self._known is not None and head.status == 206 and plan.size == length:
            self._answers.note(self._head, end, self._start, length, self._known, head)
        return plan

    def _begin_body(self, head: ResponseHead, plan: BodyPlan, body_at: int) -> None:
        buffer = self._buffer
        assert buffer is not None
        self._answer_head, self._wanted, self._total = head, plan.wanted, plan.total
        self.paced_since, self.paced_from = self.loop.time(), 0
        if self._attempt is not None:
            self._attempt.first_byte_at = self.paced_since
        early = self._head_view[body_at : self._head_size]
        if plan.size is None or (not plan.wanted and plan.size > MAX_ASIDE_BYTES):
            self.phase = Phase.COLLECT
            self._aside += early
            self._head_size = 0
            self._collected()
            return
        if not plan.wanted:
            self._aside = bytearray(plan.size)
            buffer = memoryview(self._aside)
        if len(early) > plan.size:
            if not plan.wanted:  # an error stays the error it is; the connection is not used again
                self.phase = Phase.COLLECT
                self._aside = bytearray(early[: plan.size])
                self._finish()
                return
            raise read_failed(f"{len(early) - plan.size} bytes beyond the body's end", FailureCause.MALFORMED)
        buffer[: len(early)] = early
        self.phase = Phase.BODY
        self._head_size = 0
        self._at, self._end = len(early), plan.size
        if self._at == self._end:
            self._finish()
            return
        self._target = buffer
        self._mark = self._end
        if self._end - self._at >= 2 * LOW_WATER_BYTES and _RCVLOWAT is not None:
            self._set_low_water(LOW_WATER_BYTES)
            self._mark = self._end - LOW_WATER_BYTES - self._margin

    def _milestone(self) -> None:
        """The body's last stretch, where the low-water mark follows what is still to come."""
        self._set_low_water(max(1, min(LOW_WATER_BYTES, self._end - self._at - self._margin)))
        # At the least arrival the mark must be looked at again: above the rest it would never be reached.
        self._mark = self._end if self._low_water == 1 else self._at + 1

    def _set_low_water(self, mark: int) -> None:
        if mark == self._low_water or self._socket is None or _RCVLOWAT is None:
            return
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _RCVLOWAT, mark)
        except OSError:
            # The socket is being torn down, and connection_lost will say so; or the option is unknown here.
            mark = 1
        self._low_water = mark

    def _collected(self) -> None:
        """Looks whether an error text without a known length is complete, or long enough."""
        head = self._answer_head
        if head is not None and head.is_chunked:
            try:
                complete = join_chunks(bytes(self._aside))
            except ValueError:
                self._finish()
                return
            if complete is not None:
                self._aside = bytearray(complete)
                self._finish()
                return
        if len(self._aside) >= MAX_ASIDE_BYTES:
            del self._aside[MAX_ASIDE_BYTES:]
            self._finish()

    def _finish(self) -> None:
        head, waiter = self._answer_head, self._waiter
        reusable = self.phase is Phase.BODY and head is not None and head.keep_alive
        wanted = self._wanted
        filled, total, aside = self._at if wanted else 0, self._total, b"" if wanted else bytes(self._aside)
        if self._low_water != 1:
            self._set_low_water(1)
        if reusable:
            self._forget_exchange()
            self.phase = Phase.IDLE
        else:
            self.close()
        if waiter is not None and not waiter.done() and head is not None:
            waiter.set_result(Answer(head, filled, total, aside))

    def _forget_exchange(self) -> None:
        """Lets go of the caller's buffer; the order of the lines does not matter, for nothing else runs between."""
        self._target = None
        self._buffer = None
        self._accept = self._known = None
        self._waiter = None
        self._answer_head = None
        if self._attempt is not None:
            self._attempt.wire, self._attempt.received = None, self._at if self._wanted else 0
            self._attempt = None
        self._head_size = 0
        if self._aside:
            self._aside = bytearray()
