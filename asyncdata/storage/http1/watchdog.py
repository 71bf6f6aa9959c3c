"""Time limits for all exchanges of a pool, or of a session, with one timer.

A read starts neither a timer nor a task. The watchdog checks the progress of every busy connection a few times per
limit. A limit therefore ends an exchange after one to one and a quarter times its length. The limits are those of the
attempt, or else of the pool. A head must be complete in time, however it arrives. A body that drips without falling
silent ends by its pace.

The watchdog declares a stall only if the kernel holds no bytes for the connection. In a starved process, whose loop ran
late, the bytes wait in the socket, and the server is not at fault. The process has read them by the next check. If
there are more at every check and nothing comes of them, they are a flood of data that is not a response, and the
exchange ends as with silence. `overdue` and `too_slow` are the pure part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from asyncdata.errors import StorageError
from asyncdata.options import TimeoutOptions
from asyncdata.storage.attempt import ReadLimits
from asyncdata.storage.failures import FailureCause, ReadFailedError, read_failed

LOOKS_PER_LIMIT: Final = 4
_LONGEST_INTERVAL_S: Final = 0.25
_MOST_SPARED: Final = 3
"""Looks in a row at which bytes in the kernel excuse a connection that is overdue."""


def overdue(*, in_body: bool, quiet_s: float, limits: ReadLimits) -> FailureCause | None:
    """Which limit a silence breaks, if any. Pure."""
    if in_body:
        return FailureCause.IDLE_TIMEOUT if quiet_s >= limits.idle_s else None
    return FailureCause.FIRST_BYTE_TIMEOUT if quiet_s >= limits.first_byte_s else None


def too_slow(*, received: int, elapsed_s: float, limits: ReadLimits) -> bool:
    """Whether a stretch of a body, at least ``idle_s`` long, came slower than allowed. Pure."""
    return elapsed_s >= limits.idle_s and received < limits.least_bytes_per_s * elapsed_s


class Watched(Protocol):
    """What the watchdog has to know of an exchange, and what it notes there.

    Attributes:
        quiet_since: Since when nothing came; when the request was sent, until something did.
        seen: Progress at the last look; -1 before the first.
        paced_since: Since when the body's pace is looked at.
        paced_from: The progress then.
        spared: How often it was overdue, or too slow, but had bytes in the kernel, since it was neither.
    """

    quiet_since: float
    seen: int
    paced_since: float
    paced_from: int
    spared: int

    @property
    def limits(self) -> ReadLimits | None:
        """Its time limits; None for the watchdog's own."""
        ...

    @property
    def progress(self) -> int:
        """A number that changes when the head is complete, and with every byte behind it."""
        ...

    @property
    def awaits_head(self) -> bool:
        """The head has not come yet."""
        ...

    @property
    def in_body(self) -> bool:
        """What follows the head is being received."""
        ...

    def release_low_water(self) -> bool:
        """Has few bytes delivered too; True where they were kept back."""
        ...

    def has_input(self) -> bool:
        """Whether bytes have arrived that were not looked at yet."""
        ...

    def fail(self, error: StorageError) -> None:
        """Ends it with an error."""
        ...


class Watchdog:
    """Looks at busy connections at intervals; runs only while there are any.

    Args:
        limits: The time limits of exchanges that bring none.
        busy: The connections with a running exchange.
    """

    def __init__(self, limits: TimeoutOptions, busy: Callable[[], Iterable[Watched]]) -> None:
        self._limits = ReadLimits.of(limits)
        self._busy = busy
        self._interval_s = min(_LONGEST_INTERVAL_S, min(limits.first_byte_s, limits.idle_s) / LOOKS_PER_LIMIT)
        self._timer: asyncio.TimerHandle | None = None
        self.looks = False
        """Whether a look is due; else ``wake`` has to be called."""

    def wake(self) -> None:
        """To be called when an exchange begins."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)
            self.looks = True

    def close(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.looks = None, False

    def _look(self) -> None:
        self._timer, self.looks = None, False
        busy = list(self._busy())
        if not busy:
            return
        loop = asyncio.get_running_loop()
        self._timer, self.looks = loop.call_later(self._interval_s, self._look), True
        now = loop.time()
        for connection in busy:
            limits = connection.limits or self._limits
            progress = connection.progress
            if progress != connection.seen:
                if connection.seen >= 0:
                    connection.quiet_since = now
                connection.seen = progress
                self._check_pace(connection, now, limits)
                continue
            if connection.release_low_water():
                continue
            quiet_s = now - connection.quiet_since
            cause = overdue(in_body=not connection.awaits_head, quiet_s=quiet_s, limits=limits)
            if cause is not None and _is_at_fault(connection):
                connection.fail(_silence(cause, limits))

    def _check_pace(self, connection: Watched, now: float, limits: ReadLimits) -> None:
        """Ends a body that comes, but too slowly; a stretch begins with the body, and anew after each look at it."""
        if not connection.in_body or not limits.least_bytes_per_s:
            connection.spared = 0
            return
        elapsed_s = now - connection.paced_since
        received = connection.progress - connection.paced_from
        slow = too_slow(received=received, elapsed_s=elapsed_s, limits=limits)
        if slow and _is_at_fault(connection):
            connection.fail(
                read_failed(
                    f"the body arrived at {received / elapsed_s:.0f} bytes/s, less than {limits.least_bytes_per_s:.0f}",
                    FailureCause.SLOW,
                )
            )
        elif elapsed_s >= limits.idle_s:
            connection.paced_since, connection.paced_from = now, connection.progress
            if not slow:
                connection.spared = 0


def _is_at_fault(connection: Watched) -> bool:
    """Whether an exchange that is overdue ends: nothing of it has arrived unseen, or that was so too often."""
    if not connection.has_input():
        return True
    connection.spared += 1
    return connection.spared > _MOST_SPARED


def _silence(cause: FailureCause, limits: ReadLimits) -> ReadFailedError:
    if cause is FailureCause.IDLE_TIMEOUT:
        return read_failed(f"the body fell silent for {limits.idle_s:g} s", cause)
    return read_failed(f"no response within {limits.first_byte_s:g} s", cause)
