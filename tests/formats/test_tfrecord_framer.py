"""`TFRecordFramer`: the records of `encode_many`, however the bytes are cut."""

from __future__ import annotations

import functools

from asyncdata.formats.tfrecord import TFRecordFramer, encode_many
from tests.formats.framers import check_any_chunking, outcome

PAYLOADS = [b"one", b"", b"x" * 40, b"two", b"", b"yz"]
FRAMER = functools.partial(TFRecordFramer, check=False)


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
