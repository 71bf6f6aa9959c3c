"""Time limits for all exchanges of one pool, by one timer.

A read costs no timer and no task: the watchdog looks at every busy connection a few times per limit and compares how
far it is with how far it was. A limit therefore ends an exchange between one and one and a quarter times its length.

A stall is declared only when the kernel holds nothing for the connection: a starved process, whose loop ran late, has
its bytes waiting in the socket and is not at fault. `Verdict` is the pure part.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios
from collections.abc import Callable
from typing import Final

from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import FailureCause, ReadFailedError, read_failed
from asyncdata.storage.http1.connection import Phase, RangeConnection

LOOKS_PER_LIMIT: Final = 4
_LONGEST_INTERVAL_S: Final = 1.0
_INT: Final = struct.Struct("i")


def overdue(*, in_body: bool, quiet_s: float, limits: TimeoutOptions) -> FailureCause | None:
    """Which limit a silence breaks, if any. Pure."""
    if in_body:
        return FailureCause.IDLE_TIMEOUT if quiet_s >= limits.idle_s else None
    return FailureCause.FIRST_BYTE_TIMEOUT if quiet_s >= limits.first_byte_s else None


def has_input(descriptor: int) -> bool:
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


class Watchdog:
    """Looks at busy connections at intervals; runs only while there are any.

    Args:
        limits: The time limits.
        busy: The connections with a running exchange.
    """

    def __init__(self, limits: TimeoutOptions, busy: Callable[[], set[RangeConnection]]) -> None:
        self._limits = limits
        self._busy = busy
        self._interval_s = min(_LONGEST_INTERVAL_S, min(limits.first_byte_s, limits.idle_s) / LOOKS_PER_LIMIT)
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """To be called when an exchange begins."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        busy = self._busy()
        if not busy:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._look)
        now = loop.time()
        for connection in list(busy):
            progress = connection.progress
            if progress != connection.seen:
                if connection.seen >= 0:
                    connection.quiet_since = now
                connection.seen = progress
                continue
            if connection.release_low_water():
                continue
            in_body = connection.phase is not Phase.HEAD
            cause = overdue(in_body=in_body, quiet_s=now - connection.quiet_since, limits=self._limits)
            if cause is not None and not has_input(connection.fileno()):
                connection.fail(self._error(cause))

    def _error(self, cause: FailureCause) -> ReadFailedError:
        if cause is FailureCause.IDLE_TIMEOUT:
            return read_failed(f"the body fell silent for {self._limits.idle_s:g} s", cause)
        return read_failed(f"no answer within {self._limits.first_byte_s:g} s", cause)
