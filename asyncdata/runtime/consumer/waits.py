"""How long a consumer waited: a sum, and a histogram whose bins are 19 % wide.

An element that was ready costs nothing. A wait costs two readings of the clock and a logarithm. While a profile is
recorded, a delivery costs a reading of the clock and a tuple.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from asyncdata.observe.parts import ConsumerStats
from asyncdata.observe.stopwatch import Stopwatch, clock
from asyncdata.observe.timeline import Arrivals

_BINS_PER_OCTAVE = 4
_LEAST_S = 1e-6


class Waits:
    """The waits of one iteration, from any thread.

    Attributes:
        elements: How many were delivered, counted a delivery at a time.
        arrivals: When; None unless somebody records a profile.
    """

    def __init__(self) -> None:
        self.elements = 0
        self.arrivals: Arrivals | None = None
        self._watch = Stopwatch()
        self._bins: Counter[int] = Counter()
        self._first_s = 0.0
        self._began = self._ended = 0.0

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Around a wait for the next element."""
        began = self._watch.begin()
        self._began = self._began or began
        try:
            yield
        finally:
            ended = self._watch.end()
            if self.elements:
                self._bins[int(_BINS_PER_OCTAVE * math.log2(max((ended - began) / _LEAST_S, 1.0)))] += 1
            else:
                self._first_s = self._waited_s(ended)

    def received(self, elements: int) -> None:
        """One more delivery was taken."""
        self._began = self._began or clock()  # the first one may have come at once
        self.elements += elements
        if self.arrivals is not None:
            now = clock()
            self.arrivals.add(self._began, now, elements, self._waited_s(now))

    def record(self, arrivals: Arrivals) -> None:
        """Has what comes from now on noted there."""
        if self._began:
            now = clock()
            arrivals.begin(now, self._waited_s(now))
        self.arrivals = arrivals

    def end(self) -> None:
        """The iteration is over; what the consumer does from now on is its own affair. Idempotent."""
        if not self._ended:
            self._ended = clock()
            if self.arrivals is not None:
                self.arrivals.add(self._began or self._ended, self._ended, 0, self._waited_s(self._ended))

    def _waited_s(self, now: float) -> float:
        """Of threads or tasks that wait side by side, in all no more than the time that has passed."""
        return min(self._watch.seconds(now), now - self._began) if self._began else 0.0

    def stats(self, elements: int) -> ConsumerStats:
        """A snapshot.

        Args:
            elements: That were delivered; those that nobody waited for came at once.
        """
        now = self._ended or clock()
        wait_s = self._waited_s(now)
        bins = sorted(dict(self._bins).items())
        return ConsumerStats(
            wait_s=wait_s,
            step_s=max(0.0, now - self._began - wait_s) if self._began else 0.0,
            first_wait_s=self._first_s,
            median_wait_s=_quantile(bins, elements - 1, 0.5),
            p90_wait_s=_quantile(bins, elements - 1, 0.9),
            p99_wait_s=_quantile(bins, elements - 1, 0.99),
        )


def _quantile(bins: list[tuple[int, int]], elements: int, part: float) -> float:
    """The middle of the bin below which this part of all elements lie; 0 where they came at once."""
    waits = sum(count for _, count in bins)
    left = part * max(elements, waits) - (max(elements, waits) - waits)
    if left <= 0:
        return 0.0
    for number, count in bins:
        left -= count
        if left <= 0:
            return float(_LEAST_S * 2 ** ((number + 0.5) / _BINS_PER_OCTAVE))
    return 0.0
