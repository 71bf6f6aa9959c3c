"""`FramedStage` over bytes cut into chunks at will, with every framer: records, provenance, marks and leases."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asyncdata.formats.csv_rows import CsvFramer
from asyncdata.formats.csv_values import Column
from asyncdata.formats.fixed_length import FixedLengthFramer
from asyncdata.formats.framing import Framer, WholeFramer
from asyncdata.formats.json_lines import JsonFramer
from asyncdata.formats.lines import LineFramer
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.framed import FramedStage
from tests.runtime.stages.framing_ways import away
from tests.runtime.stages.laws import Bench, Make, check_any_blocking, check_cancelling, check_closing, whole
from tests.runtime.stages.test_tfrecord import URL, CutChunks
from tests.samples import samples

LINES = [b"first", b"", b"x" * 40, b"\0\xff", b"last but one", b"y"]
ROWS = [(n, b"a,\n" * (n % 3), n / 2) for n in range(12)]
CSV = b"".join(b'%d,"%s",%r\n' % row for row in ROWS)
VALUES = [{"n": n, "text": "ä" * n} for n in range(9)]

CASES: dict[str, tuple[Callable[[], Framer], bytes, list[Any]]] = {
    "lines": (LineFramer, b"\n".join(LINES), LINES),
    "crlf": (LineFramer, b"\r\n".join(LINES), LINES),
    "fixed length": (
        lambda: FixedLengthFramer(5, header_bytes=3, footer_bytes=4),
        b"hhh" + b"01234abcde" * 4 + b"ffff",
        [b"01234", b"abcde"] * 4,
    ),
    "csv": (
        lambda: CsvFramer([Column("int64", None), Column("bytes", b""), Column("float64", None)]),
        CSV,
        [list(row) for row in ROWS],
    ),
    "json": (JsonFramer, b"\n\n".join(json.dumps(value).encode() for value in VALUES), VALUES),
    "whole": (WholeFramer, b"everything" * 9, [b"everything" * 9]),
    "whole with url": (lambda: WholeFramer(URL), b"everything", [[URL, b"everything"]]),
}
pytestmark = pytest.mark.usefixtures("way")
BY_NAME = pytest.mark.parametrize("name", CASES)


def reading(
    make: Callable[[], Framer], data: bytes, cuts: Sequence[int], *, room: int = 64, compressed: bool = False
) -> Make:
    """A stage that reads an object cut into chunks."""

    def stage(bench: Bench) -> Stage:
        return FramedStage(
            bench.context("Framed"),
            bench.file(URL),
            CutChunks(bench, data, cuts, room=room),
            framer := make(),
            compressed=compressed,
            reserve_bytes=0,
            at_once=make is WholeFramer,
            away=away(bench, framer),
        )

    return stage


def chunkings(data: bytes, seed: int) -> Sequence[int]:
    """Where an object is cut: into bytes, into pieces of a few, or at random."""
    source = random.Random(seed)
    return source.choice([range(1, len(data)), range(3, len(data), 7), source.sample(range(len(data)), len(data) // 9)])


@pytest.mark.sampled
@BY_NAME
@pytest.mark.parametrize("compressed", [False, True])
def test_records_are_whole_wherever_the_bytes_are_cut(name: str, compressed: bool) -> None:
    """Any chunking and any blocking: elements, provenance and marks are those of the object in one piece."""
    make, data, expected = CASES[name]
    one_piece = whole(reading(make, data, [], compressed=compressed))
    assert one_piece.error is None
    assert one_piece.elements == expected
    assert [origin[1] for origin in one_piece.origins] == list(range(len(expected)))
    for seed in range(samples(6, 300)):
        room = random.Random(seed).choice([1, 5, 64])
        stage = reading(make, data, chunkings(data, seed), room=room, compressed=compressed)
        check_any_blocking(stage, seeds=range(seed, seed + 1)).check_same(one_piece)


@BY_NAME
def test_a_mark_is_where_reading_can_begin_again(name: str) -> None:
    """The bytes from a record's offset on, framed with what its mark says, give that record and all behind it."""
    make, data, _ = CASES[name]
    trace = whole(reading(make, data, []))
    assert trace.states[0][0]["offset"] == trace.origins[0][3]
    offsets = [origin[3] for origin in trace.origins]
    assert offsets == sorted(offsets)
    if name in ("lines", "json", "csv"):
        later = whole(reading(make, data[offsets[3] :], []))
        assert later.elements == trace.elements[3:]


@pytest.mark.sampled
@BY_NAME
def test_closing_and_cancelling_give_everything_back(name: str) -> None:
    """Leases: chunks, tails, larger slabs and rows are given back at any step."""
    make, data, _ = CASES[name]
    stage = reading(make, data, range(11, len(data), 11), room=4)
    check_closing(stage)
    check_cancelling(stage, steps=range(0, 60, samples(6, 1)))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_line_of_many_chunks(compressed: bool) -> None:
    """A line far larger than a chunk comes in one piece, between short ones; the chunks are given back."""
    lines = [b"short", b"x" * 300_000, b"", b"y" * 70_000, b"end"]
    data = b"\n".join(lines)
    trace = whole(reading(LineFramer, data, range(1 << 12, len(data), 1 << 12), room=1 << 9, compressed=compressed))
    assert trace.elements == lines


@pytest.mark.sampled
def test_a_line_beyond_the_memory_limit_is_an_error() -> None:
    """A line that never ends asks for more until the limit is reached, and says where it begins."""
    data = b"first\n" + b"z" * (100 << 20)
    trace = whole(reading(LineFramer, data, range(1 << 20, len(data), 1 << 20), room=1 << 16))
    assert trace.elements == [b"first"]
    assert trace.error is not None
    assert trace.error.startswith("MemoryLimitError")
    assert "offset 6, record 1" in trace.error


@pytest.mark.parametrize(
    ("name", "broken", "kind", "place"),
    [
        ("json", b'{"n": 0}\n{"n": \n', "CorruptRecordError", "offset 9, record 1"),
        ("csv", b'1,"a",2\n3,"b"c,4\n', "BrokenFrameError", "record 1"),
        ("csv", b"1,a,2\nx,b,3\n", "CorruptRecordError", "offset 6, record 1"),
        ("fixed length", b"hhh01234ffffX", "BrokenFrameError", "record"),
    ],
)
def test_errors_come_behind_the_whole_records_and_name_the_place(
    name: str, broken: bytes, kind: str, place: str
) -> None:
    """However it is cut: the records in front, then one error with URL, offset, record and stage."""
    make = CASES[name][0]
    traces = [whole(reading(make, broken, cuts, compressed=True)) for cuts in ([], [4], range(1, len(broken)))]
    for trace in traces:
        trace.check_same(traces[0])
        assert trace.error is not None
        assert trace.error.startswith(kind)
        assert place in trace.error
        assert URL in trace.error
        assert "Framed" in trace.error
        assert len(trace.elements) == 1


def test_nothing_at_all() -> None:
    """An empty object has no lines, no rows, no values, and is one file."""
    for name in ("lines", "csv", "json"):
        assert whole(reading(CASES[name][0], b"", [])).elements == []
    assert whole(reading(WholeFramer, b"", [])).elements == [b""]
