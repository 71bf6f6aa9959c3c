"""Frozen statistics of a pool."""

from __future__ import annotations

from dataclasses import dataclass

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
        workers: The workers alive now.
    """

    tasks: int
    in_flight: int
    waiting: int
    deaths: int
    last_death: str
    busy_s: float
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
