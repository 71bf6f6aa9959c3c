"""Statistics of a pipeline: frozen, picklable, and the same whether it runs in this process or in another one.

The docstring of each number says which bottleneck it reveals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """One stage's part of the memory limit.

    Attributes:
        name: The stage, as errors name it.
        used_bytes: Bytes of buffers that it holds now.
        limit_bytes: What it could hold now: its reserve, or what it uses plus what is free.
        reserved_bytes: Bytes that no other stage may take for long.
        peak_bytes: The most it ever held.
        waiting: Its requests for memory that are not granted yet. Above zero for long: the memory limit is the
            bottleneck.
    """

    name: str
    used_bytes: int
    limit_bytes: int
    reserved_bytes: int
    peak_bytes: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStats:
    """The worker processes of the pipeline's Runtime, since it started.

    Attributes:
        processes: Workers alive now.
        tasks: Tasks finished.
        in_flight: Tasks that workers hold now.
        waiting: Tasks for which no worker had room. Always zero: the workers are starved, look upstream.
        restarts: Workers that died and were replaced.
        busy_s: Seconds that all of them spent in tasks. Near the wall time times `processes`: they are the bottleneck.
    """

    processes: int
    tasks: int
    in_flight: int
    waiting: int
    restarts: int
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedStats:
    """What one iteration skipped under ``Options.errors`` and ``ignore_errors``.

    Attributes:
        elements: Elements that failed.
        shards: Shards that ended early.
        unread_bytes: Bytes of these shards behind the place where they ended, as far as their sizes are known.
        steps: Failures by the step in which they happened. Failures in one step only: look at its function or its
            files.
        lines_lost: Lines that could not be written to the quarantine list.
        last: The last failure, as text.
    """

    elements: int = 0
    shards: int = 0
    unread_bytes: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    lines_lost: int = 0
    last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStats:
    """The state of one iteration.

    Example:
        >>> import asyncdata as ad
        >>> with ad.Dataset.range(10).batch(4).iterator() as batches:
        ...     count = len(list(batches))
        ...     stats = batches.stats()
        >>> count, stats.elements, stats.skipped.elements
        (3, 3, 0)

    Attributes:
        elements: Elements that the consumer received (batches, if the pipeline ends in ``batch``).
        deliveries: Parts in which they left the pipeline, including parts that still wait for the consumer.
        bytes: Bytes of the arrays, byte strings and texts in these parts.
        copies: Parts that are private copies because the consumer keeps more than its share of the memory.
        waits: How often the consumer had to wait. Near `elements`: the pipeline is slower than its consumer.
        used_bytes: Bytes of all buffers now.
        limit_bytes: The memory limit of this pipeline.
        peak_bytes: The most that was ever used.
        stages: The parts of the memory limit: the consumer's first, sources last.
        workers: The Runtime's workers; None while it has none.
        fetch: Counters of the Runtime's reads, by the names of the storage layer (``bytes``, ``requests``,
            ``retries``, ``in_flight``, ``waiting``, …).
        skipped: What was skipped because it failed.
        loader_pid: The loader process, with ``isolate=True``; else None.
    """

    elements: int = 0
    deliveries: int = 0
    bytes: int = 0
    copies: int = 0
    waits: int = 0
    used_bytes: int = 0
    limit_bytes: int = 0
    peak_bytes: int = 0
    stages: tuple[StageStats, ...] = ()
    workers: WorkersStats | None = None
    fetch: Mapping[str, Any] = field(default_factory=dict)
    skipped: SkippedStats = field(default_factory=SkippedStats)
    loader_pid: int | None = None
