"""Finds the settings that AUTOTUNE leaves open, by trial, from what the meters of a running pipeline show. Pure.

A knob is the number of things that one step does at a time, or has ready: calls, tasks, elements. The tuner turns one
knob, waits until what had begun before has ended, measures, and keeps the new value or takes it back::

    the consumer waits, and waits for this step, which is held back by its knob ──▶ several times the value
        it is not held back any more, or more is done ──▶ keep, go on
        no more is done                               ──▶ take back, and rest
    for a while nobody has waited for a step whose knob is above the default ──▶ three quarters of the value
        the consumer waits for it now ──▶ take back, and rest

Rests become longer each time, and end when the step's rate changes by itself. A value is never below the default, so
the worst that a wrong decision costs is memory within a budget, and the time of a trial. Only the number of workers
begins with the most, and is lowered to what is in use. No value changes elements, their order, or states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_WAITING: Final = 0.02
"""A consumer that waits for less of its time is not held up."""
_HELD: Final = 0.03
"""A knob is worth a trial if its step is awaited, and held back by it, for this part of the time."""
_SHORT: Final = 0.5
"""A value below the default goes back to it if it is in the way for this part of one interval."""
_PAYS: Final = 1.05
_LOSES: Final = 0.97
_BACK: Final = 0.75
_LEAST_DONE: Final = 16
_MOST_S: Final = 5.0
"""Of a measurement; less has to do if so little goes on."""
_REST_S: Final = 4.0
_MOST_REST_S: Final = 300.0
_CALM_S: Final = 8.0
_CHANGED: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobRange:
    """Where a knob may stand.

    Attributes:
        first: The default.
        most: The most.
        least: The least; None: the default.
        factor: How many times the value a trial is.
        least_s: The shortest measurement.
        raised_below: It is raised only while a smaller part of what it works on is in use.
        lowered_below: It is lowered only while a smaller part is.
    """

    first: int
    most: int
    least: int | None = None
    factor: int = 4
    least_s: float = 0.5
    raised_below: float = 0.95
    lowered_below: float = math.inf

    @property
    def lowest(self) -> int:
        """The least value."""
        return self.first if self.least is None else self.least


CALLS: Final = KnobRange(first=16, most=256)
"""Calls of an async function. Services and descriptors bear so many; who has measured more gives a number."""
TIMES: Final = KnobRange(first=1, most=16, least_s=2.0)
"""How many times the usual number of elements wait in a `prefetch`; bursts are longer than other measurements."""


def tasks(workers: int) -> KnobRange:
    """Tasks of worker processes: at first two per worker, so that none waits for its next one."""
    return KnobRange(first=2 * workers, most=8 * workers, factor=2)


def thread_tasks(threads: int) -> KnobRange:
    """Tasks of threads, of which there are more than processors: at first one per thread."""
    return KnobRange(first=max(2, threads), most=max(8, 4 * threads), factor=2)


def workers(most: int) -> KnobRange:
    """Worker processes: at first as many as there may be. That they are in use is no reason against more of them."""
    return KnobRange(first=most, most=most, least=1, least_s=1.0, raised_below=math.inf, lowered_below=0.6)


def receivers(most: int) -> KnobRange:
    """Processes that receive: at first this one alone. One that is idle costs little, so few of them go again."""
    return KnobRange(first=1, most=most, factor=2, least_s=1.0, raised_below=math.inf, lowered_below=0.35)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a knob's step did.

    Attributes:
        done: Things that it has finished so far, of those that the knob counts.
        awaited: The part of the interval for which somebody waited for the step.
        held: The part for which its knob kept it from doing more.
        busy: The part in use of what it works on: its thread, or the workers.
        bytes_each: Memory that one more at a time takes.
    """

    done: int
    awaited: float
    held: float
    busy: float = 0.0
    bytes_each: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What happened since the last decision.

    Attributes:
        seconds: Its length.
        waiting: The part of it for which the consumer waited.
        uses: By knob.
        room_bytes: Memory that all knobs together may take beyond what they take now.
        is_ramping: Whether the number of requests in flight is still being found, which changes all rates.
    """

    seconds: float
    waiting: float
    uses: Mapping[str, Use]
    room_bytes: int
    is_ramping: bool = False


@dataclass(slots=True)
class _Measure:
    """What one knob's step did since the last turn of any knob, without what had begun before it.

    Attributes:
        turned: What it had done when the knob was turned.
        begin: The same when the measurement began; None: it has not begun.
        end: The same now.
        passed_s: Since the turn.
        seconds: Of the measurement.
    """

    turned: int
    begin: int | None = None
    end: int = 0
    passed_s: float = 0.0
    seconds: float = 0.0
    waiting: float = 0.0
    awaited: float = 0.0
    held: float = 0.0
    busy: float = 0.0

    def note(self, use: Use, interval: Interval, value: int) -> None:
        self.passed_s += interval.seconds
        self.end = use.done
        if self.begin is None:
            if use.done - self.turned >= value or self.passed_s >= _MOST_S:
                self.begin = use.done
            return
        self.seconds += interval.seconds
        self.waiting += interval.waiting * interval.seconds
        self.awaited += use.awaited * interval.seconds
        self.held += use.held * interval.seconds
        self.busy += use.busy * interval.seconds

    def is_enough(self, value: int, least_s: float) -> bool:
        if self.begin is None:
            return False
        much = self.end - self.begin >= max(_LEAST_DONE, value // 2) and self.seconds >= least_s
        return much or self.seconds >= _MOST_S

    @property
    def is_of_work(self) -> bool:
        """Whether anything was done; a pipeline that nobody asks for elements shows nothing."""
        return self.begin is not None and self.end > self.begin

    @property
    def rate(self) -> float:
        return (self.end - (self.begin or 0)) / max(self.seconds, 1e-9)

    def share(self, seconds: float) -> float:
        return seconds / max(self.seconds, 1e-9)


@dataclass(slots=True)
class _State:
    """One knob.

    Attributes:
        value: The present setting.
        why: The last finding about it.
        rest_s: Until it may be raised again.
        next_rest_s: How long it rests after the next trial that brings nothing.
        calm_s: For how long it has not been held back.
        patience_s: How long that must be before it is lowered.
        rest_rate: The rate at which it was found that a larger value brings nothing.
    """

    bounds: KnobRange
    value: int
    why: str = "the default"
    rest_s: float = 0.0
    next_rest_s: float = _REST_S
    calm_s: float = 0.0
    patience_s: float = _CALM_S
    rest_rate: float = 0.0
    measure: _Measure = field(default_factory=lambda: _Measure(0))


@dataclass(frozen=True, slots=True)
class _Trial:
    """A turn that is being judged."""

    name: str
    before: int
    rate: float
    waiting: float


class Autotuner:
    """See the module's text."""

    def __init__(self) -> None:
        self._knobs: dict[str, _State] = {}
        self._trial: _Trial | None = None

    def add(self, name: str, bounds: KnobRange, value: int | None = None) -> int:
        """One more knob; returns its value.

        Args:
            name: Of the knob.
            bounds: Where it may stand.
            value: What was found for it earlier.
        """
        start = bounds.first if value is None else min(max(value, bounds.lowest), max(bounds.most, bounds.first))
        why = "the default" if start == bounds.first else "found in an earlier iteration"
        self._knobs[name] = _State(bounds, start, why)
        return start

    def why(self, name: str) -> str:
        """The last finding about a knob."""
        return self._knobs[name].why

    @property
    def is_trying(self) -> bool:
        """Whether a turn is being judged."""
        return self._trial is not None

    def decide(self, interval: Interval) -> dict[str, int]:
        """The knobs to be turned now, and their new values."""
        knobs = {name: state for name, state in self._knobs.items() if name in interval.uses}
        for name, state in knobs.items():
            self._note(state, interval.uses[name], interval)
        if interval.is_ramping:
            self._measure_anew()
            return {}
        for name, state in knobs.items():
            if self._is_short(state, interval.uses[name], interval):
                return self._restore(name, state)
        if self._trial is not None:
            if self._trial.name not in knobs:
                self._trial = None
                return {}
            return self._judge(self._trial) if self._has_measured(self._trial.name) else {}
        measured = sorted(filter(self._has_measured, knobs), key=self._score, reverse=True)
        for find in (self._larger, self._smaller):
            for name in measured:
                value = find(name, interval)
                if value is not None:
                    return self._turn(name, value)
        for name in measured:
            end = knobs[name].measure.end
            knobs[name].measure = _Measure(end, begin=end, end=end)
        return {}

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _note(self, state: _State, use: Use, interval: Interval) -> None:
        state.measure.note(use, interval, state.value)
        state.rest_s = max(0.0, state.rest_s - interval.seconds)
        is_held = interval.waiting >= _WAITING and min(use.awaited, use.held) >= _WAITING
        state.calm_s = 0.0 if is_held else state.calm_s + interval.seconds

    def _has_measured(self, name: str) -> bool:
        state = self._knobs[name]
        return state.measure.is_enough(state.value, state.bounds.least_s)

    def _measure_anew(self) -> None:
        for state in self._knobs.values():
            state.measure = _Measure(state.measure.end)

    def _score(self, name: str) -> float:
        measure = self._knobs[name].measure
        return measure.share(min(measure.awaited, measure.held))

    # --- turning -----------------------------------------------------------------------------------------------------

    def _larger(self, name: str, interval: Interval) -> int | None:
        """The value to be tried, if there is a reason and the room for it."""
        state = self._knobs[name]
        measure = state.measure
        if measure.share(measure.waiting) < _WAITING or self._score(name) < _HELD:
            return None
        if state.rest_s and abs(measure.rate / max(state.rest_rate, 1e-9) - 1) > _CHANGED:
            state.rest_s, state.next_rest_s = 0.0, _REST_S
        if state.rest_s or measure.share(measure.busy) >= state.bounds.raised_below:
            return None
        room = interval.room_bytes / max(interval.uses[name].bytes_each, 1.0)
        value = min(max(1, state.value) * state.bounds.factor, state.bounds.most, state.value + int(room))
        return value if value > state.value else None

    def _smaller(self, name: str, _interval: Interval) -> int | None:
        """The value to be tried, if the knob is above its least value for nothing."""
        state = self._knobs[name]
        measure, least = state.measure, state.bounds.lowest
        if state.calm_s < state.patience_s or state.value <= least or not measure.is_of_work:
            return None
        if measure.share(measure.busy) >= state.bounds.lowered_below:
            return None
        return max(least, int(state.value * _BACK))

    def _is_short(self, state: _State, use: Use, interval: Interval) -> bool:
        """Whether a value below the default is plainly too small, so that there is nothing to measure."""
        return state.value < state.bounds.first and min(interval.waiting, use.awaited, use.held) >= _SHORT

    def _restore(self, name: str, state: _State) -> dict[str, int]:
        self._trial = None
        state.why = f"{state.value} were too few"
        self._be_patient(state)
        return self._set(name, state.bounds.first)

    def _be_patient(self, state: _State) -> None:
        state.patience_s, state.calm_s = min(4 * state.patience_s, _MOST_REST_S), 0.0

    def _turn(self, name: str, value: int) -> dict[str, int]:
        state = self._knobs[name]
        measure = state.measure
        self._trial = _Trial(name, state.value, measure.rate, measure.share(measure.waiting))
        return self._set(name, value)

    def _set(self, name: str, value: int) -> dict[str, int]:
        state = self._knobs[name]
        self._measure_anew()
        if value == state.value:
            return {}
        state.value = value
        return {name: value}

    def _judge(self, trial: _Trial) -> dict[str, int]:
        """Keeps what a turn has brought, or takes it back."""
        self._trial = None
        state = self._knobs[trial.name]
        measure = state.measure
        gain = measure.rate / max(trial.rate, 1e-9)
        if state.value < trial.before:
            return self._judge_back(trial, state, gain)
        if self._score(trial.name) < _HELD or measure.share(measure.waiting) < _WAITING:
            state.why = f"{state.value} do not hold the step back"
            return self._set(trial.name, state.value)
        if gain >= _PAYS:
            state.why = f"{gain:.1f} times the rate with {state.value} instead of {trial.before}"
            return self._set(trial.name, state.value)
        state.rest_s, state.rest_rate = state.next_rest_s, measure.rate
        state.next_rest_s = min(2 * state.next_rest_s, _MOST_REST_S)
        state.why = f"{state.value} brought no more than {trial.before}"
        return self._set(trial.name, trial.before)

    def _judge_back(self, trial: _Trial, state: _State, gain: float) -> dict[str, int]:
        measure = state.measure
        waits = measure.share(measure.waiting)
        is_held = self._score(trial.name) >= _WAITING and waits >= _WAITING
        if is_held and (gain < _LOSES or waits >= trial.waiting + _WAITING):
            self._be_patient(state)
            state.why = f"{state.value} would be too few"
            return self._set(trial.name, trial.before)
        state.why = f"{state.value} are enough"
        return self._set(trial.name, state.value)
