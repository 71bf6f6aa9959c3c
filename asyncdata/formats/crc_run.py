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
_DIGIT: Final = 7
_DIGITS: Final = 4
_ZERO_BETWEEN: Final = np.uint32(crc32c.checksum(bytes(_BETWEEN)))
_BYTE: Final = np.arange(256, dtype=np.uint32)

MOST_BYTES: Final = 1 << (_DIGIT * _DIGITS)
"""Longest run."""

Words = npt.NDArray[np.uint32]


def holds(view: memoryview, rows: npt.NDArray[np.int64]) -> bool:
    """Whether all these payload checksums hold.

    Args:
        view: The bytes that `rows` refers to; each payload's stored checksum follows it.
        rows: int64[n, 2] as in ``Frames.rows``, n > 0: of records one behind the other, of less than `MOST_BYTES`.
    """
    ends = rows[:, 0] + rows[:, 1]
    array = np.frombuffer(view, np.uint8)
    stored = np.ndarray((len(array) - 3,), "<u4", array, strides=(1,))[ends]
    plain = stored - np.uint32(crc32c.MASK_DELTA)
    plain = (plain >> np.uint32(17)) | (plain << np.uint32(15))
    stop = int(ends[-1])
    expected = int(plain[-1])
    if len(rows) > 1:
        between = np.ndarray((len(array) - _BETWEEN + 1,), f"V{_BETWEEN}", array, strides=(1,))[ends[:-1]]
        # Transposed: one row per table, so that the sums run along the records.
        places = np.empty((4 + _BETWEEN, len(between)), np.intp)
        places[:4] = _bytes(plain[:-1])
        places[4:] = between.view(np.uint8).reshape(-1, _BETWEEN).T
        places += 256 * np.arange(4 + _BETWEEN)[:, None]
        crcs = np.bitwise_xor.reduce(_joint_tables().take(places), axis=0)
        crcs ^= _ZERO_BETWEEN
        expected ^= int(np.bitwise_xor.reduce(_shifted(crcs, stop - ends[:-1] - _BETWEEN)))
    return crc32c.checksum(view[int(rows[0, 0]) : stop]) == expected


def _shifted(crcs: Words, counts: npt.NDArray[np.int64]) -> Words:
    """CRCs as if so many zero bytes followed, up to `MOST_BYTES`; digit by digit of the counts."""
    most = int(counts[0])
    for table in _shift_tables():
        if not most:
            break
        places = _bytes(crcs).astype(np.intp)
        places += (counts & ((1 << _DIGIT) - 1)) << 10
        places += 256 * np.arange(4)[:, None]
        crcs = np.bitwise_xor.reduce(table.take(places), axis=0)
        counts = counts >> _DIGIT
        most >>= _DIGIT
    return crcs


def _bytes(words: Words) -> npt.NDArray[np.uint8]:
    """uint8[4, n]: the bytes of each word, least significant first."""
    return words.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4).T


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
    tables = np.empty((4 + _BETWEEN, 256), np.uint32)
    one = _operator(1)
    tables[:4] = _operator(_BETWEEN)
    last = np.array([crc32c.checksum(bytes((value,))) for value in range(256)], np.uint32)
    tables[-1] = last ^ last[0]
    for place in range(4 + _BETWEEN - 2, 3, -1):
        tables[place] = _apply(one, tables[place + 1])
    tables.setflags(write=False)
    return tables


@functools.cache
def _shift_tables() -> tuple[Words, ...]:
    """Per digit of a count, least significant first: uint32[128, 4, 256], of the digit and a CRC's bytes."""
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
