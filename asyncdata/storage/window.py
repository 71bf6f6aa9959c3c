"""How many requests are in flight: found by trying, from what finished reads tell. No clock, no socket.

A link is full when more requests bring no more bytes: each then only takes longer. So the window is moved, the rate at
both places is compared, and the better one is kept, the smaller of two that are equal::

    GROW ──twice as many, while it pays──▶ HOLD ◀──────────────────────────┐
                                                │  after a while, in turn      │ compare, keep or go back
                                                ├──▶ UP    a few more ─────────┤
                                                ├──▶ DOWN  a few less ─────────┤
    429, 503 above what is usual ──▶ YIELD ─────┴── fewer, until it is usual ──┘

A move is one slot per finished read, never a burst. What was asked for before a move has ended is left out; then whole
windows of reads are measured, for reads that began together end together. Reads count only while the window was what
held them back: a program that asks for less moves nothing. Where a move *did* pay in part, the new window follows from
it: rate gained times the time a read took before, which is what is needed to fill the link (bandwidth times latency).

Servers that fail at random are not helped by fewer requests: a share of refusals that stays when the window shrinks is
taken as usual, and the window goes back.
"""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass
from typing import Final

FIRST: Final = 32
LEAST: Final = 2
MOST: Final = 256

_LEAST_BLOCK: Final = 12
_GROWTH: Final = 2.0
_PAYS: Final = 0.35
"""Growing goes on while a move brings at least this part of what it would on an empty link."""
_EQUAL: Final = 0.02
_HEADROOM: Final = 1.1
_PATIENCE: Final = 12
_SOON: Final = 4
_MOST_PATIENCE: Final = 64
_REFUSED: Final = 0.02
"""Share of reads answered 429 that is borne."""
_FAILED: Final = 0.06
"""Share of reads answered 5xx that is borne: these come at random as well."""
_STRIKES: Final = 2
_SURE: Final = 3.0
_YIELD_ANSWERS: Final = 150
_MOST_ANSWERS: Final = 512
_SMOOTHING: Final = 0.1


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStats:
    """What the controller chose, and why.

    Attributes:
        limit: Requests in flight at most.
        reason: In words.
        first_byte_s: Mean time to the first byte.
        stream_bytes_per_s: Mean rate of one body.
        bytes_per_s: Rate of all bodies while the window was full; 0 before that was measured.
        backoffs: How often it shrank because requests were refused.
    """

    limit: int
    reason: str
    first_byte_s: float = 0.0
    stream_bytes_per_s: float = 0.0
    bytes_per_s: float = 0.0
    backoffs: int = 0


class Phase(enum.Enum):
    """What the controller is trying."""

    GROW = "grow"
    HOLD = "hold"
    UP = "up"
    DOWN = "down"
    YIELD = "yield"


class _Rate:
    """A rate, measured in blocks of reads."""

    __slots__ = ("blocks", "bytes", "reads", "seconds")

    def __init__(self) -> None:
        self.blocks: list[float] = []
        self.bytes = 0
        self.reads = 0
        self.seconds = 0.0

    def add(self, size: int, seconds: float, reads: int) -> None:
        self.blocks.append(size / seconds)
        self.bytes += size
        self.seconds += seconds
        self.reads += reads

    @property
    def mean(self) -> float:
        return self.bytes / self.seconds

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


class Window:
    """See the module's text.

    Args:
        first: Where it begins.
        least: It never goes below.
        most: Nor above.
    """

    def __init__(self, *, first: int = FIRST, least: int = LEAST, most: int = MOST) -> None:
        self.limit = min(max(first, least), most)
        self._least, self._most = least, most
        self._reason = "the first guess"
        self._phase = Phase.GROW
        self._base = self.limit
        self._base_rate: _Rate | None = None
        self._target = self.limit
        self._rate = _Rate()
        self._unsettled = 0
        self._moved_at = -math.inf
        self._block_at = -math.inf
        self._block_bytes = self._block_reads = self._block_limited = 0
        self._patience = _PATIENCE
        self._down_step = 0.85
        self._next_probe = Phase.DOWN
        self._ceiling = math.inf
        self._ceiling_age = 2 * _MOST_PATIENCE
        # Of refusals.
        self._answers = self._refusals = self._throttled = 0
        self._usual = 0.0
        self._deaf = 0
        self._strikes = 0
        self._yielded_to = math.inf
        self._before_yield = (self.limit, 0.0)
        self._highest = self.limit
        self._backoffs = 0
        # For telling.
        self._first_byte_s = 0.0
        self._stream = 0.0
        self._seen = 0.0
        self._best = 0.0

    def __repr__(self) -> str:
        return f"<Window {self.limit}: {self._reason}>"

    def stats(self) -> WindowStats:
        """The choice, and why."""
        return WindowStats(
            limit=self.limit,
            reason=self._reason,
            first_byte_s=self._first_byte_s,
            stream_bytes_per_s=self._stream,
            bytes_per_s=self._seen,
            backoffs=self._backoffs,
        )

    # --- what is told ------------------------------------------------------------------------------------------------

    def done(self, sample: Sample) -> None:
        """A read ended well; ``limit`` is to be looked at afterwards."""
        self._observe(sample)
        if self._counts(sample.began):
            self._answers += 1
            if self._look_at_refusals(sample.now):
                return
        if self.limit != self._target:
            self.limit += 1 if self.limit < self._target else self._target - self.limit
            if self.limit == self._target:
                self._settle(sample.now)
            return
        if self._unsettled > 0:
            self._unsettled -= 1
            self._block_at = sample.now
            return
        if self._block_at == -math.inf:
            self._block_at = sample.began
        self._block_bytes += sample.size
        self._block_reads += 1
        self._block_limited += sample.limited
        if self._block_reads >= self._block_size():
            self._end_block(sample.now)

    def refused(self, *, now: float, began: float, throttled: bool) -> None:
        """A read was refused: ``throttled`` by 429, else by a failing server (5xx)."""
        if self._counts(began):
            self._answers += 1
            self._refusals += 1
            self._throttled += throttled
            self._look_at_refusals(now)

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _observe(self, sample: Sample) -> None:
        if sample.first_byte_s < 0:
            return
        body_s = sample.now - sample.began - sample.first_byte_s
        weight = _SMOOTHING if self._first_byte_s else 1.0
        self._first_byte_s += weight * (sample.first_byte_s - self._first_byte_s)
        if body_s > 0:
            self._stream += (_SMOOTHING if self._stream else 1.0) * (sample.size / body_s - self._stream)

    def _block_size(self) -> int:
        """A multiple of the window: reads that began together end together, and are then counted whole."""
        return self.limit * max(1, -(-_LEAST_BLOCK // self.limit))

    def _move(self, target: float, now: float) -> None:
        """To another window, slot by slot upwards, at once downwards."""
        self._target = min(max(round(target), self._least), self._most)
        surplus = max(0, self.limit - self._target)
        self.limit -= surplus
        self._settle(now, surplus)

    def _settle(self, now: float, surplus: int = 0) -> None:
        """Begins to measure anew, once the surplus of an earlier window has come in."""
        self._rate = _Rate()
        self._unsettled = surplus
        self._moved_at = now
        self._begin_block(now)

    def _begin_block(self, now: float) -> None:
        self._block_at = now
        self._block_bytes = self._block_reads = self._block_limited = 0

    def _end_block(self, now: float) -> None:
        seconds, size, reads = now - self._block_at, self._block_bytes, self._block_reads
        full = self._block_limited >= 0.8 * reads
        self._begin_block(now)
        if seconds <= 0:
            return
        if not full:
            self._not_asked_for(now)
            return
        self._ceiling_age += 1
        if self._ceiling_age > 2 * _MOST_PATIENCE:
            self._ceiling = math.inf
        self._rate.add(size, seconds, reads)
        self._decide(now)

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        blocks = len(self._rate.blocks)
        if self._phase is Phase.GROW:
            self._decide_growth(now, blocks)
        elif self._phase in {Phase.UP, Phase.DOWN}:
            self._decide_probe(now, blocks)
        elif self._phase is Phase.HOLD and blocks >= self._patience:
            self._probe(now)

    def _decide_growth(self, now: float, blocks: int) -> None:
        base = self._base_rate
        if base is not None:
            gain = self._rate.mean / base.mean
            enough = 1 + _PAYS * (self.limit / self._base - 1)
            if gain < enough:
                # New connections had to be made, and may have come late into the first block.
                if blocks < 3:
                    return
                gain = self._rate.without_first / base.mean
            unsure = abs(gain - enough) < 2 * (self._rate.error + base.error)
            if unsure and blocks < 4:
                return
            if gain < enough:
                self._keep_part(gain, base, now)
                return
        self._base, self._base_rate = self.limit, self._rate
        self._seen = self._rate.mean
        target = min(self.limit * _GROWTH, self._most, self._ceiling)
        if target <= self.limit * (1 + _EQUAL):
            self._settled(now, f"every step up to {self.limit} paid, and there the range ends")
            return
        self._reason = f"growing: {self.limit} requests bring {_mb(self._rate.mean)}"
        self._move(target, now)

    def _keep_part(self, gain: float, base: _Rate, now: float) -> None:
        """More requests brought little: as many as the gained rate needs, at the time that a read took before."""
        self._seen = max(self._rate.mean, base.mean)
        tried = self.limit
        needed = self._base * gain * _HEADROOM if gain > 1 + _EQUAL else self._base
        self._move(min(needed, tried), now)
        self._patience, self._next_probe = _SOON, Phase.UP
        self._settled(now, f"the link is full: {tried} requests bring {gain - 1:+.0%} over {self._base}")

    def _settled(self, now: float, reason: str) -> None:
        self._phase = Phase.HOLD
        self._reason = reason
        self._base, self._base_rate = self._target, None
        if self.limit == self._target:
            self._settle(now)

    def _probe(self, now: float) -> None:
        self._base, self._base_rate = self.limit, self._rate
        self._seen = self._rate.mean
        # What was best once is not for ever: a link that has become slower is not waited for.
        self._best = max(self._rate.mean, self._best + 0.1 * (self._rate.mean - self._best))
        up = max(self.limit + 1, round(self.limit * 1.25))
        if self._ceiling < math.inf:
            up = min(up, round((self.limit + self._ceiling) / 2))
        down = min(self.limit - 1, round(self.limit * self._down_step))
        possible = {Phase.UP: self.limit < up <= self._most, Phase.DOWN: self._least <= down}
        phase = self._next_probe
        if not possible[phase]:
            phase = Phase.DOWN if phase is Phase.UP else Phase.UP
        self._next_probe = Phase.DOWN if phase is Phase.UP else Phase.UP
        if not possible[phase]:
            self._rate = _Rate()
            return
        self._phase = phase
        self._move(up if phase is Phase.UP else down, now)

    def _decide_probe(self, now: float, blocks: int) -> None:
        base = self._base_rate
        if base is None or blocks < 2:
            return
        ratio = self._rate.mean / base.mean
        error = math.hypot(self._rate.error, base.error)
        tried = self.limit
        if self._phase is Phase.UP:
            step = tried / self._base - 1
            if blocks < 4 and abs(ratio - 1 - step / 2) < error:
                return
            if tried >= 0.9 * self._ceiling:
                self._ceiling = math.inf  # what was refused there once is not refused now
            if ratio > 1 + _EQUAL:
                self._changed(Phase.UP)
                if ratio > 1 + _PAYS * step and self._ceiling_age > _MOST_PATIENCE:
                    self._phase = Phase.GROW
                    self._base, self._base_rate = tried, self._rate
                    self._reason = f"growing again: {tried} requests bring {ratio - 1:+.0%}"
                    self._move(tried * _GROWTH, now)
                else:
                    self._settled(now, f"{tried} requests bring {ratio - 1:+.0%} over {self._base}")
                return
            self._go_back(now, f"the link is full: {tried} requests bring {ratio - 1:+.0%} over {self._base}")
            return
        against_best = self._rate.mean / self._best
        if ratio < 1 - _EQUAL - error or against_best < 1 - 2 * _EQUAL - error:
            reason = f"{tried} requests would bring {ratio - 1:+.0%} of what {self._base} do"
            self._base = max(round(tried / ratio * _HEADROOM), round(math.sqrt(tried * self._base) * _HEADROOM))
            self._go_back(now, reason)
        elif blocks >= 4:
            if min(ratio, against_best) - error / 2 >= 1 - _EQUAL:
                self._changed(Phase.DOWN)
                self._down_step = max(0.5, self._down_step**1.6)
                self._settled(now, f"the link is full with {tried}: {self._base} requests bring no more")
            elif blocks >= 8:
                self._go_back(now, f"{tried} requests may bring less than {self._base}")

    def _changed(self, again: Phase) -> None:
        """A probe found something better: look soon, and the same way, again."""
        self._patience = _SOON
        self._next_probe = again

    def _go_back(self, now: float, reason: str) -> None:
        self._down_step = 0.85
        self._patience = min(_MOST_PATIENCE, max(_PATIENCE, 2 * self._patience))
        self._move(self._base, now)
        self._settled(now, reason)

    def _not_asked_for(self, now: float) -> None:
        """The program does not ask for as many: a window that was being tried is given up."""
        if self._phase in {Phase.GROW, Phase.UP, Phase.DOWN} and self._base_rate is not None:
            self._move(self._base, now)
            self._settled(now, f"no more than {self._base} are asked for")
        self._rate = _Rate()

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _counts(self, began: float) -> bool:
        """Whether an answer belongs to this window: those refused before a change come again just after it."""
        if began < self._moved_at:
            return False
        self._deaf -= 1
        return self._deaf < 0

    def _look_at_refusals(self, now: float) -> bool:
        """Whether the window was changed because of refusals."""
        answers, refusals = self._answers, self._refusals
        if answers < max(2 * _LEAST_BLOCK, self.limit // 2):
            return False
        throttled = _too_many(self._throttled, answers, _REFUSED)
        if throttled:
            self._yield(self._throttled / answers, now, random=False)
        elif self._phase is Phase.YIELD and answers >= max(self.limit, _YIELD_ANSWERS):
            self._judge_yield(refusals / answers, now)
        elif _too_many(refusals, answers, self._usual + _FAILED):
            self._yield(refusals / answers, now, random=self._is_random(refusals / answers))
        else:
            if answers >= _MOST_ANSWERS:
                self._answers, self._refusals, self._throttled = answers // 2, refusals // 2, self._throttled // 2
            return False
        self._answers = self._refusals = self._throttled = 0
        return True

    def _yield(self, share: float, now: float, *, random: bool) -> None:
        """Fewer requests; what that does to the share of refusals tells whether the load is to blame."""
        if self._phase is not Phase.YIELD:
            self._strikes = 0
            self._highest = self.limit
        elif random:
            self._strikes += 1
            if self._strikes >= _STRIKES:
                self._bear(share, now)
                return
        self._phase = Phase.YIELD
        self._before_yield = (self.limit, share)
        self._backoffs += 1
        self._ceiling, self._ceiling_age = self.limit, 0
        self._reason = f"{share:.0%} of the requests were refused"
        self._move(min(self.limit - 1, self.limit * min(0.92, max(0.6, 1 - share))), now)
        self._deaf = self.limit

    def _is_random(self, share: float) -> bool:
        """Whether refusals fell less than they would if the server's limit were what refuses.

        Then what is served is the same however many ask; where requests fail at random, the same part of them is.
        """
        limit, before = self._before_yield
        if self._phase is not Phase.YIELD:
            return False
        by_load = min(1.0, (1 - before) * limit / self.limit)
        return 1 - share < (1 - before + by_load) / 2

    def _judge_yield(self, share: float, now: float) -> None:
        if self._is_random(share):
            self._strikes += 1
            if self._strikes < _STRIKES and share > self._usual + _FAILED and self.limit > self._least:
                self._strikes -= 1
                self._yield(share, now, random=True)
            else:
                self._bear(share, now)
            return
        again = self.limit > 0.8 * self._yielded_to
        self._yielded_to = self.limit
        self._patience = min(_MOST_PATIENCE, 2 * self._patience) if again else _SOON
        self._next_probe = Phase.UP
        self._settled(now, f"{self._before_yield[0]} requests were too many for the server")

    def _bear(self, share: float, now: float) -> None:
        """Fewer requests are refused as often: it is not the load, and the window goes back."""
        self._usual = max(self._usual, share)
        self._strikes = 0
        self._ceiling = math.inf
        self._move(self._highest, now)
        self._settled(now, f"{share:.0%} of the requests are refused, however many there are")


def _too_many(refusals: int, answers: int, bearable: float) -> bool:
    """Whether so many refusals are more than chance would make of a bearable share."""
    return refusals > bearable * answers + _SURE * math.sqrt(bearable * answers) + 1


def _mb(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"
