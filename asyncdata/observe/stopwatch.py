"""`Stopwatch`: adds up the seconds of intervals that may overlap, and can be read while some are open.

    begin: total -= now, open += 1        end: total += now, open -= 1        read: total + open * now

Any thread may begin, end and read. Behind the reading of the clock a change is two plain assignments, between which
CPython does not switch threads. So nobody sees one without the other, and no change is lost.
"""

from __future__ import annotations

import time
from typing import Final

clock: Final = time.monotonic
"""The clock of all stopwatches, in seconds."""


class Stopwatch:
    """``with watch:`` around what is to be timed, or `begin` and `end`.

    Example:
        >>> watch = Stopwatch()
        >>> with watch:
        ...     number = 1 + 1
        >>> 0 <= watch.seconds() < 60, watch.open
        (True, 0)

    Attributes:
        open: Intervals that have begun and not ended.
    """

    __slots__ = ("_total", "open")

    def __init__(self) -> None:
        self.open = 0
        self._total = 0.0

    def begin(self) -> float:
        """An interval begins; returns when."""
        now = clock()
        self._total -= now
        self.open += 1
        return now

    def end(self) -> float:
        """An interval ends; returns when."""
        now = clock()
        self._total += now
        self.open -= 1
        return now

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_error: object) -> None:
        self.end()

    def seconds(self, now: float | None = None) -> float:
        """The length of all intervals so far, open ones included; where they overlap, each counts.

        Args:
            now: When open ones are cut; by default now.
        """
        return max(0.0, self._total + self.open * (clock() if now is None else now))
