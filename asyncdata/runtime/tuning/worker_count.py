"""`WorkerCount`: how many worker processes one pipeline asks its Runtime for, and what shows whether these are enough.

    Knobs ── every quarter of a second ──▶ WorkerCount ── a `Use` ──▶ planner.autotune.Autotuner
                                               └── reads the pool, and the pulls of steps that work there

A Runtime has as many workers as all its pipelines ask for together, so that each of them sees the pool's shortage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncdata.observe.parts import KnobStats
from asyncdata.planner.autotune import Use
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.meter import Meter
from asyncdata.workers.stats import PoolLoad

WORKERS: Final = "workers"
"""What the setting is called beside those at places of the plan; also what it counts."""


class WorkerCount:
    """See the module's text. Stage loop only, but for `stats`.

    Args:
        runtime: Has the workers.
        meters: Of all steps, by place in the plan.
        value: Asked for at first.
    """

    def __init__(self, runtime: Runtime, meters: Mapping[str, Meter], value: int) -> None:
        self._runtime = runtime
        self._meters = meters
        self._awaited_s: dict[Meter, float] = {}
        self.ask(value)

    def ask(self, value: int) -> None:
        """Asks for another number from now on."""
        self.value = value
        self._runtime.ask_for_workers(self, value)

    def close(self) -> None:
        """Asks for no more."""
        self._runtime.ask_for_workers(self, 0)

    def stats(self, why: str) -> KnobStats:
        """How many, and why; from any thread."""
        default = self._runtime.num_workers
        return KnobStats(step="worker processes", counts=WORKERS, value=self.value, default=default, because=why)

    def use(self, tasks: int, load: PoolLoad, seconds: float, now: float) -> Use:
        """What the workers did.

        Args:
            tasks: Finished so far.
            load: Since the last call.
            seconds: Since the last call.
            now: The time.
        """
        before, self._awaited_s = self._awaited_s, self._read(now)
        awaited_s = [
            (until - before.get(meter, until)) / max(1, meter.alive.open) for meter, until in self._awaited_s.items()
        ]
        return Use(
            done=tasks,
            awaited=min(1.0, max(awaited_s, default=0.0) / seconds),
            held=min(1.0, load.short_s / seconds),
            busy=load.busy_s / max(load.ready_s, 1e-9),
        )

    def _read(self, now: float) -> dict[Meter, float]:
        """How long somebody has waited for each step that works there."""
        return {meter: meter.pulls.seconds(now) for meter in self._meters.values() if meter.runs == "process"}
