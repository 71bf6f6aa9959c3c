"""Reads a running pipeline's numbers into the public snapshot; from any thread, without stopping anything.

Numbers are read one after the other while the loops go on, so that sums may be off by what happens meanwhile.
"""

from __future__ import annotations

import threading
import time

from asyncdata.machine import usable_cpus
from asyncdata.memory.accounts import LedgerSnapshot
from asyncdata.observe.cpu_time import CpuTime, of_thread
from asyncdata.observe.line_table import since
from asyncdata.observe.parts import CpuStats, ReadStats, StageStats, WorkersStats, line_stats
from asyncdata.observe.plain import plain
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.stopwatch import clock
from asyncdata.runtime.consumer.delivery import Deliverer
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.meter import step_stats
from asyncdata.runtime.scope import Services
from asyncdata.storage.counters import FetchStats
from asyncdata.storage.failures import FailureCause
from asyncdata.workers.stats import PoolStats


class Gauges:
    """What a pipeline's snapshot is read from.

    Args:
        runtime: Its Runtime.
        services: What it has of it.
        deliverer: What it hands over.
    """

    def __init__(self, runtime: Runtime, services: Services, deliverer: Deliverer) -> None:
        self._runtime = runtime
        self._services = services
        self._deliverer = deliverer
        self._began = clock()
        self._processors = Processors(runtime.pool_stats())
        self._io = runtime.io  # the Runtime lets go of it when it closes
        self._fetch = self._io.stats()
        self._reading_s = self._io.reading_s
        self._short_s = services.budget.short.seconds()
        self._lines = runtime.sampling.lines()

    def read(self) -> PipelineStats:
        """A snapshot; without what only the consumer's side knows."""
        budget = self._services.budget
        ledger = budget.snapshot()
        window_s = clock() - self._began
        pool = self._runtime.pool_stats()
        fetch = self._io.stats()
        return PipelineStats(
            deliveries=self._deliverer.deliveries,
            bytes=self._deliverer.nbytes,
            copies=self._deliverer.copies,
            used_bytes=ledger.used,
            limit_bytes=ledger.limit,
            peak_bytes=ledger.peak,
            stages=_stages(ledger),
            workers=_workers(pool, self._runtime.num_workers),
            fetch=plain(fetch),
            skipped=self._services.skipped(),
            window_s=window_s,
            steps=step_stats(self._services.meters, window_s),
            reads=self._reads(fetch, window_s),
            cpu=self._processors.read(pool),
            lines=line_stats(since(self._runtime.sampling.lines(), self._lines)),
            knobs=self._services.knobs.stats(),
        )

    def _reads(self, fetch: FetchStats, window_s: float) -> ReadStats:
        before = self._fetch
        throttled = FailureCause.THROTTLED
        return ReadStats(
            bytes=fetch.bytes - before.bytes,
            in_flight=(self._io.reading_s - self._reading_s) / max(window_s, 1e-9),
            limit=fetch.limit,
            is_limit_given=fetch.window is None,
            first_byte_s=fetch.first_byte_median_s,
            requests=fetch.requests - before.requests,
            retries=fetch.retries - before.retries,
            refused=fetch.failures.get(throttled, 0) - before.failures.get(throttled, 0),
            hedges=fetch.hedges - before.hedges,
            hedges_won=fetch.hedges_won - before.hedges_won,
            wasted_bytes=fetch.wasted_bytes - before.wasted_bytes,
            short_s=self._services.budget.short.seconds() - self._short_s,
            receivers=fetch.receivers,
            receivers_s=max(0.0, fetch.receivers_s - before.receivers_s),
        )


class Processors:
    """What a pipeline used of the processors. Nothing is measured while it runs: the system counts at both ends.

    Made on the stage loop when the pipeline starts.

    Args:
        pool: The workers that there are already.
    """

    def __init__(self, pool: PoolStats | None) -> None:
        has_clocks = hasattr(time, "pthread_getcpuclockid")
        self._clock = time.pthread_getcpuclockid(threading.get_ident()) if has_clocks else None
        self._thread = threading.get_native_id()
        self._process_s = time.process_time()
        self._loop = of_thread(self._clock, self._thread)
        self._workers = _used(pool)
        self._pool = pool

    def read(self, pool: PoolStats | None) -> CpuStats:
        """What was used since the start.

        Args:
            pool: The workers that there are now.
        """
        loop = of_thread(self._clock, self._thread).since(self._loop)
        before = self._pool
        used = [cpu.since(self._workers.get(pid, CpuTime())) for pid, cpu in _used(pool).items()]
        return CpuStats(
            cores=usable_cpus(),
            process_s=time.process_time() - self._process_s,
            loop_s=loop.used_s,
            loop_delayed_s=loop.delayed_s,
            workers_s=sum(each.used_s for each in used),
            workers_delayed_s=sum(each.delayed_s for each in used),
            workers_busy_s=0.0 if pool is None else pool.busy_s - (0.0 if before is None else before.busy_s),
            workers_ready_s=0.0 if pool is None else pool.ready_s - (0.0 if before is None else before.ready_s),
        )


def _used(pool: PoolStats | None) -> dict[int, CpuTime]:
    """What each worker used, by process id."""
    return {} if pool is None else {**pool.left, **{worker.pid: worker.cpu for worker in pool.workers}}


def _stages(ledger: LedgerSnapshot) -> tuple[StageStats, ...]:
    return tuple(
        StageStats(
            name=account.name,
            used_bytes=account.used,
            limit_bytes=max(account.reserved, account.used + max(0, ledger.free)),
            reserved_bytes=account.reserved,
            peak_bytes=account.peak,
            waiting=account.queued,
        )
        for account in ledger.accounts
    )


def _workers(pool: PoolStats | None, most: int) -> WorkersStats | None:
    if pool is None:
        return None
    return WorkersStats(
        processes=len(pool.workers),
        most=most,
        tasks=pool.tasks,
        in_flight=pool.in_flight,
        waiting=pool.waiting,
        restarts=pool.deaths,
        busy_s=pool.busy_s,
    )
