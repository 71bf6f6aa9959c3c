"""What happened over time, in bounded memory: the whole iteration is kept, more coarsely the longer it is.

Nothing is dropped at either end. When `Arrivals` is full, neighbours are added up in pairs; when `MomentSeries` is
full, every second snapshot goes, which loses nothing else, because all of its numbers are sums or states; from then on
half as many are taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from asyncdata.observe.snapshot import PipelineStats

MOST_ARRIVALS: Final = 4096
MOST_MOMENTS: Final = 256
MOST_STAGES: Final = 24
"""Names of parts of the memory limit in one snapshot; the smaller ones are added up."""
OTHERS: Final = "others"
_READ: Final = "read "
"""What the names of parts that read a file begin with; there may be many files, so these are added up."""


class Arrival(NamedTuple):
    """One delivery of elements to the consumer, or several that were added up.

    Attributes:
        at_s: When it came (the last of them), by the clock of `stopwatch`.
        elements: How many came; 0 for the end of the iteration.
        deliveries: In how many parts.
        step_s: Seconds that the consumer worked before, since the arrival before.
        wait_s: Seconds that it waited then.
        longest_wait_s: The longest of these waits.
    """

    at_s: float
    elements: int
    deliveries: int
    step_s: float
    wait_s: float
    longest_wait_s: float

    def then(self, later: Arrival) -> Arrival:
        """Both together."""
        return Arrival(
            later.at_s,
            self.elements + later.elements,
            self.deliveries + later.deliveries,
            self.step_s + later.step_s,
            self.wait_s + later.wait_s,
            max(self.longest_wait_s, later.longest_wait_s),
        )


class Arrivals:
    """The consumer's steps and waits. One thread at a time adds to it; any may read it.

    Args:
        most: How many are kept apart, an even number.
    """

    def __init__(self, most: int = MOST_ARRIVALS) -> None:
        self._most = most
        self._kept: list[Arrival] = []
        self._per_entry = 1
        self._open: Arrival | None = None
        self._last_s: float | None = None
        self._waited_s = 0.0

    def begin(self, now: float, waited_s: float) -> None:
        """The consumer is in the middle of a step: what it has waited so far belongs to no arrival."""
        self._last_s, self._waited_s = now, waited_s

    def add(self, began_s: float, now: float, elements: int, waited_s: float) -> None:
        """One more delivery.

        Args:
            began_s: When the consumer first asked.
            now: When it came.
            elements: How many.
            waited_s: Seconds that the consumer has waited so far, in all.
        """
        wait_s = max(0.0, waited_s - self._waited_s)
        step_s = max(0.0, now - (began_s if self._last_s is None else self._last_s) - wait_s)
        self._last_s, self._waited_s = now, waited_s
        one = Arrival(now, elements, 1, step_s, wait_s, wait_s)
        entry = one if self._open is None else self._open.then(one)
        if entry.deliveries < self._per_entry:
            self._open = entry
            return
        self._open = None
        self._kept.append(entry)
        if len(self._kept) >= self._most:
            pairs = self._kept[::2], self._kept[1::2]
            self._kept = [first.then(second) for first, second in zip(*pairs, strict=True)]
            self._per_entry *= 2

    def all(self) -> tuple[Arrival, ...]:
        """What came so far, the oldest first."""
        last = self._open
        return (*self._kept, *(() if last is None else (last,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The counters of a pipeline at one time. All but the last two groups are sums since it started.

    Attributes:
        at_s: When, by the clock of `stopwatch`.
        elements: Elements that the consumer received.
        bytes: Their bytes.
        wait_s: Seconds that the consumer waited.
        step_s: Seconds that it worked.
        bytes_read: Bytes that were received from storage.
        requests: Attempts at reads.
        retries: Attempts that followed a failure.
        hedges: Second attempts at silent reads.
        cpu_s: CPU seconds of the process in which the pipeline runs.
        loop_cpu_s: CPU seconds of its stage loop.
        workers_cpu_s: CPU seconds of its worker processes.
        workers_busy_s: Seconds that they spent in tasks.
        in_flight: Reads under way.
        waiting: Reads that wait for their turn.
        request_limit: The most reads at a time.
        used_bytes: Memory in use.
        limit_bytes: The memory limit.
        memory: Memory in use, by the part of the limit; parts of one name together.
    """

    at_s: float
    elements: int = 0
    bytes: int = 0
    wait_s: float = 0.0
    step_s: float = 0.0
    bytes_read: int = 0
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    cpu_s: float = 0.0
    loop_cpu_s: float = 0.0
    workers_cpu_s: float = 0.0
    workers_busy_s: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    request_limit: int = 0
    used_bytes: int = 0
    limit_bytes: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)


NUMBERS: Final = tuple(each.name for each in dataclasses.fields(Moment) if each.name != "memory")
"""The columns of a series of moments."""


def moment_of(stats: PipelineStats, at_s: float) -> Moment:
    """The counters in a snapshot. Pure."""
    fetch: Mapping[str, Any] = stats.fetch
    return Moment(
        at_s=at_s,
        elements=stats.elements,
        bytes=stats.bytes,
        wait_s=stats.consumer.wait_s,
        step_s=stats.consumer.step_s,
        bytes_read=stats.reads.bytes,
        requests=stats.reads.requests,
        retries=stats.reads.retries,
        hedges=stats.reads.hedges,
        cpu_s=stats.cpu.process_s,
        loop_cpu_s=stats.cpu.loop_s,
        workers_cpu_s=stats.cpu.workers_s,
        workers_busy_s=stats.cpu.workers_busy_s,
        in_flight=fetch.get("in_flight", 0),
        waiting=fetch.get("waiting", 0),
        request_limit=stats.reads.limit,
        used_bytes=stats.used_bytes,
        limit_bytes=stats.limit_bytes,
        memory=_by_name(stats),
    )


def _by_name(stats: PipelineStats) -> dict[str, int]:
    found: dict[str, int] = {}
    for stage in stats.stages:
        name = _part_of(stage.name)
        found[name] = found.get(name, 0) + stage.used_bytes
    return largest(found)


def _part_of(stage: str) -> str:
    """The name under which a part of the memory limit is shown."""
    return "reads" if stage.startswith(_READ) else stage


def largest(memory: Mapping[str, int]) -> dict[str, int]:
    """The largest entries as they are, and the others added up."""
    if len(memory) <= MOST_STAGES:
        return dict(memory)
    ordered = sorted(memory, key=lambda name: (name != OTHERS, memory[name]), reverse=True)
    kept = {name: memory[name] for name in ordered[: MOST_STAGES - 1]}
    return {**kept, OTHERS: sum(memory[name] for name in ordered[MOST_STAGES - 1 :])}


class MomentSeries:
    """Snapshots at equal distances. One thread adds to it.

    Args:
        most: How many are kept.

    Attributes:
        every: A snapshot is wanted every so many ticks.
        peak: The one with the most memory in use; it is never dropped.
    """

    def __init__(self, most: int = MOST_MOMENTS) -> None:
        self._most = most
        self._kept: list[Moment] = []
        self._last: Moment | None = None
        self._ticks = 0
        self.every = 1
        self.peak: Moment | None = None

    def is_wanted(self) -> bool:
        """One more tick has passed: whether its snapshot is to be kept."""
        self._ticks += 1
        return (self._ticks - 1) % self.every == 0

    def add(self, moment: Moment, *, keep: bool) -> None:
        """One more snapshot; if it is not kept, it is only the last one for now, and perhaps the fullest."""
        if self.peak is None or moment.used_bytes >= self.peak.used_bytes:
            self.peak = moment
        self._last = moment
        if keep:
            self._kept.append(moment)
            if len(self._kept) >= self._most:
                del self._kept[1::2]
                self.every *= 2

    def all(self) -> tuple[Moment, ...]:
        """The snapshots so far, the oldest first; the last one is among them."""
        kept = self._kept
        last = self._last
        return tuple(kept) if last is None or (kept and kept[-1] is last) else (*kept, last)
