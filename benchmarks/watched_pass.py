"""One pass over a dataset, watched: times, CPU, memory, and who was busy and who waited."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncdata as ad
from asyncdata.options import usable_cpus
from benchmarks.bottleneck import Shares
from benchmarks.measure import Sampler, machine_cpu_s, tree_cpu_s, tree_pss_bytes
from benchmarks.runtime_stats import RuntimeStats, read_stats

_LOOK_S: Final = 0.02
_LOOKS_PER_PSS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass was like.

    Attributes:
        first_batch_s: From making the iterator to the first batch; starting workers and listing included.
        wall_s: From making the iterator to the last batch.
        stored_bytes: Received from storage.
        cpu_s: Of this process and its workers.
        peak_bytes: Memory of this process and its workers, shared pages counted once.
        shares: Who was busy, and who waited, from the first batch on.
        retries: Reads that were tried again.
    """

    first_batch_s: float
    wall_s: float
    stored_bytes: int
    cpu_s: float
    peak_bytes: int
    shares: Shares
    retries: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """The state of things at one moment."""

    at: float
    cpu_s: float
    server_cpu_s: float
    machine_cpu_s: float
    stats: RuntimeStats


class _Watch:
    """Looks at a Runtime and at processes."""

    def __init__(self, runtime: ad.Runtime, servers: Sequence[int]) -> None:
        self._runtime = runtime
        self._servers = servers
        self._count = 0
        self.peak_bytes = 0

    def mark(self) -> _Mark:
        return _Mark(
            time.monotonic(),
            tree_cpu_s(os.getpid(), self._servers),
            sum(tree_cpu_s(pid) for pid in self._servers),
            machine_cpu_s(),
            read_stats(self._runtime),
        )

    def look(self) -> tuple[float, RuntimeStats]:
        """Called by the sampler's thread."""
        if self._count % _LOOKS_PER_PSS == 0:
            self.peak_bytes = max(self.peak_bytes, tree_pss_bytes(os.getpid(), self._servers))
        self._count += 1
        return time.monotonic(), read_stats(self._runtime)


def watched_pass(
    dataset: ad.Dataset, options: ad.Options, consume: Callable[[Any], object], servers: Sequence[int] = ()
) -> Pass:
    """Iterates once over a dataset, on a Runtime of its own.

    Args:
        dataset: What is read.
        options: Of the Runtime.
        consume: Called with every batch.
        servers: Processes that this one started and that are not part of the client.

    Raises:
        RuntimeError: There was no batch.
    """
    waited = 0.0
    first: _Mark | None = None
    with ad.Runtime(options, pipelines=1) as runtime:
        watch = _Watch(runtime, servers)
        with Sampler(watch.look, _LOOK_S) as sampler:
            began = watch.mark()
            with dataset.iterator() as batches:
                asked = time.monotonic()
                for batch in batches:
                    waited += time.monotonic() - asked
                    if first is None:
                        first, waited = watch.mark(), 0.0
                    consume(batch)
                    asked = time.monotonic()
                ended = watch.mark()
    if first is None:
        raise RuntimeError("no batch arrived")
    looks = [stats for at, stats in sampler.samples if first.at <= at <= ended.at] or [ended.stats]
    return Pass(
        first_batch_s=first.at - began.at,
        wall_s=ended.at - began.at,
        stored_bytes=ended.stats.fetch.bytes,
        cpu_s=ended.cpu_s - began.cpu_s,
        peak_bytes=watch.peak_bytes,
        shares=_shares(first, ended, waited, looks),
        retries=ended.stats.fetch.retries,
    )


def _shares(first: _Mark, ended: _Mark, waited: float, looks: Sequence[RuntimeStats]) -> Shares:
    flowing = max(ended.at - first.at, 1e-9)
    machine_s = flowing * usable_cpus()
    mine, servers = ended.cpu_s - first.cpu_s, ended.server_cpu_s - first.server_cpu_s
    others = max(0.0, ended.machine_cpu_s - first.machine_cpu_s - mine - servers)
    return Shares(
        consumer_waited=waited / flowing,
        workers_busy=(ended.stats.busy_s - first.stats.busy_s) / (flowing * max(1, ended.stats.workers)),
        machine_busy=mine / machine_s,
        server_busy=servers / machine_s,
        others_busy=others / machine_s,
        reads_waiting=sum(look.fetch.waiting > 0 for look in looks) / len(looks),
        reads_idle=sum(look.fetch.in_flight == 0 for look in looks) / len(looks),
    )
