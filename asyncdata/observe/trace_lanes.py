"""Spans in lanes, and arrows between them, as events of the Chrome trace format. Pure.

Perfetto drops spans that overlap in one lane without being nested. So spans that overlap get lanes of their own, as
few as there are at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]
Lane: TypeAlias = tuple[int, tuple[int, ...], int, str]
"""The first three say where it is drawn, from top to bottom; the last is its title."""


@dataclass(slots=True, eq=False)
class TraceSpan:
    """Something that took a while.

    Attributes:
        pid: Of the process that did it.
        lane: Where it is drawn.
        begin: In nanoseconds since the trace began.
        end: Likewise.
        name: What it is called.
        args: What else is known of it.
        parts: Begin, end and name of its parts, which do not overlap.
        moments: What happened meanwhile, and when.
        tid: Number of its lane.
    """

    pid: int
    lane: Lane
    begin: int
    end: int
    name: str
    args: dict[str, Any] = field(default_factory=dict)
    parts: tuple[tuple[int, int, str], ...] = ()
    moments: tuple[tuple[int, str], ...] = ()
    tid: int = 0

    @property
    def is_visible(self) -> bool:
        """Whether an arrow can be drawn to it."""
        return self.end > self.begin


def span_events(spans: Iterable[TraceSpan]) -> tuple[list[Event], list[Event]]:
    """The names of lanes, and the events of all spans, which have numbers then."""
    lanes: dict[tuple[int, Lane], list[TraceSpan]] = {}
    for span in spans:
        lanes.setdefault((span.pid, span.lane), []).append(span)
    names: list[Event] = []
    tids = itertools.count(1)
    for pid, lane in sorted(lanes):
        free: list[tuple[int, int]] = []  # when each lane is free again, and its number
        for span in sorted(lanes[pid, lane], key=lambda span: (span.begin, span.end)):
            place = next((place for place, (until, _) in enumerate(free) if until <= span.begin), len(free))
            if place == len(free):
                tid = next(tids)
                free.append((0, tid))
                names.append(metadata("thread_name", pid, tid, name=f"{lane[-1]} #{place + 1}" if place else lane[-1]))
                names.append(metadata("thread_sort_index", pid, tid, sort_index=tid))
            span.tid = free[place][1]
            free[place] = max(span.end, span.begin + 1), span.tid
    return names, [event for each in lanes.values() for span in each for event in _drawn(span)]


def _drawn(span: TraceSpan) -> list[Event]:
    at = {"pid": span.pid, "tid": span.tid}
    whole = {"ph": "X", "name": span.name, **at, **_time(span.begin, span.end), "args": span.args}
    parts = [{"ph": "X", "name": name, **at, **_time(begin, end)} for begin, end, name in span.parts]
    return [whole, *parts, *({"ph": "i", "s": "t", "name": name, **at, **_time(when)} for when, name in span.moments)]


def _time(begin: int, end: int | None = None) -> dict[str, float]:
    """In microseconds."""
    return {"ts": begin / 1000} if end is None else {"ts": begin / 1000, "dur": (end - begin) / 1000}


def arrow_events(name: str, number: int, points: Sequence[tuple[TraceSpan, int]]) -> list[Event]:
    """An arrow from span to span, each at a time inside of it; the times ascend.

    Args:
        name: What it shows.
        number: Its own.
        points: Two spans or more.
    """
    kinds = ["s", *["t"] * (len(points) - 2), "f"]
    events: list[Event] = []
    for kind, (span, at) in zip(kinds, points, strict=True):
        events.append({"ph": kind, "name": name, "cat": name, "id": number, "pid": span.pid, "tid": span.tid})
        events[-1] |= {**_time(at), "bp": "e"}
    return events


def counter(name: str, pid: int, at: int, values: dict[str, int]) -> Event:
    """What there was at a time."""
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, **_time(at), "args": values}


def metadata(what: str, pid: int, tid: int = 0, **args: Any) -> Event:
    """The name of a lane or process, or its place."""
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def by_time(events: Iterable[Event]) -> list[Event]:
    """In the order in which readers of traces want them: what encloses others comes before them, arrows come last."""
    return sorted(events, key=lambda event: (event["ts"], event["ph"] in "stf", -event.get("dur", 0.0)))
