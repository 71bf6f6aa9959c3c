"""How many worker processes there are to be: one for each call at a time, within a limit that may change.

    a call more than there are workers ──▶ one worker more, up to the limit
    the limit is lowered               ──▶ those beyond it get no more calls, and end when they are idle

Plain counting, without process or loop. The number of workers is never lowered but by the limit, so that bursts of
calls find them.
"""

from __future__ import annotations

from asyncdata.observe.stopwatch import Stopwatch


class Demand:
    """See the module.

    Args:
        most: The most.

    Attributes:
        wanted: How many there are to be now.
        most: The limit now.
        short: Runs while a call waits for a worker, because others have them all.
    """

    def __init__(self, most: int) -> None:
        self.wanted = 0
        self.most = most
        self.short = Stopwatch()
        self._calls = 0

    def expect(self, calls: int | None) -> None:
        """Wants workers before there are calls: one for each expected at a time; None: all there may be."""
        self.wanted = max(self.wanted, self.most if calls is None else min(calls, self.most))

    def begin(self) -> bool:
        """One more call is under way; returns whether a worker is to be started for it."""
        self._calls += 1
        return self._follow()

    def end(self) -> None:
        """One less."""
        self._calls -= 1
        self._follow()

    def limit(self, most: int) -> bool:
        """Changes the limit; returns whether workers are to be started."""
        self.most = most
        self.wanted = min(self.wanted, most)
        return self._follow()

    def _follow(self) -> bool:
        wanted = max(self.wanted, min(self._calls, self.most))
        grows, self.wanted = wanted > self.wanted, wanted
        if self._calls > wanted and not self.short.open:
            self.short.begin()
        elif self._calls <= wanted and self.short.open:
            self.short.end()
        return grows
