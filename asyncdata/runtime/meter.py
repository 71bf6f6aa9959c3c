"""`Meter`: what one step of the plan did; and from all meters of a plan, the statistics by step.

Two readings of the clock per block and step are all that a pull costs. What a step waited for follows from the pulls of
its inputs, and from stopwatches at the places that wait for something outside of the stage loop: reads, memory, calls.

    asked = working + input + memory + workers          window = asked + consumer

The loop is one thread. While a step leaves it to others, they may be making what comes next: that counts as waiting for
the input. A source has none, and then counts as one that nobody asks.

A step that works ahead has a task of its own. It is asked while that task runs and is not full. Any other step is asked
while it is pulled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from typing import Any, Final, cast

from asyncdata.memory.block import Block
from asyncdata.memory.columns import ObjectColumn
from asyncdata.observe.parts import Runs, StepStats
from asyncdata.observe.stopwatch import Stopwatch, clock

_BLOCKS_PER_SAMPLE: Final = 16
"""Adding up the lengths of a thousand records takes five times as long as everything else about a block."""


class Meter:
    """Counts for one place of the plan, in all epochs and inner datasets. Stage loop only, but for `step_stats`.

    Attributes:
        label: The step.
        kind: Its name without arguments.
        rows: Handed on.
        alive: Runs while there is a stage, once for each of them.
        pulls: Runs while a stage is pulled.
        task: Runs while the task of a stage that works ahead runs; None for other stages.
        others: Runs while a stage that could go on leaves the loop to others.
        full: Runs while that task waits because it is as far ahead as it may be.
        storage: Runs while a stage waits for a read.
        memory: Runs while a stage waits for memory.
        calls: Runs while a stage waits for its calls.
        calls_s: Seconds of calls that have ended, and of a ready-made parser on the loop.
        kept_s: See `StepStats`.
        startup_s: See `StepStats`.
        runs: Where the step works.
        parallel: The most calls at a time.
    """

    def __init__(self, label: str = "", kind: str = "") -> None:
        self.label = label
        self.kind = kind
        self.rows = 0
        self._blocks = 0
        self._sample = (0, 0)
        self.alive = Stopwatch()
        self.pulls = Stopwatch()
        self.task: Stopwatch | None = None
        self.others = Stopwatch()
        self.full = Stopwatch()
        self.storage = Stopwatch()
        self.memory = Stopwatch()
        self.calls = Stopwatch()
        self.calls_s = 0.0
        self.kept_s = 0.0
        self.startup_s = 0.0
        self.runs: Runs = "loop"
        self.parallel = 1

    def note(self, block: Block, began_s: float, ended_s: float) -> None:  # noqa: ARG002 -- for meters that keep them
        """One more block was handed on, by a pull between these times."""
        self.rows += len(block.origin)
        self._blocks += 1
        if self._blocks % _BLOCKS_PER_SAMPLE == 1:
            rows, nbytes = self._sample
            nbytes += sum(column.nbytes for column in block.columns if type(column) is not ObjectColumn)
            self._sample = rows + len(block.origin), nbytes

    def called(self, began_s: float, count: int) -> None:
        """A task with so many rows has ended; meters of a trace keep it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in arrays and slabs, from the mean of those in every sixteenth block."""
        rows, nbytes = self._sample
        return nbytes * self.rows // max(rows, 1)

    def works_ahead(self) -> Stopwatch:
        """The stopwatch of a task that works ahead."""
        if self.task is None:
            self.task = Stopwatch()
        return self.task

    def asked_s(self, now: float) -> float:
        """Seconds in which the step was to make elements."""
        if self.task is None:
            return self.pulls.seconds(now)
        return max(0.0, self.task.seconds(now) - self.full.seconds(now))


class Timed:
    """Awaits a call, and counts the seconds for which it keeps the loop.

    Args:
        call: What the function returned, or the next step of an async generator.
        meter: Where they are counted.

    Attributes:
        cr_await: The call, for those who ask where its task is.
    """

    __slots__ = ("_meter", "_steps", "cr_await")

    def __init__(self, call: Awaitable[Any], meter: Meter) -> None:
        self.cr_await = call
        self._steps = call.__await__()
        self._meter = meter

    def __await__(self) -> Generator[Any, Any, Any]:
        return cast("Generator[Any, Any, Any]", self)

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Goes on to the next await."""
        began = clock()
        try:
            return self._steps.send(value)
        finally:
            self._meter.kept_s += clock() - began

    def throw(self, *error: Any) -> Any:
        """Goes on with an error, to the next await."""
        began = clock()
        try:
            return self._steps.throw(*error)
        finally:
            self._meter.kept_s += clock() - began

    def close(self) -> None:
        """Ends it."""
        self._steps.close()


def step_stats(meters: Mapping[str, Meter], window_s: float) -> tuple[StepStats, ...]:
    """What every step of a plan did so far, the last one first; from any thread.

    Args:
        meters: By place; a step that is done by the stage of its input has the meter of that one.
        window_s: Seconds since the pipeline started.
    """
    now = clock()
    found: dict[Meter, list[Meter]] = {}
    meters = dict(meters)  # others may be entered meanwhile
    for place, meter in sorted(meters.items(), key=lambda item: [int(part) for part in item[0].split(".")[1:]]):
        found.setdefault(meter, [])
        above = meters.get(place.rpartition(".")[0])
        if above is not None and above is not meter and meter not in found[above]:
            found[above].append(meter)
    places = {meter: place for place, meter in enumerate(found)}
    return tuple(
        _step(meter, inputs, tuple(places[each] for each in inputs), now, max(window_s, 1e-9))
        for meter, inputs in found.items()
    )


def _step(meter: Meter, inputs: list[Meter], places: tuple[int, ...], now: float, window_s: float) -> StepStats:
    copies = max(meter.alive.seconds(now) / window_s, 1e-9)
    scale = 1 / max(copies, 1.0)
    # What is measured at different places overlaps a little where several things go on; the parts never exceed the sum.
    others = meter.others.seconds(now)
    asked = left = min(max(0.0, meter.asked_s(now) - (0.0 if inputs else others)) * scale, window_s)
    memory = min(meter.memory.seconds(now) * scale, left)
    left -= memory
    calls = min(meter.calls.seconds(now) * scale, left)
    left -= calls
    pulled = meter.storage.seconds(now) + sum(each.pulls.seconds(now) for each in inputs)
    waited = min((pulled + (others if inputs else 0.0)) * scale, left)
    return StepStats(
        name=meter.label,
        kind=meter.kind,
        elements=meter.rows,
        bytes=meter.nbytes,
        working_s=left - waited,
        input_s=waited,
        memory_s=memory,
        workers_s=calls,
        consumer_s=window_s - asked,
        awaited_s=meter.pulls.seconds(now),
        copies=copies,
        calls_s=meter.calls_s,
        kept_s=meter.kept_s,
        startup_s=meter.startup_s,
        runs=meter.runs,
        parallel=meter.parallel,
        ahead=meter.task is not None,
        inputs=places,
    )
