"""The last spans are kept in bounded memory, whoever writes them and whoever reads them."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading

import pytest

from asyncdata.observe import trace_ring
from asyncdata.observe.trace_ring import RING_BYTES, TASK, WAIT, TraceRecord, TraceRing
from tests.patience import LIMIT_S

SPANS = 1 << 15
NAMES = 1 << 12


def test_spans_are_read_as_they_were_added() -> None:
    """In their order, with their names."""
    ring = TraceRing(bytearray(RING_BYTES))
    first, second = ring.name("map(f)"), ring.name("waits for memory")
    ring.add(WAIT, 0, first, 1.5, 2.5, file=second)
    ring.add(TASK, 7, second, 2.0, 3.0, 1, -2, 3, 1 << 62, 5, 6, first)
    trace = ring.read()
    assert (trace.pid, trace.dropped) == (os.getpid(), 0)
    assert [trace.names[number] for number in (0, first, second)] == ["", "map(f)", "waits for memory"]
    assert list(trace.records()) == [
        TraceRecord(WAIT, 0, first, 1.5, 2.5, (0,) * 6, second),
        TraceRecord(TASK, 7, second, 2.0, 3.0, (1, -2, 3, 1 << 62, 5, 6), first),
    ]


def test_the_oldest_are_dropped_and_counted() -> None:
    """Memory does not grow, and the latest are there."""
    region = bytearray(RING_BYTES)
    ring = TraceRing(region)
    for number in range(SPANS + 1000):
        ring.add(WAIT, 0, 0, number, number + 1)
    trace = ring.read()
    assert len(region) == RING_BYTES
    begun = [record.begin_s for record in trace.records()]
    assert begun == list(range(SPANS + 1000 - len(begun), SPANS + 1000))
    assert trace.dropped + len(begun) == SPANS + 1000
    assert SPANS - 100 < len(begun) <= SPANS


def test_names_are_bounded() -> None:
    """Of very many the last ones share a name, those before keep theirs; of a long one both ends are kept."""
    ring = TraceRing(bytearray(RING_BYTES))
    numbers = [ring.name(f"{number}.tfrecord") for number in range(3 * NAMES)]
    names = ring.read().names
    assert [names[number] for number in numbers[: NAMES - 2]] == [f"{n}.tfrecord" for n in range(NAMES - 2)]
    assert {names[number] for number in numbers[NAMES - 2 :]} == {"others"}
    assert ring.name("5.tfrecord") == numbers[5]
    ring = TraceRing(bytearray(RING_BYTES))
    long = ring.name("gs://bucket/" + "ä" * 200 + "/last.tfrecord")
    assert ring.read().names[long].startswith("gs://bucket/")
    assert "..." in ring.read().names[long]
    assert ring.read().names[long].endswith("/last.tfrecord")


def test_no_secret_gets_into_it() -> None:
    """Neither signatures nor passwords, whatever becomes of the name."""
    region = bytearray(RING_BYTES)
    ring = TraceRing(region)
    ring.name("https://me:s3cr3t@host/" + "x" * 200 + "?Signature=s3cr3t")
    ring.name("TFRecordDataset(https://me:s3cr3t@host/a)")
    assert b"s3cr3t" not in region


def test_threads_lose_nothing() -> None:
    """Several at a time add spans and names."""
    ring = TraceRing(bytearray(RING_BYTES))

    def work(place: int) -> None:
        for number in range(2000):
            ring.add(WAIT, 0, ring.name(f"name {number % 100}"), place, number)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    trace = ring.read()
    assert sorted((record.begin_s, record.end_s) for record in trace.records()) == [
        (place, number) for place in range(4) for number in range(2000)
    ]
    assert all(trace.names[record.name] == f"name {int(record.end_s) % 100}" for record in trace.records())


def test_what_a_killed_process_has_added_is_there() -> None:
    """Another process writes and kills itself; while it writes, every reading is whole."""
    program = (
        "import mmap, os, signal, sys\n"
        "from asyncdata.observe.trace_ring import RING_BYTES, TraceRing\n"
        "ring = TraceRing(memoryview(mmap.mmap(int(sys.argv[1]), RING_BYTES)))\n"
        "name = ring.name('its step')\n"
        "for number in range(100_000):\n"
        "    ring.add(2, 0, name, number, number + 1, *[number] * 6)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    fd = os.memfd_create("ring")
    try:
        os.ftruncate(fd, RING_BYTES)
        ring = TraceRing(memoryview(mmap.mmap(fd, RING_BYTES)), reads=True)
        process = subprocess.Popen([sys.executable, "-c", program, str(fd)], pass_fds=[fd])
        while process.poll() is None:
            packed = ring.read().packed
            assert (packed["end_s"] == packed["begin_s"] + 1).all()
            assert all((packed[f"value_{place}"] == packed["begin_s"]).all() for place in range(6))
        process.wait(LIMIT_S)
        trace = ring.read()
    finally:
        os.close(fd)
    assert trace.pid == process.pid
    *_, last = trace.records()
    assert (last.begin_s, trace.names[last.name]) == (99_999, "its step")


def test_nobody_waits_for_a_name_that_is_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of signals interrupts whoever keeps one, and then waits for a loop that keeps another."""
    ring = TraceRing(bytearray(RING_BYTES))
    numbers: list[int] = []
    other = threading.Thread(target=lambda: numbers.append(ring.name("other")), daemon=True)

    def interrupted(text: str) -> str:
        if text == "one":
            other.start()
            other.join(LIMIT_S)
            assert not other.is_alive()
        return text

    monkeypatch.setattr(trace_ring, "redact_url", interrupted)
    numbers.append(ring.name("one"))
    assert [ring.read().names[number] for number in numbers] == ["other", "one"]
