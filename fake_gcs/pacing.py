"""Bandwidth: one rate per stream, one for all streams together, shared fairly.

A rate is kept by a clock of debt: sending n bytes moves the clock n / rate seconds on, and nothing more is sent before
that time. A clock that has fallen behind is only allowed to catch up a few milliseconds, so a stream that waited for
its reader does not make up for it with a burst. Streams whose own clock allows a slice queue for the total in order of
arrival; with slices of equal size each gets the same share.

    sender.ask() -> own clock due? --no--> heap of due times, one timer
                          | yes
                          v
                    queue for the total -> sender.granted()
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass
from typing import Protocol

CATCH_UP_S = 0.010
"""How far behind a clock may fall and still catch up, in seconds."""
_TICK_S = 0.001  # Event loops count timers in milliseconds; a shorter wait would spin.
_SLICE_S = 0.002
_MIN_SLICE_BYTES = 16 * 1024
_MAX_SLICE_BYTES = 256 * 1024
_MAX_SHARED_SLICE_BYTES = 64 * 1024
UNPACED_SLICE_BYTES = 2 << 20
"""Slice of a stream without any rate: only so large that others get a turn."""


@dataclass(slots=True)
class DebtClock:
    """When the next byte may go.

    Attributes:
        rate: Bytes per second.
        due: Time at which the next slice may be sent.
        queued: Since when its stream waits for the total, through no fault of its own; None while it does not.
    """

    rate: float
    due: float = 0.0
    queued: float | None = None

    def charge(self, size: int, now: float) -> None:
        """``size`` bytes were sent at ``now``."""
        since = now if self.queued is None else self.queued
        self.due = max(self.due, since - CATCH_UP_S) + size / self.rate
        self.queued = None

    def owed(self, now: float) -> int:
        """Bytes that came due while the stream waited for the total."""
        return 0 if self.queued is None else int((now - self.queued) * self.rate)


def slice_bytes(rate: float | None, total: float | None) -> int:
    """How much one turn sends: about two milliseconds' worth, within bounds."""
    if rate is None and total is None:
        return UNPACED_SLICE_BYTES
    most = _MAX_SLICE_BYTES if total is None else _MAX_SHARED_SLICE_BYTES
    slowest = min(value for value in (rate, total) if value is not None)
    floor = min(_MIN_SLICE_BYTES, max(1, int(slowest / 20)))
    return max(floor, min(most, int(slowest * _SLICE_S)))


class Granted(Protocol):
    """A sender that waits for its turn."""

    def granted(self) -> None:
        """Send one slice now."""


class Pacer:
    """Hands out turns. Lives on one event loop; ``close`` drops all who wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, total: float | None) -> None:
        self._loop = loop
        self._total = DebtClock(total) if total else None
        self._due: list[tuple[float, int, Granted, DebtClock]] = []
        self._queue: deque[Granted] = deque()
        self._serial = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._granting = False

    @property
    def total(self) -> float | None:
        """Bytes per second of all streams together, or None."""
        return self._total.rate if self._total else None

    def set_total(self, total: float | None) -> None:
        """Change the bandwidth of all streams together. Streams under way keep their slices."""
        self._total = DebtClock(total) if total else None
        waiting, self._queue = self._queue, deque()
        for sender in waiting:
            self._loop.call_soon(sender.granted)

    def ask(self, sender: Granted, clock: DebtClock | None) -> bool:
        """Ask for a turn; True when it may send at once, else ``granted`` is called later."""
        now = self._loop.time()
        if clock is not None and clock.due > now:
            self._serial += 1
            heapq.heappush(self._due, (clock.due, self._serial, sender, clock))
            self._arm()
            return False
        if self._total is None:
            return True
        if not self._queue and self._total.due <= now:
            return True
        if clock is not None:
            clock.queued = now
        self._queue.append(sender)
        self._arm()
        return False

    def turn_bytes(self, usual: int, clock: DebtClock | None) -> int:
        """How much a sender whose turn it is may send: a slice, or what it missed while it waited for the total."""
        if clock is None or clock.queued is None:
            return usual
        return max(usual, min(_MAX_SHARED_SLICE_BYTES, clock.owed(self._loop.time())))

    def charge(self, size: int, clock: DebtClock | None) -> None:
        """``size`` bytes were sent."""
        now = self._loop.time()
        if clock is not None:
            clock.charge(size, now)
        if self._total is not None:
            self._total.charge(size, now)

    def delay(self, clock: DebtClock | None) -> float:
        """How long a receiver has to wait before it takes more, in seconds."""
        dues = [one.due for one in (clock, self._total) if one is not None]
        return max(0.0, max(dues) - self._loop.time()) if dues else 0.0

    def forget(self, sender: Granted) -> None:
        """The sender does not wait any more."""
        self._queue = deque(waiting for waiting in self._queue if waiting is not sender)
        self._due = [entry for entry in self._due if entry[2] is not sender]
        heapq.heapify(self._due)

    def close(self) -> None:
        """Drop everyone who waits."""
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()
        self._due.clear()

    def _arm(self) -> None:
        if self._granting:
            return
        times = [self._due[0][0]] if self._due else []
        if self._queue and self._total is not None:
            times.append(self._total.due)
        if not times:
            return
        when = max(min(times), self._loop.time() + _TICK_S)
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._granting = True
        now = self._loop.time()
        try:
            while self._due and self._due[0][0] <= now:
                _, _, sender, clock = heapq.heappop(self._due)
                if self._total is None:
                    sender.granted()
                else:
                    clock.queued = now
                    self._queue.append(sender)
            while self._queue and self._total is not None and self._total.due <= now:
                self._queue.popleft().granted()
        finally:
            self._granting = False
        self._arm()
