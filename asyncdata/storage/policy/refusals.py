"""Whether load causes refused requests, and how many requests a server grants. No clock, no socket.

A server that grants a certain number of requests per second serves the same number, however many are sent. By Little's
law it works on as many as its rate times the duration of one request, and refuses all others. With as many in flight as
were *served* together, the refusals end::

    usual ──too many──▶ SUSPECTED ──fewer asked, fewer refused──▶ GRANTED: a little more while none is refused,
      ▲                     │                                              a little less as soon as some are
      └──refused as often───┘ (three times: it is not the load; that share is usual from now on)

A server that refuses everything for a while, at any load, looks like one that grants little. The previous window is
therefore tried again by doubling. If that is soon refused, load is the cause, and no more such trials are made.

The window follows the granted amount in a saw-tooth of 2 %, so that it is used and hardly anything is refused. Servers
count requests over some time, so capacity left over below the limit is used up above it.
"""

from __future__ import annotations

import enum
import math
from typing import Final

_FEW: Final = 2
"""Refusals that say nothing yet."""
_LOOK: Final = 24
_ENOUGH: Final = 400
_EXPECTED: Final = 20
"""Refusals to be expected before it is judged whether they have become fewer."""
_REMAINS: Final = 0.6
_STRIKES: Final = 3
_MOST_USUAL: Final = 0.5
"""A server that refuses more than this is not taken to do so at random."""
_SURE: Final = 3.0
_MOST_ASKED: Final = 512
_FORGETTING: Final = 0.1
_STEP: Final = 0.02
_MOST_MORE: Final = 0.25
_MOST_LESS: Final = 0.08
_LEFT: Final = 1.25
_PAST: Final = 1.1
_TRIALS: Final = 2
_HEALTHY: Final = 16
_LASTS: Final = 4
_FAR: Final = 0.06
"""Further below where requests were refused last, half the way there is gone at once."""


class Refusal(enum.Enum):
    """What a server says, and the share of answers that is borne.

    A failing server (5xx) may do so at random; "too many requests" (429) is seldom meant otherwise.
    """

    THROTTLED = 0.02
    FAILED = 0.06


class RefusalState(enum.Enum):
    """What is known of the load."""

    USUAL = "usual"
    SUSPECTED = "suspected"
    GRANTED = "granted"


class _Share:
    """How many requests were refused in one way."""

    __slots__ = ("bearable", "count", "usual")

    def __init__(self, kind: Refusal) -> None:
        self.bearable: float = kind.value
        self.usual = 0.0
        self.count = 0

    def too_many(self, asked: int, sure: float) -> bool:
        """Whether these are more than chance would make of a bearable share."""
        if self.count < _FEW:
            return False
        expected = (self.usual + self.bearable) * asked
        return self.count >= expected + sure * math.sqrt(expected) + _FEW


class Refusals:
    """See the module's text.

    ``look`` is called after each answer; where it returns a window, that is the one to go to. Whoever moves the window,
    for whatever reason, calls ``begin``: what was asked for before does not count.

    Refusals come at once, what is served takes its time. Answers that have come would tell of too many refusals after
    every move; so the share is of the requests that were *made*: one for each place that became free, or was added.

    Args:
        most: The largest window.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.state = RefusalState.USUAL
        self.backoffs = 0
        self.reason = ""
        self.ceiling = 0
        """The window at which requests were refused last, while that is believed."""
        self.borne = False
        """What was suspected last proved to be usual."""
        self._shares = {kind: _Share(kind) for kind in Refusal}
        self._suspect = self._shares[Refusal.THROTTLED]
        self._before = 0.0
        self._before_at = 0
        self._strikes = 0
        self._sufficient = self._out = False
        self._hope = self._failed = self._sure = self._healthy = 0
        self._direction = 0
        self._step = _STEP
        self._asked = self._limited = self._served = self._surplus = 0
        self._busy_s = 0.0
        self._since = math.inf

    @property
    def following(self) -> bool:
        """The window is where requests are granted, or it is being found out whether they are."""
        return self.state is not RefusalState.USUAL

    def begin(self, now: float, surplus: int = 0) -> None:
        """The window is another one, and so many requests are in flight above it."""
        self._since = now
        self._asked = self._limited = self._served = 0
        self._surplus = surplus
        self._busy_s = 0.0
        for share in self._shares.values():
            share.count = 0

    def ended_well(self, began: float, now: float, *, limited: bool) -> None:
        """A read ended well."""
        self._served += 1
        self._healthy += self.state is RefusalState.USUAL
        self._busy_s += now - began
        self._since = began if self._since == math.inf else self._since
        self._left()
        self._limited += limited and began >= self._since

    def refused(self, began: float, kind: Refusal) -> None:
        """One was refused."""
        self._since = began if self._since == math.inf else self._since
        self._left()
        if began >= self._since:
            self._shares[kind].count += 1

    def added(self) -> None:
        """The window has a place more."""
        self._asked += 1

    def _left(self) -> None:
        if self._surplus > 0:
            self._surplus -= 1
        else:
            self._asked += 1

    def look(self, limit: int, now: float) -> int | None:
        """The window to go to, if it is another one because of refusals."""
        if self.state is RefusalState.USUAL:
            return self._look_for_suspects(limit, now)
        if self.state is RefusalState.SUSPECTED:
            return self._judge(limit, now)
        return self._follow(limit)

    def _look_for_suspects(self, limit: int, now: float) -> int | None:
        asked = self._asked
        if asked < _LOOK:
            return None
        for share in self._shares.values():
            if share.too_many(asked, _SURE):
                self.state = RefusalState.SUSPECTED
                self._suspect, self._before, self._before_at = share, share.count / asked, limit
                self._strikes = 0
                self._out = False
                self.ceiling = limit
                self._failed = 0 if self._healthy > _HEALTHY * limit else self._failed + 1
                self._hope = self._sure = self._healthy = 0
                self.reason = f"{self._before:.0%} of the requests were refused"
                return self._fewer(limit, now)
        if asked >= _MOST_ASKED:
            for share in self._shares.values():
                share.usual = min(share.usual, share.usual + _FORGETTING * (share.count / asked - share.usual))
                share.count //= 2
            self._asked //= 2
        return None

    def _fewer(self, limit: int, now: float) -> int:
        """As many as were served together, by Little's law."""
        self.backoffs += 1
        if self._served < limit:
            # Refusals come in a flood: what is served together is not known yet.
            self._sufficient = False
            self._hope = self._before_at if self._failed < _TRIALS else 0
            return max(limit // 2, 1)
        together = self._busy_s / max(now - self._since, 1e-9)
        self._sufficient = True
        return max(min(limit - 1, int(together * (1 - _STEP))), limit // 4, 1)

    def _judge(self, limit: int, now: float) -> int | None:
        asked = self._asked
        suspect = self._suspect
        enough = _LOOK if suspect.count >= _EXPECTED else min(_ENOUGH, max(_LOOK, _EXPECTED / self._before))
        if asked < (_LOOK // 3 if self._out else 2 * limit + enough):
            return None
        share = suspect.count / asked
        if limit <= 1 and share > _MOST_USUAL:
            self._out = True
            return limit
        if self._out and share < _REMAINS * self._before:
            return self._bear("the server answers again")
        if share < _REMAINS * self._before:
            # What is refused with fewer in flight has nothing to do with their number.
            suspect.usual = max(suspect.usual, share) if suspect is self._shares[Refusal.FAILED] else suspect.usual
            self.state = RefusalState.GRANTED
            self._direction, self._step = 0, _STEP
            self.reason = f"the server grants what {limit} requests ask for; of {self.ceiling} some are refused"
            return limit if self._hope > limit else self._follow(limit)
        self._strikes += self._sufficient
        if limit > 1 and (self._strikes < _STRIKES or share > _MOST_USUAL):
            self._before = share
            self.ceiling = limit
            return self._fewer(limit, now)
        suspect.usual = max(suspect.usual, min(share, _MOST_USUAL))
        return self._bear(f"{share:.0%} of the requests are refused, however many there are")

    def _bear(self, reason: str) -> int:
        """It was not the load: back to the window before."""
        self.state = RefusalState.USUAL
        self.ceiling = 0
        self.borne = True
        self.reason = reason
        return self._before_at

    def _follow(self, limit: int) -> int | None:
        asked, shares = self._asked, self._shares.items()
        if any(share.too_many(asked, _SURE / 2 if kind is Refusal.THROTTLED else _SURE) for kind, share in shares):
            return self._yield(limit)
        rounds = max(_LOOK, limit)
        if self._hope > limit and self._limited >= max(_LOOK // 3, limit) * (1 + 2 * self._failed):
            # It may have refused everything for a while, whatever was asked for.
            self._sure = limit
            return min(2 * limit, self._hope)
        below = self.ceiling - limit
        far = below > max(3, _FAR * self.ceiling)
        back = 0 < self._hope <= limit
        if self._hope > limit or self._limited < (_LASTS if back else 1 if far else 2) * rounds:
            return None
        if back or limit >= min(_LEFT * self.ceiling + _LOOK / 8, self._most):
            self.state = RefusalState.USUAL
            self.borne = False
            self.reason = f"{limit} requests are no longer refused"
            self.ceiling = self._hope = 0
            return limit
        if far:
            return limit + below // 2
        if limit > _PAST * self.ceiling:
            self._turn(1)
        else:
            self._direction, self._step = 1, _STEP
        return limit + max(1, round(limit * self._step))

    def _yield(self, limit: int) -> int:
        """Some of so many were refused: a few less, or what it was before that was tried."""
        self.backoffs += 1
        self.reason = f"the server refuses some of {limit} requests"
        if self._sure:
            # So many more at once were too many; after some such trials no more are made.
            self._failed += 1
            self._hope = self._hope if self._failed < _TRIALS else 0
            self.ceiling, sure, self._sure = limit, self._sure, 0
            return sure
        self.ceiling = limit
        self._turn(-1)
        return limit - max(1, round(limit * self._step))

    def _turn(self, direction: int) -> None:
        """The same way again is a longer step."""
        most = _MOST_MORE if direction > 0 else _MOST_LESS
        self._step = min(most, 2 * self._step) if direction == self._direction else _STEP
        self._direction = direction
