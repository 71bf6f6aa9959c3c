"""Checks a document against the Chrome trace-event format, as Perfetto reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

_FIELDS = {
    "X": {"ts", "dur"},
    "i": {"ts", "s"},
    "C": {"ts", "args"},
    "M": {"args"},
    "s": {"ts", "id", "cat", "bp"},
    "t": {"ts", "id", "cat", "bp"},
    "f": {"ts", "id", "cat", "bp"},
}


@dataclass
class Checked:
    """A document that has passed.

    Attributes:
        spans: X events, by the names of process and lane, which steps may share.
        moments: Instants, likewise.
        counters: Their values over time, by name.
        arrows: Each as the lanes that it meets.
        events: All of them.
        other: What is said of the trace as a whole.
    """

    spans: dict[tuple[str, str], list[Event]] = field(default_factory=dict)
    moments: dict[tuple[str, str], list[Event]] = field(default_factory=dict)
    counters: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    arrows: list[list[tuple[str, str]]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    other: dict[str, Any] = field(default_factory=dict)

    def of(self, lane: str) -> list[Event]:
        """The spans of a lane, and of those beside it that took what overlapped."""
        return [each for (_, name), spans in self.spans.items() if _bare(name) == lane for each in spans]


def _bare(lane: str) -> str:
    head, _, number = lane.rpartition(" #")
    return head if head and number.isdecimal() else lane


def check_trace(text: str) -> Checked:
    """Fails unless every viewer would show all of it, and nothing else."""
    document = json.loads(text, parse_constant=_no_number)
    events = document["traceEvents"]
    assert document["displayTimeUnit"] == "ms"
    for event in events:
        _check_fields(event)
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed), "events are in the order of time"
    processes = _names(events, "process_name", "pid")
    lanes = {
        (event["pid"], event["tid"]): (processes[event["pid"]], event["args"]["name"])
        for event in events
        if event["name"] == "thread_name"
    }
    assert len({tid for _, tid in lanes}) == len(lanes), "numbers of lanes are not used twice"
    checked = Checked(events=events, other=document["otherData"])
    flows: dict[Any, list[Event]] = {}
    by_place: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        kind, place = event["ph"], (event["pid"], event["tid"])
        assert event["pid"] in processes, "processes have names"
        if kind == "X":
            checked.spans.setdefault(lanes[place], []).append(event)
            by_place.setdefault(place, []).append(event)
        elif kind == "i":
            checked.moments.setdefault(lanes[place], []).append(event)
        elif kind == "C":
            checked.counters.setdefault(event["name"], []).append(event["args"])
        elif kind in "stf":
            flows.setdefault((event["cat"], event["name"], event["id"]), []).append(event)
    for spans in by_place.values():
        _check_nesting(spans)
    for flow in flows.values():
        _check_flow(flow, by_place)
        checked.arrows.append([lanes[event["pid"], event["tid"]] for event in flow])
    return checked


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def _check_fields(event: Event) -> None:
    kind = event["ph"]
    assert kind in _FIELDS, f"unknown kind {kind!r}"
    assert _FIELDS[kind] <= set(event), event
    assert isinstance(event["name"], str), event
    assert event["name"], "everything has a name"
    for name in ("pid", "tid"):
        assert type(event[name]) is int, event
        assert 0 <= event[name] < 2**31, event
    for name in ("ts", "dur"):
        assert name not in event or (isinstance(event[name], int | float) and event[name] >= 0), event
    if kind == "C":
        assert event["args"], event
        assert all(type(value) is int and value >= 0 for value in event["args"].values()), event
    if kind in "stf":
        assert event["bp"] == "e", "arrows meet the span around them"


def _names(events: list[Event], what: str, key: str) -> dict[int, str]:
    found = [(event[key], event["args"]["name"]) for event in events if event["name"] == what and event["ph"] == "M"]
    assert len(dict(found)) == len(found), "named once"
    return dict(found)


def _bounds(span: Event) -> tuple[int, int]:
    """In nanoseconds, without the noise of fractions."""
    begin = round(span["ts"] * 1000)
    return begin, begin + round(span["dur"] * 1000)


def _check_nesting(spans: list[Event]) -> None:
    """Each lies in the one around it, or behind the one before."""
    around: list[int] = []
    for begin, end in map(_bounds, spans):
        while around and around[-1] <= begin:
            around.pop()
        assert not around or end <= around[-1], "spans of a lane overlap"
        around.append(end)


def _check_flow(flow: list[Event], spans: dict[tuple[int, int], list[Event]]) -> None:
    kinds = "".join(event["ph"] for event in flow)
    assert kinds == "s" + "t" * (len(kinds) - 2) + "f", "arrows have both ends"
    for event in flow:
        at = round(event["ts"] * 1000)
        bounds = map(_bounds, spans[event["pid"], event["tid"]])
        assert any(begin <= at < end for begin, end in bounds), "an arrow begins and ends in spans"
