"""Whatever was noted becomes a trace that viewers read as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.observe.chrome_trace import chrome_trace
from asyncdata.observe.timeline import Moment
from asyncdata.observe.trace_lanes import TraceSpan, by_time, span_events
from asyncdata.observe.trace_ring import (
    BATCH,
    BLOCK,
    FAILED,
    KILLED,
    REQUEST,
    RING_BYTES,
    STEP,
    TASK,
    WAIT,
    PipelineTrace,
    TraceRing,
)
from asyncdata.runtime.tracing import TracedArrivals
from tests.observe.trace_checker import Checked, check_trace

TIMES = st.floats(0, 0.001) | st.integers(0, 5).map(lambda number: number / 1e4)
NUMBERS = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)
SMALL = RING_BYTES - ((1 << 15) - 100) * 88
NAMES = ("", "plan\tbatch(2)", "plan.0\tmap(f)", "plan.0.1\tTFRecordDataset", "gs://b/x.tfrecord", "asyncdata-w0")


def ring_of(*spans: tuple[Any, ...]) -> TraceRing:
    """Spans with `NAMES`."""
    ring = TraceRing(bytearray(SMALL))
    for name in NAMES[1:]:
        ring.name(name)
    for kind, name, begin_s, end_s, values, *last in spans:
        file, flags = (*last, 0, 0)[:2]
        ring.add(kind, flags, name, begin_s, end_s, *values, *(0 for _ in range(6 - len(values))), file)
    return ring


def checked(*rings: TraceRing) -> Checked:
    """What viewers would show."""
    return check_trace(chrome_trace([ring.read() for ring in rings], [], 0.0, recorded="today"))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 7),
            st.integers(0, 5),
            TIMES,
            TIMES,
            st.tuples(*[NUMBERS] * 6),
            st.integers(0, 5),
            st.integers(0, 15),
        ),
        max_size=40,
    )
)
def test_any_spans_make_a_trace(spans: list[tuple[Any, ...]]) -> None:
    """However they overlap, whatever is missing between them, and whatever numbers they hold."""
    noted = [
        (kind, name, begin_s, end_s, (first, abs(second) % 5 if kind == TASK else second, *rest), *last)
        for kind, name, begin_s, end_s, (first, second, *rest), *last in spans  # process ids are no other numbers
    ]
    assert checked(ring_of(*noted)).other == {"recorded": "today", "dropped_spans": 0}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=60))
def test_lanes_are_as_few_as_spans_at_a_time(spans: list[tuple[int, int]]) -> None:
    """No two overlap in one, and none is there without need."""
    found = [TraceSpan(1, (0, (), 0, "lane"), begin, begin + length, "x") for begin, length in spans]
    names, events = span_events(found)
    lanes = {event["tid"] for event in by_time(events)}
    assert len(lanes) == sum(name["name"] == "thread_name" for name in names)
    # One without length takes its place all the same.
    ends = [(begin, begin + max(length, 1)) for begin, length in spans]
    at_once = max((sum(begin <= at < end for begin, end in ends) for at, _ in ends), default=0)
    assert len(lanes) == at_once


def test_a_way_from_the_request_to_the_step() -> None:
    """By the file and the offset, by the source and the record, by the number of the delivery."""
    trace = checked(
        ring_of(
            (REQUEST, 0, 0.1, 0.2, (4096, 0, 10**6, 5 * 10**7, -1, 10**6), 4),
            (REQUEST, 0, 0.1, 0.3, (4096, 4096, 0, 0, -1, -1), 4),
            (BLOCK, 3, 0.05, 0.4, (100, 9000, 77, 0, 0, 0), 4),
            (BLOCK, 3, 0.4, 0.5, (100, 9000, 77, 100, 5000, 0), 4),
            (BLOCK, 2, 0.05, 0.55, (100, 9000, 0, 0, 0, 0)),
            (BATCH, 1, 0.6, 0.61, (50, 4000, 77, 150, 1)),
            (STEP, 1, 0.0, 0.7, (50, 1, 7 * 10**8, 0, 0, 0)),
            (STEP, 1, 0.7, 0.9, (0, 2, 0, 0, 0, 0)),
        )
    )
    program = "training process"
    assert trace.arrows == [
        [
            (program, "requests #2"),
            (program, "TFRecordDataset"),
            (program, "delivered batches"),
            (program, "training loop"),
        ]
    ]
    assert [event["name"] for event in trace.of("training loop")] == ["wait", "step"]
    request, *parts = trace.spans[program, "requests"]
    assert request["args"] == {"url": "gs://b/x.tfrecord", "offset": 0, "bytes": 4096, "connect_ms": 1.0}
    assert [(each["name"], each["ts"], each["dur"]) for each in parts] == [
        ("first byte", 101_000, 49_000),
        ("body", 150_000, 50_000),
    ]
    assert trace.counters["requests in flight"][-1] == {"requests": 0}
    assert max(each["requests"] for each in trace.counters["requests in flight"]) == 2
    assert [each["batches"] for each in trace.counters["batches ready"]] == [1, 0]


def test_tasks_and_what_went_wrong() -> None:
    """A task runs in its worker, unless that was gone before it began; failures and hedges are said."""
    trace = checked(
        ring_of(
            (TASK, 2, 0.1, 0.5, (1, 4711, 10**8, 2 * 10**8, 10**6, 0), 5),
            (TASK, 2, 0.2, 0.6, (2, 4711, -1, 0, 0, 0), 5, KILLED),
            (REQUEST, 0, 0.1, 0.4, (4096, 0, -1, -1, 2 * 10**8, -1), 4, FAILED),
            (WAIT, 2, 0.1, 0.2, (0, 0, 0, 0, 0, 0), 1),
        )
    )
    (run,) = trace.spans["asyncdata-w0", "tasks"]
    assert (run["ts"], run["dur"], run["name"]) == (200_000, 200_000, "map(f)")
    assert run["args"] == {"ticket": 1, "waited_for_memory_ms": 1.0}
    assert [each["args"].get("killed") for each in trace.of("tasks of asyncdata-w0")] == [None, True]
    assert len(trace.arrows) == 1
    (request,) = trace.of("requests")
    assert request["args"]["failed"] is True
    assert [each["name"] for each in trace.moments["training process", "requests"]] == ["hedge"]


@pytest.mark.parametrize(
    "name",
    [
        "plan.0\tmap(a\tb)",
        "plan.0\tmap(" + "x" * 300 + ")",
        "plan" + ".0" * 200 + "\tmap(f)",
        "map(f)",
        "\t",
        "plan.0\t",
    ],
)
def test_strange_names(name: str) -> None:
    """Steps with long names or tabs in them, in deep plans, are drawn like others."""
    ring = TraceRing(bytearray(SMALL))
    ring.add(BLOCK, 0, ring.name(name), 0.1, 0.2, 5)
    ring.add(WAIT, 0, ring.name(name), 0.1, 0.2, file=ring.name("waits for memory"))
    trace = checked(ring)
    assert sum(each["args"].get("rows", 0) for spans in trace.spans.values() for each in spans) == 5
    assert len(trace.spans) == 2


def test_memory_over_time() -> None:
    """Each part of the limit, also when it holds nothing."""
    moments = [Moment(at_s=1.0, memory={"reads": 5}), Moment(at_s=2.0, memory={"shuffle": 7})]
    ring = ring_of()
    trace = check_trace(chrome_trace([ring.read()], [(ring.read().pid, moments)], 0.0, recorded=""))
    assert trace.counters["bytes in use"] == [{"reads": 5, "shuffle": 0}, {"reads": 0, "shuffle": 7}]


def test_steps_and_waits_are_those_of_the_arrivals() -> None:
    """The same numbers, one by one."""
    ring = TraceRing(bytearray(RING_BYTES))
    arrivals = TracedArrivals(PipelineTrace(ring, 1))
    arrivals.add(1.0, 1.5, 8, 0.25)
    arrivals.add(1.0, 3.0, 4, 1.25)
    arrivals.add(1.0, 4.0, 0, 1.25)
    trace = checked(ring)
    spans = [(each["name"], each["ts"], each["dur"]) for each in trace.of("training loop")]
    expected = [
        ("step", 1.0, 0.25),
        ("wait", 1.25, 0.25),
        ("step", 1.5, 0.5),
        ("wait", 2.0, 1.0),
        ("step", 3.0, 1.0),
    ]
    assert spans == [(name, pytest.approx(at * 1e6), pytest.approx(took * 1e6)) for name, at, took in expected]
    assert [(each.step_s, each.wait_s) for each in arrivals.all()] == [(0.25, 0.25), (0.5, 1.0), (1.0, 0.0)]
