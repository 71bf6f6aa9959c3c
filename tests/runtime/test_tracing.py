"""What pipelines note for a trace."""

from __future__ import annotations

import pytest

from asyncdata.observe import stopwatch
from asyncdata.observe.trace_ring import RING_BYTES, WAIT, TraceRing
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.tracing import TracedMeter


def test_waits_that_overlap_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step that waits for several things of a kind: from the first to the last of them."""
    now = [10.0]
    monkeypatch.setattr(stopwatch, "clock", lambda: now[0])
    ring = TraceRing(bytearray(RING_BYTES))
    meter = TracedMeter("map(f)", None, "plan.0", ring, SourceTable())
    meter.memory.begin()
    now[0] = 11.0
    with meter.memory, meter.calls:
        now[0] = 12.0
    meter.memory.end()
    now[0] = 13.0
    with meter.memory:
        now[0] = 14.0
    assert meter.memory.seconds() == 4
    trace = ring.read()
    found = [
        (each.kind, trace.names[each.name], each.begin_s, each.end_s, trace.names[each.file])
        for each in trace.records()
    ]
    assert found == [
        (WAIT, "plan.0\tmap(f)", 11.0, 12.0, "waits for its calls"),
        (WAIT, "plan.0\tmap(f)", 10.0, 12.0, "waits for memory"),
        (WAIT, "plan.0\tmap(f)", 13.0, 14.0, "waits for memory"),
    ]
