"""Finds the number of requests in flight by trial, from finished reads. No clock, no socket.

If more requests bring no more bytes, the link is full, and each request only takes longer. The controller moves the
window, compares the rates at both places, and keeps the better one; of two equal ones it keeps the smaller::

    START ──a place more for every read, as far as is proven to be of use──┐
                                                                           ▼
    GROW ──half as many more, while it pays──────────▶ HOLD ◀──────────────────────────┐
                                                        │  after a while, in turn      │ compare, keep or go back
                                                        ├──▶ UP    a few more ─────────┤
                                                        ├──▶ DOWN  a few less ─────────┘
    refusals above what is usual ──▶ GRANTED: what the server grants is followed, see refusals.py

The start does not wait for rates. The durations of reads show how many of them were useful (see ``Durations``): the
window grows to 1.6 times that number, and to 2.4 times if reads took no longer than with fewer in flight. Reads that
take clearly longer show that the link is full. Then the rate is measured, and the window that it needs by Little's law
is tried: the rate times the time that a read took before. If this is hardly more than the first guess, the guess itself
may have been too large: it is halved as long as the rate stays the same. Like all moves downwards, each one is kept
only in that case.

A move is one slot per finished read, never a burst. Requests from before the end of a move are ignored; then whole
windows of reads are measured, because reads that began together end together. Reads count only while the window held
them back: a program that requests less, or pauses, moves nothing. A window that is being tried is given up only if that
continues, because slots are free at the end of every epoch. If the same window has another rate than before, the link
has changed and is probed at once.
"""

from __future__ import annotations

import enum
import math
from typing import Final

from asyncdata.storage.counters import WindowStats
from asyncdata.storage.policy.refusals import Refusal, Refusals
from asyncdata.storage.policy.throughput import Durations, Fullness, Rate, Sample

FIRST: Final = 24
LEAST: Final = 2
MOST: Final = 256

_HALVED: Final = 1.5
"""Windows up to so many times the first are halved: fewer were never tried."""
_PAUSE: Final = 0.25
_LEAST_BLOCK: Final = 24
_GROWTH: Final = 1.5
_PAYS: Final = 0.35
"""Growing goes on while a move brings at least this part of what it would on an empty link."""
_EQUAL: Final = 0.02
_NEARLY_EQUAL: Final = 0.05
_CHANGED: Final = 0.15
"""A rate that differs by more, in the same window, is that of another link."""
_CLEARLY: Final = 3.0
_HEADROOM: Final = 1.1
_NEARLY: Final = 0.8
_WARM: Final = 4
_NOT_FULL: Final = 0.6
_HARDLY_LOST: Final = 0.45
"""Of what as many less would bring less on an empty link: the first comparison is rough, another one comes soon."""
_PATIENCE: Final = 12
_SOON: Final = 4
_MOST_PATIENCE: Final = 64
_SMOOTHING: Final = 0.1
_NOT_ASKED: Final = 4
"""So many blocks, one after the other, during which places were free say that no more is asked for; fewer may be the
end of an epoch, or a wait for one late read."""


class WindowPhase(enum.Enum):
    """What the controller is trying."""

    START = "start"
    GROW = "grow"
    HOLD = "hold"
    UP = "up"
    DOWN = "down"
    GRANTED = "granted"


class RequestWindow:
    """See the module's text.

    Args:
        first: Where it begins.
        least: It never goes below.
        most: Nor above.
    """

    def __init__(self, *, first: int = FIRST, least: int = LEAST, most: int = MOST) -> None:
        self.limit = min(max(first, least), most)
        self._first, self._least, self._most = self.limit, least, most
        self._reason = "the first guess"
        self._phase = WindowPhase.START
        self._durations = Durations(self.limit)
        self._starting = self._halving = False
        self._base = self.limit
        self._base_rate: Rate | None = None
        self._target = self.limit
        self._rate = Rate()
        self._unsettled = 0
        self._block_at = -math.inf
        self._last_at = math.inf
        self._block_bytes = self._block_reads = self._block_limited = 0
        self._not_full = 0
        self._patience = _PATIENCE
        self._down_step = 0.85
        self._next_probe = WindowPhase.DOWN
        self._refusals = Refusals(most)
        # For telling.
        self._first_byte_s = 0.0
        self._stream = 0.0
        self._seen = 0.0
        self._best = 0.0
        self._usual = 0.0
        self._held = 0

    def __repr__(self) -> str:
        return f"<RequestWindow {self.limit}: {self._reason}>"

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

    # --- observations ------------------------------------------------------------------------------------------------

    def done(self, sample: Sample) -> None:
        """A read ended well; ``limit`` is to be looked at afterwards."""
        self._observe(sample)
        self._refusals.ended_well(sample.began, sample.now, limited=sample.limited)
        if self._look_at_refusals(sample.now):
            return
        if self._phase is WindowPhase.START:
            self._start(sample)
            return
        if self.limit != self._target:
            self.limit += 1
            self._refusals.added()
            if self.limit == self._target:
                self._settle(sample.now)
            return
        if sample.began - self._last_at > _PAUSE * (sample.now - sample.began):
            self._begin_block(sample.began)
        self._last_at = sample.now
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
        self._refusals.refused(began, Refusal.THROTTLED if throttled else Refusal.FAILED)
        self._look_at_refusals(now)

    def _look_at_refusals(self, now: float) -> bool:
        """Whether the window was moved because of refusals, or because there are none."""
        refusals = self._refusals
        followed = refusals.following
        target = refusals.look(self.limit, now)
        if target is None:
            return False
        if refusals.following:
            self._phase = WindowPhase.GRANTED
        elif followed:
            self._phase = WindowPhase.GROW if refusals.borne else WindowPhase.HOLD
            self._patience, self._next_probe = _SOON, WindowPhase.UP
        self._base_rate = None
        self._reason = refusals.reason
        self._move(target, now, least=1)
        return True

    def _start(self, sample: Sample) -> None:
        """A place more for every read, as long as reads take no longer than at first; then it is measured."""
        filling = self._durations.add(sample, self.limit)
        if sample.limited and self.limit < min(self._durations.proven, self._most):
            self.limit += 1
            self._durations.moved(sample.now, self.limit)
            self._refusals.added()
            self._reason = f"growing: so far reads take no longer with {self.limit} requests"
        self._target = self.limit
        if filling is Fullness.FULL or (filling is Fullness.EMPTY and self.limit == self._most):
            self._phase = WindowPhase.GROW
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
        self._unsettled = surplus + self.limit if surplus or self._phase is not WindowPhase.GROW else 0
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
            # Until as many are asked for again, and a whole window of those is in, nothing is measured.
            self._unsettled = max(self._unsettled, self.limit)
            self._not_full += 1
            if self._not_full == _NOT_ASKED:
                self._not_asked_for(now)
            return
        self._not_full = 0
        self._rate.add(size, seconds, reads)
        self._decide(now)

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        blocks = len(self._rate.blocks)
        if self._phase is WindowPhase.GROW:
            self._decide_growth(now, blocks)
        elif self._phase in {WindowPhase.UP, WindowPhase.DOWN}:
            self._decide_probe(now, blocks)
        elif self._phase is WindowPhase.HOLD:
            self._notice_change(blocks)
            if len(self._rate.blocks) >= self._patience:
                self._probe(now)
        elif self._phase is WindowPhase.GRANTED:
            self._seen = self._rate.mean

    def _notice_change(self, blocks: int) -> None:
        """The same window brings more, or less, than it used to: the link is another one, and soon looked at again."""
        if blocks < 2:
            return
        lately = sum(self._rate.blocks[-2:]) / 2
        if not self._usual:
            self._usual = self._rate.mean
        elif abs(lately / self._usual - 1) > max(_CHANGED, _CLEARLY * 0.4 / math.sqrt(2 * self._block_size())):
            self._changed(WindowPhase.UP if lately > self._usual else WindowPhase.DOWN)
            self._usual = self._best = 0.0
            self._rate = Rate()
        else:
            self._usual += _SMOOTHING * (lately - self._usual)

    def _decide_growth(self, now: float, blocks: int) -> None:
        base = self._base_rate
        shortest_s = self._durations.shortest_s
        if shortest_s < math.inf:
            if blocks < _WARM:
                return
            # By Little's law, as many as the rate needs while a read takes as long as with few in flight.
            self._durations = Durations(self.limit)
            needed = self._rate.reads_per_s * shortest_s * _HEADROOM
            # Where the window cannot become smaller, there would be nothing to compare.
            if needed < _NEARLY * self.limit and max(round(needed), self._least) < self.limit:
                self._seen = self._best = self._rate.mean
                self._base, self._base_rate = self.limit, self._rate
                self._phase = WindowPhase.DOWN
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
                if gain >= enough and blocks < 6:
                    return
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
        self._patience, self._next_probe = _SOON, WindowPhase.UP
        self._settled(f"the link is full: {tried} requests bring {gain - 1:+.0%} over {self._base}")

    def _settled(self, reason: str) -> None:
        self._phase = WindowPhase.HOLD
        self._reason = reason
        self._usual = 0.0 if self._base != self._held else self._usual
        self._held = self._base
        self._base, self._base_rate = self._target, None

    def _probe(self, now: float) -> None:
        self._base, self._base_rate = self.limit, self._rate
        self._seen = self._rate.mean
        # The best of another link is none.
        former = self._best if self._rate.mean > (1 - _CHANGED) * self._best else 0.0
        self._best = max(self._rate.mean, former)
        up = max(self.limit + 1, round(self.limit * 1.25))
        down = min(self.limit - 1, round(self.limit * self._down_step))
        possible = {WindowPhase.UP: self.limit < up <= self._most, WindowPhase.DOWN: self._least <= down}
        phase = self._next_probe
        if not possible[phase]:
            phase = WindowPhase.DOWN if phase is WindowPhase.UP else WindowPhase.UP
        self._next_probe = WindowPhase.DOWN if phase is WindowPhase.UP else WindowPhase.UP
        if not possible[phase]:
            self._rate = Rate()
            return
        self._phase = phase
        self._move(up if phase is WindowPhase.UP else down, now)

    def _decide_probe(self, now: float, blocks: int) -> None:
        base = self._base_rate
        if base is None:
            return
        ratio = self._rate.mean / base.mean
        error = math.hypot(self._rate.error, base.error)
        if blocks < 2 and (self._phase is WindowPhase.UP or ratio > 1 - _CLEARLY * error):
            return
        if self._phase is WindowPhase.UP:
            self._decide_up(now, base, ratio, blocks, error)
        else:
            self._decide_down(now, ratio, blocks, error)

    def _decide_up(self, now: float, base: Rate, ratio: float, blocks: int, error: float) -> None:
        tried = self.limit
        step = tried / self._base - 1
        if (blocks < 4 and abs(ratio - 1 - step / 2) < error) or (blocks < 6 and abs(ratio - 1 - _EQUAL) < error):
            return
        # More than the window before, and not only because that was slow just then.
        if ratio <= 1 + _EQUAL or self._rate.mean < (1 - _EQUAL) * self._best:
            self._age_best(base)
            self._go_back(now, f"the link is full: {tried} requests bring {ratio - 1:+.0%} over {self._base}")
            return
        self._changed(WindowPhase.UP)
        if ratio > 1 + _PAYS * step:
            self._phase = WindowPhase.GROW
            self._base, self._base_rate = tried, self._rate
            self._reason = f"growing again: {tried} requests bring {ratio - 1:+.0%}"
            self._move(tried * _GROWTH, now)
        else:
            self._settled(f"{tried} requests bring {ratio - 1:+.0%} over {self._base}")
            self._settle(now)

    def _decide_down(self, now: float, ratio: float, blocks: int, error: float) -> None:
        tried = self.limit
        # What brings more than the window before is not held against what was best once.
        against_best = ratio if ratio > 1 + _EQUAL else self._rate.mean / self._best
        # The first time few blocks are compared; a few more are tried soon after.
        equal = _NEARLY_EQUAL if self._starting else _EQUAL
        if ratio < 1 - equal - error or against_best < 1 - 2 * equal - error:
            self._refuse_to_shrink(now, ratio)
        elif blocks >= 4 and min(ratio, against_best) - error / 2 >= 1 - equal:
            if self._starting:
                self._best = self._rate.mean
                if self._halve(now):
                    return
            self._changed(WindowPhase.UP if self._starting else WindowPhase.DOWN)
            self._starting = self._halving = False
            self._down_step = max(0.5, self._down_step**1.6)
            self._settled(f"the link is full with {tried}: {self._base} requests bring no more")
            self._settle(now)
        elif blocks >= 8 and self._starting:
            self._refuse_to_shrink(now, ratio)
        elif blocks >= 8:
            self._age_best(self._base_rate)
            self._go_back(now, f"{tried} requests may bring less than {self._base}")

    def _age_best(self, base: Rate | None) -> None:
        """What was best once may change: the current comparison counts as much."""
        if base is not None:
            self._best += 0.5 * (max(self._rate.mean, base.mean) - self._best)

    def _halve(self, now: float) -> bool:
        """The first guess may have been far too many: half as many are tried, as long as they bring as much."""
        if self.limit > _HALVED * self._first or self.limit // 2 < self._least:
            return False
        self._halving = True
        self._base, self._base_rate = self.limit, self._rate
        self._reason = f"the link is full with {self.limit}: trying half as many"
        self._move(self.limit // 2, now)
        return True

    def _refuse_to_shrink(self, now: float, ratio: float) -> None:
        """Fewer requests brought less: nearly as many less as there were fewer, and the link was not even full."""
        tried = self.limit
        reason = f"{tried} requests would bring {ratio - 1:+.0%} of what {self._base} do"
        lost = (1 - ratio) / (1 - tried / self._base)
        full = lost < _NOT_FULL or self._base == self._most
        if self._starting and not self._halving and not full:
            self._starting = False
            self._phase = WindowPhase.GROW
            self._reason = reason
            self._move(self._base * _GROWTH, now)
            return
        self._age_best(self._base_rate)
        between = tried / ratio * _HEADROOM
        if not self._starting or lost > _HARDLY_LOST / 2:
            between = max(between, math.sqrt(tried * self._base) * _HEADROOM)
        between = round(between)
        self._base = min(between, self._base) if full else between
        self._go_back(now, reason)
        if self._starting:
            self._best = 0.0
        if self._starting and lost < _HARDLY_LOST:
            self._changed(WindowPhase.DOWN)
            self._down_step = 0.6
        elif not full or (self._starting and not self._halving):
            self._changed(WindowPhase.UP)
        self._starting = self._halving = False

    def _changed(self, again: WindowPhase) -> None:
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
        self._not_full = 0
        if self._phase in {WindowPhase.GROW, WindowPhase.UP, WindowPhase.DOWN} and self._base_rate is not None:
            self._move(self._base, now)
            self._settled(f"no more than {self._base} are asked for")
        self._rate = Rate()


def _mb(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"
