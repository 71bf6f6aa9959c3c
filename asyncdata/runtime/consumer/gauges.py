"""Reads a running pipeline's numbers into the public snapshot; from any thread, without stopping anything.

Numbers are read one after the other while the loops go on, so that sums may be off by what happens meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from asyncdata.memory.accounts import LedgerSnapshot
from asyncdata.observe.snapshot import PipelineStats, SkippedStats, StageStats, WorkersStats
from asyncdata.runtime.consumer.delivery import Deliverer
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.memory.budget import Budget


class Gauges:
    """What a pipeline's snapshot is read from.

    Args:
        runtime: Its Runtime.
        budget: Its part of the memory.
        deliverer: What it hands over.
        skipped: Says what was left out.
    """

    def __init__(
        self, runtime: Runtime, budget: Budget, deliverer: Deliverer, skipped: Callable[[], SkippedStats]
    ) -> None:
        self._runtime = runtime
        self._budget = budget
        self._deliverer = deliverer
        self._skipped = skipped

    def read(self) -> PipelineStats:
        """A snapshot; without what only the consumer's side knows."""
        ledger = self._budget.snapshot()
        return PipelineStats(
            deliveries=self._deliverer.deliveries,
            bytes=self._deliverer.nbytes,
            copies=self._deliverer.copies,
            used_bytes=ledger.used,
            limit_bytes=ledger.limit,
            peak_bytes=ledger.peak,
            stages=_stages(ledger),
            workers=_workers(self._runtime),
            fetch=_plain(self._runtime.io.stats()),
            skipped=self._skipped(),
        )


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


def _workers(runtime: Runtime) -> WorkersStats | None:
    pool = runtime.pool_stats()
    if pool is None:
        return None
    return WorkersStats(
        processes=len(pool.workers),
        tasks=pool.tasks,
        in_flight=pool.in_flight,
        waiting=pool.waiting,
        restarts=pool.deaths,
        busy_s=pool.busy_s,
    )


def _plain(stats: Any) -> Mapping[str, Any]:
    """Fields of a frozen record as values that can be pickled."""
    return {field.name: _plain_value(getattr(stats, field.name)) for field in dataclasses.fields(stats)}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key.value if isinstance(key, Enum) else key: _plain_value(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return _plain(value)
    if isinstance(value, tuple | list):
        return tuple(_plain_value(item) for item in value)
    return value.value if isinstance(value, Enum) else value
