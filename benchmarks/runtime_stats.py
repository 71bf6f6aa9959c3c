"""What a running Runtime tells about itself, read in one place."""

from __future__ import annotations

from dataclasses import dataclass

from asyncdata.runtime.life.runtime import Runtime
from asyncdata.storage.counters import FetchStats


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStats:
    """Counters since the Runtime started.

    Attributes:
        fetch: Of the storage layer.
        tasks: Tasks that worker processes finished.
        busy_s: Seconds they spent in them, summed over the workers.
        workers: Worker processes alive.
    """

    fetch: FetchStats
    tasks: int = 0
    busy_s: float = 0.0
    workers: int = 0


def read_stats(runtime: Runtime) -> RuntimeStats:
    """The counters as they are now; from any thread, while the Runtime is open."""
    fetch = runtime.io.stats()
    pool = runtime.pool_stats()
    if pool is None:
        return RuntimeStats(fetch=fetch)
    return RuntimeStats(fetch=fetch, tasks=pool.tasks, busy_s=pool.busy_s, workers=len(pool.workers))
