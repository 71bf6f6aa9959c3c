"""What finished reads show about a window: a rate with its error, and whether the link fills up. No clock or socket."""

from __future__ import annotations

import bisect
import enum
import math
import operator
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Final

_LONGER: Final = 1.4
_NO_LONGER: Final = 1.2
_ROOM: Final = 2.4
"""A window may be so many times what was of use, where reads took no longer than before: it doubles with every read."""
_AT_ONCE: Final = 1.6
"""The same before that is known: the first guess may be too many already."""
_LEAST_SLICE: Final = 12
_MOST_SLICES: Final = 256
"""As long as a window is never full, slices come without end, so the oldest ones are forgotten."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One read that ended well.

    Attributes:
        now: When, on any clock that goes forward, in seconds.
        began: When it was sent.
        size: Bytes.
        first_byte_s: Until the head of the answer had come; negative where that is not known.
        limited: The window was full until it ended.
    """

    now: float
    began: float
    size: int
    first_byte_s: float
    limited: bool


class Rate:
    """A rate, measured in blocks of reads."""

    __slots__ = ("blocks", "bytes", "reads", "seconds")

    def __init__(self) -> None:
        self.blocks: list[float] = []
        self.bytes = 0
        self.reads = 0
        self.seconds = 0.0

    def add(self, size: int, seconds: float, reads: int) -> None:
        """A block more."""
        self.blocks.append(size / seconds)
        self.bytes += size
        self.seconds += seconds
        self.reads += reads

    @property
    def mean(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds

    @property
    def reads_per_s(self) -> float:
        """Reads per second."""
        return self.reads / self.seconds

    @property
    def without_first(self) -> float:
        """The mean of all blocks but the first."""
        return statistics.fmean(self.blocks[1:])

    @property
    def error(self) -> float:
        """Standard error of the mean, as a fraction of it."""
        if len(self.blocks) < 3:
            return 0.4 / math.sqrt(max(1, self.reads))
        return statistics.stdev(self.blocks) / math.sqrt(len(self.blocks)) / self.mean


class Fullness(enum.Enum):
    """What the last slice of reads tells while a window grows."""

    UNKNOWN = "unknown"
    EMPTY = "empty"
    FULL = "full"


class Durations:
    """How long reads take while the window grows: where the link is full, each further one makes all others longer.

    Told slice by slice, against the slice that took least, all at the mean size of a read. By Little's law that also
    tells how many of the reads were of use: with n in flight that take twice as long as they need, n / 2 would have
    brought as much. That bounds the growth.

    Args:
        limit: The window at first.

    Attributes:
        proven: How large the window may be by what is known.
    """

    __slots__ = ("_bodies_s", "_bytes", "_heads_s", "_limited", "_limits", "_reads", "_slices", "_together", "proven")

    def __init__(self, limit: int) -> None:
        self.proven = _AT_ONCE * limit
        self._limits: list[tuple[float, int]] = [(-math.inf, limit)]
        self._slices: deque[_Slice] = deque(maxlen=_MOST_SLICES)
        self._begin_slice()

    def _begin_slice(self) -> None:
        self._heads_s = self._bodies_s = 0.0
        self._reads = self._limited = self._bytes = self._together = 0

    @property
    def shortest_s(self) -> float:
        """What a read of mean size took in the slice where it took least; infinite before the first slice."""
        size = sum(one.size for one in self._slices) / max(1, len(self._slices))
        return min((one.seconds(size) for one in self._slices), default=math.inf)

    def moved(self, now: float, limit: int) -> None:
        """The window is another one."""
        self._limits.append((now, limit))

    def add(self, sample: Sample, limit: int) -> Fullness:
        """A read ended, with such a window; what that tells."""
        seconds = sample.now - sample.began
        head_s = min(sample.first_byte_s, seconds) if sample.first_byte_s >= 0 else seconds
        self._heads_s += head_s
        self._bodies_s += seconds - head_s
        self._bytes += sample.size
        self._reads += 1
        self._limited += sample.limited
        self._together += self._window_at(sample.began)
        # Of those that begin together the shortest ones end first: the first slice has all of them.
        if self._reads < (limit // 4 if self._slices else self._limits[0][1]) or self._reads < _LEAST_SLICE:
            return Fullness.UNKNOWN
        reads, together, full = self._reads, self._together / self._reads, self._limited >= 0.8 * self._reads
        last = _Slice(self._heads_s / reads, self._bodies_s / max(1, self._bytes), self._bytes / reads)
        self._slices.append(last)
        self._begin_slice()
        if not full:
            return Fullness.UNKNOWN
        seconds, shortest_s = last.seconds(last.size), min(one.seconds(last.size) for one in self._slices)
        if seconds <= 0:
            return Fullness.EMPTY
        room = _ROOM if len(self._slices) > 1 and seconds < _NO_LONGER * shortest_s else _AT_ONCE
        self.proven = room * together * shortest_s / seconds
        return Fullness.FULL if seconds > _LONGER * shortest_s else Fullness.EMPTY

    def _window_at(self, at: float) -> int:
        return self._limits[bisect.bisect_right(self._limits, at, key=operator.itemgetter(0)) - 1][1]


@dataclass(frozen=True, slots=True)
class _Slice:
    """What reads that ended one after another took: for the head, for each byte; and their size."""

    head_s: float
    s_per_byte: float
    size: float

    def seconds(self, size: float) -> float:
        """What a read of such a size took."""
        return self.head_s + size * self.s_per_byte
