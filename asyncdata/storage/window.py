"""How many requests are in flight: found by trying, from what finished reads tell. No clock, no socket.

A link is full when more requests bring no more bytes: each then only takes longer. So the window is moved, the rate at
both places is compared, and the better one is kept, the smaller of two that are equal::

    START ──a place more for every read, while reads take no longer──┐
                                                                     ▼
    GROW ──twice as many, while it pays──────────────▶ HOLD ◀──────────────────────────┐
                                                        │  after a while, in turn      │ compare, keep or go back
                                                        ├──▶ UP    a few more ─────────┤
                                                        ├──▶ DOWN  a few less ─────────┘
    refusals above what is usual ──▶ GRANTED: what the server grants is followed, see refusals.py

The start does not wait for measurements: reads that take longer with more in flight say that the link is full. The
window there is too large, by what was asked for in the time of one read; then it is measured, and by Little's law what
the rate needs is tried: rate times the time that a read took before. As every move downwards, it is kept only if it
brings as much.

A move is one slot per finished read, never a burst. What was asked for before a move has ended is left out; then whole
windows of reads are measured, for reads that began together end together. Reads count only while the window was what
held them back: a program that asks for less moves nothing.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from asyncdata.storage.refusals import Kind, Refusals
from asyncdata.storage.throughput import Durations, Filling, Rate, Sample

FIRST: Final = 32
LEAST: Final = 2
MOST: Final = 256

_LEAST_BLOCK: Final = 24
_GROWTH: Final = 2.0
_PAYS: Final = 0.35
"""Growing goes on while a move brings at least this part of what it would on an empty link."""
_EQUAL: Final = 0.02
_NEARLY_EQUAL: Final = 0.05
_CLEARLY: Final = 3.0
_HEADROOM: Final = 1.1
_NEARLY: Final = 0.8
_WARM: Final = 2
_NOT_FULL: Final = 0.6
_PATIENCE: Final = 12
_SOON: Final = 4
_MOST_PATIENCE: Final = 64
_SMOOTHING: Final = 0.1


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

    START = "start"
    GROW = "grow"
    HOLD = "hold"
    UP = "up"
    DOWN = "down"
    GRANTED = "granted"


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
        self._phase = Phase.START
        self._durations = Durations()
        self._starting = False
        self._base = self.limit
        self._base_rate: Rate | None = None
        self._target = self.limit
        self._rate = Rate()
        self._unsettled = 0
        self._interrupted = Phase.GROW
        self._block_at = -math.inf
        self._block_bytes = self._block_reads = self._block_limited = 0
        self._patience = _PATIENCE
        self._down_step = 0.85
        self._next_probe = Phase.DOWN
        self._refusals = Refusals(most)
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
            backoffs=self._refusals.backoffs,
        )

    # --- what is told ------------------------------------------------------------------------------------------------

    def done(self, sample: Sample) -> None:
        """A read ended well; ``limit`` is to be looked at afterwards."""
        self._observe(sample)
        self._refusals.ended_well(sample.began, sample.now, limited=sample.limited)
        if self._look_at_refusals(sample.now):
            return
        if self._phase is Phase.START:
            self._start(sample)
            return
        if self.limit != self._target:
            self.limit += 1
            self._refusals.added()
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
        self._refusals.refused(began, Kind.THROTTLED if throttled else Kind.FAILED)
        self._look_at_refusals(now)

    def _look_at_refusals(self, now: float) -> bool:
        """Whether the window was moved because of refusals, or because there are none."""
        refusals = self._refusals
        followed = refusals.following
        target = refusals.look(self.limit, now)
        if target is None:
            return False
        if refusals.following:
            if not followed:
                self._interrupted = self._phase
            self._phase = Phase.GRANTED
        elif followed:
            growing = self._interrupted in {Phase.START, Phase.GROW} and refusals.borne
            self._phase = Phase.GROW if growing else Phase.HOLD
            self._patience, self._next_probe = _SOON, Phase.UP
        self._base_rate = None
        self._reason = refusals.reason
        self._move(target, now, least=1)
        return True

    def _start(self, sample: Sample) -> None:
        """A place more for every read, as long as reads take no longer than at first; then it is measured."""
        filling = self._durations.add(sample, self.limit)
        if sample.limited and self.limit < self._most:
            self.limit += 1
            self._refusals.added()
            self._reason = f"growing: so far reads take no longer with {self.limit} requests"
        self._target = self.limit
        if filling is Filling.FULL or (filling is Filling.EMPTY and self.limit == self._most):
            self._phase = Phase.GROW
            self._reason = f"with {self.limit} requests reads take longer: measuring"
            self._settle(sample.now)
            # New connections are slow at first: what they bring then would make fewer seem as good.
            self._unsettled = 2 * self.limit

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

    def _move(self, target: float, now: float, *, least: int | None = None) -> None:
        """To another window, slot by slot upwards, at once downwards."""
        self._target = min(max(round(target), self._least if least is None else least), self._most)
        surplus = max(0, self.limit - self._target)
        self.limit -= surplus
        self._settle(now, surplus)

    def _settle(self, now: float, surplus: int = 0) -> None:
        """Begins to measure anew, once all that was asked for before has come in; growth does not wait for that."""
        self._rate = Rate()
        self._unsettled = surplus + self.limit if surplus or self._phase is not Phase.GROW else 0
        self._refusals.begin(now, surplus)
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
        elif self._phase is Phase.GRANTED:
            self._seen = self._rate.mean

    def _decide_growth(self, now: float, blocks: int) -> None:
        base = self._base_rate
        shortest_s = self._durations.shortest_s
        if shortest_s < math.inf:
            if blocks < _WARM:
                return
            # By Little's law, as many as the rate needs while a read takes as long as with few in flight.
            self._durations = Durations()
            needed = self._rate.reads_per_s * shortest_s * _HEADROOM
            if needed < _NEARLY * self.limit:
                self._seen = self._best = self._rate.mean
                self._base, self._base_rate = self.limit, self._rate
                self._phase = Phase.DOWN
                self._starting = True
                self._reason = f"reads take longer with {self.limit} requests: trying what the rate needs"
                self._move(needed, now)
                return
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
        target = min(self.limit * _GROWTH, self._most)
        if target <= self.limit * (1 + _EQUAL):
            self._settled(f"every step up to {self.limit} paid, and there the range ends")
            self._settle(now)
            return
        self._reason = f"growing: {self.limit} requests bring {_mb(self._rate.mean)}"
        self._move(target, now)

    def _keep_part(self, gain: float, base: Rate, now: float) -> None:
        """More requests brought little: as many as the gained rate needs, at the time that a read took before."""
        self._seen = max(self._rate.mean, base.mean)
        tried = self.limit
        needed = self._base * gain * _HEADROOM if gain > 1 + _EQUAL else self._base
        self._move(min(needed, tried), now)
        self._patience, self._next_probe = _SOON, Phase.UP
        self._settled(f"the link is full: {tried} requests bring {gain - 1:+.0%} over {self._base}")

    def _settled(self, reason: str) -> None:
        self._phase = Phase.HOLD
        self._reason = reason
        self._base, self._base_rate = self._target, None

    def _probe(self, now: float) -> None:
        self._base, self._base_rate = self.limit, self._rate
        self._seen = self._rate.mean
        self._best = max(self._rate.mean, self._best)
        up = max(self.limit + 1, round(self.limit * 1.25))
        down = min(self.limit - 1, round(self.limit * self._down_step))
        possible = {Phase.UP: self.limit < up <= self._most, Phase.DOWN: self._least <= down}
        phase = self._next_probe
        if not possible[phase]:
            phase = Phase.DOWN if phase is Phase.UP else Phase.UP
        self._next_probe = Phase.DOWN if phase is Phase.UP else Phase.UP
        if not possible[phase]:
            self._rate = Rate()
            return
        self._phase = phase
        self._move(up if phase is Phase.UP else down, now)

    def _decide_probe(self, now: float, blocks: int) -> None:
        base = self._base_rate
        if base is None:
            return
        ratio = self._rate.mean / base.mean
        error = math.hypot(self._rate.error, base.error)
        if blocks < 2 and (self._phase is Phase.UP or ratio > 1 - _CLEARLY * error):
            return
        tried = self.limit
        if self._phase is Phase.UP:
            step = tried / self._base - 1
            if blocks < 4 and abs(ratio - 1 - step / 2) < error:
                return
            if ratio > 1 + _EQUAL:
                self._changed(Phase.UP)
                if ratio > 1 + _PAYS * step:
                    self._phase = Phase.GROW
                    self._base, self._base_rate = tried, self._rate
                    self._reason = f"growing again: {tried} requests bring {ratio - 1:+.0%}"
                    self._move(tried * _GROWTH, now)
                else:
                    self._settled(f"{tried} requests bring {ratio - 1:+.0%} over {self._base}")
                    self._settle(now)
                return
            # What was best once is not for ever: that more bring no more tells what is best now.
            self._best += 0.5 * (max(self._rate.mean, base.mean) - self._best)
            self._go_back(now, f"the link is full: {tried} requests bring {ratio - 1:+.0%} over {self._base}")
            return
        against_best = self._rate.mean / self._best
        # The first time few blocks are compared; a few more are tried soon after.
        equal = _NEARLY_EQUAL if self._starting else _EQUAL
        if ratio < 1 - equal - error or against_best < 1 - 2 * equal - error:
            self._refuse_to_shrink(now, ratio)
        elif blocks >= 4:
            if min(ratio, against_best) - error / 2 >= 1 - equal:
                self._best = self._rate.mean if self._starting else self._best
                self._changed(Phase.UP if self._starting else Phase.DOWN)
                self._starting = False
                self._down_step = max(0.5, self._down_step**1.6)
                self._settled(f"the link is full with {tried}: {self._base} requests bring no more")
                self._settle(now)
            elif blocks >= 8:
                self._go_back(now, f"{tried} requests may bring less than {self._base}")

    def _refuse_to_shrink(self, now: float, ratio: float) -> None:
        """Fewer requests brought less: nearly as many less as there were fewer, and the link was not even full."""
        tried = self.limit
        reason = f"{tried} requests would bring {ratio - 1:+.0%} of what {self._base} do"
        full = 1 - ratio < _NOT_FULL * (1 - tried / self._base) or self._base == self._most
        if self._starting and not full:
            self._starting = False
            self._phase = Phase.GROW
            self._reason = reason
            self._move(self._base * _GROWTH, now)
            return
        self._base = max(round(tried / ratio * _HEADROOM), round(math.sqrt(tried * self._base) * _HEADROOM))
        self._go_back(now, reason)
        if not full or self._starting:
            self._changed(Phase.UP)
        self._starting = False

    def _changed(self, again: Phase) -> None:
        """A probe found something better: look soon, and the same way, again."""
        self._patience = _SOON
        self._next_probe = again

    def _go_back(self, now: float, reason: str) -> None:
        self._down_step = 0.85
        self._patience = min(_MOST_PATIENCE, max(_PATIENCE, 2 * self._patience))
        self._move(self._base, now)
        self._settled(reason)

    def _not_asked_for(self, now: float) -> None:
        """The program does not ask for as many: a window that was being tried is given up."""
        if self._phase in {Phase.GROW, Phase.UP, Phase.DOWN} and self._base_rate is not None:
            self._move(self._base, now)
            self._settled(f"no more than {self._base} are asked for")
        self._rate = Rate()


def _mb(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"
