"""`TFRecordFramer`: the records of `encode_many`, however the bytes are cut."""

from __future__ import annotations

import functools
import itertools
import random

import pytest

from asyncdata.errors import CorruptRecordError, DataError
from asyncdata.formats import tfrecord
from asyncdata.formats.framing import Place, Refs
from asyncdata.formats.tfrecord import TFRecordFramer, encode_many
from asyncdata.memory.leaf import UNCHECKED_BYTES
from tests.formats.framers import check_any_chunking, outcome

PAYLOADS = [b"one", b"", b"x" * 40, b"two", b"", b"yz"]
FRAMER = functools.partial(TFRecordFramer, verify=True)


def test_any_chunking_gives_the_same_records() -> None:
    """The law of any chunking, with the object's size known and not."""
    check_any_chunking(FRAMER, encode_many(PAYLOADS), PAYLOADS)


def test_whole_records_in_front_of_damage_are_given() -> None:
    """A length that does not match its checksum is an error at its place, behind the records in front of it."""
    data = bytearray(encode_many(PAYLOADS))
    data[19 + 16] ^= 1
    found, error = outcome(FRAMER, bytes(data))
    assert found == PAYLOADS[:2]
    assert error is not None
    assert (error.record, error.offset) == (2, 35)


@pytest.mark.parametrize("sizes", [[3, 0, 70, 12, 5], [5] * 300, [40_000] * 40])
@pytest.mark.parametrize("most_bytes", [1, 100_000, 8 << 20])
def test_a_damaged_payload_is_left_out_alone(
    sizes: list[int], most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error names its record, and framing goes on behind it, however much is verified at a time."""
    monkeypatch.setattr(tfrecord, "_MOST_CHECKED_BYTES", most_bytes)
    payloads = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    starts = [0, *itertools.accumulate(16 + size for size in sizes)]
    source = random.Random(1)
    for count in (0, 1, 2, len(sizes) // 2, len(sizes)):
        data = bytearray(encode_many(payloads))
        bad = sorted(source.sample(range(len(sizes)), count))
        for number in bad:
            data[starts[number] + 12 + source.randrange(sizes[number] + 4)] ^= 16
        found, errors = left_out(data)
        assert found == [payload for number, payload in enumerate(payloads) if number not in bad]
        assert [(error.record, error.offset) for error in errors] == [(number, starts[number]) for number in bad]
        assert all(isinstance(error, CorruptRecordError) for error in errors)


def left_out(data: bytearray) -> tuple[list[bytes], list[DataError]]:
    """The records, and the errors of those that are wrong by themselves."""
    framer, view = TFRecordFramer(verify=True), memoryview(data)
    found: list[bytes] = []
    errors: list[DataError] = []
    at = 0
    while at < len(data):
        place = Place(offset=at, record=len(found) + len(errors))
        frames = framer.frame(view, at, len(data), limit=1024, remaining=len(data) - at, last=True, place=place)
        (refs,) = frames.values
        assert isinstance(refs, Refs)
        found += [bytes(view[start : start + size]) for start, size in refs.rows.tolist()]
        at = frames.stop
        if frames.error is not None:
            errors.append(frames.error)
            at = frames.resume
    return found, errors


def test_large_records_are_verified_in_a_thread() -> None:
    """Once a record is known to be large, and no longer than for that one."""
    framer = TFRecordFramer(verify=True)
    data = bytearray(encode_many([b"small", bytes(9 << 20), b"small"]))
    frames = framer.frame(memoryview(data), 0, 1 << 20, limit=9, remaining=len(data), last=False, place=Place())
    assert (len(frames.starts), framer.in_thread) == (1, True)
    at = frames.stop
    frames = framer.frame(memoryview(data), at, len(data), limit=9, remaining=None, last=True, place=Place(offset=at))
    assert (len(frames.starts), framer.in_thread) == (1, False)


def test_what_tasks_verify_is_marked() -> None:
    """Nothing is verified here then, and the payloads say so."""
    data = bytearray(encode_many(PAYLOADS))
    data[13] ^= 1
    framer = TFRecordFramer(verify=False, leaf=UNCHECKED_BYTES)
    frames = framer.frame(memoryview(data), 0, len(data), limit=9, remaining=None, last=True, place=Place())
    (refs,) = frames.values
    assert isinstance(refs, Refs)
    assert refs.leaf is UNCHECKED_BYTES
    assert (len(refs.rows), frames.error) == (len(PAYLOADS), None)
