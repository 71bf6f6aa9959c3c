"""A non-blocking socket under the event loop's reader and writer callbacks, plain or TLS.

Transports are left out on purpose: uvloop has no ``loop.sendfile``, and a file is sent cheapest by ``os.sendfile`` on
the bare descriptor. Bytes that arrive are collected in ``buffer`` up to a limit; above it reading pauses until
``more`` is awaited again. TLS has no sendfile: file bytes are read and encrypted.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable

RECEIVE_BYTES = 256 * 1024
"""How much is asked of the socket at once."""
BUFFER_LIMIT_BYTES = 1 << 20
"""Reading pauses while this much lies unread."""

_LINGER_RESET = struct.pack("ii", 1, 0)
_HANDSHAKE_S = 60.0
_TLS_PIECE_BYTES = 256 * 1024


class Wire:
    """One accepted connection.

    Attributes:
        buffer: Received bytes that nobody has taken yet.
        ended: The client has closed its side, or the connection broke.
        broken: Nothing can be sent any more.
        detached: The socket lives on in other hands.
        tls: Whether bytes are encrypted.
    """

    tls = False

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._reading = False
        self._writer: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.buffer = bytearray()
        self.ended = False
        self.broken = False
        self.detached = False

    # Receiving.

    def start(self) -> None:
        """Begin to collect what arrives."""
        if not self._reading and not self.ended and self._fd >= 0:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        try:
            data = self._receive()
        except OSError:
            self.broken = True
            data = b""
        if data is None:
            return
        if data:
            self.buffer += data
            if len(self.buffer) >= BUFFER_LIMIT_BYTES:
                self._pause()
        else:
            self.ended = True
            self._pause()
        self._wake()

    def _receive(self) -> bytes | None:
        try:
            return self._sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def more(self, timeout_s: float) -> bool:
        """Wait until more bytes arrived; False when none will come.

        Raises:
            TimeoutError: Nothing came in time.
        """
        if self.ended:
            return False
        self.start()
        before = len(self.buffer)
        await self._wait(timeout_s)
        return len(self.buffer) > before or not self.ended

    async def gone(self, timeout_s: float | None) -> None:
        """Wait until the client closes its side, or the time is over (None: no end of time)."""
        self.start()
        end = None if timeout_s is None else self._loop.time() + timeout_s
        while not self.ended:
            left = None if end is None else end - self._loop.time()
            if left is not None and left <= 0:
                return
            if not self._reading:
                self.start()
            try:
                await self._wait(left)
            except TimeoutError:
                return

    async def _wait(self, timeout_s: float | None) -> None:
        waiter = self._waiter = self._loop.create_future()
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, _expire, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    # Sending.

    def send(self, data: bytes | bytearray | memoryview, *, more: bool = False) -> int:
        """Send what the socket takes now: the number of bytes, 0 when it is full.

        Raises:
            OSError: The connection is broken.
        """
        try:
            return self._sock.send(data, socket.MSG_MORE if more else 0)
        except (BlockingIOError, InterruptedError):
            return 0

    def send_file(self, fd: int, offset: int, size: int) -> int:
        """Send from a file what the socket takes now; 0 when it is full.

        Raises:
            OSError: The connection is broken.
            EOFError: The file is shorter than it was.
        """
        try:
            sent = os.sendfile(self._fd, fd, offset, size)
        except (BlockingIOError, InterruptedError):
            return 0
        if sent == 0:
            raise EOFError("the file ended early")
        return sent

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        """Call back whenever the socket takes bytes; None ends it."""
        if self._fd < 0:
            return
        if callback is None:
            if self._writer is not None:
                self._writer = None
                self._loop.remove_writer(self._fd)
        elif self._writer != callback:
            self._writer = callback
            self._loop.add_writer(self._fd, callback)

    async def send_all(
        self, data: bytes | bytearray | memoryview, *, more: bool = False, timeout_s: float = 300.0
    ) -> None:
        """Send all of it, waiting for the socket where it is full.

        Raises:
            OSError: The connection is broken, or the client took nothing for the time (``TimeoutError``).
        """
        view = memoryview(data)
        while view:
            sent = self.send(view, more=more)
            view = view[sent:]
            if view and not sent:
                await self.writable(timeout_s)

    async def writable(self, timeout_s: float) -> None:
        """Wait until the socket takes bytes.

        Raises:
            TimeoutError: It took none in this time.
        """
        ready = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, _expire, ready)

        def resolve() -> None:
            if not ready.done():
                ready.set_result(None)

        self.when_writable(resolve)
        try:
            await ready
        finally:
            timer.cancel()
            self.when_writable(None)

    # Ending.

    def end_sending(self) -> None:
        """Tell the client that nothing more will come."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.broken = True

    def reset(self) -> None:
        """Break the connection: the client sees a reset."""
        if self._fd >= 0:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self.close()

    def detach(self) -> None:
        """Leave the socket open and let go of it; whoever made this wire goes on with it."""
        if self._fd >= 0:
            self._pause()
            self.when_writable(None)
            self._fd = -1
        self.detached = True
        self.ended = self.broken = True

    def close(self) -> None:
        """Close the socket and wake whoever waits."""
        if self._fd >= 0:
            self._pause()
            self.when_writable(None)
            self._fd = -1
            self._sock.close()
        self.ended = self.broken = True
        self._wake()


class TLSWire(Wire):
    """The same over TLS. ``handshake`` comes before everything else."""

    tls = True

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, context: ssl.SSLContext) -> None:
        wrapped = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._tls = wrapped
        super().__init__(loop, wrapped)

    async def handshake(self) -> None:
        """Agree on keys.

        Raises:
            OSError: The client does not speak TLS, does not trust us, or went away.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._readable_once()
            except ssl.SSLWantWriteError:
                await self.writable(_HANDSHAKE_S)
            else:
                return

    async def _readable_once(self) -> None:
        ready = self._loop.create_future()

        def resolve() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_reader(self._fd, resolve)
        try:
            await ready
        finally:
            if self._fd >= 0:
                self._loop.remove_reader(self._fd)

    def _receive(self) -> bytes | None:
        # What is decrypted and not taken would wake nobody: the loop watches the socket only.
        pieces: list[bytes] = []
        try:
            while piece := self._tls.recv(RECEIVE_BYTES):
                pieces.append(piece)
                if not self._tls.pending():
                    return b"".join(pieces)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not pieces:
                return None
        except ssl.SSLEOFError:
            pass
        return b"".join(pieces)

    def send(self, data: bytes | bytearray | memoryview, *, more: bool = False) -> int:  # noqa: ARG002 -- no such flag in TLS
        """Encrypt and send what the socket takes now."""
        try:
            return self._tls.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def send_file(self, fd: int, offset: int, size: int) -> int:
        """Read, encrypt and send."""
        data = os.pread(fd, min(size, _TLS_PIECE_BYTES), offset)
        if not data:
            raise EOFError("the file ended early")
        return self.send(data)

    def end_sending(self) -> None:
        """Close the sending side of the socket under the encryption."""
        try:
            self._tls.shutdown(socket.SHUT_WR)
        except OSError:
            self.broken = True


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
