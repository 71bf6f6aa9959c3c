"""One end of a socket pair that carries whole messages between two processes, each with at most one descriptor.

If the system has SOCK_SEQPACKET, the kernel separates the messages; otherwise a SOCK_STREAM carries them with their
length in front. In both cases messages arrive whole and in order, and a message's descriptor arrives no later than the
message. One thread at a time uses a channel in each direction.

On a non-blocking channel ``send`` never blocks and never drops data: bytes that the socket does not take are kept in
order, and ``flush`` continues when the socket is writable. The sender bounds how much is kept (the pool by its
``depth``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
from collections import deque
from typing import Final

from asyncdata.workers.messages import ATTACHED, HEAD, MAX_MESSAGE_BYTES, PASSED, Message

_PREFIX_BYTES: Final = 4
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(8 * 4)
_RECEIVE_FLAGS: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_SEND_FLAGS: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_STREAM_READ_BYTES: Final = 1 << 16


def has_seqpacket() -> bool:
    """Whether this system keeps messages apart by itself on local sockets."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (AttributeError, OSError):
        return False
    ours.close()
    theirs.close()
    return True


def open_nameless_file(name: str) -> int:
    """Opens a file that no path leads to and that dies with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def store_body(body: bytes | memoryview) -> int:
    """Puts a long body into a nameless file; the caller closes the descriptor."""
    fd = open_nameless_file("asyncdata-body")
    try:
        view = memoryview(body)
        position = 0
        while position < len(view):
            position += os.pwrite(fd, view[position:], position)
    except BaseException:
        os.close(fd)
        raise
    return fd


def load_body(fd: int, size: int) -> bytes:
    """Reads what ``store_body`` stored, and closes the descriptor."""
    try:
        pieces: list[bytes] = []
        position = 0
        while position < size:
            piece = os.pread(fd, size - position, position)
            if not piece:
                raise OSError(f"a message body of {size} bytes ends after {position}")
            pieces.append(piece)
            position += len(piece)
    finally:
        os.close(fd)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Channel:
    """See the module.

    Args:
        sock: One end of ``Channel.pair``'s sockets; the channel owns it from now on.
        stream: Whether it is a SOCK_STREAM.
        message_bytes: The longest message; what is longer takes the way through a file. The same at both ends.
    """

    __slots__ = ("_descriptors", "_limit", "_outbox", "_partial", "_sock", "_stream")

    def __init__(self, sock: socket.socket, *, stream: bool, message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._sock = sock
        self._stream = stream
        self._limit = message_bytes
        self._partial = bytearray()
        self._descriptors: deque[int] = deque()
        self._outbox: deque[tuple[memoryview, int]] = deque()

    @staticmethod
    def pair(*, stream: bool, message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[Channel, socket.socket]:
        """Makes both ends: ours as a channel that never blocks, theirs as a socket to be handed over."""
        kind = socket.SOCK_STREAM if stream else socket.SOCK_SEQPACKET
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        ours.setblocking(False)
        theirs.setblocking(True)  # whatever `socket.setdefaulttimeout` says in this process
        return Channel(ours, stream=stream, message_bytes=message_bytes), theirs

    def fileno(self) -> int:
        """The socket's descriptor, for a loop to watch."""
        return self._sock.fileno()

    def send(self, kind: int, ticket: int = 0, first: int = 0, second: int = 0, *, body: bytes = b"") -> bool:
        """Sends one message; a long body takes the way through a file.

        Returns:
            Whether all is on its way. False: call ``flush`` when the socket is writable.

        Raises:
            OSError: The system has no descriptor left for a long body. Nothing was sent.
        """
        if not body:
            return self._post(HEAD.pack(kind, 0, ticket, first, second), -1)
        if len(body) <= self._limit - HEAD.size:
            return self._post(HEAD.pack(kind, 0, ticket, first, len(body)) + body, -1)
        fd = store_body(body)
        try:
            return self.send_attached(kind, ticket, first, fd=fd, size=len(body))
        finally:
            os.close(fd)

    def send_attached(self, kind: int, ticket: int, first: int, *, fd: int, size: int) -> bool:
        """Sends one message whose body is the first ``size`` bytes of a file; the descriptor stays the caller's."""
        return self._post(HEAD.pack(kind, ATTACHED, ticket, first, size), fd)

    def hand_over(self, kind: int, ticket: int = 0, first: int = 0, second: int = 0, *, fd: int) -> bool:
        """Sends one message without a body and a copy of a descriptor, which the receiver gets to keep."""
        return self._post(HEAD.pack(kind, PASSED, ticket, first, second), fd)

    def _post(self, data: bytes, fd: int) -> bool:
        if self._stream:
            data = len(data).to_bytes(_PREFIX_BYTES, "little") + data
        if not self._outbox:
            rest = self._transmit(memoryview(data), fd)
            if rest is None:
                return True
            if len(rest) < len(data):
                fd = -1  # it went with the first byte
            data_left = rest
        else:
            data_left = memoryview(data)
        self._outbox.append((data_left, os.dup(fd) if fd >= 0 else -1))
        return False

    def _transmit(self, data: memoryview, fd: int) -> memoryview | None:
        """Gives the socket what it takes; returns the rest, or None when nothing is left."""
        while True:
            try:
                if fd >= 0:
                    sent = socket.send_fds(self._sock, [data], [fd], _SEND_FLAGS)
                else:
                    sent = self._sock.send(data, _SEND_FLAGS)
            except BlockingIOError:
                return data
            except (BrokenPipeError, ConnectionResetError):
                return None  # the other side is gone; the receiver will notice
            if sent >= len(data):
                return None
            data, fd = data[sent:], -1

    def flush(self) -> bool:
        """Goes on sending what was kept; returns whether all is on its way now."""
        while self._outbox:
            data, fd = self._outbox[0]
            rest = self._transmit(data, fd)
            if rest is not None:
                if fd >= 0 and len(rest) < len(data):
                    os.close(fd)
                    fd = -1
                self._outbox[0] = (rest, fd)
                return False
            self._outbox.popleft()
            if fd >= 0:
                os.close(fd)
        return True

    def receive(self, *, lossy: bool = False) -> list[Message]:
        """Reads from the socket once and returns the messages that are complete.

        Args:
            lossy: Returns also messages whose body or descriptor this process had no room for; they say so.

        Returns:
            One message on SOCK_SEQPACKET; none or several on SOCK_STREAM.

        Raises:
            EOFError: The other side closed, or is gone.
            BlockingIOError: Nothing to read, on a channel that does not block.
            OSError: A body or a descriptor did not arrive, and `lossy` is not set.
        """
        limit = _STREAM_READ_BYTES if self._stream else self._limit
        try:
            data, ancillary, _, _ = self._sock.recvmsg(limit, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
        except ConnectionResetError:
            raise EOFError from None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) - len(content) % 4
                self._descriptors.extend(memoryview(content)[:whole].cast("i"))
        if not data:
            raise EOFError
        if not self._stream:
            return [self._parse(data, lossy=lossy)]
        self._partial += data
        return self._cut(lossy=lossy)

    def _cut(self, *, lossy: bool) -> list[Message]:
        messages: list[Message] = []
        partial, position = self._partial, 0
        while len(partial) - position >= _PREFIX_BYTES:
            begin = position + _PREFIX_BYTES
            end = begin + int.from_bytes(partial[position:begin], "little")
            if len(partial) < end:
                break
            messages.append(self._parse(bytes(partial[begin:end]), lossy=lossy))
            position = end
        del partial[:position]
        return messages

    def _parse(self, data: bytes, *, lossy: bool) -> Message:
        kind, flags, ticket, first, second = HEAD.unpack_from(data)
        try:
            if flags & (ATTACHED | PASSED):
                fd = self._take_descriptor()
                if flags & PASSED:
                    return Message(kind, ticket, first, second, data[HEAD.size :], fd)
                return Message(kind, ticket, first, second, load_body(fd, second))
        except OSError as error:
            if not lossy:
                raise
            return Message(kind, ticket, first, second, b"", lost=error)
        return Message(kind, ticket, first, second, data[HEAD.size :])

    def _take_descriptor(self) -> int:
        if not self._descriptors:
            text = "a message came without its descriptor: this process has too many files open"
            raise OSError(errno.EMFILE, text)
        return self._descriptors.popleft()

    @property
    def has_backlog(self) -> bool:
        """Whether something waits for `flush`."""
        return bool(self._outbox)

    def finish(self) -> None:
        """Tells the other side that no more will be sent; receiving goes on."""
        with contextlib.suppress(OSError):  # not connected any more, which says the same
            self._sock.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Ends both directions at once, even if others hold a copy of the socket. Received data can still be read."""
        with contextlib.suppress(OSError):  # not connected any more, which says the same
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket and every descriptor that is still under way."""
        self._sock.close()
        for _, fd in self._outbox:
            if fd >= 0:
                os.close(fd)
        self._outbox.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())
