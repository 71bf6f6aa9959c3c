"""`ReceiverCount`: how many receivers one pipeline asks its Runtime for, and what shows whether these are enough.

    Knobs ── every quarter of a second ──▶ ReceiverCount ── a `Use` ──▶ planner.autotune.Autotuner
                                               └── reads the clocks of the receivers, and what processors did

All pipelines of a Runtime share its receivers: there are as many as the one asks for that asks for most.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from asyncdata.machine import usable_cpus
from asyncdata.observe.parts import KnobStats
from asyncdata.planner.autotune import Use
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.storage.receivers import Receivers

RECEIVERS: Final = "receivers"
"""What the setting is called beside those at places of the plan; also what it counts."""

_BUSY: Final = 0.7
_LOADS: Final = 5
"""That are kept: a second, which is long enough for clocks that tick a hundred times in it."""


class Load(NamedTuple):
    """What receivers and this machine did up to a moment, in seconds of processors.

    Attributes:
        at: The moment.
        each_s: Of each receiver, by its number.
        own_s: Of this process and its receivers.
        idle_s: Of which nobody made use.
    """

    at: float
    each_s: Mapping[int, float]
    own_s: float
    idle_s: float

    @classmethod
    def now(cls, receivers: Receivers) -> Load:
        """What they did up to now."""
        own_s = time.process_time() + receivers.processes_s()
        return cls(time.monotonic(), receivers.cpu_each_s(), own_s, _machine_idle_s())

    def since(self, before: Load) -> tuple[list[float], float]:
        """The part of the time for which each receiver was busy, and processors that these could have had."""
        elapsed_s = max(self.at - before.at, 1e-9)
        busy = [(after_s - before.each_s[number]) / elapsed_s for number, after_s in self.each_s.items()]
        own = usable_cpus() - (self.own_s - before.own_s) / elapsed_s
        return busy, min((self.idle_s - before.idle_s) / elapsed_s, own)


def held(busy: Sequence[float], idle_cpus: float) -> float:
    """The part of the time for which one more receiver would have received more. Pure.

    Args:
        busy: For what part of the time each receiver was on a processor.
        idle_cpus: Processors that nobody used.
    """
    least = min(busy, default=0.0)
    return min(1.0, least) if least > _BUSY and idle_cpus >= 1.0 else 0.0


class ReceiverCount:
    """See the module's text. Stage loop only, but for `stats`.

    Args:
        runtime: Has the receivers.
        value: Asked for at first.
    """

    def __init__(self, runtime: Runtime, value: int) -> None:
        self._runtime = runtime
        self._loads = deque([Load.now(runtime.receivers)], _LOADS)
        self.ask(value)

    def ask(self, value: int) -> None:
        """Asks for another number from now on."""
        self.value = value
        self._runtime.ask_for_receivers(self, value)

    def close(self) -> None:
        """Asks for no more."""
        self._runtime.ask_for_receivers(self, 0)

    def stats(self, why: str) -> KnobStats:
        """How many, and why; from any thread."""
        return KnobStats(step="processes that receive", counts=RECEIVERS, value=self.value, default=1, because=why)

    def use(self, waiting: float) -> Use:
        """What the receivers did in the last second.

        Args:
            waiting: The part of the time for which the consumer waited.
        """
        load = Load.now(self._runtime.receivers)
        if load.each_s.keys() != self._loads[0].each_s.keys():
            self._loads.clear()  # a time in which there were others says nothing
        self._loads.append(load)
        busy, idle_cpus = load.since(self._loads[0])
        return Use(
            done=self._runtime.io.fetcher.received_bytes >> 20,
            awaited=waiting,
            held=held(busy, idle_cpus),
            busy=sum(busy) / max(1, len(busy)),
        )


def _machine_idle_s() -> float:
    """Seconds for which processors had nothing to do, summed over them; 0 where the system does not say."""
    try:
        with Path("/proc/stat").open("rb") as file:
            return int(file.readline().split()[4]) / 100
    except (OSError, IndexError, ValueError):
        return 0.0
