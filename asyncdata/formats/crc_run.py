"""Verifies the payload checksums of many consecutive records together, in one pass over their bytes.

Calling a checksum function costs more than the checksum of a small record. The CRC of a whole run follows from the CRCs
of its parts, because appending bytes to a message is linear in its CRC::

    crc(A B) = shift(crc(A), len(B)) ^ crc(B)        shift(crc, n): as if n zero bytes followed

    run    |payload 0|16 bytes|payload 1|16 bytes|payload 2|        16 bytes: a stored checksum, the next header

The checksum that the run must have is therefore computed in numpy from the stored checksums, and compared with that of
the bytes. A single damaged payload is always detected: its error is shifted, and shifting loses nothing. Several errors
would have to cancel each other, which is as unlikely as one record's checksum matching by chance. The run does not tell
which record is damaged.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats import crc32c

_BETWEEN: Final = 16
_STORED: Final = 4
_SHORT: Final = 1 << 16
"""What headers of payloads shorter than this contribute is looked up in one step."""

_DIGIT: Final = 6
_DIGITS: Final = 5
"""Distances have so many digits of so many bits: their tables are small enough to stay in a processor's cache."""

_BYTE_TABLES: Final = 256 * np.arange(4)[:, None]
"""Where the tables of a word's bytes begin."""

_ZERO_BETWEEN: Final = np.uint32(crc32c.checksum(bytes(_BETWEEN)))
_BYTE: Final = np.arange(256, dtype=np.uint32)

MOST_BYTES: Final = 1 << (_DIGIT * _DIGITS)
"""Longest run."""

Words = npt.NDArray[np.uint32]
Positions = npt.NDArray[np.int64]


def holds(view: memoryview, rows: Positions) -> bool:
    """Whether all these payload checksums hold.

    Args:
        view: The bytes that `rows` refers to; each payload's stored checksum follows it.
        rows: int64[n, 2] as in ``Frames.rows``, n > 0: of records one behind the other, of less than `MOST_BYTES`.
    """
    ends = rows[:, 0] + rows[:, 1]
    array = np.frombuffer(view, np.uint8)
    # A row for what the payloads' checksums are, and one for how they are stored.
    words = np.empty((2, len(rows)), "<u4")
    words[1] = np.ndarray((len(array) - 3,), "<u4", array, strides=(1,))[ends]
    plain = words[1] - np.uint32(crc32c.MASK_DELTA)
    words[0] = (plain >> np.uint32(17)) | (plain << np.uint32(15))
    stop = int(ends[-1])
    expected = int(words[0, -1])
    if len(rows) > 1:
        crcs = _looked_up(_joint_tables()[: 2 * _STORED], _bytes(words[:, :-1]))
        crcs ^= _headers(rows[1:, 1])
        expected ^= _joined(crcs, stop - ends[:-1] - _BETWEEN)
    return crc32c.checksum(view[int(rows[0, 0]) : stop]) == expected


def _headers(lengths: Positions) -> Words:
    """What headers that announce payloads of these lengths contribute to the CRC of what lies between two payloads."""
    if int(lengths.max()) < _SHORT:
        found: Words = _short_headers().take(lengths)
        return found
    return _computed_headers(lengths)


@functools.cache
def _short_headers() -> Words:
    found = _computed_headers(np.arange(_SHORT))
    found.setflags(write=False)
    return found


def _computed_headers(lengths: Positions) -> Words:
    headers = np.empty(len(lengths), [("length", "<u8"), ("crc", "<u4")])
    headers["length"], headers["crc"] = lengths, crc32c.masked_length_checksums(lengths)
    # Transposed: one row per table, so that the sums run along the records.
    crcs = _looked_up(_joint_tables()[2 * _STORED :], headers.view(np.uint8).reshape(len(lengths), -1).T)
    crcs ^= _ZERO_BETWEEN
    return crcs


def _looked_up(tables: Words, values: npt.NDArray[np.uint8]) -> Words:
    """uint32[n]: the sums of what tables, uint32[k, 256], say of values, uint8[k, n]."""
    places = values.astype(np.intp)
    places += 256 * np.arange(len(tables))[:, None]
    found: Words = np.bitwise_xor.reduce(tables.take(places), axis=0)
    return found


def _joined(crcs: Words, counts: Positions) -> int:
    """The sum of CRCs, each as if so many zero bytes followed, up to `MOST_BYTES`; digit by digit of the counts.

    Args:
        crcs: They are sums already where their counts differ in no digit that is left.
        counts: In descending order.
    """
    for digit, table in enumerate(_shift_tables()):
        if not int(counts[0]):
            break
        places = _bytes(crcs[np.newaxis]).astype(np.intp)
        places += (counts & ((1 << _DIGIT) - 1)) << 10
        places += _BYTE_TABLES
        crcs = np.bitwise_xor.reduce(table.take(places), axis=0)
        counts = counts >> _DIGIT
        if digit:
            # Before that, records are too long for many to share what is left of their counts.
            starts = np.flatnonzero(np.diff(counts, prepend=-1))
            crcs, counts = np.bitwise_xor.reduceat(crcs, starts), counts[starts]
    return int(np.bitwise_xor.reduce(crcs))


def _bytes(words: Words) -> npt.NDArray[np.uint8]:
    """uint8[4 k, n]: the bytes of words, uint32[k, n], least significant first."""
    of_each = np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(*words.shape, 4)
    return of_each.transpose(0, 2, 1).reshape(-1, words.shape[1])


def _operator(zeros: int) -> Words:
    """uint32[4, 256]: what shifting by so many bytes makes of each byte of a CRC; few bytes only."""
    tail = bytes(zeros)
    nothing = crc32c.checksum(tail)
    shifted = [[crc32c.resumed(tail, value << (8 * byte)) ^ nothing for value in range(256)] for byte in range(4)]
    return np.array(shifted, np.uint32)


def _apply(operator: Words, words: Words) -> Words:
    """The shift, of words of any shape."""
    found: Words = operator[0][words & np.uint32(255)]
    for byte in range(1, 4):
        found ^= operator[byte][(words >> np.uint32(8 * byte)) & np.uint32(255)]
    return found


@functools.cache
def _joint_tables() -> Words:
    """Of the four bytes of a CRC, shifted by what lies between two payloads, and of each byte of that."""
    tables = np.empty((_STORED + _BETWEEN, 256), np.uint32)
    one = _operator(1)
    tables[:_STORED] = _operator(_BETWEEN)
    last = np.array([crc32c.checksum(bytes((value,))) for value in range(256)], np.uint32)
    tables[-1] = last ^ last[0]
    for place in range(len(tables) - 2, _STORED - 1, -1):
        tables[place] = _apply(one, tables[place + 1])
    tables.setflags(write=False)
    return tables


@functools.cache
def _shift_tables() -> tuple[Words, ...]:
    """Per digit of a count, least significant first: uint32[64, 4, 256], of the digit and a CRC's bytes."""
    shifts = _BYTE[None, :] << np.array([[0], [8], [16], [24]], np.uint32)
    found = []
    one = _operator(1)
    for _ in range(_DIGITS):
        table = np.empty((1 << _DIGIT, 4, 256), np.uint32)
        table[0] = shifts
        filled = 1
        step = one
        while filled < 1 << _DIGIT:
            table[filled : 2 * filled] = _apply(step, table[:filled])
            filled *= 2
            step = _apply(step, step)
        table.setflags(write=False)
        found.append(table)
        one = step
    return tuple(found)
