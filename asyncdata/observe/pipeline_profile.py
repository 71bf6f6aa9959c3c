"""`PipelineProfile`: what a profile recorded of one pipeline, frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncdata.observe.bottleneck import Verdict
from asyncdata.observe.plain import plain
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.timeline import NUMBERS, OTHERS, Arrival, Moment, largest


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """What one part of the memory limit held when the most memory was in use.

    Attributes:
        name: The step, or ``consumer`` for the batches that the training loop keeps and the next ones.
        used_bytes: Bytes of buffers that it held then.
        most_bytes: The most that it held in any snapshot, perhaps at another time.
    """

    name: str
    used_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProfile:
    """One pipeline inside a profile.

    Attributes:
        plan: Its steps as written, in one line.
        epoch: Number of the iteration.
        options: The options that were given, as text, without storage options, which may hold secrets.
        began_s: When it was started, or found running by ``asyncdata profile --pid``, by the monotonic clock.
        stats: Its statistics at the end.
        every_s: Seconds between two moments.
        moments: Its counters over time, the oldest first.
        peak: Its counters when the most memory was in use; None if it ended too soon.
        arrivals: When elements came, and how long the consumer worked and waited before each of them. Neighbours are
            added up where there are many.
    """

    plan: str
    epoch: int
    options: Mapping[str, str] = field(default_factory=dict)
    began_s: float = 0.0
    stats: PipelineStats = field(default_factory=PipelineStats)
    every_s: float = 0.0
    moments: tuple[Moment, ...] = ()
    peak: Moment | None = None
    arrivals: tuple[Arrival, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What limits the pipeline; see `PipelineStats.verdict`."""
        return self.stats.verdict

    @property
    def held(self) -> tuple[HeldMemory, ...]:
        """What held memory when the most was in use, the largest first."""
        if self.peak is None:
            return ()
        found = (
            HeldMemory(name=name, used_bytes=used, most_bytes=max(each.memory.get(name, 0) for each in self._known))
            for name, used in self.peak.memory.items()
            if used
        )
        return tuple(sorted(found, key=lambda each: each.used_bytes, reverse=True))

    @property
    def _known(self) -> tuple[Moment, ...]:
        return self.moments if self.peak is None else (*self.moments, self.peak)

    def document(self) -> dict[str, Any]:
        """The same as plain data; times are seconds since the pipeline started."""
        columns = {name: [getattr(each, name) for each in self.moments] for name in NUMBERS if name != "at_s"}
        return {
            "plan": self.plan,
            "epoch": self.epoch,
            "options": dict(self.options),
            "verdict": {**plain(self.verdict), "text": str(self.verdict)},
            "stats": plain(self.stats),
            "held_at_peak": [plain(each) for each in self.held],
            "timeline": {
                "every_s": self.every_s,
                "at_s": [each.at_s - self.began_s for each in self.moments],
                **columns,
                "memory": _columns([each.memory for each in self.moments]),
            },
            "arrivals": {
                "at_s": [each.at_s - self.began_s for each in self.arrivals],
                **{name: [getattr(each, name) for each in self.arrivals] for name in Arrival._fields[1:]},
            },
        }


def _columns(moments: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """What each part held over time: the largest parts, in the order of their first appearance, and the others."""
    names = dict.fromkeys(name for each in moments for name in each)
    kept = largest({name: max(each.get(name, 0) for each in moments) for name in names})
    shown = [name for name in names if kept.get(name) and name != OTHERS]
    columns = {name: [each.get(name, 0) for each in moments] for name in shown}
    others = [sum(each.values()) - sum(each.get(name, 0) for name in columns) for each in moments]
    return {**columns, OTHERS: others} if any(others) else columns
