"""Many Examples at once, whatever the order of their keys: the way for blocks that share no layout.

Two passes. The first steps all records from entry to entry, reading nothing but the length of each. That gives one
long table of entries, from all records, which the second pass reads in one go: the key is hashed and looked up, then
compared byte for byte; single numbers are decoded; of everything else the place is noted, to be decoded one by one.
Records with anything unusual in them (a key twice, fields in another order, damage) are left over for the parser of
single records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats.features import Wanted
from asyncdata.formats.stepping import Group, Mask, Spans, Values, enter_map, keep_inside
from asyncdata.formats.wire import (
    MASK_OF_WIDTH,
    ByteArray,
    IntArray,
    WordArray,
    lengths_at,
    varints_of_width,
    words_at,
)

_MAX_ENTRIES: Final = 1024
"""Records with more entries than this are left over, so that damage cannot make many tiny steps."""
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


class KeyTable:
    """The keys of a spec, ready to be looked up by the thousand.

    Attributes:
        wanted: The features, one per key; keys of at most ``MAX_KEY_BYTES``.
        integers: Which of them are a single int64.
        floats: Which of them are a single float32.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.wanted = wanted
        self.integers = np.array([item.single and item.kind == "int64" for item in wanted])
        self.floats = np.array([item.single and item.kind == "float32" for item in wanted])
        self._lengths = np.array([len(item.key) for item in wanted])
        count = max(-(-int(self._lengths.max()) // 8), 1)
        padded = b"".join(item.key.ljust(8 * count, b"\0") for item in wanted)
        self._words = np.frombuffer(padded, "<u8").reshape(-1, count)
        hashes = _hash(self._lengths, [self._words[:, word] for word in range(count)])
        self._order = np.argsort(hashes)
        self._hashes = hashes[self._order]

    def look_up(self, array: ByteArray, key: IntArray, sizes: IntArray) -> IntArray:
        """The slot of each key in ``array``; -1 for a key that is not wanted."""
        count = self._words.shape[1]
        words = [
            words_at(array, key + 8 * word) & MASK_OF_WIDTH[np.clip(sizes - 8 * word, 0, 8)] for word in range(count)
        ]
        found = np.searchsorted(self._hashes, _hash(sizes, words))
        np.minimum(found, len(self._hashes) - 1, out=found)
        slots = self._order[found]
        same = sizes == self._lengths[slots]
        for word in range(count):
            same &= words[word] == self._words[slots, word]
        return np.where(same, slots, -1)


def _hash(sizes: IntArray, words: Sequence[WordArray]) -> WordArray:
    found = sizes.astype(np.uint64)
    for word in words:
        found = (found ^ word) * _MULTIPLIER
        found ^= found >> np.uint64(29)
    return found


def parse(array: ByteArray, rows: IntArray, table: KeyTable) -> tuple[Group, Mask]:
    """Reads the records at ``rows``; returns the group of those that are as usual, and a mask of them."""
    records, keys, stops, good = _entries(array, rows)
    key_sizes = array[keys + 1].astype(np.int64)
    fine: Mask = array[keys] == 0x0A
    value = keys + 2 + key_sizes
    keep_inside(value, array, fine)
    fine &= array[value] == 0x12
    sizes, widths, short = lengths_at(array, value + 1)
    begin = value + 1 + widths
    fine &= short
    fine &= begin + sizes == stops
    slots = table.look_up(array, keys + 2, key_sizes)
    good[records[~fine]] = False
    kept = np.flatnonzero(fine & (slots >= 0) & (sizes > 0))
    records, slots, begin, stops = records[kept], slots[kept], begin[kept], stops[kept]
    cells = slots * len(rows) + records
    counts = np.bincount(cells, minlength=len(table.wanted) * len(rows)).reshape(-1, len(rows))
    good &= (counts <= 1).all(axis=0)
    values: dict[int, Any] = {}
    for picked, read in ((table.integers, _integers), (table.floats, _floats)):
        chosen = np.flatnonzero(picked[slots])
        numbers, right = read(array, begin[chosen], stops[chosen])
        good[records[chosen[~right]]] = False
        grid = np.zeros((len(table.wanted), len(rows)), numbers.dtype)
        grid[slots[chosen], records[chosen]] = numbers
        values.update((slot, grid[slot]) for slot in np.flatnonzero(picked).tolist())
    bounds = np.zeros((2, len(table.wanted), len(rows)), np.int64)
    bounds[0, slots, records] = begin
    bounds[1, slots, records] = stops
    for slot, item in enumerate(table.wanted):
        absent = counts[slot] == 0
        if item.default is None:
            good &= ~absent
        elif slot in values:
            values[slot][absent] = item.default
        if slot not in values:
            values[slot] = Spans(bounds[0, slot], bounds[1, slot], message=True)
    return _picked(np.flatnonzero(good), values), good


def _entries(array: ByteArray, rows: IntArray) -> tuple[IntArray, IntArray, IntArray, Mask]:
    """Every entry of every record: record, where its key's tag lies, where it ends; and which records are whole."""
    ends = rows[:, 0] + rows[:, 1]
    position, good = enter_map(array, rows)
    active = np.flatnonzero(good & (position < ends))
    position = position[active]
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    for _ in range(_MAX_ENTRIES):
        if not len(active):
            break
        fine = np.ones(len(active), np.bool_)
        keep_inside(position, array, fine)
        fine &= array[position] == 0x0A
        sizes, widths, short = lengths_at(array, position + 1)
        fine &= short
        key = position + 1 + widths
        stop = key + sizes
        end = ends[active]
        fine &= stop <= end
        keep_inside(key, array, fine)
        if not fine.all():
            good[active[~fine]] = False
            active, key, stop, end = active[fine], key[fine], stop[fine], end[fine]
        found.append((active, key, stop))
        more = stop < end
        active, position = active[more], stop[more]
    good[active] = False
    if not found:
        none = np.empty(0, np.int64)
        return none, none, none, good
    records, keys, stops = (np.concatenate(column) for column in zip(*found, strict=True))
    return records, keys, stops, good


def _integers(array: ByteArray, begin: IntArray, stop: IntArray) -> tuple[IntArray, Mask]:
    """Single int64, packed ``1a llen 0a plen value`` or not ``1a llen 08 value``; and which of them are that."""
    if not len(begin):
        return begin, np.empty(0, np.bool_)
    good, size, packed = _single(array, begin, stop, 0x1A, 0x08)
    width = size - np.where(packed, 4, 3)
    good &= (width > 0) & (width <= 10)
    at = begin + np.where(packed, 4, 3)
    numbers, right = varints_of_width(array, at, np.where(good, width, 1))
    return numbers, good & right


def _floats(array: ByteArray, begin: IntArray, stop: IntArray) -> tuple[npt.NDArray[np.float32], Mask]:
    """Single float32, packed ``12 06 0a 04 value`` or not ``12 05 0d value``; and which of them are that."""
    good, size, packed = _single(array, begin, stop, 0x12, 0x0D)
    skip = np.where(packed, 4, 3)
    good &= size == skip + 4
    windows: npt.NDArray[np.float32] = np.ndarray((len(array) - 3,), "<f4", array, strides=(1,))
    return windows[begin + skip], good


def _single(array: ByteArray, begin: IntArray, stop: IntArray, tag: int, item: int) -> tuple[Mask, IntArray, Mask]:
    """Checks the bytes in front of a single number: which are right, their sizes, and which are packed."""
    good = np.ones(len(begin), np.bool_)
    size = stop - begin
    keep_inside(begin, array, good)
    good &= array[begin] == tag
    good &= size <= 14
    good &= array[begin + 1] == size - 2
    first = array[begin + 2]
    packed = first == 0x0A
    good &= np.where(packed, array[begin + 3] == size - 4, first == item)
    return good, size, packed


def _picked(picked: IntArray, values: dict[int, Any]) -> Group:
    """The group of the picked records."""
    out: dict[int, Values] = {}
    for slot, value in values.items():
        if isinstance(value, Spans):
            out[slot] = Spans(value.begin[picked], value.end[picked], value.message)
        else:
            out[slot] = value[picked]
    return Group(picked, out)
