from __future__ import annotations

import random

import pytest

from asyncdata.errors import BrokenFrameError
from asyncdata.formats.fixed_length import FixedLengthFramer
from asyncdata.formats.framing import Place
from tests.formats.framers import check_any_chunking, outcome


@pytest.mark.parametrize("header", [0, 1, 9])
@pytest.mark.parametrize("footer", [0, 1, 8])
@pytest.mark.parametrize("record", [1, 3, 10])
def test_records_between_header_and_footer(record: int, header: int, footer: int) -> None:
    """Header and footer are left out, however long they are beside the pieces."""
    for count in (0, 1, 4):
        body = random.Random(count).randbytes(count * record)
        records = [body[at : at + record] for at in range(0, len(body), record)]
        data = b"h" * header + body + b"f" * footer
        check_any_chunking(
            lambda: FixedLengthFramer(record, header_bytes=header, footer_bytes=footer), data, records, rounds=3
        )


@pytest.mark.parametrize(("size", "header", "footer"), [(10, 0, 0), (11, 2, 2), (1, 2, 0), (3, 2, 2), (1, 0, 2)])
def test_what_is_no_whole_number_of_records_is_an_error(size: int, header: int, footer: int) -> None:
    """Known beforehand, it is told before the first record; else behind the last whole one."""
    data = bytes(range(size))

    def make() -> FixedLengthFramer:
        return FixedLengthFramer(4, header_bytes=header, footer_bytes=footer)

    records, error = outcome(make, data, size=size)
    assert records == []
    assert isinstance(error, BrokenFrameError)
    assert error.url == "gs://b/o"
    whole = max(0, size - header - footer) // 4
    records, error = outcome(make, data)
    assert records == [data[header + 4 * n : header + 4 * n + 4] for n in range(whole)]
    assert isinstance(error, BrokenFrameError)
    assert error.record == whole


@pytest.mark.parametrize(("record", "footer", "need"), [(10, 0, 10), (10, 10, 20), (10, 11, 0), (1, 1000, 0)])
def test_a_footer_longer_than_a_record_is_not_shown_again_for_each_record(record: int, footer: int, need: int) -> None:
    """Bytes that may be the footer are copied each time more are asked for; a size of 0 asks for as many again."""
    framer = FixedLengthFramer(record, footer_bytes=footer)
    view = memoryview(bytearray(footer + record - 1))
    frames = framer.frame(view, 0, len(view), limit=100, remaining=None, last=False, place=Place())
    assert (len(frames.starts), frames.stop, frames.need) == (0, 0, need)


@pytest.mark.parametrize(("record", "header", "footer"), [(0, 0, 0), (-1, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_impossible_lengths_are_refused(record: int, header: int, footer: int) -> None:
    """A record has a byte at least; header and footer are not negative."""
    with pytest.raises(ValueError, match="must be at least 1"):
        FixedLengthFramer(record, header_bytes=header, footer_bytes=footer)
