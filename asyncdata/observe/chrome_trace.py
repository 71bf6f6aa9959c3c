"""`chrome_trace`: what processes noted, in the Chrome trace-event format. Pure.

    requests ──▶ blocks of files ──▶ batches ──▶ training steps         dispatch ──▶ task in a worker ──▶ reply

An arrow leads from the request that brought the first byte of a file's block to this block, from there to each batch
whose first element the block holds, and to the training step with that batch. Of spans that were dropped there is none.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from asyncdata.observe.timeline import Moment
from asyncdata.observe.trace_lanes import (
    Event,
    Lane,
    TraceSpan,
    arrow_events,
    by_time,
    counter,
    metadata,
    span_events,
)
from asyncdata.observe.trace_ring import (
    BATCH,
    BLOCK,
    CALL,
    FAILED,
    KILLED,
    OTHERS,
    OVERTAKEN,
    REQUEST,
    RESUMED,
    STEP,
    TASK,
    WAIT,
    ProcessTrace,
    TraceRecord,
)

_LOOKS: Final = 256
"""Spans that are looked at to find the one in which a position lies."""
_UNNAMED: Final = "unnamed"
_FLAGS: Final = {FAILED: "failed", RESUMED: "resumed", OVERTAKEN: "overtaken", KILLED: "killed"}


def chrome_trace(
    traces: Sequence[ProcessTrace], counted: Iterable[tuple[int, Sequence[Moment]]], began_s: float, *, recorded: str
) -> str:
    """The document.

    Args:
        traces: What each process noted; the consumer's first.
        counted: The process of each pipeline, and its counters over time.
        began_s: The time that is 0, by the clock of `stopwatch`.
        recorded: When that was.
    """
    noted = [_Noted(trace, record, began_s) for trace in traces for record in trace.records()]
    runs = {each: run for each in noted if (run := _run(each)) is not None}
    waits = [wait for each in noted if (wait := _wait(each)) is not None]
    # Before the first delivery there is no step.
    drawn = (each.span for each in noted if each.kind != STEP or each.span.is_visible)
    names, events = span_events([*drawn, *runs.values(), *waits])
    numbers = itertools.count(1)
    for each, run in runs.items():
        if each.span.is_visible and run.is_visible:
            points = [(each.span, each.span.begin), (run, run.begin), (each.span, each.span.end - 1)]
            events += arrow_events("task", next(numbers), points)
    for points in _ways(noted):
        events += arrow_events("batch", next(numbers), points)
    events += [*_in_flight(noted), *_ready(noted), *_reserved(counted, began_s)]
    document = [*_processes(traces, runs), *names, *by_time(events)]
    other = {"recorded": recorded, "dropped_spans": sum(trace.dropped for trace in traces)}
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in document)
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n{lines}\n]}}\n'


@dataclass(slots=True, eq=False, init=False)
class _Noted:
    """A record with its span.

    Attributes:
        kind: See `trace_ring`, as for the next three.
        number: What stands for the name.
        values: By kind.
        file: A second name.
        place: Of the step in the plan.
        end: When it ended, in nanoseconds since the trace began.
        span: How it is drawn.
    """

    kind: int
    number: int
    values: tuple[int, ...]
    file: str
    place: tuple[int, ...]
    end: int
    span: TraceSpan

    def __init__(self, trace: ProcessTrace, record: TraceRecord, began_s: float) -> None:
        self.kind, flags, self.number, begin_s, end_s, self.values, file = record
        self.file = trace.names[file]
        begin = _ns(begin_s - began_s)
        self.end = end = max(begin, _ns(end_s - began_s))
        label = "batch" if self.kind in (BATCH, STEP) else trace.names[self.number] or _UNNAMED
        numbers, tab, step = label.partition("\t")
        if tab:
            label = step or _UNNAMED
        self.place = tuple(int(part) for part in numbers.split(".") if tab and part.isdecimal())
        self.span = TraceSpan(trace.pid, _lane(self, label), begin, end, label)
        _describe(self)
        self.span.args |= {name: True for flag, name in _FLAGS.items() if flags & flag}


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _lane(noted: _Noted, label: str) -> Lane:
    place = noted.place
    lanes: dict[int, Lane] = {
        STEP: (0, (), 0, "training loop"),
        BATCH: (1, (), 0, "delivered batches"),
        BLOCK: (2, place, 0, label),
        CALL: (2, place, 1, f"{label}: tasks"),
        WAIT: (2, place, 2, f"{label}: waits"),
        REQUEST: (3, (), 0, "requests"),
        TASK: (4, (), 0, f"tasks of {noted.file}"),
    }
    return lanes[noted.kind]


def _describe(noted: _Noted) -> None:
    """What is shown of a span beside its times."""
    span, values = noted.span, noted.values
    begin, end = span.begin, span.end
    if noted.kind in (BLOCK, CALL, BATCH):
        span.args = {"rows": values[0]}
        if noted.kind == BATCH:
            span.args["bytes"] = values[1]
        elif noted.kind == BLOCK:
            span.args["bytes"] = values[0] * values[1] // max(values[5], 1)
        if noted.file:
            span.args |= {"file": noted.file, "record": values[3], "offset": values[4]}
    elif noted.kind == WAIT:
        span.name = noted.file or _UNNAMED
    elif noted.kind == STEP:
        span.name, span.end = "step", min(max(begin, end - values[2]), end)
    elif noted.kind == TASK:
        span.args = {"ticket": values[0]}
    elif noted.kind == REQUEST:
        size, offset, asked, answered, hedged, connected = values
        span.name = noted.file.rpartition("/")[2] or "request"
        span.args = {"url": noted.file, "offset": offset, "bytes": size}
        if connected >= 0:
            span.args["connect_ms"] = connected / 1e6
        if 0 <= asked <= answered:
            head = min(begin + answered, end)
            span.parts = (min(begin + asked, head), head, "first byte"), (head, end, "body")
        if hedged >= 0:
            span.moments = ((min(begin + hedged, end), "hedge"),)


def _wait(noted: _Noted) -> TraceSpan | None:
    """What follows a step of the consumer."""
    if noted.kind != STEP or noted.span.end == noted.end:
        return None
    return TraceSpan(noted.span.pid, noted.span.lane, noted.span.end, noted.end, "wait")


def _run(noted: _Noted) -> TraceSpan | None:
    """Where a task ran, in its worker."""
    if noted.kind != TASK or noted.values[2] < 0:
        return None
    ticket, pid, began, ran, waited = noted.values[:5]
    begin = min(noted.span.begin + began, noted.end)
    args = {"ticket": ticket, "waited_for_memory_ms": waited / 1e6}
    return TraceSpan(pid, (0, (), 0, "tasks"), begin, min(begin + max(ran, 0), noted.end), noted.span.name, args)


# --- arrows ------------------------------------------------------------------------------------------------------


class _Ranges:
    """Finds the span that holds a position.

    Args:
        spans: Each with what its positions are of, the first one, and their number.
    """

    def __init__(self, spans: Iterable[tuple[_Noted, Any, int, int]]) -> None:
        self._spans: dict[Any, list[tuple[int, int, _Noted]]] = {}
        for noted, key, first, count in spans:
            self._spans.setdefault(key, []).append((first, first + count, noted))
        for each in self._spans.values():
            each.sort(key=lambda item: item[0])

    def find(self, key: Any, position: int, before: int) -> _Noted | None:
        """The last one that had ended at a time."""
        spans = self._spans.get(key, [])
        at = bisect_right(spans, position, key=lambda item: item[0])
        found = [noted for _, stop, noted in spans[max(0, at - _LOOKS) : at] if position < stop]
        found = [noted for noted in found if noted.span.end <= before and noted.span.is_visible]
        return max(found, key=lambda noted: noted.span.end, default=None)


def _ways(noted: Sequence[_Noted]) -> Iterator[list[tuple[TraceSpan, int]]]:
    """For each batch the spans that led to it, at their ends, and the step with it, at its beginning."""
    requests = _Ranges((each, each.file, each.values[1], each.values[0]) for each in noted if each.kind == REQUEST)
    blocks = _Ranges(
        (each, each.values[2], each.values[3], each.values[0])
        for each in noted
        if each.kind == BLOCK and each.values[2]
    )
    # A step is what was done with the delivery before the one that ended it.
    steps = {(each.number, each.values[1] - 1): each.span for each in noted if each.kind == STEP}
    for batch in noted:
        if batch.kind != BATCH or not batch.span.is_visible:
            continue
        way = [batch.span]
        block = blocks.find(batch.values[2], batch.values[3], batch.span.begin)
        if block is not None:
            way.insert(0, block.span)
            is_named = block.file not in ("", OTHERS)
            request = requests.find(block.file, block.values[4], block.span.end) if is_named else None
            if request is not None:
                way.insert(0, request.span)
        points = [(span, span.end - 1) for span in way]
        step = steps.get((batch.number, batch.values[4]))
        if step is not None and step.is_visible and step.begin >= batch.span.end:
            points.append((step, step.begin))
        if len(points) > 1:
            yield points


# --- counters ----------------------------------------------------------------------------------------------------


def _in_flight(noted: Sequence[_Noted]) -> Iterator[Event]:
    for pid in {each.span.pid for each in noted if each.kind == REQUEST}:
        spans = [each.span for each in noted if each.kind == REQUEST and each.span.pid == pid]
        edges = sorted([*((span.begin, 1) for span in spans), *((span.end, -1) for span in spans)])
        for (at, _), level in zip(edges, itertools.accumulate(change for _, change in edges), strict=True):
            yield counter("requests in flight", pid, at, {"requests": max(0, level)})


def _ready(noted: Sequence[_Noted]) -> Iterator[Event]:
    """Batches that were delivered, and that nobody has taken yet."""
    pids = {each.number: each.span.pid for each in noted if each.kind == BATCH}
    changes = [(each.span.end, each.number, 0, each.values[4]) for each in noted if each.kind == BATCH]
    changes += [(each.end, each.number, 1, each.values[1]) for each in noted if each.kind == STEP and each.values[0]]
    counts = {pipeline: [0, 0] for pipeline in pids}
    for at, pipeline, side, number in sorted(changes):
        if pipeline in counts:
            counts[pipeline][side] = number
            ready = sum(max(0, made - taken) for made, taken in counts.values())
            yield counter("batches ready", pids[pipeline], at, {"batches": ready})


def _reserved(counted: Iterable[tuple[int, Sequence[Moment]]], began_s: float) -> Iterator[Event]:
    for pid, moments in counted:
        names = sorted({name for each in moments for name, used in each.memory.items() if used})
        for each in moments:
            held = {name: each.memory.get(name, 0) for name in names}
            yield counter("bytes in use", pid, _ns(each.at_s - began_s), held or {"all": each.used_bytes})


def _processes(traces: Sequence[ProcessTrace], runs: dict[_Noted, TraceSpan]) -> Iterator[Event]:
    """Their names, and their order: this one, loaders, workers."""
    titles = {run.pid: each.file for each, run in runs.items()}
    titles |= {trace.pid: "loader process" if place else "training process" for place, trace in enumerate(traces)}
    order = [*dict.fromkeys(trace.pid for trace in traces), *sorted(titles)]
    for place, pid in enumerate(dict.fromkeys(order)):
        yield metadata("process_name", pid, name=titles[pid])
        yield metadata("process_sort_index", pid, sort_index=place)
