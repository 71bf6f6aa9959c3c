from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import BrokenFrameError
from asyncdata.formats import crc32c
from asyncdata.formats.framing import Place
from asyncdata.formats.tfrecord import (
    RecordRows,
    check_payloads,
    encode,
    encode_many,
    frame,
)
from tests.samples import samples

# Written by TensorFlow 2.21: b"first", b"", b"\x00\xff" * 3.
FROM_TENSORFLOW = bytes.fromhex(
    "0500000000000000eab2043e666972737455ff23e5"
    "000000000000000029039807d8ea82a2"
    "06000000000000007369d53700ff00ff00ff4c812478"
)
PLACE = Place(url="gs://b/o", version="7", offset=1000, record=50)


def payloads(view: bytes, frames: RecordRows) -> list[bytes]:
    """The payloads that the rows point at."""
    return [view[start : start + size] for start, size in frames.rows.tolist()]


def whole(data: bytes) -> RecordRows:
    """Frames all of an object."""
    return frame(memoryview(data), 0, len(data), remaining=len(data), place=PLACE)


def header(length: int) -> bytes:
    """A header whose checksum holds."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", crc32c.masked_checksum(packed))


def test_files_of_tensorflow_are_read_and_written_byte_for_byte() -> None:
    """The format is TensorFlow's."""
    records = [b"first", b"", b"\x00\xff" * 3]
    assert encode_many(records) == FROM_TENSORFLOW
    found = whole(FROM_TENSORFLOW)
    assert payloads(FROM_TENSORFLOW, found) == records
    assert not len(check_payloads(memoryview(FROM_TENSORFLOW), found.rows))


@given(st.lists(st.binary(max_size=60), max_size=20), st.binary(max_size=20), st.binary(max_size=20))
def test_frame_finds_what_encode_wrote(records: list[bytes], before: bytes, after: bytes) -> None:
    """Rows point at the payloads, anywhere in a view, and bytes outside start and stop are not looked at."""
    data = before + encode_many(records) + after
    stop = len(data) - len(after)
    found = frame(memoryview(data), len(before), stop, remaining=stop - len(before))
    assert payloads(data, found) == records
    assert (found.stop, found.need, found.error) == (stop, 0, None)
    assert not len(check_payloads(np.frombuffer(data, np.uint8), found.rows)) if data else True


def test_rows_are_the_same_wherever_the_bytes_end() -> None:
    """Cut at every position of header, payload and footer: whole records, then what the tail needs once it is known."""
    records = [b"abc", b"", b"x" * 40]
    data = encode_many(records)
    ends = [0, 19, 35, 91]
    for cut in range(len(data) + 1):
        found = frame(memoryview(data), 0, cut, remaining=len(data))
        complete = sum(end <= cut for end in ends[1:])
        assert payloads(data, found) == records[:complete]
        assert found.stop == ends[complete]
        assert found.error is None
        known = cut - found.stop >= 12
        assert found.need == (16 + len(records[complete]) if known else 0)
        again = frame(memoryview(data), found.stop, len(data), remaining=len(data) - found.stop)
        assert payloads(data, again) == records[complete:]


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 2048, 5000])
def test_any_number_of_records_is_found_across_the_blocks_of_the_walk(count: int) -> None:
    """The walk in runs of 1024 loses and doubles nothing."""
    records = [b"%d" % index for index in range(count)]
    data = encode_many(records)
    found = whole(data)
    assert payloads(data, found) == records
    assert found.error is None
    assert found.rows.dtype == np.int64
    assert found.rows.shape == (count, 2)


@pytest.mark.parametrize("limit", [1, 2, 1023, 1024, 1025, 1499, 1500, 1501])
def test_limit_stops_the_walk_and_the_rest_follows(limit: int) -> None:
    """A limit gives the first records only; framing on from ``stop`` gives the others."""
    records = [b"%d" % index for index in range(1500)]
    data = encode_many(records)
    first = frame(memoryview(data), 0, len(data), limit=limit, remaining=len(data))
    assert payloads(data, first) == records[:limit]
    assert first.need == 0
    rest = frame(memoryview(data), first.stop, len(data), remaining=len(data) - first.stop)
    assert payloads(data, rest) == records[limit:]


def test_limit_hides_damage_behind_it() -> None:
    """What lies behind the limit is not looked at: ``take`` works on a file with a damaged end."""
    data = encode(b"good") + b"\xff" * 40
    found = frame(memoryview(data), 0, len(data), limit=1, remaining=len(data))
    assert payloads(data, found) == [b"good"]
    assert found.error is None


@pytest.mark.parametrize("bad", [0, 1, 1023, 1024, 1500, 2999])
@pytest.mark.parametrize("byte", [0, 3, 7, 8, 11])
def test_records_before_a_damaged_header_come_with_an_error_that_says_where(bad: int, byte: int) -> None:
    """A damaged header ends the object there: record, offset, URL and version are in the error."""
    records = [b"r" * (index % 50) for index in range(3000)]
    data = bytearray(encode_many(records))
    place = sum(16 + len(record) for record in records[:bad])
    data[place + byte] ^= 0x10
    found = whole(bytes(data))
    assert payloads(bytes(data), found) == records[:bad]
    assert found.stop == place
    assert found.need == 0
    assert found.error is not None
    assert found.error.place() == {"url": "gs://b/o", "version": "7", "offset": 1000 + place, "record": 50 + bad}
    assert "checksum" in found.error.message


def test_damage_of_any_byte_is_noticed_once() -> None:
    """Each byte belongs to a header, which ends the object, or to a payload and its footer, which spoils one record."""
    records = [b"abc", b"", b"defghij", b"k"]
    data = encode_many(records)
    starts = [0, 19, 35, 58]
    for place in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= flip
            found = whole(bytes(damaged))
            bad = check_payloads(memoryview(damaged), found.rows)
            record = max(index for index, start in enumerate(starts) if start <= place)
            if place - starts[record] < 12:
                assert len(found.rows) == record
                assert isinstance(found.error, BrokenFrameError)
                assert not len(bad)
            else:
                assert len(found.rows) == len(records)
                assert found.error is None
                assert bad.tolist() == [record]


@pytest.mark.parametrize("length", [2**64 - 1, 2**64 - 16, 2**63, 2**63 - 1, 2**63 - 17, 2**62, 2**40, 200])
def test_a_lying_length_is_never_a_need(length: int) -> None:
    """A length beyond the object's end is refused, however well its checksum holds, and nothing is allocated."""
    data = encode(b"good") + header(length) + b"payload"
    found = whole(data)
    assert payloads(data, found) == [b"good"]
    assert found.need == 0
    assert found.error is not None
    assert str(length) in found.error.message
    assert found.error.record == 51
    unknown = frame(memoryview(data), 0, len(data))
    assert (unknown.error is None) == (length <= 2**63 - 17)
    assert unknown.need == (16 + length if unknown.error is None else 0)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**33, 500, 0])
def test_a_length_without_its_checksum_is_never_a_need(length: int) -> None:
    """The length field alone is trusted for nothing, even where it would fit."""
    data = struct.pack("<QI", length, 12345)
    found = frame(memoryview(data), 0, len(data), remaining=10_000)
    assert found.need == 0
    assert found.error is not None


@pytest.mark.parametrize("cut", range(1, 44))
def test_an_object_that_ends_inside_a_record_is_truncated(cut: int) -> None:
    """With ``remaining`` at the end of the bytes, any tail is an error; with a whole header it says what is missing."""
    data = encode(b"x" * 12) + encode(b"")
    found = whole(data[:cut])
    if cut == 28:
        assert found.error is None
        return
    begin, size = (0, 28) if cut < 28 else (28, 16)
    assert found.error is not None
    assert found.error.offset == 1000 + begin
    count = size - (cut - begin)
    missing = "1 byte of it is missing" if count == 1 else f"{count} bytes of it are missing"
    assert (missing if cut - begin >= 12 else "too few") in found.error.message


def test_a_tail_too_short_for_any_record_is_an_error_as_soon_as_it_is_known() -> None:
    """The end of the object need not be there yet: its size tells that nothing whole can follow."""
    data = encode(b"abc") + b"\0" * 5
    found = frame(memoryview(data), 0, 19, remaining=24)
    assert len(found.rows) == 1
    assert found.error is not None
    assert "5 bytes are too few" in found.error.message


@pytest.mark.parametrize(
    ("head", "hint"),
    [
        (b"\x1f\x8b\x08\0\0\0\0\0\0\xff", "compression_type='GZIP'"),
        (b"\x78\x9c", "compression_type='ZLIB'"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"PAR1", "Parquet"),
        (b"<html>", "HTML"),
        (b'{"a": 1}', "JSON"),
        (b"any text", "61 6e 79"),
    ],
)
def test_another_format_is_named_in_the_error(head: bytes, hint: str) -> None:
    """Whoever opens the wrong file, or forgets the compression, is told what the file looks like."""
    data = head.ljust(64, b"\x55")
    found = frame(memoryview(data), 0, len(data), remaining=len(data))
    assert found.error is not None
    assert hint in str(found.error)


def test_check_can_be_left_out() -> None:
    """Without checks, a wrong length checksum is not noticed; a length beyond the object still is."""
    data = bytearray(encode(b"abc") + encode(b"d"))
    data[9] ^= 1
    found = frame(memoryview(data), 0, len(data), check=False, remaining=len(data))
    assert payloads(bytes(data), found) == [b"abc", b"d"]
    lie = struct.pack("<QI", 1 << 60, 0)
    assert frame(memoryview(lie), 0, 12, check=False, remaining=99).error is not None


def test_arguments_that_cannot_be_are_refused() -> None:
    """Bounds outside the view, and a remainder smaller than what is there, are the caller's errors."""
    view = memoryview(encode(b"abc"))
    for start, stop in ((-1, 5), (6, 5), (0, 20)):
        with pytest.raises(ValueError, match="do not lie"):
            frame(view, start, stop)
    with pytest.raises(ValueError, match="remain"):
        frame(view, 0, 19, remaining=18)


def test_arbitrary_bytes_never_do_more_than_give_an_error() -> None:
    """Random, zero and half-valid bytes end in rows inside the bytes, a need, or an error."""
    source = random.Random(5)
    good = encode_many([b"abc", b"", b"defg"])
    for _ in range(samples(2000, 200_000)):
        pieces: Sequence[bytes] = (good, source.randbytes(source.randint(0, 40)), bytes(source.randint(0, 40)))
        data = bytearray(b"".join(source.choices(pieces, k=source.randint(0, 4))))
        if data and source.random() < 0.5:
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        found = frame(memoryview(data), 0, len(data), remaining=len(data))
        assert found.stop == len(data) or found.error is not None
        check_payloads(memoryview(data), found.rows)
        ends = found.rows.sum(axis=1)
        assert (ends + 4 <= found.stop).all()


def test_rows_of_many_objects_can_be_checked_in_any_order() -> None:
    """Payload checks need neither order nor neighbourhood: shuffled rows give the shuffled answer."""
    records = [random.Random(index).randbytes(index % 70) for index in range(300)]
    data = bytearray(encode_many(records))
    rows = whole(bytes(data)).rows
    spoilt = [7, 130, 299]
    for index in spoilt:
        data[rows[index, 0] + rows[index, 1]] ^= 1
    order = np.random.default_rng(1).permutation(300)
    bad = check_payloads(memoryview(data), rows[order])
    assert sorted(order[bad].tolist()) == spoilt


@pytest.mark.parametrize("seed", range(samples(60, 3000)))
def test_records_of_one_length_are_found_like_any_others(seed: int) -> None:
    """Runs of equal lengths, broken by others, cut anywhere, damaged anywhere: what a walk one by one finds."""
    draw = random.Random(seed)
    records = [bytes(draw.choice([9, 9, 9, 9, 9, 9, 9, 9, draw.randrange(20)])) for _ in range(draw.randrange(60))]
    data = bytearray(encode_many(records))
    stop = draw.randint(0, len(data))
    if stop and draw.random() < 0.5:
        data[draw.randrange(stop)] ^= 1 << draw.randrange(8)
    limit = draw.choice([0, draw.randint(1, 60)])
    found = frame(memoryview(data), 0, stop, limit=limit)
    one_by_one: list[list[int]] = []
    at = 0
    while len(one_by_one) != (limit or -1):
        step = frame(memoryview(data), at, stop, limit=1)
        if not len(step.rows):
            assert (found.error is None) == (step.error is None)
            break
        one_by_one += step.rows.tolist()
        at = step.stop
    assert found.rows.tolist() == one_by_one
    assert found.stop == at
