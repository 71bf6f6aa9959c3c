"""A pipeline reduced to rates, for the tuner to turn: steps with queues behind them, and noise.

    source ─▶ step (calls or files at a time) ─▶ queue ─▶ … ─▶ queue ─▶ consumer

A step passes on what its calls finish: so many at a time, each of which takes so long; no more than its server, the
link, the processors, the workers and the stage loop let through. What a new setting brings comes after the time of a
call, and more workers come when they have started. Nothing here knows how the tuner decides; it knows what meters would
show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from asyncdata.planner.autotune import Autotuner, Interval, KnobRange, Use, workers

STEP_S: Final = 0.05
TICK_S: Final = 0.25
WORKERS: Final = -1
"""Names the number of workers, as other numbers name steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        bounds: Of its knob; None: it has none.
        latency_s: Of a call.
        beside: What it does at a time whatever the knob says.
        most: Rows per second that its server or its link lets through.
        loop_s: Seconds of the stage loop per row.
        cpu_s: Seconds of worker processes per row.
        asleep_s: Seconds per row for which a worker waits without a processor.
        queue: Rows that wait behind it, by the knob's value.
        nbytes: Of what one more at a time holds.
        bursts: Whether what waits behind it is what the knob is about.
    """

    bounds: KnobRange | None = None
    latency_s: float = 0.001
    beside: int = 0
    most: float = math.inf
    loop_s: float = 0.0
    cpu_s: float = 0.0
    asleep_s: float = 0.0
    queue: Callable[[int], float] = float
    nbytes: int = 1000
    bursts: bool = False

    @property
    def worker_s(self) -> float:
        """Seconds of a worker per row."""
        return self.cpu_s + self.asleep_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Steps, sources first, and the consumer.

    Attributes:
        steps: From the beginning.
        later: From half of the time on; the same ones by default.
        consumer_s: Of the consumer's work on a row.
        pause: Of each so many seconds the consumer pauses a part.
        cores: Processors for worker processes.
        workers: The most of them; 0: their number is not what this is about.
        start_s: Until a worker has started.
        room_bytes: Memory that the knobs may take.
    """

    steps: Sequence[Step]
    later: Sequence[Step] = ()
    consumer_s: float = 0.0
    pause: tuple[float, float] = (1.0, 0.0)
    cores: int = 2
    workers: int = 0
    start_s: float = 0.6
    room_bytes: int = 1 << 30


@dataclass(slots=True)
class Outcome:
    """What the consumer got.

    Attributes:
        rows: In each time step.
        values: The knobs' values at the end, by step.
        most_bytes: The most that the knobs' calls held together.
    """

    rows: list[float] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    most_bytes: float = 0.0

    def rate(self, begin_s: float, end_s: float) -> float:
        """Rows per second between two times."""
        return sum(self.rows[round(begin_s / STEP_S) : round(end_s / STEP_S)]) / (end_s - begin_s)


class _Seen:
    """What meters show of one step since the last tick."""

    def __init__(self) -> None:
        self.done = self.awaited = self.held = self.full = 0.0


def run(workload: Workload, seconds: float, seed: int, fixed: Mapping[int, int] | None = None) -> Outcome:
    """Runs a workload with the tuner, or with fixed values by step (defaults for those not named)."""
    rng = Random(seed)
    knobs = {number: step.bounds for number, step in enumerate(workload.steps) if step.bounds is not None}
    if workload.workers:
        knobs[WORKERS] = workers(workload.workers)
    values = {number: bounds.first for number, bounds in knobs.items()} | dict(fixed or {})
    tuner = Autotuner()
    for number, bounds in knobs.items():
        tuner.add(str(number), bounds)
    count = len(workload.steps)
    speed = [0.0] * count
    queues = [0.0] * count
    seen = [_Seen() for _ in range(count)]
    total = [0.0] * count
    waited = 0.0
    there = float(values.get(WORKERS, 0))
    tasks = 0.0
    outcome = Outcome()
    ticks = round(TICK_S / STEP_S)
    for at in range(round(seconds / STEP_S)):
        now = at * STEP_S
        steps = workload.later if workload.later and now >= seconds / 2 else workload.steps
        wished = values.get(WORKERS, 0)
        there = min(wished, there + workload.workers * STEP_S / workload.start_s)
        could = _speeds(steps, values, workload.cores, there if workload.workers else math.inf)
        noise = [rng.lognormvariate(0, 0.06) for _ in steps]
        for number, step in enumerate(steps):
            speed[number] += (could[number] - speed[number]) * min(1.0, STEP_S / max(step.latency_s, STEP_S))
        period, paused = workload.pause
        pauses = now % period >= period * (1 - paused)
        wants = 0.0 if pauses else STEP_S / workload.consumer_s if workload.consumer_s else math.inf
        moved, waits = _flow(
            steps, values, [own * more * STEP_S for own, more in zip(speed, noise, strict=True)], queues, wants, seen
        )
        outcome.rows.append(moved)
        waited += waits
        held_bytes = sum(values[n] * steps[n].nbytes for n in knobs if n != WORKERS)
        outcome.most_bytes = max(outcome.most_bytes, held_bytes)
        if (at + 1) % ticks == 0:
            uses = {}
            loop_busy = sum(step.loop_s * found.done for step, found in zip(steps, seen, strict=True)) / TICK_S
            cpu_busy = sum(step.cpu_s * found.done for step, found in zip(steps, seen, strict=True)) / TICK_S
            for number in knobs:
                if number == WORKERS:
                    tasks += sum(found.done for step, found in zip(steps, seen, strict=True) if step.worker_s)
                    uses[str(number)] = _use_of_workers(steps, seen, tasks, values[WORKERS], ticks)
                    continue
                found = seen[number]
                total[number] += found.done
                uses[str(number)] = Use(
                    done=int(total[number]),
                    awaited=found.awaited / ticks,
                    held=(found.full if steps[number].bursts else found.held) / ticks,
                    busy=max(
                        loop_busy if steps[number].loop_s else 0.0,
                        cpu_busy / min(workload.cores, values.get(WORKERS, workload.cores))
                        if steps[number].cpu_s
                        else 0.0,
                    ),
                    bytes_each=steps[number].nbytes,
                )
            interval = Interval(
                seconds=TICK_S,
                waiting=waited / ticks,
                uses=uses,
                room_bytes=max(0, workload.room_bytes - int(held_bytes)),
            )
            if fixed is None:
                values.update({int(name): value for name, value in tuner.decide(interval).items()})
            seen = [_Seen() for _ in range(count)]
            waited = 0.0
    outcome.values = {str(number): value for number, value in values.items()}
    return outcome


def _use_of_workers(steps: Sequence[Step], seen: Sequence[_Seen], done: float, there: int, ticks: int) -> Use:
    """What the pool and the steps that it works for show."""
    users = [(step, found) for step, found in zip(steps, seen, strict=True) if step.worker_s]
    busy = sum(step.worker_s * found.done for step, found in users) / TICK_S / there
    return Use(
        done=int(done),
        awaited=max(found.awaited for _, found in users) / ticks,
        held=max(found.held for _, found in users) / ticks,
        busy=busy,
    )


def _speeds(steps: Sequence[Step], values: Mapping[int, int], cores: int, workers: float) -> list[float]:
    """Rows per second that each step could pass on, where all of them are asked for as much as possible."""
    each = [
        min(
            (step.beside + (0 if step.bursts else values.get(number, 0 if step.beside else 1))) / step.latency_s,
            step.most,
        )
        for number, step in enumerate(steps)
    ]
    # Processors are shared by those that compute, at the rate of the slowest.
    rate = min(each)
    found = list(each)
    for costs, there in (
        ([step.loop_s for step in steps], 1.0),
        ([step.cpu_s for step in steps], float(cores)),
        ([step.worker_s for step in steps], workers),
    ):
        used = sum(cost * rate for cost in costs)
        if used > there:
            found = [min(own, rate * there / used) if cost else own for own, cost in zip(found, costs, strict=True)]
    return found


def _flow(
    steps: Sequence[Step],
    values: Mapping[int, int],
    could: Sequence[float],
    queues: list[float],
    wants: float,
    seen: Sequence[_Seen],
) -> tuple[float, float]:
    """Moves rows for one time step; returns how many the consumer got, and the part of it for which it waited."""
    asked = [wants] * (len(steps) + 1)
    for number in reversed(range(len(steps))):
        room = max(1.0, steps[number].queue(values.get(number, 1)))
        asked[number] = min(could[number], max(0.0, room - queues[number] + asked[number + 1]))
    made = asked[0]
    for number, found in enumerate(seen):
        there = queues[number] + made
        given = min(asked[number + 1], there)
        room = max(1.0, steps[number].queue(values.get(number, 1)))
        wanted = asked[number + 1]
        found.done += made
        found.awaited += 0.0 if not wanted else 1.0 if math.isinf(wanted) else 1 - given / wanted
        found.held += float(made >= 0.98 * could[number])
        found.full += float(there - given >= 0.95 * room)
        queues[number] = there - given
        made = given
    return made, 0.0 if not wants else 1.0 if math.isinf(wants) else 1 - made / wants
