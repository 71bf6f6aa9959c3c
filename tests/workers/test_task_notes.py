"""Workers note their tasks where the pool reads them, also when they do not come back."""

from __future__ import annotations

from asyncdata.observe.trace_ring import FAILED, KILLED, RING_BYTES, TraceRing
from asyncdata.workers.task_notes import NOTES_BYTES, TaskNotes, TaskSpans


def noted() -> tuple[TaskNotes, TaskSpans, TraceRing]:
    """Both ends, and where spans go."""
    shared = memoryview(bytearray(NOTES_BYTES))
    ring = TraceRing(bytearray(RING_BYTES))
    return TaskNotes(shared), TaskSpans("w0", 4711, shared, ring), ring


def test_a_task_from_dispatch_to_reply() -> None:
    """The run lies inside of it."""
    notes, spans, ring = noted()
    spans.sent(1)
    notes.begin(1)
    notes.end(1, 0.0)
    spans.ended(1, "map(f)", failed=True)
    ((_, flags, name, sent_s, ended_s, values, worker),) = ring.read().records()
    ticket, pid, began_ns, ran_ns, waited_ns, _ = values
    assert (ticket, pid, waited_ns, flags) == (1, 4711, 0, FAILED)
    assert 0 <= began_ns <= began_ns + ran_ns <= (ended_s - sent_s) * 1e9 + 2
    assert (ring.read().names[name], ring.read().names[worker]) == ("map(f)", "w0")


def test_the_worker_is_gone() -> None:
    """The task that it was in had begun and runs to the end; the one behind never began."""
    notes, spans, ring = noted()
    spans.sent(1)
    spans.sent(2)
    notes.begin(1)
    for ticket in (1, 2):
        spans.ended(ticket, "map(f)", killed=True)
    first, second = ring.read().records()
    assert first.flags == second.flags == KILLED
    assert first.values[2] >= 0 < first.values[3]
    assert second.values[2] < 0 == second.values[3]


def test_tasks_from_before_and_after() -> None:
    """Those that were sent while nobody asked are left out; so is what a worker noted of another task."""
    notes, spans, ring = noted()
    spans.ended(1, "map(f)")
    spans.sent(2)
    notes.begin(2 + 256)
    spans.ended(2, "map(f)")
    spans.sent(3)
    spans.ring = None
    spans.ended(3, "map(f)")
    (record,) = ring.read().records()
    assert (record.values[0], record.values[2] < 0) == (2, True)
