"""The parts of the protocol buffers' wire format that records need: varints, one by one and many at once.

A varint holds 7 bits per byte, lowest first; all bytes but the last have their top bit set; an int64 takes at most ten.
Decoding many at once works on 64-bit words: the first eight bytes of a varint are masked to its width, and their 7-bit
groups are pushed together in three steps. The rare ninth and tenth bytes are added if there are any. Lists of short
varints are decoded in 32-bit words.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

ByteArray: TypeAlias = npt.NDArray[np.uint8]
IntArray: TypeAlias = npt.NDArray[np.int64]
WordArray: TypeAlias = npt.NDArray[np.uint64]

MAX_VARINT_BYTES: Final = 10
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
_BEGUN: Final = tuple(bytes((value | 0x80,)) for value in range(0x80))
_WORD_BYTES: Final = 8
_CONTINUES: Final = np.uint64(0x8080808080808080)
_CONTINUES_ONE: Final = np.uint64(0x80)
_CONTINUES_FOUR: Final = np.uint64(0x80000000)
"""Where the last byte of a varint of one byte, and of four, says that none follows."""
_LENGTH_BYTES: Final = 4
_WIDTHS: Final = np.uint64(1 << 32 | 2 << 24 | 3 << 16 | 4 << 8)
_WIDTHS_AT: Final = np.uint64(39)
"""What such a bit is multiplied with, and where the product then has the width."""
_GROUP: Final = np.uint64(0x7F)
_SEVEN: Final = np.uint64(7)
_ONE: Final = np.uint64(1)
_THREE: Final = np.uint64(3)
_EIGHT: Final = np.uint64(8)
_MOST_SHIFT: Final = np.uint64(63)
_NINTH, _NINTH_AND_TENTH, _CONTINUES_NINTH_AND_TENTH = np.uint64(0xFF), np.uint64(0xFFFF), np.uint64(0x8080)
"""Of the two bytes behind a word."""
_NINTH_AT, _TENTH_AT = np.uint64(56), np.uint64(63)
_FEW: Final = 512
"""Fewer words than this are gathered as they lie. Where that begins to be dearer than putting each together from two
aligned ones depends on the processor: at 100 words on a Xeon of 2.5 GHz, at 5,000 on an EPYC."""
_GROUPS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_SHORT_BYTES: Final = 4
"""Lists whose varints are no wider are decoded in words of 32 bits: half the memory, and fewer steps."""
_SHORT_GROUPS: Final = tuple(
    (np.uint32(low), np.uint32(high), np.uint32(shift))
    for low, high, shift in ((0x007F007F, 0x7F007F00, 1), (0x00003FFF, 0x3FFF0000, 2))
)
_BITS_IN_FRONT: Final = np.array([32 - 8 * width for width in range(_SHORT_BYTES + 1)], np.uint32)
_BITS_IN_FRONT.setflags(write=False)
"""By width: how many bits of the word that ends with a varint lie in front of it."""
_MASK_OF_WIDTH: Final = np.array([(1 << 8 * min(width, 8)) - 1 for width in range(256)], np.uint64)
_MASK_OF_WIDTH.setflags(write=False)
"""By width: a word whose bytes up to the width are set."""
_CONTINUES_OF_WIDTH: Final = np.array(
    [sum(0x80 << 8 * byte for byte in range(min(width - 1, 8))) for width in range(256)], np.uint64
)
_CONTINUES_OF_WIDTH.setflags(write=False)


def _lanes(width: int, *bits: tuple[int, int]) -> int:
    """A long number that has the bits from one up to another in each of its lanes."""
    lane = sum((1 << end) - (1 << begin) for begin, end in bits)
    return int.from_bytes(lane.to_bytes(width, "little") * _LANES, "little")


_LANES: Final = 512
"""So many varints are written at once: the values lie in lanes of one long number."""
_SMALL: Final = 1 << 28
"""Numbers below it have lanes of four bytes."""
_NOT_SMALL: Final = _lanes(4, (28, 32))
_SMALL_UPPER: Final = _lanes(4, (14, 28))
_SMALL_TOPS: Final = _lanes(4, (31, 32))
_UPPER_EIGHT: Final = _lanes(10, (56, 64))
_UPPER_FOUR: Final = _lanes(10, (28, 56))
_UPPER_TWO: Final = _lanes(10, (14, 28), (46, 60))
_UPPER_ONE: Final = _lanes(10, (7, 14), (23, 30), (39, 46), (55, 62), (71, 78))
"""The upper halves of the fields, by their groups, as the steps before leave them. The last fits any lane."""
_SMALL_FULL: Final = b"\x80" * 4
_FULL: Final = b"\x80" * MAX_VARINT_BYTES
_TOPS: Final = _lanes(10, (79, 80))
_ONES: Final = _lanes(10, *((bit, bit + 1) for bit in range(0, 80, 8)))


class WireError(Exception):
    """The bytes are not a message; says what was expected. Callers add where."""


def read_varint(data: bytes | memoryview, position: int, stop: int) -> tuple[int, int]:
    """One unsigned varint and the position after it.

    Raises:
        WireError: If it reaches ``stop`` or is longer than ten bytes.
    """
    value = shift = 0
    for at in range(position, min(position + MAX_VARINT_BYTES, stop)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + 1
        shift += 7
    raise WireError("a varint is cut off" if stop - position < MAX_VARINT_BYTES else "a varint is longer than 10 bytes")


def write_varint(value: int) -> bytes:
    """The varint of an int64, or of an unsigned number."""
    if value < 0x80:
        return _ONE_BYTE[value] if value >= 0 else write_varint(value + (1 << 64))
    if value < 0x4000:
        return b"%c%c" % (value & 0x7F | 0x80, value >> 7)
    if value < 0x200000:
        return b"%c%c%c" % (value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
    low = (value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80)
    if value < 0x10000000:
        return b"%c%c%c%c" % (*low, value >> 21)
    return b"%c%c%c%c%b" % (*low, value >> 21 & 0x7F | 0x80, write_varint(value >> 28))


SHORT_VARINTS: Final = tuple(map(write_varint, range(2048)))
"""Of numbers that are written often: lengths, labels, shapes."""
_VERY_FEW: Final = 5
"""Up to this number, integers are packed faster one by one than in lanes."""


def pack_few(values: Sequence[int]) -> bytes | None:
    """The varints of a few integers; None where one is no int64. For many: `pack_varints`.

    First and last value and the mean say what to try first; where they mislead, only time is lost.
    """
    count = len(values)
    if 0 <= values[0] | values[-1] < _SMALL and 0 <= (mean := sum(values) // count) < _SMALL:
        try:
            if mean < 0x80 and (packed := bytes(values)).isascii():
                return packed
        except ValueError:
            pass
        try:
            if mean < len(SHORT_VARINTS) and min(values) >= 0:
                return b"".join([SHORT_VARINTS[value] for value in values])
            if count <= _VERY_FEW and mean < len(SHORT_VARINTS) << 7 and min(values) >= 0:
                return b"".join(
                    [
                        _BEGUN[value & 0x7F] + SHORT_VARINTS[value >> 7] if value >= 0x80 else _ONE_BYTE[value]
                        for value in values
                    ]
                )
        except IndexError:
            pass
        pack, tops, _, _ = _few_lanes(count)
        try:
            number = int.from_bytes(pack(*values), "little")
            if not number & _NOT_SMALL:
                number += (number & _SMALL_UPPER) * 3
                return _from_groups(number + (number & _UPPER_ONE), tops, 4 * count, _SMALL_FULL)
        except struct.error:
            pass
    _, _, pack, tops = _few_lanes(count)
    try:
        return _from_lanes(int.from_bytes(pack(*values), "little"), tops, count)
    except struct.error:
        return None


@functools.lru_cache(maxsize=64)
def _few_lanes(count: int) -> tuple[Callable[..., bytes], int, Callable[..., bytes], int]:
    """How so many numbers are put into lanes, and the top bits of these: of four bytes, and of ten."""
    small, wide = struct.Struct(f"<{count}I"), struct.Struct("<" + count * "q2x")
    return small.pack, _SMALL_TOPS >> 32 * (_LANES - count), wide.pack, _TOPS >> 80 * (_LANES - count)


def read_length(data: bytes | memoryview, position: int, stop: int) -> tuple[int, int]:
    """Begin and end of a length-delimited field whose length begins at ``position``.

    Raises:
        WireError: If the field reaches beyond ``stop``.
    """
    if position < stop and data[position] < 0x80:
        begin = position + 1
        end = begin + data[position]
    else:
        length, begin = read_varint(data, position, stop)
        end = begin + length
    if end > stop:
        raise WireError(f"a field of {end - begin} bytes has only {stop - begin} left")
    return begin, end


def skip_field(data: bytes | memoryview, position: int, stop: int) -> int:
    """The position after the field whose tag begins at ``position``.

    Raises:
        WireError: If it is cut off, a group, or of an unknown wire type.
    """
    tag, position = read_varint(data, position, stop)
    wire_type = tag & 7
    if wire_type == 0:
        return read_varint(data, position, stop)[1]
    if wire_type == 2:
        return read_length(data, position, stop)[1]
    if wire_type not in (1, 5):
        raise WireError(f"a field has the unknown wire type {wire_type}")
    position += 8 if wire_type == 1 else 4
    if position > stop:
        raise WireError("a fixed-width field is cut off")
    return position


def signed(value: int) -> int:
    """Returns the int64 that the unsigned value of a varint represents."""
    return value - (1 << 64) if value >> 63 else value


def words_at(array: ByteArray, positions: IntArray) -> WordArray:
    """The 8 bytes from each position on as a little-endian word; each position must have 15 bytes."""
    words: npt.NDArray[Any] = array[: len(array) // _WORD_BYTES * _WORD_BYTES].view("<u8")
    if len(positions) < _FEW or not words.flags.aligned:
        windows: npt.NDArray[Any] = np.ndarray((len(array) - _WORD_BYTES + 1,), "<u8", array, strides=(1,))
        return windows[positions]
    at = positions >> 3
    shift = (positions & 7).view(np.uint64)
    shift <<= _THREE
    low: WordArray = words.take(at)
    low >>= shift
    at += 1
    high = words.take(at, mode="clip")
    high <<= _ONE
    shift ^= _MOST_SHIFT
    high <<= shift
    low |= high
    return low


def floats_at(array: ByteArray, positions: IntArray) -> npt.NDArray[np.float32]:
    """The little-endian float32 at each position; each must have 15 bytes."""
    return words_at(array, positions).astype(np.uint32).view(np.float32)


def _join_groups(words: WordArray, widest: int) -> WordArray:
    """Pushes the 7-bit groups of each word together, in place; continuation bits are dropped.

    Bytes beyond the widest are zero, so that narrow varints need fewer steps.
    """
    for low, high, shift in _GROUPS[: (min(widest, _WORD_BYTES) - 1).bit_length()]:
        upper = words & high
        upper >>= shift
        words &= low
        words |= upper
    return words


def lengths_at(array: ByteArray, positions: IntArray) -> tuple[IntArray, IntArray | int, npt.NDArray[np.bool_] | bool]:
    """The varint at each position: value, width in bytes, and whether it is at most 4 bytes wide.

    Each position must have 15 bytes; lengths of 256 MiB and more are left to the caller.
    """
    words = words_at(array, positions)
    ends = ~words
    ends &= _CONTINUES
    last = ends & np.negative(ends)
    if (last == _CONTINUES_ONE).all():
        return (words & _GROUP).view(np.int64), 1, True
    fine: npt.NDArray[np.bool_] = last <= _CONTINUES_FOUR
    fine &= last != 0
    widths = last * _WIDTHS
    widths >>= _WIDTHS_AT
    widths &= _SEVEN
    last <<= _ONE
    last -= _ONE
    words &= last
    return _join_groups(words, _LENGTH_BYTES).view(np.int64), widths.view(np.int64), fine


def varints_of_width(array: ByteArray, positions: IntArray, widths: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Varints whose widths are claimed elsewhere: their values, and where the claim is true.

    Args:
        array: The bytes; each position must have 15 of them.
        positions: Where each varint begins.
        widths: Claimed width of each, any number from 0 on.
    """
    behind = positions + _WORD_BYTES
    return join_varints(
        words_at(array, positions),
        widths,
        lambda: array.take(behind) | array.take(behind + 1).astype(np.uint16) << np.uint16(8),
    )


def join_varints(
    words: WordArray, widths: IntArray, more: Callable[[], npt.NDArray[np.uint16]]
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """The same of the words at their positions, which are overwritten; ``more()`` gives the two bytes behind each."""
    words &= _MASK_OF_WIDTH.take(widths, mode="clip")
    good: npt.NDArray[np.bool_] = (words & _CONTINUES) == _CONTINUES_OF_WIDTH.take(widths, mode="clip")
    good &= widths != 0
    widest = int(widths.max(initial=1))
    values = _join_groups(words, widest)
    if widest > _WORD_BYTES:
        good &= widths <= MAX_VARINT_BYTES
        wide = np.flatnonzero(widths > _WORD_BYTES)
        behind = more().reshape(-1).take(wide).astype(np.uint64)
        is_tenth = widths.reshape(-1).take(wide) > _WORD_BYTES + 1
        behind &= np.where(is_tenth, _NINTH_AND_TENTH, _NINTH)
        good.reshape(-1)[wide] &= (behind & _CONTINUES_NINTH_AND_TENTH) == np.where(is_tenth, _CONTINUES_ONE, 0)
        values.reshape(-1)[wide] |= ((behind & _GROUP) << _NINTH_AT) | (behind >> _EIGHT << _TENTH_AT)
    return values.view(np.int64), good


def unpack_varints(data: ByteArray) -> tuple[IntArray, IntArray]:
    """All varints of a run of bytes, and the position of the last byte of each.

    Raises:
        WireError: If the last one is cut off, or one is longer than ten bytes.
    """
    size = len(data)
    if not size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    last = data < 0x80
    if not last[-1]:
        raise WireError("the last varint of a list is cut off")
    ends = np.flatnonzero(last)
    if len(ends) == size:
        return data.astype(np.int64), ends
    widths = np.empty_like(ends)
    widths[0] = ends[0] + 1
    np.subtract(ends[1:], ends[:-1], out=widths[1:])
    widest = int(widths.max())
    if widest > MAX_VARINT_BYTES:
        raise WireError("a varint of a list is longer than 10 bytes")
    if widest <= _SHORT_BYTES:
        return _short_varints(data, ends, widths), ends
    starts = ends - widths
    starts += 1
    padded = np.zeros(len(data) + 2 * _WORD_BYTES, np.uint8)
    padded[: len(data)] = data
    words = words_at(padded, starts)
    words &= _MASK_OF_WIDTH.take(widths)
    values = _join_groups(words, widest)
    for byte in range(_WORD_BYTES, widest):
        wide = np.flatnonzero(widths > byte)
        values[wide] |= (padded[starts[wide] + byte] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * byte)
    return values.view(np.int64), ends


def _short_varints(data: ByteArray, ends: IntArray, widths: IntArray) -> IntArray:
    """The varints of a run of bytes, none of them wider than a word of 32 bits."""
    padded = np.empty(_SHORT_BYTES - 1 + len(data), np.uint8)
    padded[: _SHORT_BYTES - 1] = 0
    padded[_SHORT_BYTES - 1 :] = data
    # Copied as a whole, which is faster than to gather words that are not aligned.
    words = np.ndarray((len(data),), "<u4", padded, strides=(1,)).copy().take(ends)
    words >>= _BITS_IN_FRONT.take(widths)
    for low, high, shift in _SHORT_GROUPS:
        upper = words & high
        upper >>= shift
        words &= low
        words |= upper
    return words.astype(np.int64)


def pack_varints(values: IntArray) -> bytes:
    """The varints of many int64, one after the other."""
    words = np.ascontiguousarray(values, "<i8").view("<u8")
    most = int(words.max(initial=0))
    if most < 0x80:
        return words.astype(np.uint8).tobytes()
    parts = []
    for at in range(0, len(words), _LANES):
        part = words[at : at + _LANES]
        count = len(part)
        if most >= _SMALL:
            lanes = np.zeros((count, MAX_VARINT_BYTES), np.uint8)
            lanes[:, :_WORD_BYTES] = part.view(np.uint8).reshape(-1, _WORD_BYTES)
            number = int.from_bytes(lanes.tobytes(), "little")
            parts.append(_from_lanes(number, _TOPS >> 80 * (_LANES - count), count))
        else:
            number = int.from_bytes(part.astype("<u4").tobytes(), "little")
            number += (number & _SMALL_UPPER) * 3
            number += number & _UPPER_ONE
            parts.append(_from_groups(number, _SMALL_TOPS >> 32 * (_LANES - count), 4 * count, _SMALL_FULL))
    return b"".join(parts)


def _from_lanes(number: int, tops: int, count: int) -> bytes:
    """The varints of numbers of 64 bits in lanes of ten bytes.

    Each step moves the upper half of every field up by as many bits as the half has groups of 7: it adds the half,
    times 2 to the power of that, less 1.
    """
    number += (number & _UPPER_EIGHT) * 255
    number += (number & _UPPER_FOUR) * 15
    number += (number & _UPPER_TWO) * 3
    return _from_groups(number + (number & _UPPER_ONE), tops, MAX_VARINT_BYTES * count, _FULL)


def _from_groups(number: int, tops: int, size: int, full: bytes) -> bytes:
    """The varints whose groups of 7 bits are the bytes of each lane in one long number, lowest first.

    Python computes with long numbers at the speed of C, so that an operation here is one on all varints: every byte
    below the highest group gets its top bit, and the bytes above that group, which are zero, are left out. A value of 0
    would be left out too; its place is kept by a full lane of top bits, which no varint has.
    """
    # Backwards, the lowest group is the top byte of its lane. In a subtraction a byte borrows from the next one where
    # a byte below is not zero, which means here: where a higher group follows.
    number = int.from_bytes(number.to_bytes(size, "little"), "big")
    rest = tops - number
    number |= ((rest ^ number) & _ONES) << 7
    if not (zeros := rest & tops):
        return number.to_bytes(size, "big").translate(None, b"\0")
    number |= (zeros >> 8 * len(full) - 1) * int.from_bytes(full, "big")
    return number.to_bytes(size, "big").translate(None, b"\0").replace(full, b"\0")
