"""Percentiles of times that were seen, those that were cut short included. Pure, of constant size, forgets slowly.

A value lies in one of a hundred classes, four to a doubling. An attempt that was given up after a time tells only that
it would have taken longer: it is *censored*. Counted as finished it would teach that stalls are normal; left out, that
nothing is slow. The estimate (Kaplan and Meier's) takes it as one more of those that were still running until then.
"""

from __future__ import annotations

import math
from typing import Final

_PER_DOUBLING: Final = 4
_LOWEST: Final = -16  # 2 ** -16 s is 15 µs
_CLASSES: Final = 100  # up to 2 ** 9 s
_MEMORY: Final = 1000


class Quantiles:
    """See the module's text."""

    __slots__ = ("_cut", "_seen", "count")

    def __init__(self) -> None:
        self._seen = [0.0] * _CLASSES
        self._cut = [0.0] * _CLASSES
        self.count = 0.0

    def add(self, value: float, *, censored: bool = False, weight: int = 1) -> None:
        """Takes one value above 0, or the value at which one was cut short; it stands for so many."""
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
