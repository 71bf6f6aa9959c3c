from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.formats.example.varints import (
    WireError,
    lengths_at,
    pack_few,
    pack_varints,
    read_length,
    read_varint,
    signed,
    skip_field,
    unpack_varints,
    varints_of_width,
    write_varint,
)

# Every width, and its bounds, as often as any other number.
INT64 = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 63).flatmap(lambda bits: st.sampled_from([(1 << bits) - 1, -(1 << bits), 1 << min(bits, 62)])),
)


def one(value: int) -> bytes:
    """The varint of a value, by the book."""
    value %= 1 << 64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@given(INT64)
def test_one_varint_is_written_by_the_book(value: int) -> None:
    """A negative number as the unsigned one with its bits."""
    assert write_varint(value) == write_varint(value % (1 << 64)) == one(value)


@given(st.lists(INT64, max_size=60), st.integers(1, 63))
def test_many_varints_are_packed_and_unpacked_as_one_by_one(values: list[int], bits: int) -> None:
    """Both directions agree with the definition, for any mix of widths and for narrow ones alone."""
    for numbers in (values, [value % (1 << bits) for value in values]):
        packed = b"".join(map(one, numbers))
        assert pack_varints(np.array(numbers, np.int64)) == packed
        found, lasts = unpack_varints(np.frombuffer(packed, np.uint8))
        assert found.tolist() == numbers
        position, ends = 0, []
        for number in numbers:
            value, position = read_varint(packed, position, len(packed))
            assert signed(value) == number
            ends.append(position - 1)
        assert lasts.tolist() == ends


@given(st.lists(st.one_of(INT64, st.integers(-1, 3000), st.just(0)), min_size=1, max_size=40), st.integers(1, 63))
def test_a_few_varints_are_packed_as_one_by_one(values: list[int], bits: int) -> None:
    """Any mix of widths, signs and zeros, in any order, and narrow ones alone."""
    for numbers in (values, [value % (1 << bits) for value in values], sorted(values), sorted(values, key=abs)):
        assert pack_few(numbers) == b"".join(map(one, numbers))


@given(st.lists(INT64, max_size=20), st.sampled_from([1 << 63, 1 << 64, 1 << 70, -(1 << 63) - 1]), st.integers(0, 20))
def test_a_few_with_one_beyond_int64_are_none(values: list[int], beyond: int, place: int) -> None:
    """Wherever it is among them, so that the caller says which error it is."""
    assert pack_few([*values[:place], beyond, *values[place:]]) is None


@pytest.mark.parametrize("most", [1 << 7, 1 << 28, 1 << 63])
@pytest.mark.parametrize("count", [511, 512, 513, 1024, 1500])
def test_many_varints_are_packed_in_parts(count: int, most: int) -> None:
    """At the ends of the parts nothing is lost, nor doubled; each part begins with a zero once."""
    values = [value * (most - 1) // (count - 1) for value in range(count)]
    for numbers in (values, [0, *values[::-1]]):
        assert pack_varints(np.array(numbers, np.int64)) == b"".join(map(one, numbers))


@given(st.lists(INT64, min_size=1, max_size=20), st.data())
def test_claims_about_widths_are_verified(values: list[int], data: st.DataObject) -> None:
    """A varint is read if its width is as claimed, and marked if not."""
    packed = [one(value) for value in values]
    array = np.frombuffer(b"".join(part.ljust(24, b"\x85") for part in packed), np.uint8)
    widths = np.array([len(part) for part in packed])
    claims = widths.copy()
    liar = data.draw(st.integers(0, len(values) - 1))
    claims[liar] = data.draw(st.integers(0, 255))
    found, good = varints_of_width(array, np.arange(len(values)) * 24, claims)
    for index, value in enumerate(values):
        if claims[index] == widths[index]:
            assert good[index]
            assert found[index] == value
        else:
            assert not good[index]


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_lengths_are_read_with_their_widths(values: list[int]) -> None:
    """Up to four bytes; wider ones are marked."""
    array = np.frombuffer(b"".join(one(value).ljust(16, b"\xff") for value in values), np.uint8)
    found, widths, short = lengths_at(array, np.arange(len(values)) * 16)
    all_widths = np.broadcast_to(widths, len(values))
    for index, (value, fits) in enumerate(zip(values, np.broadcast_to(short, len(values)), strict=True)):
        assert fits == (value < 1 << 28)
        if fits:
            assert (found[index], all_widths[index]) == (value, len(one(value)))


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\x80" * 10 + b"\x01", b"\x80" * 11 + b"\x01"])
def test_damaged_lists_are_errors(data: bytes) -> None:
    """A list whose last varint is cut off, or one of whose varints is too long."""
    with pytest.raises(WireError):
        unpack_varints(np.frombuffer(data, np.uint8))


def test_damaged_fields_are_errors() -> None:
    """Reading never leaves the bounds, whatever the bytes say."""
    for data in (b"", b"\x80", b"\x80" * 11):
        with pytest.raises(WireError):
            read_varint(data, 0, len(data))
    for data in (b"", b"\x05abc", b"\xff\xff\x03abc"):
        with pytest.raises(WireError):
            read_length(data, 0, len(data))
    for data in (b"\x0b", b"\x0c", b"\x0e", b"\x0f", b"\x09abc", b"\x0dabc", b"\x0a\x05abc", b"\x08\x80", b"\x80"):
        with pytest.raises(WireError):
            skip_field(data, 0, len(data))
    assert skip_field(b"\x08\x80\x01rest", 0, 7) == 3
