"""Many Examples at once, whatever the order of their keys: the way for blocks that share no layout.

Three passes. The first finds all entries of all records (``entry_steps``). The second looks their keys up
(``key_table``) and notes, by list and record, where the value lies and the bytes in front of it. The third reads every
list for all records at once: single numbers and single strings are decoded, of everything else the place is noted, to
be decoded one by one. The second and third go in runs that fit the cache.
Records with anything unusual in them (fields in another order, damage) are left over for the parser of single records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.features import Wanted
from asyncdata.formats.example.fields import RUN, Entries, entries_of
from asyncdata.formats.example.keys import KeyTable
from asyncdata.formats.example.stepping import SPARE_BYTES, Group, Mask, Spans, Values, enter
from asyncdata.formats.example.varints import (
    ByteArray,
    IntArray,
    WordArray,
    floats_at,
    lengths_at,
    varints_of_width,
    words_at,
)

_CELLS: Final = 1 << 16
"""Records times lists that are read together; more are cut."""
_FEWEST: Final = 64
_LOOK_AGAIN: Final = 32
"""After a block with long entries, one of so many is stepped without looking again."""

# A single packed int64 whose Feature is VL bytes long: 12 VL 1a VL-2 0a VL-4 value. As a word it is base + VL * growth.
_SIX_BYTES: Final = np.uint64((1 << 48) - 1)
_INT_BASE: Final = np.uint64(((0x12 | 0x1A << 16 | 0x0A << 32) - (2 << 24) - (4 << 40)) % (1 << 64))
_INT_GROWTH: Final = np.uint64(1 << 8 | 1 << 24 | 1 << 40)
_LEAST_INT: Final = np.uint64(5)
_INT_HEAD: Final = np.uint64(0x010A031A0512)
"""A single packed int64 of one byte, of ``_LEAST_INT`` bytes in all: 12 05 1a 03 0a 01 value."""
_FLOAT_HEAD: Final = np.uint64(0x040A06120812)
"""A single packed float32: 12 08 12 06 0a 04 value."""
_SHORT: Final = np.uint64(0x80FF)
"""Of a word: its first byte, and whether its second is a length of one byte."""
_KEY, _VALUE = np.uint64(0x0A), np.uint64(0x12)
_EIGHT, _BYTE = np.uint64(8), np.uint64(0xFF)

_Read: TypeAlias = Callable[[ByteArray, IntArray, WordArray], tuple[npt.NDArray[Any], Mask]]


class _Grid(NamedTuple):
    """What the second pass notes, by list and record.

    Attributes:
        value: Where the tag of the value lies; -1 where there is none.
        head: The 8 bytes there, of numbers; what they would be where there are none.
        begin: Where the Feature begins.
        stop: Where it ends.
    """

    value: IntArray
    head: WordArray
    begin: IntArray
    stop: IntArray


class UnorderedReader:
    """Reads blocks; remembers whether the last ones had long entries.

    Args:
        wanted: The features, one per key; keys of at most ``MAX_KEY_BYTES``.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        numbers = [(slot, item) for slot, item in enumerate(wanted) if item.single and item.kind != "bytes"]
        integers = [(slot, item) for slot, item in numbers if item.kind == "int64"]
        floats = [(slot, item) for slot, item in numbers if item.kind == "float32"]
        others = [(slot, item) for slot, item in enumerate(wanted) if not item.single or item.kind == "bytes"]
        # Numbers of one kind lie side by side, so that they are read together.
        self._order = [*integers, *floats, *others]
        self._integers, self._numbers = len(integers), len(numbers)
        self._table = KeyTable([item.key for _, item in self._order])
        self._since_long = _LOOK_AGAIN

    def parse(self, array: ByteArray, rows: IntArray) -> tuple[Group, Mask]:
        """Reads the records at ``rows``; returns the group of those that are as usual, and a mask of them."""
        most = max(_CELLS // len(self._order), _FEWEST)
        if len(rows) < 2 * most:
            return self._part(array, rows)
        parts = [self._part(array, rows[begin : begin + most]) for begin in range(0, len(rows), most)]
        good = np.concatenate([mask for _, mask in parts])
        groups = [group for group, _ in parts if len(group.indices)]
        slots = groups[0].values if groups else ()
        values = {slot: _joined([group.values[slot] for group in groups]) for slot in slots}
        return Group(np.flatnonzero(good), values), good

    def _part(self, array: ByteArray, rows: IntArray) -> tuple[Group, Mask]:
        self._since_long += 1
        short = self._since_long >= _LOOK_AGAIN
        runs, good, are_short = entries_of(array, rows, short=short)
        if short and not are_short:
            self._since_long = 0
        count = len(rows)
        cells, numbers = len(self._order) * count, self._numbers * count
        head = np.empty(numbers, np.uint64)
        head[: self._integers * count] = _INT_HEAD
        head[self._integers * count :] = _FLOAT_HEAD
        grid = _Grid(np.full(cells, -1), head, *np.empty((2, cells - numbers), np.int64))
        for entries in runs:
            self._note(array, entries, good, grid)
        values: dict[int, Any] = {}
        integers = self._order[: self._integers]
        floats = self._order[self._integers : self._numbers]
        if integers:
            values |= self._read(array, grid, (0, integers), _integers, good)
        if floats:
            values |= self._read(array, grid, (self._integers, floats), _floats, good)
        at = numbers
        for slot, item in self._order[self._numbers :]:
            place = at - numbers
            absent = grid.value[at : at + count] < 0
            spans = grid.begin[place : place + count], grid.stop[place : place + count]
            values[slot] = _places(array, spans, absent, item, good)
            at += count
        return _picked(np.flatnonzero(good), values, every=bool(good.all())), good

    def _note(self, array: ByteArray, entries: Entries, good: Mask, grid: _Grid) -> None:
        """Looks up a run of entries and notes where their values lie."""
        records, key, stop = entries
        head = words_at(array, key)
        fine: Mask = (head & _SHORT) == _KEY
        head_sizes = head >> _EIGHT
        head_sizes &= _BYTE
        sizes = head_sizes.view(np.int64)
        value = key + sizes
        value += 2
        fine &= value < stop - 1
        if not fine.all():
            np.minimum(value, len(array) - SPARE_BYTES, out=value)
        at_value = words_at(array, value)
        usual: Mask = (at_value & _SHORT) == _VALUE
        if usual.all():
            lengths = ((at_value >> _EIGHT) & _BYTE).view(np.int64)
            begin = value + 2
        else:
            fine &= (at_value & _BYTE) == _VALUE
            lengths, widths, short = lengths_at(array, value + 1)
            fine &= short
            begin = value + 1 + widths
        fine &= begin + lengths == stop
        lists, same = self._table.look_up(array, key, head, sizes)
        if not fine.all():
            good[records[~fine]] = False
            same &= fine
        same &= lengths > 0
        count = len(good)
        cells = lists * count
        cells += records
        if not same.all():
            kept = np.flatnonzero(same)
            cells, value, at_value = cells.take(kept), value.take(kept), at_value.take(kept)
            begin, stop = begin.take(kept), stop.take(kept)
        # Of several entries of a key the last one that has a value counts: it is the last to be written.
        grid.value[cells] = value
        numbers = self._numbers * count
        if self._numbers == len(self._order):
            grid.head[cells] = at_value
            return
        if numbers:
            which = np.flatnonzero(cells < numbers)
            grid.head[cells.take(which)] = at_value.take(which)
            which = np.flatnonzero(cells >= numbers)
            cells, begin, stop = cells.take(which), begin.take(which), stop.take(which)
            cells -= numbers
        grid.begin[cells] = begin
        grid.stop[cells] = stop

    @staticmethod
    def _read(
        array: ByteArray, grid: _Grid, lists: tuple[int, list[tuple[int, Wanted]]], read: _Read, good: Mask
    ) -> dict[int, npt.NDArray[Any]]:
        """The numbers of lists of one kind, which begin at some row of the grid."""
        first, items = lists
        count = len(good)
        out = np.empty((len(items), count), items[0][1].kind)
        several = max(RUN // max(count, 1), 1)
        for begin in range(0, len(items), several):
            some = items[begin : begin + several]
            cells = slice((first + begin) * count, (first + begin + len(some)) * count)
            value = grid.value[cells]
            absent = value < 0
            # Absent ones are read from the first bytes there are, as if they were numbers; then they are overwritten.
            found = read(array, np.maximum(value, 0), grid.head[cells])
            _fill_in(found, absent, [item.default for _, item in some], out[begin : begin + len(some)], good)
        return dict(zip([slot for slot, _ in items], out, strict=True))


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Spans):
        begins, ends, messages = zip(*parts, strict=True)
        return Spans(np.concatenate(begins), np.concatenate(ends), messages[0])
    return np.concatenate(parts)


def _places(array: ByteArray, spans: tuple[IntArray, IntArray], absent: Mask, item: Wanted, good: Mask) -> Spans:
    """Where the byte string, or the Feature, of each record lies."""
    begin, stop = spans
    if absent.any():
        if item.default is None:
            good &= ~absent
        begin[absent] = stop[absent] = 0
    if item.single:
        begin = _string(array, begin, stop, absent, good)
        stop = np.where(begin < 0, -1, stop)
    return Spans(begin, stop, message=not item.single)


def _fill_in(found: tuple[npt.NDArray[Any], Mask], absent: Mask, defaults: list[Any], out: Any, good: Mask) -> None:
    """Puts numbers into ``out``, defaults where they are absent; marks records that lack one without a default."""
    numbers, right = found
    out[:] = numbers.reshape(out.shape)
    if not right.all():
        right |= absent
        good &= right.reshape(out.shape).all(axis=0)
    if not absent.any():
        return
    absent = absent.reshape(out.shape)
    needed = np.array([default is None for default in defaults])
    if needed.any():
        good &= ~(absent & needed[:, None]).any(axis=0)
    filling = np.array([0 if default is None else default for default in defaults], out.dtype)
    np.copyto(out, filling[:, None], where=absent)


def _integers(array: ByteArray, value: IntArray, head: WordArray) -> tuple[IntArray, Mask]:
    """Single int64, packed or not; and which of them are that."""
    sizes = head >> _EIGHT
    sizes &= _BYTE
    differs = sizes * _INT_GROWTH
    differs += _INT_BASE
    differs ^= head
    differs &= _SIX_BYTES
    if not differs.any() and sizes.min(initial=_LEAST_INT) >= _LEAST_INT:
        widths = sizes.view(np.int64)
        widths -= 4
        return varints_of_width(array, value + 6, widths)
    begin, good, size, packed = _single(array, value, head, 0x1A, 0x08)
    skip = np.where(packed, 4, 3)
    widths = size - skip
    good &= (widths > 0) & (widths <= 10)
    numbers, right = varints_of_width(array, begin + skip, np.where(good, widths, 1))
    return numbers, good & right


def _floats(array: ByteArray, value: IntArray, head: WordArray) -> tuple[npt.NDArray[np.float32], Mask]:
    """Single float32, packed or not; and which of them are that."""
    good: Mask = (head & _SIX_BYTES) == _FLOAT_HEAD
    if good.all():
        return floats_at(array, value + 6), good
    begin, good, size, packed = _single(array, value, head, 0x12, 0x0D)
    skip = np.where(packed, 4, 3)
    good &= size == skip + 4
    return floats_at(array, begin + skip), good


def _single(
    array: ByteArray, value: IntArray, head: WordArray, tag: int, item: int
) -> tuple[IntArray, Mask, IntArray, Mask]:
    """Checks the bytes in front of numbers: where Features begin, which are right, their sizes, which are packed."""
    begin = value + 2
    good: Mask = array[begin] == tag
    size = ((head >> _EIGHT) & _BYTE).view(np.int64)
    good &= size <= 14
    good &= array[begin + 1] == size - 2
    first = array[begin + 2]
    packed: Mask = first == 0x0A
    good &= np.where(packed, array[begin + 3] == size - 4, first == item)
    return begin, good, size, packed


def _string(array: ByteArray, begin: IntArray, stop: IntArray, absent: Mask, good: Mask) -> IntArray:
    """Where the only string of a list begins, which must fill it; -1 where it is absent."""
    right: Mask = array[begin] == 0x0A
    first = enter(array, begin + 1, stop, right)
    right &= first < stop
    right &= array[first] == 0x0A
    found = enter(array, first + 1, stop, right)
    if absent.any():
        found[absent] = -1
        right |= absent
    good &= right
    return found


def _picked(picked: IntArray, values: dict[int, Any], *, every: bool) -> Group:
    """The group of the picked records."""
    if every:
        return Group(picked, values)
    out: dict[int, Values] = {}
    for slot, value in values.items():
        if isinstance(value, Spans):
            out[slot] = Spans(value.begin[picked], value.end[picked], value.message)
        else:
            out[slot] = value[picked]
    return Group(picked, out)
