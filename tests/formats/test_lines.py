from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.formats.framing import Place, Refs
from asyncdata.formats.lines import LineFramer
from tests.formats.framers import check_any_chunking, decoder
from tests.formats.streams import iter_framed

CASES: list[tuple[bytes, list[bytes]]] = [
    (b"", []),
    (b"a", [b"a"]),
    (b"a\n", [b"a"]),
    (b"\n", [b""]),
    (b"\n\n\n", [b"", b"", b""]),
    (b"a\r\nb", [b"a", b"b"]),
    (b"a\rb\nc\r", [b"ab", b"c"]),
    (b"a\r\r\nb\n", [b"a", b"b"]),
    (b"\r\n", [b""]),
    (b"\r", []),
    (b"a\n\r\r", [b"a"]),
    (b"x\0y\n\xff\n\0", [b"x\0y", b"\xff", b"\0"]),
    ("ä€\u2028ö\n".encode(), ["ä€\u2028ö".encode()]),
]


@pytest.mark.parametrize(("data", "lines"), CASES)
def test_lines_are_those_of_tf_data(data: bytes, lines: list[bytes]) -> None:
    """LF ends a line, carriage returns are left out everywhere, a last line without an end counts if it has a byte."""
    check_any_chunking(LineFramer, data, lines, rounds=3)


@given(st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"\r\n", b"", b"\0"]), max_size=30), st.integers(1, 9))
def test_any_bytes_in_pieces_of_any_size(parts: list[bytes], piece: int) -> None:
    """However text is cut, the lines are what splitting it all at once gives."""
    data = b"".join(parts)
    lines = [line.replace(b"\r", b"") for line in data.split(b"\n")]
    expected = lines if lines[-1] else lines[:-1]
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    assert list(iter_framed(LineFramer(), pieces, block=4)) == expected


def test_large_text_with_short_and_long_lines() -> None:
    """Lines of a byte and of a megabyte follow one another; the window adapts to both."""
    source = random.Random(5)
    lines = [
        source.randbytes(source.choice([0, 1, 30, 5000])).replace(b"\n", b"-").replace(b"\r", b"-") for _ in range(500)
    ]
    lines[100:100] = [b"x" * 1_500_000, b"y" * 3_000_000]
    data = b"\n".join([*lines, b""])
    for size in (None, len(data)):
        pieces = [memoryview(data)[at : at + (1 << 18)] for at in range(0, len(data), 1 << 18)]
        assert list(decoder(LineFramer, size=size)(pieces)) == lines


def test_blank_lines_are_passed_over_and_counted() -> None:
    """With `skip_blank` lines of white space are no records, but have a number."""
    data = b"\n \t\r\na\n\n\x0b\nb\n   "
    check_any_chunking(lambda: LineFramer(skip_blank=True), data, [b"a", b"b"], rounds=5)
    view = memoryview(bytearray(data))
    frames = LineFramer(skip_blank=True).frame(
        view, 0, len(view), limit=9, remaining=len(view), last=True, place=Place(line=10)
    )
    assert frames.lines is not None
    assert frames.lines.tolist() == [12, 15]


def test_no_more_lines_than_wanted() -> None:
    """A million lines in one view are found as many at a time as are asked for, without looking at all of them."""
    view = memoryview(bytearray(b"ab\n" * 1_000_000))
    framer = LineFramer()
    start = 0
    for _ in range(5):
        frames = framer.frame(view, start, len(view), limit=1000, remaining=None, last=False, place=Place(offset=start))
        (refs,) = frames.values
        assert isinstance(refs, Refs)
        assert refs.rows.tolist() == [[at, 2] for at in range(start, start + 3000, 3)]
        assert np.array_equal(frames.starts, refs.rows[:, 0])
        start = frames.stop
