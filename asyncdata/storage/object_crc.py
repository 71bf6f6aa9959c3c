"""The CRC-32C of a whole object from those of its ranges, whatever the order in which they arrive. Pure.

The checksum of two parts follows from their checksums without the bytes: the first checksum is shifted by as many zero
bytes as the second part has, which is a linear map of 32 bits, and the second one is added.

::

    ranges     [0, 8M) ✓   [24M, 32M) ✓        [8M, 16M) ✓ joins the first        [16M, 24M) ✓ joins all
    segments   2                               2                                  1 = the object: compare
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import OrderedDict
from typing import Final

import crc32c

from asyncdata.errors import CorruptObjectError
from asyncdata.types import ObjectInfo

_POLYNOMIAL: Final = 0x82F63B78
_MOST_OBJECTS: Final = 4096


def combine(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32C of two parts, one behind the other.

    Args:
        first: Of the first part.
        second: Of the second part.
        second_bytes: Length of the second part.
    """
    power = 0
    while second_bytes:
        if second_bytes & 1:
            first = _apply(_zero_bytes(power), first)
        second_bytes >>= 1
        power += 1
    return first ^ second


@functools.cache
def _zero_bytes(power: int) -> tuple[int, ...]:
    """The map of a checksum over 2**power zero bytes: the images of its 32 bits."""
    if power:
        half = _zero_bytes(power - 1)
        return tuple(_apply(half, row) for row in half)
    one_bit = (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    for _ in range(3):
        one_bit = tuple(_apply(one_bit, row) for row in one_bit)
    return one_bit


def _apply(rows: tuple[int, ...], value: int) -> int:
    image = bit = 0
    while value:
        if value & 1:
            image ^= rows[bit]
        value >>= 1
        bit += 1
    return image


class ObjectCrc:
    """The ranges of one object that were seen, joined where they touch.

    Args:
        size: Of the object.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._segments: list[tuple[int, int, int]] = []
        """(start, stop, checksum), in order, with gaps between them."""

    def add(self, start: int, stop: int, checksum: int) -> int | None:
        """Takes a range in; the checksum of the object when it was the last one.

        A range that was seen already changes nothing. One that overlaps others in part takes their place, for the
        reader has changed its mind about where to cut; what they covered besides has to come again.
        """
        segments = self._segments
        at = bisect_left(segments, (start + 1,)) - 1
        if at >= 0 and segments[at][0] <= start and stop <= segments[at][1]:
            return self._whole()
        kept = [segment for segment in segments if segment[1] <= start or segment[0] >= stop]
        at = bisect_left(kept, (start,))
        kept.insert(at, (start, stop, checksum))
        for left in (at, at - 1):  # with the next one, then with the one before
            if 0 <= left < len(kept) - 1 and kept[left][1] == kept[left + 1][0]:
                (first, middle, one), (_, last, other) = kept[left], kept[left + 1]
                kept[left : left + 2] = [(first, last, combine(one, other, last - middle))]
        self._segments = kept
        return self._whole()

    def _whole(self) -> int | None:
        if len(self._segments) == 1 and self._segments[0][:2] == (0, self._size):
            return self._segments[0][2]
        return None


class ObjectChecks:
    """The objects that are being read, and whose checksum the store has sent.

    Who fills: every range that arrived. Who drains: its last range. Objects that are read in part are forgotten when
    too many others have been begun since.
    """

    def __init__(self) -> None:
        self._objects: OrderedDict[tuple[str, str | None], ObjectCrc] = OrderedDict()
        self.verified = 0
        """Objects whose checksum was compared."""

    def arrived(self, info: ObjectInfo, start: int, data: memoryview) -> None:
        """A range is complete.

        Raises:
            CorruptObjectError: It was the last one, and the object is not what the store says it is.
        """
        if info.crc32c is None or not data:
            return
        key = (info.url, info.version)
        known = self._objects.pop(key, None) or ObjectCrc(info.size)
        found = known.add(start, start + len(data), crc32c.crc32c(data))
        if found is None:
            self._objects[key] = known
            if len(self._objects) > _MOST_OBJECTS:
                self._objects.popitem(last=False)
            return
        self.verified += 1
        if found != info.crc32c:
            raise CorruptObjectError(
                f"the bytes of the object do not match its checksum: the store reports CRC-32C {info.crc32c:08x}, "
                f"they have {found:08x}",
                url=info.url,
                version=info.version,
            )
