"""Statistics of a pipeline: frozen, picklable, and the same whether it runs in this process or in another one.

The docstring of each number says which bottleneck it reveals. ``print`` shows a table and what limits the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncdata.observe.bottleneck import Verdict, judge
from asyncdata.observe.parts import (
    ConsumerStats,
    CpuStats,
    KnobStats,
    LineStats,
    ReadStats,
    SkippedStats,
    StageStats,
    StepStats,
    WorkersStats,
)
from asyncdata.observe.table import HEAD, as_html, as_text, consumer_row, step_row


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
        window_s: Seconds since the pipeline started, until it ended.
        steps: What each step of the running plan did: the last step first, sources last.
        consumer: How long the consumer waited, and how long it worked.
        reads: Reads from storage.
        cpu: Processors.
        lines: The lines of user functions where time was spent, the most first; empty unless `profile` samples them.
        knobs: Settings that AUTOTUNE finds.
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
    window_s: float = 0.0
    steps: tuple[StepStats, ...] = ()
    consumer: ConsumerStats = field(default_factory=ConsumerStats)
    reads: ReadStats = field(default_factory=ReadStats)
    cpu: CpuStats = field(default_factory=CpuStats)
    lines: tuple[LineStats, ...] = ()
    knobs: tuple[KnobStats, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What limits the pipeline, and what to do about it; over the whole iteration so far."""
        return judge(
            elements=self.elements,
            window_s=self.window_s,
            steps=self.steps,
            consumer=self.consumer,
            workers=self.workers,
            reads=self.reads,
            cpu=self.cpu,
        )

    def __str__(self) -> str:
        """A table of the steps in the order of the data, changed settings, what was skipped, and the verdict."""
        return "\n\n".join([as_text(HEAD, self._rows()), *self._changes(), str(self.verdict)])

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return as_html(HEAD, self._rows(), " ".join([*self._changes(), str(self.verdict)]))

    def _changes(self) -> list[str]:
        changed = [str(knob) for knob in self.knobs if knob.value != knob.default]
        found = [f"Found by AUTOTUNE: {'; '.join(changed)}."] if changed else []
        return [*found, str(self.skipped)] if self.skipped.elements or self.skipped.shards else found

    def _rows(self) -> list[list[str]]:
        rows = [step_row(step, self.window_s) for step in reversed(self.steps)]
        return [*rows, consumer_row(self.elements, self.bytes, self.consumer)]
