"""`Knob`: a number that a stage reads whenever it decides; `Knobs`: all those of a pipeline, and who turns them.

    stage ── reads value, counts what is done ── Knob ◀── turns ── Knobs ── every quarter of a second ──▶ Autotuner
                                                                     └── reads meters, the consumer's waits, memory

What is decided, and why, is in `planner.autotune`; where steps run, how many workers and how many receivers there
are, in the modules beside this one. A pipeline without knobs has no timer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final, Literal, NamedTuple, TypeAlias

from asyncdata.observe.cpu_time import CpuTime, of_thread
from asyncdata.observe.parts import KnobStats
from asyncdata.observe.stopwatch import Stopwatch, clock
from asyncdata.planner.autotune import Autotuner, Interval, KnobRange, Use, receivers, workers
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.meter import Meter
from asyncdata.runtime.stage import Spawn
from asyncdata.runtime.tuning.placements import Placements
from asyncdata.runtime.tuning.receiver_count import RECEIVERS, ReceiverCount
from asyncdata.runtime.tuning.worker_count import WORKERS, WorkerCount
from asyncdata.workers.stats import PoolLoad

EVERY_S: Final = 0.25
"""Between two looks at the meters."""

_MEMORY_PART: Final = 2
"""Of the limit: what all knobs may take beyond their defaults."""

_RAMPS: Final = 1.25
"""While the number of requests in flight grows to so many times of what it was, rates change by themselves."""

Counted: TypeAlias = Literal["calls", "times"]
"""What a knob counts: calls at a time, or how many times the usual elements."""


class Knob:
    """A number that may change at any time. Stage loop only.

    Args:
        value: At the beginning.

    Attributes:
        value: What counts now. No stage may rely on two readings being equal.
        done: Things finished so far, counted by the stages.
        bytes_each: Memory that one more at a time takes, told by the stages.
    """

    def __init__(self, value: int) -> None:
        self.value = value
        self.done = 0
        self.bytes_each = 0.0


def as_knob(value: int | Knob) -> Knob:
    """A knob that nobody turns, for a number."""
    return Knob(value) if isinstance(value, int) else value


class _Place(NamedTuple):
    """One knob, and what shows whether it is right.

    Attributes:
        knob: For all stages at this place of the plan.
        counted: What it counts.
        bounds: Where it may stand.
        meter: Of the step.
        held: Runs while the knob keeps a stage from doing more.
    """

    knob: Knob
    counted: Counted
    bounds: KnobRange
    meter: Meter
    held: Stopwatch


class _Reading(NamedTuple):
    """What stopwatches showed."""

    awaited: float
    held: float
    calls: float


class Knobs:
    """The knobs of one pipeline. Stage loop only, but for `stats`.

    Args:
        spawn: Starts the task that turns them.
        budget: The pipeline's memory.
        requests: How many requests may be in flight now.
        load: What worker processes have done.
        meters: Of all steps, by place in the plan.
        found: What earlier iterations found, by knob; what this one finds is entered.

    Attributes:
        consumer_waits: Runs while the consumer waits for an element.
    """

    def __init__(
        self,
        spawn: Spawn,
        budget: Budget,
        requests: Callable[[], int],
        load: Callable[[], PoolLoad],
        meters: Mapping[str, Meter],
        found: MutableMapping[str, int],
    ) -> None:
        self.consumer_waits = Stopwatch()
        self._spawn = spawn
        self._budget = budget
        self._requests = requests
        self._load = load
        self._meters = meters
        self._found = found
        self._tuner = Autotuner()
        self._places: dict[str, _Place] = {}
        self._workers: WorkerCount | None = None
        self._receivers: ReceiverCount | None = None
        self._placements = Placements(meters)
        self._placed: dict[str, Knob] = {}
        self._task: asyncio.Task[None] | None = None

    def open(self, place: str, counted: Counted, bounds: KnobRange, meter: Meter, held: Stopwatch) -> Knob:
        """The knob at a place of the plan, the same one for every epoch and every inner dataset.

        Args:
            place: In the plan.
            counted: What it counts.
            bounds: Where it may stand.
            meter: Of the step.
            held: Runs while the knob keeps a stage there from doing more.
        """
        known = self._places.get(place)
        if known is not None:
            return known.knob
        knob = Knob(self._tuner.add(place, bounds, self._found.get(place)))
        self._places[place] = _Place(knob, counted, bounds, meter, held)
        self._begin()
        return knob

    def place(self, place: str, meter: Meter, default: int) -> Knob:
        """The knob that says where the step at a place of the plan is to run: `LOOP` or `WORKERS`.

        Args:
            place: In the plan.
            meter: Of the step.
            default: Where it begins if no earlier iteration found another place.
        """
        known = self._placed.get(place)
        if known is None:
            known = Knob(self._placements.add(place, meter, default, self._found.get(place)))
            self._placed[place] = known
            self._begin()
        return known

    @property
    def places_some(self) -> bool:
        """Whether it is to be found where some step runs."""
        return bool(self._placed)

    def count_workers(self, runtime: Runtime) -> None:
        """Finds how many of the Runtime's worker processes the pipeline needs."""
        if self._workers is None:
            value = self._tuner.add(WORKERS, workers(runtime.num_workers), self._found.get(WORKERS))
            self._workers = WorkerCount(runtime, self._meters, value)
            self._begin()

    def count_receivers(self, runtime: Runtime) -> None:
        """Finds how many event loops the reads of the pipeline need."""
        if self._receivers is None and runtime.receivers.most > 1:
            value = self._tuner.add(RECEIVERS, receivers(runtime.receivers.most), self._found.get(RECEIVERS))
            self._receivers = ReceiverCount(runtime, value)
            self._begin()

    def close(self) -> None:
        """The pipeline has ended."""
        for count in (self._workers, self._receivers):
            if count is not None:
                count.close()

    def _begin(self) -> None:
        if self._task is None:
            self._task = self._spawn(self._run())

    def consume(self, *, waits: bool) -> None:
        """Says whether the consumer waits for an element."""
        if waits and not self.consumer_waits.open:
            self.consumer_waits.begin()
        elif not waits and self.consumer_waits.open:
            self.consumer_waits.end()

    def stats(self) -> tuple[KnobStats, ...]:
        """Where they stand, and why; from any thread."""
        counted = tuple(
            KnobStats(
                step=place.meter.label,
                counts=place.counted,
                value=place.knob.value,
                default=place.bounds.first,
                because=self._tuner.why(name),
            )
            for name, place in list(self._places.items())
        )
        counts = {WORKERS: self._workers, RECEIVERS: self._receivers}
        found = tuple(count.stats(self._tuner.why(name)) for name, count in counts.items() if count is not None)
        return counted + found + self._placements.stats()

    # --- turning -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        waited, cpu, requests, began = self.consumer_waits.seconds(), _loop_time(), self._requests(), clock()
        readings: dict[str, _Reading] = {}
        load = self._load()
        while True:
            # Waits for nothing: a rate is measured over a length of time. The pipeline's end cancels this task.
            await asyncio.sleep(EVERY_S)
            now = clock()
            seconds = max(now - began, 1e-9)
            used = _loop_time().since(cpu)
            waits = self.consumer_waits.seconds(now)
            waiting = min(1.0, (waits - waited) / seconds)
            limit = self._requests()
            is_ramping = not requests / _RAMPS <= limit <= requests * _RAMPS
            rests = is_ramping or self._tuner.is_trying
            load_before, load = load, self._load()
            crew = load.since(load_before)
            moved = self._placements.move(seconds, waiting * seconds, used, crew.ready_s, rests=rests)
            for name, value in moved.items():
                self._placed[name].value = self._found[name] = value
            before, readings = readings, {name: _read(place, now) for name, place in self._places.items()}
            busy = used.used_s / seconds
            uses = {name: self._use(name, before[name], readings[name], seconds, busy, crew) for name in before}
            if self._workers is not None:
                uses[WORKERS] = self._workers.use(load.tasks, crew, seconds, now)
            if self._receivers is not None:
                uses[RECEIVERS] = self._receivers.use(waiting)
            interval = Interval(
                seconds=seconds,
                waiting=waiting,
                uses=uses,
                room_bytes=self._room_bytes(),
                is_ramping=is_ramping or self._placements.is_trying,
            )
            for name, value in self._tuner.decide(interval).items():
                self._turn(name, value)
            waited, cpu, began = waits, _loop_time(), now
            requests = limit if is_ramping else requests

    def _use(
        self, name: str, before: _Reading, after: _Reading, seconds: float, loop_busy: float, crew: PoolLoad
    ) -> Use:
        place = self._places[name]
        copies = max(1, place.meter.alive.open)
        in_workers = (after.calls - before.calls) / max(crew.ready_s, 1e-9)
        runs = place.meter.runs
        return Use(
            done=place.knob.done,
            awaited=min(1.0, (after.awaited - before.awaited) / seconds / copies),
            held=min(1.0, (after.held - before.held) / seconds / copies),
            busy=loop_busy if runs == "coroutine" else in_workers if runs == "process" else 0.0,
            bytes_each=place.knob.bytes_each,
        )

    def _room_bytes(self) -> int:
        """Read-ahead takes what is free, and gives it back; so what knobs may take does not depend on it."""
        places = self._places.values()
        taken = sum((place.knob.value - place.bounds.first) * place.knob.bytes_each for place in places)
        return max(0, self._budget.limit // _MEMORY_PART - int(taken))

    def _turn(self, name: str, value: int) -> None:
        self._found[name] = value
        count = {WORKERS: self._workers, RECEIVERS: self._receivers}.get(name)
        if count is not None:
            count.ask(value)
            return
        place = self._places[name]
        place.knob.value = value
        if place.counted == "calls":
            place.meter.parallel = value


def _loop_time() -> CpuTime:
    """The processor time of the thread that calls this."""
    return CpuTime(time.thread_time(), of_thread(None, threading.get_native_id()).delayed_s)


def _read(place: _Place, now: float) -> _Reading:
    return _Reading(place.meter.pulls.seconds(now), place.held.seconds(now), place.meter.calls_s)
