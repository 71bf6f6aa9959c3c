"""What the two ways of reading many Examples at once share: what they give, and how they begin.

Positions in damaged records may be anything; they are kept where there is something to look at, and the record is
marked.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.varints import ByteArray, IntArray, lengths_at
from asyncdata.memory.bytesarray import BytesArray

SPARE_BYTES: Final = 192
"""Records that end this close to the end of the buffer are left over: steps look ahead."""

MAX_KEY_BYTES: Final = 96
"""Records with longer keys are left over."""

_NO_LENGTH: Final = 0x80 + 2
"""Records are never so long: 127 bytes in them need a length of one byte, 128 one of two."""
_TWO_BYTES: Final = 0x80 + 3
_THREE_BYTES: Final = 0x4000 + 3
"""Records of these sizes have lengths of two bytes: at least the one, less than the other."""

Mask: TypeAlias = npt.NDArray[np.bool_]


class Spans(NamedTuple):
    """Where the values of one feature lie in the buffer.

    Attributes:
        begin: First byte of each; -1 for a byte string that is absent.
        end: End of each.
        message: Whether these are Feature messages, to be decoded one by one, or single byte strings.
    """

    begin: IntArray
    end: IntArray
    message: bool


class Ragged(NamedTuple):
    """Values of one feature: those of record i are ``values[splits[i]:splits[i + 1]]``."""

    values: npt.NDArray[Any] | BytesArray
    splits: IntArray


Values: TypeAlias = npt.NDArray[Any] | Spans | Ragged


class Group(NamedTuple):
    """Records that share a layout.

    Attributes:
        indices: Which records, ascending.
        values: By slot; a slot that is not there is absent from these records.
    """

    indices: IntArray
    values: dict[int, Values]


def enter_map(array: ByteArray, rows: IntArray) -> tuple[IntArray, Mask]:
    """Where the first entry of each record lies, and which records hold one map and nothing else.

    The buffer must be at least ``SPARE_BYTES`` long.
    """
    lengths = rows[:, 1]
    good = lengths >= 2
    at = rows[:, 0].copy()
    keep_inside(at, array, good)
    good &= array.take(at) == 0x0A
    if lengths.max(initial=0) < _THREE_BYTES:
        wide = lengths >= _TWO_BYTES
        sizes = lengths - 2
        sizes -= wide
        at += 1
        first = sizes & 0x7F
        first |= wide.view(np.uint8) << np.uint8(7)
        good &= array.take(at) == first
        at += 1
        good &= (array.take(at) == sizes >> 7) | ~wide
        at += wide
        good &= lengths != _NO_LENGTH
        return at, good
    sizes, widths, short = lengths_at(array, at + 1)
    position = at + 1 + widths
    good &= short
    good &= position + sizes == rows[:, 0] + rows[:, 1]
    return position, good


def keep_inside(position: IntArray, array: ByteArray, good: Mask) -> None:
    """Keeps positions, which in damaged records may be anything, where there is something to look at."""
    farthest = len(array) - SPARE_BYTES
    if int(position.max(initial=0)) <= farthest:
        return
    good &= position <= farthest
    np.minimum(position, farthest, out=position)


def enter(array: ByteArray, position: IntArray, stop: IntArray, good: Mask) -> IntArray:
    """Reads a length that must reach exactly to ``stop``; gives where its field begins."""
    keep_inside(position, array, good)
    sizes, widths, fine = lengths_at(array, position)
    begin = position + widths
    good &= fine
    good &= begin + sizes == stop
    return begin
