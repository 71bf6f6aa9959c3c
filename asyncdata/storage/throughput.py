"""What finished reads tell about a window: a rate with its error, and whether a link fills up. No clock, no socket."""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass
from typing import Final

_LONGER: Final = 1.4
_LEAST_SLICE: Final = 12


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


class Filling(enum.Enum):
    """What the last slice of reads tells while a window grows."""

    UNKNOWN = "unknown"
    EMPTY = "empty"
    FULL = "full"


class Durations:
    """How long reads take while the window grows: where the link is full, each further one makes all others longer.

    Told slice by slice, against the slice that took least.
    """

    __slots__ = ("_limited", "_reads", "_seconds", "shortest_s")

    def __init__(self) -> None:
        self.shortest_s = math.inf
        self._seconds = 0.0
        self._reads = self._limited = 0

    def add(self, sample: Sample, limit: int) -> Filling:
        """A read ended, with such a window; what that tells."""
        self._seconds += sample.now - sample.began
        self._reads += 1
        self._limited += sample.limited
        slice_size = limit // 2 if self.shortest_s == math.inf else limit // 4
        if self._reads < max(_LEAST_SLICE, slice_size):
            return Filling.UNKNOWN
        mean_s, full = self._seconds / self._reads, self._limited >= 0.8 * self._reads
        self._seconds = 0.0
        self._reads = self._limited = 0
        longer = mean_s > _LONGER * self.shortest_s
        self.shortest_s = min(self.shortest_s, mean_s)
        if not full:
            return Filling.UNKNOWN
        return Filling.FULL if longer else Filling.EMPTY
