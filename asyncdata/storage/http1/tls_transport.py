"""TLS without a copy: OpenSSL reads from the socket and decrypts into the protocol's ``get_buffer``.

The TLS of event loops receives into its own memory, passes that to OpenSSL through another memory, and copies. Here the
loop only reports when the socket is readable::

    readable ─▶ get_buffer ─▶ SSL_read, a record at a time, until full or nothing is left ─▶ buffer_updated ─▶ …

Invariant: after ``abort`` nothing writes into a buffer, and the loop calls ``connection_lost`` exactly once. Only then
the socket is closed, long after the loop has forgotten its number. One connection takes at most `TURN_BYTES` per turn
of the loop, so that all others get their turn. The kernel does not see bytes that OpenSSL has already decrypted, so
whenever there are any, a turn is scheduled that fetches them.

This is not a general asyncio transport: it serves a ``BufferedProtocol`` that writes little and reads much. It does not
report full write buffers, and closing sends no ``close_notify``, because requests state their own end. An end without
``close_notify``, as many servers send it, is an ordinary end, because the protocol knows how many bytes must arrive.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final

TURN_BYTES: Final = 1 << 20
_RECORD_BYTES: Final = 16 << 10
"""The most that one record contains; several records fill a larger buffer before the protocol is notified."""


class TlsTransport(asyncio.Transport):
    """See the module's text; made by `open_tls`. Every method runs on the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: ssl.SSLSocket, protocol: asyncio.BufferedProtocol
    ) -> None:
        super().__init__({"socket": sock, "sslcontext": sock.context, "peername": sock.getpeername()})
        self._loop = loop
        self._socket = sock
        self._descriptor = sock.fileno()
        self._protocol = protocol
        # What lies beneath ssl.SSLSocket has the same methods; the layer above costs two calls for each record.
        self._tls: Any = getattr(sock, "_sslobj", None) or sock
        self._unsent: deque[bytes] = deque()
        self.closing = False
        """It is closed, or about to be; the same as `is_closing`, without a call."""
        self._reading = False
        # A key update or a renegotiation may turn one into the other for a moment.
        self._write_waits_to_read = False

    def __repr__(self) -> str:
        state = "closing" if self.closing else "open"
        return f"<TlsTransport {state}, {self._descriptor}, {sum(map(len, self._unsent))} bytes unsent>"

    def start(self) -> None:
        """Begins to read."""
        if not self.closing:
            self._reading = True
            self._loop.add_reader(self._descriptor, self.receive)

    def is_closing(self) -> bool:
        """It is closed, or about to be."""
        return self.closing

    def close(self) -> None:
        """The same as `abort`: nothing is sent that would not be asked for again."""
        self._close(None)

    def abort(self) -> None:
        """Stops at once; ``connection_lost`` follows in a later turn of the loop."""
        self._close(None)

    @property
    def session(self) -> ssl.SSLSession | None:
        """What a further connection to the server can go on with, once the server has sent it."""
        session = None if self.closing else self._socket.session
        return session if session is not None and session.has_ticket else None

    @property
    def resumed(self) -> bool:
        """Whether the server went on with the session of an earlier connection."""
        return bool(self._socket.session_reused)

    def pending(self) -> int:
        """Bytes that are decrypted and not yet delivered."""
        return 0 if self.closing else int(self._tls.pending())

    # --- receiving ---------------------------------------------------------------------------------------------------

    def receive(self) -> None:  # noqa: C901 -- one loop: what is called here is called for every record
        """Takes what has arrived; called by the loop when the socket is readable."""
        if self.closing:
            return
        protocol, tls = self._protocol, self._tls
        read = tls.read
        left = TURN_BYTES
        more = True
        while more and not self.closing:
            buffer: Any = protocol.get_buffer(-1)
            size = len(buffer)
            # Into a long buffer record after record; a short one is for a head, and what follows belongs elsewhere.
            most = min(size, left) if size > _RECORD_BYTES else 1
            filled = 0
            error: Exception | None = None
            ended = False
            try:
                while True:
                    count = read(size - filled, buffer[filled:] if filled else buffer)
                    filled += count
                    if not count or filled >= most:
                        ended = not count
                        break
            except ssl.SSLWantReadError:
                more = False
            except ssl.SSLWantWriteError:
                more = False
                self._pause_reading()
            except ssl.SSLEOFError:
                ended = True
            except OSError as broken:
                # Without its traceback, which would keep this frame, and with it the caller's buffer.
                error = broken.with_traceback(None)
            if filled:
                try:
                    protocol.buffer_updated(filled)
                except Exception as bug:  # noqa: BLE001 -- reported, and the connection is not used again
                    self._report(bug)
                    error = bug.with_traceback(None)
            if error is not None or ended:
                self._end(error)
                return
            left -= filled
            if more and (filled == size or left <= 0):
                # The kernel tells of what it has; of what is left of a record only OpenSSL knows.
                more = tls.pending() > 0
                if more and left <= 0:
                    self._loop.call_soon(self._go_on)
                    more = False
        if self._write_waits_to_read:
            self._write_waits_to_read = False
            self._flush()

    def _go_on(self) -> None:
        if self._reading:
            self.receive()

    def _pause_reading(self) -> None:
        """OpenSSL has to send before it can go on: a readable socket would call again and again meanwhile."""
        self._reading = False
        self._loop.remove_reader(self._descriptor)
        self._loop.add_writer(self._descriptor, self._writable)

    def _end(self, error: Exception | None) -> None:
        if error is None and not self.closing:
            self._protocol.eof_received()
        self._close(error)

    # --- sending -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends; what the socket does not take now is kept and sent when it does."""
        if self.closing:
            return
        sent = 0
        if not self._unsent:
            try:
                sent = self._tls.write(data)
            except OSError:
                sent = 0  # `_flush` meets the same, and does what is to be done
            if sent == len(data):
                return
        self._unsent.append(bytes(data[sent:]))
        if len(self._unsent) == 1:
            self._flush()

    def _writable(self) -> None:
        self._loop.remove_writer(self._descriptor)
        self._flush()
        if not self._reading and not self.closing:
            self.start()
            self.receive()

    def _flush(self) -> None:
        """Sends what there is. OpenSSL wants a piece that it could not send offered again as it was."""
        while self._unsent and not self.closing:
            try:
                sent = self._tls.write(self._unsent[0])
            except ssl.SSLWantWriteError:
                self._loop.add_writer(self._descriptor, self._writable)
                return
            except ssl.SSLWantReadError:
                self._write_waits_to_read = True
                return
            except OSError as error:
                self._close(error.with_traceback(None))
                return
            first = self._unsent.popleft()
            if sent < len(first):
                self._unsent.appendleft(first[sent:])

    # --- the end -----------------------------------------------------------------------------------------------------

    def _close(self, error: Exception | None) -> None:
        if self.closing:
            return
        self.closing = True
        self._reading = False
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        self._unsent.clear()
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
            self._tls = None  # and its buffers, for this object and the protocol hold each other

    def _report(self, bug: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "a protocol failed", "exception": bug, "transport": self, "protocol": self._protocol}
        )


async def open_tls(
    protocol: asyncio.BufferedProtocol,
    sock: socket.socket,
    context: ssl.SSLContext,
    hostname: str,
    session: ssl.SSLSession | None = None,
) -> TlsTransport:
    """Shakes hands on a connected socket, which is the transport's from now on; cancelled, it leaves no socket.

    With the session of an earlier connection to the same server, no certificate is sent and verified again.

    Raises:
        ssl.SSLCertVerificationError: The server's certificate is not to be trusted.
        OSError: Anything else that went wrong, ``ssl.SSLError`` among it.
    """
    loop = asyncio.get_running_loop()
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = context.wrap_socket(sock, server_hostname=hostname, do_handshake_on_connect=False, session=session)
    except BaseException:
        sock.close()
        raise
    try:
        await _shake_hands(loop, secured)
        transport = TlsTransport(loop, secured, protocol)
        protocol.connection_made(transport)
    except BaseException:
        secured.close()
        raise
    transport.start()
    return transport


async def _shake_hands(loop: asyncio.AbstractEventLoop, secured: ssl.SSLSocket) -> None:
    while True:
        try:
            secured.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(loop, loop.add_reader, loop.remove_reader, secured.fileno())
        except ssl.SSLWantWriteError:
            await _ready(loop, loop.add_writer, loop.remove_writer, secured.fileno())
        else:
            return


async def _ready(
    loop: asyncio.AbstractEventLoop,
    add: Callable[..., None],
    remove: Callable[[int], bool],
    descriptor: int,
) -> None:
    waiter: asyncio.Future[None] = loop.create_future()
    add(descriptor, _resolve, waiter)
    try:
        await waiter
    finally:
        remove(descriptor)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
