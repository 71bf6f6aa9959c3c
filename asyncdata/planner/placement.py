"""Finds where a ready-made parser runs, while its pipeline runs: on the stage loop, or in workers. Pure.

On the loop a record costs least, because nothing is handed over. But the loop is one thread, which the other steps of
the pipeline need, too. So a parser begins there, and moves by what was measured::

    on the loop    the consumer waits, the loop is busy, a good part of that is the parser  ──▶ try the workers
    in workers     the loop has room for the parser                                         ──▶ try the loop
    in workers     the consumer waits, the loop is busy, the parser would add little to it  ──▶ try the loop

    a trial ends:  nobody waits any more, or the rate is good enough                        ──▶ stay
                   else                                                                     ──▶ go back, and rest

Workers have to be faster, because they cost more; the loop only has to be as fast. Rests become longer each time, and
end early when the rate changes by itself. Where a parser runs changes neither elements, nor their order, nor states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LOOP: Final = 0
WORKERS: Final = 1

_WAITING: Final = 0.02
"""A consumer that waits for less of its time is not held up."""
_BUSY: Final = 0.9
"""Of the loop's time: it is what limits the pipeline."""
_ROOM: Final = 0.7
"""Of the loop's time: so much may be in use with the parser."""
_WORTH: Final = 0.15
"""Of the loop's work: a parser that is a smaller part is not worth starting processes for."""
_LITTLE: Final = 0.5
"""Of the loop's work in handing records to workers: a parser that costs less may be cheaper on the loop."""
_PAYS: Final = 1.05
_LOSES: Final = 0.95
_LEAST_S: Final = 0.5
_LEAST_ROWS: Final = 16
_MOST_S: Final = 5.0
"""Of a measurement; less has to do if so little goes on."""
_MOST_AWAY_S: Final = 20.0
"""After so long a trial ends that has not begun, because workers do not start, or nobody takes elements."""
_REST_S: Final = 4.0
_MOST_REST_S: Final = 300.0
_CHANGED: Final = 0.25


@dataclass(slots=True, kw_only=True)
class Look:
    """What happened in some interval.

    Attributes:
        seconds: Its length.
        place: Where the parser ran at the end.
        rows: What it has handed on.
        waiting_s: The time for which the consumer waited.
        loop_s: CPU time of the loop.
        delayed_s: The time for which the loop could have run, but got no processor.
        own_s: CPU time of the parser, wherever it ran.
        workers: The part of the workers' time that they were busy.
    """

    seconds: float = 0.0
    place: int = LOOP
    rows: int = 0
    waiting_s: float = 0.0
    loop_s: float = 0.0
    delayed_s: float = 0.0
    own_s: float = 0.0
    workers: float = 0.0

    def add(self, look: Look) -> None:
        """This interval and the one behind it become one."""
        self.seconds += look.seconds
        self.rows += look.rows
        self.waiting_s += look.waiting_s
        self.loop_s += look.loop_s
        self.delayed_s += look.delayed_s
        self.own_s += look.own_s
        self.place, self.workers = look.place, look.workers

    @property
    def is_enough(self) -> bool:
        """Whether the interval says something."""
        return (self.seconds >= _LEAST_S and self.rows >= _LEAST_ROWS) or self.seconds >= _MOST_S

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / max(self.seconds, 1e-9)

    @property
    def waits(self) -> bool:
        """Whether the consumer is held up."""
        return self.waiting_s >= _WAITING * self.seconds

    @property
    def taken_s(self) -> float:
        """The loop's time that is in use."""
        return self.loop_s + self.delayed_s

    @property
    def is_held(self) -> bool:
        """Whether the consumer is held up by the loop."""
        return self.waits and self.taken_s >= _BUSY * self.seconds


def reason_to_move(seen: Look) -> str:
    """Why the other place may be the better one; empty if nothing says so."""
    part = seen.own_s / max(seen.loop_s, 1e-9)
    if seen.place == LOOP:
        is_worth = seen.is_held and part >= _WORTH and seen.workers < _BUSY
        return f"it is {part:.0%} of the work of a busy loop" if is_worth else ""
    if seen.taken_s + seen.own_s <= _ROOM * seen.seconds:
        return f"the loop has room for it: {(seen.taken_s + seen.own_s) / seen.seconds:.0%} of its time with it"
    if seen.is_held and part < _LITTLE:
        return f"the loop is busy, and it would add {part:.0%} at most"
    return ""


class Placement:
    """See the module's text.

    Args:
        place: Where it begins: at its default, or where an earlier iteration found.
        default: Where it begins if nothing is known.

    Attributes:
        place: Where the parser is to run.
        why: The last finding.
    """

    def __init__(self, place: int = LOOP, default: int = LOOP) -> None:
        self.place = place
        self.default = default
        self.why = "the default" if place == default else "found in an earlier iteration"
        self._before: Look | None = None
        self._seen: Look | None = None
        self._away_s = 0.0
        self._rested_s = _REST_S
        self._rest_s = _REST_S
        self._next_rest_s = _REST_S
        self._rest_rate = 0.0

    @property
    def is_trying(self) -> bool:
        """Whether a move is being judged; other settings must not change meanwhile."""
        return self._before is not None

    def decide(self, look: Look, *, rests: bool = False) -> bool:
        """Says whether it moves now; `place` is where to.

        Args:
            look: What happened since the last decision.
            rests: Whether rates change for other reasons.
        """
        self._rested_s += look.seconds
        if look.place != self.place:
            self._seen = None
            self._away_s += look.seconds
            return self._before is not None and self._away_s >= _MOST_AWAY_S and self._go_back("it did not begin there")
        self._away_s = 0.0
        if rests or self._seen is None:
            # What was under way before does not count.
            self._seen = None if rests else Look()
            return False
        self._seen.add(look)
        if not self._seen.is_enough:
            return False
        seen, self._seen = self._seen, Look()
        return self._try(seen) if self._before is None else self._judge(self._before, seen)

    def _try(self, seen: Look) -> bool:
        reason = reason_to_move(seen)
        has_changed = self._rested_s >= _REST_S and abs(seen.rate / max(self._rest_rate, 1e-9) - 1) > _CHANGED
        if not reason or not (has_changed or self._rested_s >= self._rest_s):
            return False
        self._before, self.why = seen, reason
        self._move()
        return True

    def _judge(self, before: Look, seen: Look) -> bool:
        gain = seen.rate / max(before.rate, 1e-9)
        if seen.waits and gain < _PAYS if self.place == WORKERS else seen.is_held and gain < _LOSES:
            return self._go_back(f"elsewhere it came to {gain:.2f} times the rate")
        self._before = None
        self._rest(_REST_S, seen.rate)
        if seen.waits:
            self.why = f"{gain:.2f} times the rate that it had elsewhere"
        return False

    def _go_back(self, why: str) -> bool:
        assert self._before is not None
        self._rest(self._next_rest_s, self._before.rate)
        self._next_rest_s = min(4 * self._next_rest_s, _MOST_REST_S)
        self._before, self.why = None, why
        self._move()
        return True

    def _rest(self, seconds: float, rate: float) -> None:
        self._rested_s, self._rest_s, self._rest_rate = 0.0, seconds, rate

    def _move(self) -> None:
        self.place = LOOP if self.place == WORKERS else WORKERS
        self._seen, self._away_s = None, 0.0
