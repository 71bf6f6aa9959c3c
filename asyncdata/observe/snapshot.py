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
        used_bytes: Bytes of buffers it holds now.
        limit_bytes: What it could hold now: its reserve, or what it uses and what is free.
        reserved_bytes: Bytes nobody else may take for long.
        peak_bytes: The most it ever held.
        waiting: Its asks for memory that are not granted yet. Above zero for long: the memory limit is the bottleneck.
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
        processes: Alive now.
        tasks: Finished.
        in_flight: Tasks they hold now.
        waiting: Tasks no worker had room for. Always zero: the workers are starved, look upstream.
        restarts: Workers that died and were replaced.
        busy_s: Seconds spent in tasks by all of them; near the wall time times `processes`: they are the bottleneck.
    """

    processes: int
    tasks: int
    in_flight: int
    waiting: int
    restarts: int
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedStats:
    """What was left out of one iteration under ``Options.errors`` and ``ignore_errors``.

    Attributes:
        elements: Elements that failed.
        shards: Shards that ended early.
        unread_bytes: Bytes of these shards behind the place where they ended, as far as their sizes are known.
        steps: Failures by the step they happened in; above zero in one step only: look at its function or its files.
        lines_lost: Lines that could not be written to the quarantine list.
        last: The last failure, as a text.
    """

    elements: int = 0
    shards: int = 0
    unread_bytes: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    lines_lost: int = 0
    last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStats:
    """One iteration, as it stands.

    Example:
        >>> import asyncdata as ad
        >>> with ad.Dataset.range(10).batch(4).iterator() as batches:
        ...     count = len(list(batches))
        ...     stats = batches.stats()
        >>> count, stats.elements, stats.skipped.elements
        (3, 3, 0)

    Attributes:
        elements: Elements (batches, where the pipeline ends in one) that the consumer was given.
        deliveries: In how many parts they left the pipeline, those that wait for the consumer included.
        bytes: Bytes of the arrays, byte strings and texts in these parts.
        copies: Parts that had to be private copies, because the consumer keeps more than its share of the memory.
        waits: How often the consumer had to wait. Near `elements`: the pipeline is slower than its consumer.
        used_bytes: Of all buffers now.
        limit_bytes: The memory limit of this pipeline.
        peak_bytes: The most that was ever used.
        stages: The consumer's part first, sources last.
        workers: Of the Runtime; None while it has none.
        fetch: Counters of the Runtime's reads, by the names of the storage layer (``bytes``, ``requests``,
            ``retries``, ``in_flight``, ``waiting``, …).
        skipped: What was left out because it failed.
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
