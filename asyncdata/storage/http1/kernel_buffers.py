"""Reads how many bytes the kernel holds for a socket.

What has arrived tells a silent server from a late process; what has not left yet, from one that receives slowly.
"""

from __future__ import annotations

import fcntl
import select
import struct
import termios
from typing import Final

_INT: Final = struct.Struct("i")


def holds_input(descriptor: int) -> bool:
    """Whether the kernel holds bytes or an end for this socket, whatever its low-water mark."""
    if descriptor < 0:
        return False
    try:
        (pending,) = _INT.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, _INT.pack(0)))
        if pending:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))
    except OSError:
        return True  # closed beneath us: the event loop will report it


def bytes_to_send(descriptor: int) -> int:
    """Bytes that were written to this socket and that the other side has not confirmed; 0 where nobody knows."""
    try:
        (pending,) = _INT.unpack(fcntl.ioctl(descriptor, termios.TIOCOUTQ, _INT.pack(0)))
    except (OSError, ValueError):
        return 0  # closed, or a system that does not say this of sockets
    return int(pending)
