"""Responses through aiohttp, both ranged bodies and small ones, watched like those of the range client.

aiohttp supports all of HTTP, but not what the rest of the storage layer needs: attempts with their own time limits,
whose silence can be distinguished from a late process, and which another attempt can overtake. `LenientWire` adds this
from outside. To end an attempt, it cancels the task that makes the attempt, as asyncio's timeouts do, and converts the
cancellation into the intended error.

::

    connection ──begin──▶ head ──▶ pieces, copied into the buffer ──▶ Answer
                  └── watchdog, hedger ── fail(error) ──▶ cancelled here ──▶ error
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self, cast

import aiohttp
from yarl import URL

from asyncdata.errors import StorageError
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.failures import EncodedBodyError, FailureCause, RangeIgnoredError, ReadFailedError, read_failed
from asyncdata.storage.http1.body_plan import MAX_ASIDE_BYTES
from asyncdata.storage.http1.connection import Accept, Answer
from asyncdata.storage.http1.head import MalformedHeadError, ResponseHead
from asyncdata.storage.http1.kernel_buffers import bytes_to_send, holds_input
from asyncdata.storage.statuses import parse_retry_after, status_error
from asyncdata.storage.urls import quoted

MAX_REDIRECTS: Final = 10

_wire: contextvars.ContextVar[LenientWire | None] = contextvars.ContextVar("asyncdata_wire", default=None)


class LenientWire:
    """An attempt as its watchers see it; a context manager around the request. On one loop, in one task.

    Args:
        attempt: Limits, and where to tell what was seen.
        limits: Where the attempt brings none.
        watch: Told when a request is on its way.
    """

    def __init__(self, attempt: Attempt, limits: ReadLimits, watch: Callable[[LenientWire], None]) -> None:
        self._attempt = attempt
        self._watch = watch
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._error: StorageError | None = None
        self._socket: socket.socket | None = None
        self._transport: asyncio.WriteTransport | None = None
        self.sent = 0
        """Bytes of the request's own body that the connection took."""
        self.limits = attempt.limits or limits
        self.filled = 0
        self.received = 0
        self.awaits_head = True
        self.in_body = False
        self.quiet_since = self.paced_since = 0.0
        self.seen = -1
        self.paced_from = self.spared = 0

    def __repr__(self) -> str:
        return f"<LenientWire {'head' if self.awaits_head else 'body'}, {self.filled} bytes>"

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._token = _wire.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _wire.reset(self._token)
        task, self._task = self._task, None
        self._attempt.wire, self._attempt.received = None, self.filled
        self._attempt.skipped += self.received - self.filled
        ended = self._error
        if ended is None or task is None:
            return
        if isinstance(ended, ReadFailedError):
            ended.filled = self.filled
        # As a time limit of asyncio: a cancellation from elsewhere goes on.
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise ended from None

    def begin(self, transport: asyncio.BaseTransport | None) -> None:
        """There is a connection, and the request is about to be sent."""
        now = asyncio.get_running_loop().time()
        self._transport = cast("asyncio.WriteTransport | None", transport)
        self._socket = None if transport is None else transport.get_extra_info("socket")
        self.quiet_since, self.seen = now, -1
        if self._task is not None:
            self._attempt.wire, self._attempt.asked_at = self, now
            self._watch(self)

    def head_came(self) -> None:
        """The head is there."""
        self.paced_since = asyncio.get_running_loop().time()
        self.awaits_head, self.in_body = False, True
        self.paced_from = self.progress
        self._attempt.first_byte_at = self.paced_since

    def skips(self) -> None:
        """What comes first is not wanted: no other attempt would be ahead of this one."""
        self._attempt.wire = None

    @property
    def progress(self) -> int:
        """A number that changes whenever something arrives, or something of the request's own body leaves."""
        return self.received + (not self.awaits_head) + self._left()

    def _left(self) -> int:
        """Bytes of the request's own body that the server has received; no answer is due before it has all of them."""
        if not self.sent or self._socket is None or self._transport is None:
            return 0
        # The last megabytes wait in the buffers beneath, where they may take longer than a limit.
        return self.sent - self._transport.get_write_buffer_size() - bytes_to_send(self._socket.fileno())

    def release_low_water(self) -> bool:
        """aiohttp's sockets have no low-water mark."""
        return False

    def has_input(self) -> bool:
        """Whether the kernel holds bytes for this connection."""
        return self._socket is not None and holds_input(self._socket.fileno())

    def nudge(self) -> None:
        """What arrived is delivered at once anyway."""

    def fail(self, error: StorageError) -> None:
        """Ends the attempt with an error, if it has not ended."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()


class _Sending(io.BytesIO):
    """The body of a request, whose wire knows how much of it was taken."""

    def __init__(self, data: bytes, wire: LenientWire) -> None:
        super().__init__(data)
        self._wire = wire

    def read(self, size: int | None = -1, /) -> bytes:
        """As of any file."""
        piece = super().read(size)
        self._wire.sent += len(piece)
        return piece


class NotingConnector(aiohttp.TCPConnector):
    """Tells the wire of the running request which connection it got; making one has a time limit as a whole.

    aiohttp limits connect and handshake, but waits without end for what a proxy says to CONNECT.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 -- aiohttp's signature
    ) -> aiohttp.connector.Connection:
        """As aiohttp's."""
        connection = await super().connect(req, traces, timeout)
        wire = _wire.get()
        if wire is not None:
            wire.begin(connection.transport)
        return connection

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 -- aiohttp's signature
    ) -> aiohttp.client_proto.ResponseHandler:
        async with asyncio.timeout(timeout.sock_connect):
            return await super()._create_connection(req, traces, timeout)


async def receive(
    wire: LenientWire,
    session: aiohttp.ClientSession,
    url: str,
    headers: Sequence[tuple[str, str]],
    *,
    start: int,
    buffer: memoryview,
    accept: Accept,
    skip_allowed: bool,
    size: int | None,
    endless_s: float,
    proxy: str | None,
) -> Answer:
    """One ranged GET; see ``Bodies.get``."""
    with _typed(wire, by_proxy=proxy is not None), wire:
        async with session.get(
            URL(quoted(url), encoded=True),
            headers=headers,
            allow_redirects=False,
            proxy=proxy,
            timeout=_beyond(wire.limits),
        ) as response:
            head = head_of(response)
            wire.head_came()
            accept(head)
            if head.status not in {200, 206}:
                return Answer(head, 0, None, await _read_aside(wire, response))
            _check_coding(head)
            skip, total = _place(head, start, len(buffer), skip_allowed=skip_allowed)
            if skip:
                wire.skips()
            sent = head.content_range if head.status == 206 else None
            promised = None if sent is None or sent.stop is None else sent.stop - start
            unmeasured = promised is None and total is None
            loop = asyncio.get_running_loop()
            ends = loop.time() + endless_s
            async for piece in response.content.iter_any():
                fresh = memoryview(piece)[max(0, skip - wire.received) :][: len(buffer) - wire.filled]
                buffer[wire.filled : wire.filled + len(fresh)] = fresh
                wire.filled += len(fresh)
                wire.received += len(piece)
                if promised is not None and wire.received > promised:
                    raise read_failed("the body is longer than its Content-Range", FailureCause.MALFORMED)
                if promised is None and total is not None and wire.filled == min(len(buffer), max(0, total - start)):
                    break
                if not unmeasured or wire.filled < len(buffer):
                    continue
                # What follows is only counted. It may have no end, and no other limit holds for bytes that keep coming.
                if size is not None:
                    if wire.received > size:
                        break
                elif loop.time() > ends:
                    raise read_failed(
                        f"a body without a length has not ended after {endless_s:g} s and {wire.received} bytes",
                        FailureCause.SLOW,
                    )
            if head.status == 200 and total is None:
                total = wire.received
            return Answer(head, wire.filled, total, b"")


async def ask(
    wire: LenientWire,
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    allow_redirects: bool,
    data: bytes | None,
    most_bytes: int,
    proxy: str | None,
) -> tuple[ResponseHead, bytes]:
    """One request for something that is read as a whole; see ``Bodies.ask``."""
    with _typed(wire, by_proxy=proxy is not None), wire:
        async with session.request(
            method,
            URL(quoted(url), encoded=True),
            headers=headers,
            data=None if data is None else _Sending(data, wire),
            proxy=proxy,
            allow_redirects=allow_redirects,
            max_redirects=MAX_REDIRECTS,
            timeout=_beyond(wire.limits, sends=data is not None),
        ) as response:
            head = head_of(response)
            wire.head_came()
            body = bytearray()
            try:
                async for piece in response.content.iter_any():
                    body += piece
                    wire.received += len(piece)
                    if len(body) > most_bytes:
                        raise StorageError(f"the response is longer than {most_bytes} bytes")
            except aiohttp.ClientError:
                if head.status < 300:
                    raise
                # The status is known; only the words of the error are cut short.
            return head, bytes(body)


def _beyond(limits: ReadLimits, *, sends: bool = False) -> aiohttp.ClientTimeout:
    """The watchdog knows silence from being late; what aiohttp itself would end comes after it.

    aiohttp takes data for sent when the buffers beneath it have it, so it ends nothing of a request that sends some.
    """
    silent_s = None if sends else 2 * max(limits.first_byte_s, limits.idle_s)
    return aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=silent_s)


@contextmanager
def _typed(wire: LenientWire, *, by_proxy: bool) -> Iterator[None]:
    """What aiohttp raises becomes what it means."""
    try:
        yield
    except MalformedHeadError as error:
        raise read_failed(f"not an HTTP response: {error}", FailureCause.MALFORMED, filled=wire.filled) from None
    except aiohttp.ClientPayloadError as error:
        raise read_failed(f"the body broke off: {error}", FailureCause.SHORT_BODY, filled=wire.filled) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise client_failure(error, filled=wire.filled, by_proxy=by_proxy) from None


def head_of(response: aiohttp.ClientResponse) -> ResponseHead:
    """An aiohttp response's head in the range client's terms: a character is a byte, whatever it means."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.raw_headers:
        key, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return ResponseHead(response.status, response.reason or "", headers, keep_alive=True)


def client_failure(error: Exception, *, filled: int = 0, by_proxy: bool = False) -> StorageError:
    """The typed error for what aiohttp raised."""
    if isinstance(error, aiohttp.TooManyRedirects):
        return StorageError("too many redirects")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        wish = None if error.headers is None else parse_retry_after(error.headers.get("Retry-After"))
        return status_error(error.status, "reported by the proxy", retry_after_s=wish)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = error.certificate_error
        why = f": {reason.verify_message}" if isinstance(reason, ssl.SSLCertVerificationError) else ""
        return StorageError(f"the certificate of {error.host}:{error.port} is not trusted{why}")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        cause = FailureCause.CONNECT_TIMEOUT
    elif isinstance(error, TimeoutError):
        cause = FailureCause.IDLE_TIMEOUT if filled else FailureCause.FIRST_BYTE_TIMEOUT
    elif isinstance(error, aiohttp.ClientConnectorError):
        why = error.os_error.strerror or type(error.os_error).__name__
        # With a proxy it is only its name that is looked up, whatever aiohttp calls that.
        is_proxy = by_proxy and isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientConnectorDNSError)
        whom = f"{'the proxy ' * is_proxy}{error.host}:{error.port}"
        return read_failed(f"cannot connect to {whom}: {why}", FailureCause.CONNECT, filled=filled)
    elif isinstance(error, aiohttp.ClientConnectionError | OSError):
        cause = FailureCause.CONNECTION_LOST
    elif isinstance(error, aiohttp.InvalidURL):
        return StorageError("the URL is not usable")
    else:
        cause = FailureCause.MALFORMED
    return read_failed(f"the request failed ({type(error).__name__})", cause, filled=filled)


def _check_coding(head: ResponseHead) -> None:
    """Refuses a body that is compressed for the way: its bytes would be taken for those of the object."""
    coding = head.headers.get("transfer-encoding", "").strip().lower()
    if coding not in {"", "chunked", "identity"}:
        raise EncodedBodyError(f"the server sends the body as {coding[:40]!r}")


def _place(head: ResponseHead, start: int, length: int, *, skip_allowed: bool) -> tuple[int, int | None]:
    """(bytes to drop first, total size where known) for the body of a 200 or 206."""
    if head.status == 200:
        total = None if head.is_chunked else head.content_length
        if not skip_allowed and not (start == 0 and total is not None and total <= length):
            raise RangeIgnoredError("the server answered 200 to a range request")
        return start, total
    sent = head.content_range
    if (
        sent is None
        or sent.start != start
        or sent.stop is None
        or sent.stop > start + length
        or (not head.is_chunked and head.content_length not in {None, sent.stop - start})
    ):
        raise read_failed(
            f"requested bytes {start}-{start + length - 1}, got Content-Range {head.headers.get('content-range')!r} "
            f"with {head.content_length} bytes",
            FailureCause.MALFORMED,
        )
    return 0, sent.total


async def _read_aside(wire: LenientWire, response: aiohttp.ClientResponse) -> bytes:
    """The text of an error, as much of it as comes: the status is known already."""
    parts = bytearray()
    with suppress(aiohttp.ClientError):
        async for piece in response.content.iter_any():
            parts += piece
            wire.received += len(piece)
            if len(parts) >= MAX_ASIDE_BYTES:
                break
    return bytes(parts[:MAX_ASIDE_BYTES])
