"""The bookkeeping of attempts: counts and watches each one, learns from it, and reports it to the window.

``begin`` and ``end`` enclose one attempt that holds a slot, with ``ended_well`` or ``failed`` between them. What is
learned here sets the limits and the number of the next attempts, and when they are hedged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from typing import Final

from asyncdata.errors import TransientStorageError
from asyncdata.observe.stopwatch import clock
from asyncdata.observe.trace_ring import FAILED, OVERTAKEN, REQUEST, RESUMED, TraceRing
from asyncdata.options import AUTOTUNE, Options
from asyncdata.storage.counters import FetchCounters, FetchStats
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.policy.hedge import Again, HedgeMemory, Hedger, Racing
from asyncdata.storage.policy.limits import Observations
from asyncdata.storage.policy.slots import Slot, Slots
from asyncdata.storage.policy.throughput import Sample
from asyncdata.storage.policy.window import RequestWindow

_LEAST_S: Final = 1e-6
_ALL_OF_THE_FIRST: Final = 200
_ONE_IN: Final = 8
_REFUSED: Final = frozenset({FailureCause.THROTTLED, FailureCause.SERVER_ERROR})
_BEFORE_THE_HEAD: Final = frozenset({FailureCause.FIRST_BYTE_TIMEOUT, FailureCause.OVERTAKEN})


class Attempts:
    """See the module's text; on one loop.

    Args:
        options: ``timeouts``, ``hedge``, ``max_requests_in_flight`` and ``max_bytes_in_flight`` are used.
        hedge_bytes: Memory that second attempts may hold together.
    """

    def __init__(self, options: Options, hedge_bytes: int) -> None:
        limit, most_bytes = options.max_requests_in_flight, options.max_bytes_in_flight
        self._window = RequestWindow() if limit == AUTOTUNE else None
        self.slots = Slots(
            limit if self._window is None else self._window.limit,
            options.memory_limit_bytes if most_bytes == AUTOTUNE else most_bytes,
        )
        self.counters = FetchCounters()
        self.ring: TraceRing | None = None
        """Where attempts are noted for a trace; None: nowhere."""
        self._observed = Observations(options.timeouts, options.hedge)
        self._unseen = 0
        self._turn, self._held = -1.0, 0
        self._hedge_memory = HedgeMemory(hedge_bytes)
        self._hedger = Hedger(
            options.hedge, self._hedge_memory, self.counters, self._observed.hedge_after_s, self._has_room
        )

    def __repr__(self) -> str:
        return repr(self.slots)

    def begin(self, size: int, again: Again, now: float, resumed: bool = False) -> Racing:
        """An attempt at so many bytes begins; ``again`` asks for some of them a second time."""
        self.counters.began(resumed)
        limits, after_s = self._observed.for_size(size)
        racing = Racing(limits, size, again, now, after_s)
        hedger = self._hedger
        if hedger.looks:
            hedger.running.add(racing)
        else:
            hedger.watch(racing)
        return racing

    def _has_room(self) -> bool:
        """Whether places are free, and not only for the moment between the end of a read and the next one's begin."""
        return 4 * self.slots.held < 3 * self.slots.limit

    def end(self, racing: Racing, slot: Slot) -> None:
        """It is over, in whatever way."""
        self._hedger.running.discard(racing)
        if racing.task is not None or racing.lent:
            self._hedger.forget(racing)
        if racing.resends:
            self.counters.resent(racing.resends)
        if racing.skipped:
            self.counters.skipped(racing.skipped)
        self.counters.in_flight -= 1
        self.slots.leave(slot)
        if self._window is not None and self._window.limit != self.slots.limit:
            self.slots.resize(self._window.limit)

    def note(self, url: str, offset: int, racing: Racing, *, resumed: bool = False) -> None:
        """Notes an attempt for a trace when it is over; called while an error that ended it is handled.

        Args:
            url: The object.
            offset: Of the first byte.
            racing: The attempt.
            resumed: Whether it was for the rest of what another one left.
        """
        if self.ring is None:
            return
        failed = racing.failed or sys.exception() is not None
        flags = FAILED * failed | RESUMED * resumed | OVERTAKEN * (racing.won_at >= 0)
        moments = racing.asked_at, racing.first_byte_at, racing.hedged_at or -1.0
        asked, answered, hedged = (int((each - racing.began) * 1e9) if each >= 0 else -1 for each in moments)
        values = racing.size, offset, asked, answered, hedged, int(racing.connect_s * 1e9)
        self.ring.add(REQUEST, flags, 0, racing.began, clock(), *values, self.ring.name(url))

    def ended_well(self, racing: Racing, size: int) -> None:
        """All its bytes are there."""
        self.counters.bytes += size
        # Where nothing depends on every read, a sample of them is looked at.
        self._unseen -= 1
        if self._unseen >= 0 and self._window is None and racing.connect_s < 0:
            return
        now = asyncio.get_running_loop().time()
        first_byte_s = -1.0
        if racing.first_byte_at >= 0:
            first_byte_s = max(racing.first_byte_at - racing.asked_at, _LEAST_S)
            if self._unseen < 0:
                weight = 1 if self.counters.requests < _ALL_OF_THE_FIRST else _ONE_IN
                self._unseen = weight - 1
                self._observed.first_byte(racing.size, first_byte_s, weight=weight)
                self._observed.body(size, now - racing.first_byte_at)
        if racing.connect_s >= 0:
            self._observed.connect(racing.connect_s)
        if self._window is not None and size:
            # A program asks for the next range only when it has got one: some places may be free for a moment. Where
            # many end in one turn of the loop, the places count that were held before the first did.
            if now != self._turn:
                self._turn, self._held = now, self.slots.held
            full = self._held >= self.slots.limit - self.slots.limit // 4
            self._window.done(Sample(now, racing.began, size, first_byte_s, full))

    def failed(self, error: TransientStorageError, racing: Racing) -> int:
        """It failed, and another one may succeed; returns how many bytes it left."""
        self.counters.failed(error)
        racing.failed = True
        cause, filled = FailureCause.BACKEND, 0
        if isinstance(error, ReadFailedError):
            cause, filled = error.cause, error.filled
        self.counters.bytes += filled
        now = asyncio.get_running_loop().time()
        if cause in _BEFORE_THE_HEAD and racing.first_byte_at < 0 <= racing.asked_at:
            self._observed.first_byte(racing.size, max(now - racing.asked_at, _LEAST_S), censored=True)
        if cause is FailureCause.SLOW:
            self._observed.body(filled, now - racing.first_byte_at)
        if self._window is not None and cause in _REFUSED:
            self._window.refused(now=now, began=racing.began, throttled=cause is FailureCause.THROTTLED)
        return filled

    def take_won(self, racing: Racing, buffer: memoryview, filled: int) -> int:
        """Copies what a second attempt brought behind what the first one left; returns how far the bytes now go."""
        at, won = racing.won_at, racing.won
        if not 0 <= at <= filled < at + len(won):
            return filled
        fresh = won[filled - at :]
        buffer[filled : filled + len(fresh)] = fresh
        self.counters.bytes += len(fresh)
        return filled + len(fresh)

    def stats(self) -> FetchStats:
        """What was done so far."""
        window = None if self._window is None else self._window.stats()
        stats = self.counters.snapshot(waiting=self.slots.waiting, limit=self.slots.limit, window=window)
        memory = self._hedge_memory
        return dataclasses.replace(
            stats,
            first_byte_median_s=self._observed.first_byte_s(0.5),
            first_byte_p90_s=self._observed.first_byte_s(0.9),
            first_byte_p99_s=self._observed.first_byte_s(0.99),
            hedge_bytes=memory.used_bytes,
            peak_hedge_bytes=memory.peak_bytes,
        )

    async def aclose(self) -> None:
        """Rejects waiting reads, and ends second attempts."""
        self.slots.close()
        await self._hedger.aclose()
