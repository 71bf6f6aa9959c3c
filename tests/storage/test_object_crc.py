from __future__ import annotations

import itertools
import random

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import CorruptObjectError
from asyncdata.storage.object_crc import ObjectChecks, ObjectCrc, combine
from asyncdata.types import ObjectInfo

DATA = random.Random(1).randbytes(10_000)


@given(first=st.binary(max_size=300), second=st.binary(max_size=300))
def test_parts_combine_to_the_whole(first: bytes, second: bytes) -> None:
    """As if the bytes had been looked at in one go; either part may be empty."""
    assert combine(crc32c.crc32c(first), crc32c.crc32c(second), len(second)) == crc32c.crc32c(first + second)


def test_long_parts_combine_too() -> None:
    """Lengths are not small numbers: here 40 MB of zeros behind some bytes."""
    zeros = bytes(40_000_001)
    assert combine(crc32c.crc32c(DATA), crc32c.crc32c(zeros), len(zeros)) == crc32c.crc32c(DATA + zeros)


@given(cuts=st.sets(st.integers(1, len(DATA) - 1), max_size=12), seed=st.integers(0, 999))
def test_ranges_may_arrive_in_any_order_and_twice(cuts: set[int], seed: int) -> None:
    """The checksum is there with the last missing range, and not before."""
    edges = [0, *sorted(cuts), len(DATA)]
    ranges = list(itertools.pairwise(edges))
    draw = random.Random(seed)
    draw.shuffle(ranges)
    whole = ObjectCrc(len(DATA))
    for count, (start, stop) in enumerate(ranges, 1):
        checksum = crc32c.crc32c(DATA[start:stop])
        found = whole.add(start, stop, checksum)
        assert found == (crc32c.crc32c(DATA) if count == len(ranges) else None)
        assert whole.add(start, stop, checksum) == found


@given(ranges=st.lists(st.tuples(st.integers(0, 49), st.integers(1, 50)), max_size=30))
def test_other_cuts_never_give_a_wrong_sum(ranges: list[tuple[int, int]]) -> None:
    """Ranges that overlap in part: whatever is told is the checksum of all bytes."""
    data = DATA[:50]
    whole = ObjectCrc(50)
    found = None
    for start, length in [*ranges, (0, 50)]:
        stop = min(50, start + length)
        found = whole.add(start, stop, crc32c.crc32c(data[start:stop]))
        assert found in {None, crc32c.crc32c(data)}
    assert found == crc32c.crc32c(data)


def info(crc: int | None, url: str = "gs://b/x") -> ObjectInfo:
    return ObjectInfo(url=url, size=len(DATA), version="7", crc32c=crc)


def test_an_object_that_differs_is_named_with_both_sums() -> None:
    """With the URL, the generation, what was expected and what was found, at the last range."""
    checks = ObjectChecks()
    view = memoryview(DATA)
    checks.arrived(info(0x12345678), 5000, view[5000:])
    with pytest.raises(CorruptObjectError, match="12345678") as caught:
        checks.arrived(info(0x12345678), 0, view[:5000])
    assert f"{crc32c.crc32c(DATA):08x}" in str(caught.value)
    assert (caught.value.url, caught.value.version) == ("gs://b/x", "7")


def test_objects_without_a_sum_are_left_alone() -> None:
    """And those that are in order pass; each epoch is looked at anew."""
    checks = ObjectChecks()
    view = memoryview(DATA)
    checks.arrived(info(None), 0, view)
    assert checks.verified == 0
    for epoch in range(3):
        checks.arrived(info(crc32c.crc32c(DATA)), 0, view[:100])
        checks.arrived(info(crc32c.crc32c(DATA)), 100, view[100:])
        assert checks.verified == epoch + 1


def test_objects_that_are_never_finished_are_forgotten() -> None:
    """A pipeline may look at the beginning of millions of objects."""
    checks = ObjectChecks()
    for number in range(10_000):
        checks.arrived(info(1, f"gs://b/{number}"), 0, memoryview(b"x"))
    assert len(checks._objects) <= 4096
