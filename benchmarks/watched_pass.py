"""One pass over a dataset, watched: times, CPU, memory, and the pipeline's own statistics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncdata as ad
from benchmarks.measure import Sampler, tree_cpu_s, tree_pss_bytes

_LOOK_S: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one pass was like.

    Attributes:
        first_batch_s: From making the iterator to the first batch; starting workers and listing included.
        wall_s: From making the iterator to the last batch.
        stored_bytes: Received from storage.
        cpu_s: Of this process and its workers.
        peak_bytes: Memory of this process and its workers, shared pages counted once.
        stats: What the iterator said at the end.
    """

    first_batch_s: float
    wall_s: float
    stored_bytes: int
    cpu_s: float
    peak_bytes: int
    stats: ad.PipelineStats


class _Watch:
    """Looks at the memory of this process and its workers; called by the sampler's thread."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self.peak_bytes = 0

    def look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, tree_pss_bytes(os.getpid(), self._servers))


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
    first_s = 0.0
    with ad.Runtime(options, pipelines=1):
        watch = _Watch(servers)
        with Sampler(watch.look, _LOOK_S):
            began, cpu_s = time.monotonic(), tree_cpu_s(os.getpid(), servers)
            with dataset.iterator() as batches:
                for batch in batches:
                    first_s = first_s or time.monotonic() - began
                    consume(batch)
                ended = time.monotonic()
                cpu_s = tree_cpu_s(os.getpid(), servers) - cpu_s
                stats = batches.stats()
    if not first_s:
        raise RuntimeError("no batch arrived")
    return Pass(
        first_batch_s=first_s,
        wall_s=ended - began,
        stored_bytes=stats.reads.bytes,
        cpu_s=cpu_s,
        peak_bytes=watch.peak_bytes,
        stats=stats,
    )
