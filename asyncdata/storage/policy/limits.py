"""Time limits from observations, by size of the range. Pure: the caller provides the times.

    first byte   10 x the 90th percentile of first-byte times
    idle         twice that, because a body pauses less often than a server thinks
    connect      10 x the 90th percentile of connects
    pace         1/100 of the pace of nine in ten bodies, at most 16 KiB/s, because a link may become slow for all

All are between ``floor_s`` and the options' own values, which apply until enough was observed. A read is hedged sooner:
after ``tail_factor`` times the 90th percentile. Rare stalls cannot change the 90th percentile; attempts that were
abandoned or overtaken enter the estimate as censored. Ranges are classified by size, in powers of eight.
"""

from __future__ import annotations

import math
from typing import Final

from asyncdata.options import HedgeOptions, TimeoutOptions
from asyncdata.storage.attempt import ReadLimits

ENOUGH: Final = 20
_REFRESH: Final = 32
_FACTOR: Final = 10.0
_PERCENTILE: Final = 0.9
_LEAST_BODY: Final = 64 << 10
_PACE_PART: Final = 1 / 100
_MOST_PACE: Final = 16 << 10

_PER_DOUBLING: Final = 4
_LOWEST: Final = -16  # 2 ** -16 s is 15 µs
_CLASSES: Final = 100  # up to 2 ** 9 s
_MEMORY: Final = 1000


class Observations:
    """See the module's text.

    Args:
        timeouts: The longest the limits become, and the floor.
        hedge: When a read is hedged.
    """

    def __init__(self, timeouts: TimeoutOptions, hedge: HedgeOptions) -> None:
        self._timeouts = timeouts
        self._hedge = hedge
        self._first: dict[int, CensoredQuantiles] = {}
        self._any_first = CensoredQuantiles()
        self._connects = CensoredQuantiles()
        self._s_per_byte = CensoredQuantiles()
        self._news = 0
        self._limits: dict[int, tuple[ReadLimits, float]] = {}

    def first_byte(self, size: int, seconds: float, *, censored: bool = False, weight: int = 1) -> None:
        """The head of a response arrived, or had not when the attempt was abandoned; counts `weight` times."""
        kind = _kind(size)
        own = self._first.get(kind)
        if own is None:
            own = self._first[kind] = CensoredQuantiles()
        own.add(seconds, censored=censored, weight=weight)
        self._any_first.add(seconds, censored=censored, weight=weight)
        self._told()

    def body(self, size: int, seconds: float) -> None:
        """So many bytes of a body came in this time."""
        if size >= _LEAST_BODY:
            self._s_per_byte.add(max(seconds, 1e-6) / size * _LEAST_BODY)

    def connect(self, seconds: float) -> None:
        """A connection was made."""
        self._connects.add(seconds)

    def for_size(self, size: int) -> tuple[ReadLimits, float]:
        """For an attempt at so many bytes: its limits, and how long it is silent before a second one is worth it."""
        kind = size.bit_length() // 3
        return self._limits.get(kind) or self._limits.setdefault(kind, self._learn(kind))

    def limits(self, size: int) -> ReadLimits:
        """For an attempt at so many bytes."""
        return self.for_size(size)[0]

    def hedge_after_s(self, size: int) -> float:
        """How long an attempt at so many bytes is silent before a second one is worth it."""
        return self.for_size(size)[1]

    def first_byte_s(self, percentile: float) -> float:
        """So large a part of all heads came within this time; 0 before enough was seen."""
        return self._any_first.at(percentile) or 0.0 if self._any_first.count >= ENOUGH else 0.0

    def _told(self) -> None:
        self._news += 1
        # At the beginning every one counts: reads that are silent wait for what the others tell.
        if self._news >= _REFRESH or self._any_first.count <= ENOUGH or len(self._limits) > 100:
            self._news = 0
            self._limits.clear()

    def _learn(self, kind: int) -> tuple[ReadLimits, float]:
        most, hedge = self._timeouts, self._hedge
        own = self._first.get(kind)
        tail = _tail(own) if own is not None else None
        if tail is None:
            tail = _tail(self._any_first)
        first_byte_s, idle_s, after_s = most.first_byte_s, most.idle_s, hedge.most_delay_s
        if tail is not None:
            first_byte_s = _between(_FACTOR * tail, most.floor_s, most.first_byte_s)
            idle_s = _between(2 * _FACTOR * tail, most.floor_s, most.idle_s)
            after_s = _between(hedge.tail_factor * tail, hedge.least_delay_s, hedge.most_delay_s)
        connect = _tail(self._connects)
        pace = _tail(self._s_per_byte)
        return (
            ReadLimits(
                connect_s=most.connect_s
                if connect is None
                else _between(_FACTOR * connect, most.floor_s, most.connect_s),
                first_byte_s=first_byte_s,
                idle_s=idle_s,
                least_bytes_per_s=most.least_bytes_per_s
                if pace is None or not most.least_bytes_per_s
                else max(most.least_bytes_per_s, min(_MOST_PACE, _PACE_PART * _LEAST_BODY / pace)),
            ),
            after_s,
        )


def _kind(size: int) -> int:
    return size.bit_length() // 3


def _tail(seen: CensoredQuantiles) -> float | None:
    return seen.at(_PERCENTILE) if seen.count >= ENOUGH else None


def _between(value: float, floor: float, cap: float) -> float:
    return min(max(value, floor), cap)


class CensoredQuantiles:
    """Percentiles of times that were seen, those that were cut short included. Of constant size, forgets slowly.

    A value lies in one of a hundred classes, four to a doubling. An attempt that was given up after a time tells only
    that it would have taken longer: it is *censored*. Counted as finished it would teach that stalls are normal; left
    out, that nothing is slow. The estimate (Kaplan and Meier's) takes it as one more of those that still ran then.
    """

    __slots__ = ("_cut", "_seen", "count")

    def __init__(self) -> None:
        self._seen = [0.0] * _CLASSES
        self._cut = [0.0] * _CLASSES
        self.count = 0.0

    def add(self, value: float, *, censored: bool = False, weight: int = 1) -> None:
        """Adds one value above 0, or a censored value; counts `weight` times."""
        place = int((math.log2(value) - _LOWEST) * _PER_DOUBLING) if value > 0 else 0
        place = min(max(place, 0), _CLASSES - 1)
        (self._cut if censored else self._seen)[place] += weight
        self.count += weight
        if self.count > _MEMORY:
            self._seen = [each / 2 for each in self._seen]
            self._cut = [each / 2 for each in self._cut]
            self.count /= 2

    def at(self, fraction: float) -> float | None:
        """The value below which this fraction lies, rounded up to the end of its class; None when nothing was seen.

        Where so many were cut short that the fraction is never reached: the largest value that was seen whole.
        """
        running = self.count
        left = 1.0
        largest: float | None = None
        for place in range(_CLASSES):
            if self._seen[place]:
                left *= 1 - self._seen[place] / running
                largest = 2 ** ((place + 1) / _PER_DOUBLING + _LOWEST)
                if 1 - left >= fraction - 1e-9:
                    return largest
            running -= self._seen[place] + self._cut[place]
            if running <= 0:
                break
        return largest
