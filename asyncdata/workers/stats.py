"""Frozen statistics of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from asyncdata.observe.cpu_time import CpuTime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """One worker process.

    Attributes:
        name: Its name, as ``top`` shows it.
        pid: Its process id.
        ready: Whether it has imported everything and takes tasks.
        in_flight: Tasks it holds, the running one included.
        tasks: Tasks it has finished.
        busy_s: Seconds it spent in them, waiting for grants excluded; near the wall time means workers are the
            bottleneck.
        cpu: What it used of the processors since it was ready.
    """

    name: str
    pid: int
    ready: bool
    in_flight: int
    tasks: int
    busy_s: float
    cpu: CpuTime = CpuTime()  # noqa: RUF009 -- a tuple, which nothing changes


class PoolLoad(NamedTuple):
    """What a pool has done, in sums since the start that cost nothing to read.

    Attributes:
        tasks: Tasks finished.
        busy_s: Seconds spent in them by all workers.
        ready_s: Seconds that workers were there for, summed over them.
        short_s: Seconds in which a call had to wait for one.
    """

    tasks: int = 0
    busy_s: float = 0.0
    ready_s: float = 0.0
    short_s: float = 0.0

    def since(self, before: PoolLoad) -> PoolLoad:
        """What came later."""
        return PoolLoad(
            self.tasks - before.tasks,
            self.busy_s - before.busy_s,
            self.ready_s - before.ready_s,
            self.short_s - before.short_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool of workers; counts are since the start, replaced workers included.

    Attributes:
        tasks: Tasks finished, well or with an exception of user code.
        in_flight: Tasks that workers hold now.
        waiting: Tasks that no worker had room for; always 0 means the workers are starved.
        deaths: Workers that ended without being told to.
        last_death: How the latest of them ended; empty if none did.
        busy_s: Seconds spent in tasks by all workers.
        ready_s: Seconds that workers were there for, summed over them.
        left: What those used of the processors that were ended because there were too many, by process id.
        workers: The workers alive now.
    """

    tasks: int
    in_flight: int
    waiting: int
    deaths: int
    last_death: str
    busy_s: float
    ready_s: float
    left: Mapping[int, CpuTime]
    workers: tuple[WorkerStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPoolStats:
    """A pool of threads.

    Attributes:
        tasks: Calls finished, well or with an exception.
        running: Calls that threads are in now.
        waiting: Calls that no thread was free for.
        threads: Number of threads.
    """

    tasks: int
    running: int
    waiting: int
    threads: int
