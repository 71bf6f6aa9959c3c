"""Every entry of every record of a block, found by stepping all records together.

A step reads the length of one entry of each record, and nothing else. Two ways: records of a writer with short entries
and about as many of them each are stepped without looking, and all of it is looked at afterwards; anything else goes
step by step, the records that have ended left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.stepping import SPARE_BYTES, Mask, enter_map
from asyncdata.formats.example.varints import ByteArray, IntArray, lengths_at

RUN: Final = 8192
"""So many entries are looked at in one go: what is looked at again and again stays in the cache."""
_MAX_ENTRIES: Final = 1024
"""Records with more entries than this are left over, so that damage cannot make many tiny steps."""
_TAG: Final = np.uint8(0x0A)
_WASTE: Final = 3
"""Steps without looking end when they are so many times the entries found, and some more."""
_LONG: Final = 0x80
"""Lengths from here on take more than a byte."""
_LIKELY: Final = 128
"""Steps there is room for at first. Room that is not used costs nothing, and makes the allocator keep what is freed."""


class Entries(NamedTuple):
    """Some entries, the earlier ones of a record first.

    Attributes:
        record: Which record each is of.
        key: Where its key's tag lies.
        stop: Where it ends.
    """

    record: IntArray
    key: IntArray
    stop: IntArray


def entries_of(array: ByteArray, rows: IntArray, *, short: bool) -> tuple[Iterator[Entries], Mask, bool]:
    """The entries of the records at ``rows``, in runs; which records are whole; and whether all entries were short.

    Args:
        array: The bytes, ``SPARE_BYTES`` at least.
        rows: int64[n, 2] of (offset, length).
        short: Whether to try without looking first.
    """
    ends = rows[:, 0] + rows[:, 1]
    position, good = enter_map(array, rows)
    good &= ends <= len(array) - SPARE_BYTES
    if short and good.all():
        steps = _leap(array, position, ends)
        if steps is not None:
            return steps.runs(), good, True
    return _cut(_walk(array, position, ends, good)), good, False


def _cut(entries: Entries) -> Iterator[Entries]:
    for begin in range(0, len(entries.key), RUN):
        run = slice(begin, begin + RUN)
        yield Entries(entries.record[run], entries.key[run], entries.stop[run])


class _Steps(NamedTuple):
    """Records stepped without looking, a step per row.

    Attributes:
        at: Where the length of the entry lies; behind a record's end anything.
        limit: By record, where it would lie if there were another one.
        even: Whether all records have equally many entries.
    """

    at: IntArray
    limit: IntArray
    even: bool

    def runs(self) -> Iterator[Entries]:
        """The entries."""
        steps, count = self.at.shape
        several = max(RUN // max(count, 1), 1)
        numbers = np.arange(count)
        for begin in range(0, steps - 1, several):
            end = min(begin + several, steps - 1)
            at, following = self.at[begin:end], self.at[begin + 1 : end + 1]
            record = np.broadcast_to(numbers, at.shape).reshape(-1)
            if self.even:
                yield Entries(record, (at + 1).reshape(-1), (following - 1).reshape(-1))
                continue
            there = np.flatnonzero(at < self.limit)
            key, stop = at.reshape(-1).take(there), following.reshape(-1).take(there)
            key += 1
            stop -= 1
            yield Entries(record.take(there), key, stop)


def _leap(array: ByteArray, position: IntArray, ends: IntArray) -> _Steps | None:
    """All steps; None unless every entry is short and the last one of every record ends with it."""
    count = len(position)
    at = np.empty((_LIKELY, count), np.int64)
    sizes = np.empty((_LIKELY, count), np.uint8)
    np.add(position, 1, out=at[0])
    limit = ends + 1
    entries = steps = 0
    while active := int(np.count_nonzero(at[steps] < limit)):
        entries += active
        if steps == _MAX_ENTRIES or (steps + 1) * count > _WASTE * entries + RUN:
            return None
        if steps + 1 == len(at):
            at = np.concatenate((at, np.empty_like(at)))
            sizes = np.concatenate((sizes, np.empty_like(sizes)))
        array.take(at[steps], out=sizes[steps], mode="clip")
        following = at[steps + 1]
        np.add(at[steps], sizes[steps], out=following)
        following += 2
        steps += 1
    at, sizes = at[: steps + 1], sizes[:steps]
    even = entries == steps * count
    if even and ((at[-1] != limit).any() or sizes.max(initial=0) >= _LONG):
        return None
    several = max(RUN // max(count, 1), 1)
    for begin in range(0, steps, several):
        end = min(begin + several, steps)
        odd = array.take(at[begin:end] - 1, mode="clip") != _TAG
        if not even:
            odd |= sizes[begin:end] >= _LONG
            odd |= at[begin + 1 : end + 1] > limit
            odd &= at[begin:end] < limit
        if odd.any():
            return None
    return _Steps(at, limit, even)


def _walk(array: ByteArray, position: IntArray, ends: IntArray, good: Mask) -> Entries:
    """Entries of any length; records that are damaged, or too many entries, are marked."""
    active = np.flatnonzero(good & (position < ends))
    position, end = position[active], ends[active]
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    for _ in range(_MAX_ENTRIES):
        if not len(active):
            break
        odd = array.take(position)
        odd ^= _TAG
        sizes: npt.NDArray[np.uint8] = array.take(position + 1)
        if not np.bitwise_or.reduce(odd) and np.bitwise_or.reduce(sizes) < 0x80:
            key = position + 2
            stop = key + sizes
        else:
            long_sizes, widths, short = lengths_at(array, position + 1)
            key = position + 1 + widths
            stop = key + long_sizes
            fine = odd == 0
            fine &= short
            fine &= stop <= end
            if not fine.all():
                good[active[~fine]] = False
                active, key, stop, end = active[fine], key[fine], stop[fine], end[fine]
        more = stop < end
        if np.count_nonzero(more) == len(more):
            found.append((active, key, stop))
            position = stop
            continue
        beyond = stop > end
        if np.count_nonzero(beyond):
            good[active[beyond]] = False
            np.minimum(stop, end, out=stop)
        found.append((active, key, stop))
        left = np.flatnonzero(more)
        active, position, end = active.take(left), stop.take(left), end.take(left)
    good[active] = False
    if not found:
        none = np.empty(0, np.int64)
        return Entries(none, none, none)
    records, keys, stops = (np.concatenate(column) for column in zip(*found, strict=True))
    return Entries(records, keys, stops)
