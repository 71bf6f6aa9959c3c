"""Parses many Examples at once, in numpy, whatever the order of their keys.

There are three passes. The first finds all entries of all records (``fields``). The second identifies their keys
(``keys``): usually they are those of the record before, in the same order; otherwise they are looked up. It notes, by
list and record, where the value is and the bytes in front of it. The third reads every list for all records at once.
The second and the third run over parts that fit the cache.

Nothing is trusted: everything that is noted was compared byte for byte, and every length with the enclosing one.
Records with anything unusual (fields in another order, lists that are not packed, damage) are left to ``scalar``, which
also words the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.entries import HEAD_BYTES, HEADS
from asyncdata.formats.example.fields import (
    RUN,
    SPARE_BYTES,
    FieldRun,
    Mask,
    enter,
    fields_of,
    keep_inside,
)
from asyncdata.formats.example.keys import KeyOrder, KeyTable
from asyncdata.formats.example.layouts import LayoutReader
from asyncdata.formats.example.scalar import TAG_OF_KIND
from asyncdata.formats.example.short_entries import ShortEntriesReader
from asyncdata.formats.example.varints import (
    ByteArray,
    IntArray,
    WireError,
    WordArray,
    floats_at,
    lengths_at,
    unpack_varints,
    varints_of_width,
    words_at,
)
from asyncdata.formats.example.wanted import Wanted
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray

Column: TypeAlias = npt.NDArray[Any] | BytesArray | RaggedArray
"""A list of many records: an array of numbers, or of objects for byte strings of a shape; a `BytesArray` of single byte
strings; a `RaggedArray` of any number of values."""

FEWEST_RECORDS: Final = 8
"""Fewer records than this are cheaper one by one."""
_LOOK_AGAIN: Final = 32
"""After a block whose records have their keys in several orders, one of so many is looked at for a common one."""
_UNPACK: Final = 10_000
"""Lists of integers are unpacked in runs of about so many numbers, which stay in the cache."""

# In front of a single packed int64 that takes so many bytes with this head.
_SIX_BYTES: Final = np.uint64(HEADS["int64"].mask)
_INT_GROWTH: Final = np.uint64(HEADS["int64"].growth)
_INT_BASE: Final = np.uint64((HEADS["int64"].base - HEAD_BYTES * HEADS["int64"].growth) % (1 << 64))
_LEAST_INT: Final = 7
_INT_HEAD: Final = np.uint64(0x010A031A0512)
"""A single packed int64 of one byte, which takes ``_LEAST_INT`` bytes: 12 05 1a 03 0a 01 value."""
_FLOAT_BYTES: Final = 10
_FLOAT_HEAD: Final = np.uint64(0x040A06120812)
"""A single packed float32, which takes so many: 12 08 12 06 0a 04 value."""
_NO_VALUE: Final = 2
"""Bytes that an empty value takes."""
_SHORT: Final = np.uint64(0x80FF)
"""Of a word: its first byte, and whether its second is a length of one byte."""
_KEY, _VALUE = np.uint64(0x0A), np.uint64(0x12)
_EIGHT, _BYTE = np.uint64(8), np.uint64(0xFF)

_Read: TypeAlias = Callable[[ByteArray, IntArray, WordArray, IntArray], tuple[npt.NDArray[Any], Mask]]


class _Grid(NamedTuple):
    """What the second pass notes, by list and record; one list more than there are takes what nobody wants.

    Attributes:
        value: Where the tag of the value lies; -1 where there is none.
        head: The 8 bytes there.
        size: Bytes up to the end of the entry. That the value takes them all is known of all but single numbers.
    """

    value: IntArray
    head: WordArray
    size: IntArray


class ColumnarReader:
    """Reads the wanted lists of many records; remembers in which order the last ones had their keys.

    Args:
        wanted: The lists, one per key; keys of at most `MAX_KEY_BYTES`.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        numbers = [(slot, item) for slot, item in enumerate(wanted) if item.single and item.kind != "bytes"]
        integers = [(slot, item) for slot, item in numbers if item.kind == "int64"]
        floats = [(slot, item) for slot, item in numbers if item.kind == "float32"]
        self._others = [(slot, item) for slot, item in enumerate(wanted) if not item.single or item.kind == "bytes"]
        # Numbers of one kind lie side by side, so that they are read together.
        self._numbers = ((integers, _integers), (floats, _floats))
        keys = [item.key for _, item in (*integers, *floats, *self._others)]
        self._table = KeyTable(keys)
        self._rows = {key: row for row, key in enumerate(keys)}
        self._first_other = len(numbers)
        self._order: KeyOrder | None = None
        self._unlike = 0
        single = all(item.single for item in wanted)
        # Without a byte string nothing is as long as to make a layout worth while.
        self._layouts = LayoutReader(wanted) if single and any(item.kind == "bytes" for item in wanted) else None
        self._short = ShortEntriesReader(wanted) if single else None

    def read(self, array: ByteArray, rows: IntArray) -> tuple[list[Column], Mask] | None:
        """Reads the records at ``rows`` = (offset, length).

        Returns:
            A column per list, in the order wanted, and which records' values are in it; None if no record's are.
        """
        count, lists = len(rows), len(self._rows)
        if count < FEWEST_RECORDS or len(array) < SPARE_BYTES:
            return None
        if self._layouts is not None and (columns := self._layouts.read(array, rows)) is not None:
            return columns, np.ones(count, np.bool_)
        ends = rows[:, 0] + rows[:, 1]
        good: Mask = ends <= len(array) - SPARE_BYTES
        # A record is one map, and nothing else.
        start = np.minimum(rows[:, 0], len(array) - SPARE_BYTES)
        good &= array.take(start) == 0x0A
        position = enter(array, start + 1, ends, good)
        if self._short is not None and good.all() and (columns := self._short.read(array, position, ends)) is not None:
            return columns, good
        room = (lists + 1, count)
        grid = _Grid(np.full(room, -1), np.empty(room, np.uint64), np.empty(room, np.int64))
        # Where records have their keys in many orders, not every block is looked at for a common one.
        alike = self._unlike % _LOOK_AGAIN == 0
        for entries in fields_of(array, position, ends, good):
            head = words_at(array, entries.begin)
            alike = alike and self._note_alike(array, entries, head, grid)
            if not alike:
                self._note_any(array, entries, head, good, grid)
        self._unlike = 0 if alike else self._unlike + 1
        try:
            found = self._columns(array, grid, good)
        except WireError:
            return None
        return [found[slot] for slot in range(lists)], good

    # --- the second pass

    def _note_alike(self, array: ByteArray, entries: FieldRun, head: WordArray, grid: _Grid) -> bool:
        """Notes a run of entries if all records have the same keys in them, in the same order, and values."""
        steps = slice(entries.first, entries.first + len(entries.messages))
        count = grid.value.shape[1]
        if len(entries.begin) != len(entries.messages) * count:
            return False
        key, heads = entries.begin.reshape(-1, count), head.reshape(-1, count)
        order = self._order
        if order is None or len(order.heads) < steps.stop or not order.is_of(array, key, heads, steps):
            if int(array.take(key[:, 0] + 1).max()) >= 0x80:
                return False  # a length of several bytes, which only reading one by one understands
            before = [] if order is None else order.heads[: steps.start]
            here = [array[at : at + 2 + int(array[at + 1])].tobytes() for at in key[:, 0].tolist()]
            order = self._order = KeyOrder([*before, *here], self._rows)
            if len(order.heads) < steps.stop or not order.is_of(array, key, heads, steps):
                return False
        value = key + order.sizes[steps]
        size = entries.stop.reshape(-1, count) - value
        if int(size.min()) <= _NO_VALUE:
            return False
        at_value = words_at(array, value.reshape(-1)).reshape(-1, count)
        rows = order.rows[steps]
        if (others := rows >= self._first_other).any():
            some = value[others].reshape(-1), at_value[others].reshape(-1), size[others].reshape(-1)
            if not _lengths_of(array, *some)[1].all():
                return False
        # Of several entries of a key the last one counts: it is the last to be written.
        grid.value[rows], grid.head[rows], grid.size[rows] = value, at_value, size
        return True

    def _note_any(self, array: ByteArray, entries: FieldRun, head: WordArray, good: Mask, grid: _Grid) -> None:
        """Looks the keys of a run of entries up, and notes where their values lie."""
        sizes = ((head >> _EIGHT) & _BYTE).view(np.int64)
        value = entries.begin + sizes
        value += 2
        size = entries.stop - value
        if int(size.min()) < _NO_VALUE:
            np.minimum(value, len(array) - SPARE_BYTES, out=value)
        at_value = words_at(array, value)
        lengths, right = _lengths_of(array, value, at_value, size)
        right &= (head & _SHORT) == _KEY
        lists, same = self._table.look_up(array, entries.begin, head, sizes)
        message = entries.message
        if not right.all():
            good[message[~right]] = False
            same &= right
        same &= lengths > 0
        if not same.all():
            kept = np.flatnonzero(same)
            lists, message, value = lists.take(kept), message.take(kept), value.take(kept)
            at_value, size = at_value.take(kept), size.take(kept)
        lists *= len(good)
        lists += message
        # Of several entries of a key the last one that has a value counts: it is the last to be written.
        grid.value.reshape(-1)[lists] = value
        grid.head.reshape(-1)[lists] = at_value
        grid.size.reshape(-1)[lists] = size

    # --- the third pass

    def _columns(self, array: ByteArray, grid: _Grid, good: Mask) -> dict[int, Column]:
        """The columns by slot. Raises ``WireError`` where a list of integers is damaged."""
        columns: dict[int, Column] = {}
        first = 0
        for some, read in self._numbers:
            columns |= _read_numbers(array, grid, first, some, read, good)
            first += len(some)
        for row, (slot, item) in enumerate(self._others, first):
            absent = grid.value[row] < 0
            value, size = np.where(absent, 0, (grid.value[row], grid.size[row]))
            begin, stop = _messages(array, value, size)
            columns[slot] = _read_list(array, begin, stop, absent, item, good)
        return columns


def _lengths_of(array: ByteArray, value: IntArray, head: WordArray, size: IntArray) -> tuple[IntArray, Mask]:
    """How long values are, and which of them are values that take all of their size."""
    if ((head & _SHORT) == _VALUE).all():
        lengths = ((head >> _EIGHT) & _BYTE).view(np.int64)
        return lengths, lengths + 2 == size
    lengths, widths, short = lengths_at(array, value + 1)
    right: Mask = lengths + widths + 1 == size
    right &= short
    right &= (head & _BYTE) == _VALUE
    return lengths, right


# --- single numbers


def _read_numbers(
    array: ByteArray, grid: _Grid, first: int, some: list[tuple[int, Wanted]], read: _Read, good: Mask
) -> dict[int, Column]:
    """The numbers of lists of one kind, which begin at some row of the grid."""
    if not some:
        return {}
    count = len(good)
    out = np.empty((len(some), count), some[0][1].kind)
    several = max(RUN // count, 1)
    for begin in range(0, len(some), several):
        items = [item for _, item in some[begin : begin + several]]
        rows = slice(first + begin, first + begin + len(items))
        value, head, size = grid.value[rows], grid.head[rows], grid.size[rows]
        absent = value < 0
        lacking = absent.any()
        if lacking:
            # Absent ones are read from the first bytes there are, as if they were numbers; then they are overwritten.
            value[absent] = 0
            head[absent], size[absent] = (
                (_INT_HEAD, _LEAST_INT) if out.dtype == np.int64 else (_FLOAT_HEAD, _FLOAT_BYTES)
            )
        values, right = read(array, value.reshape(-1), head.reshape(-1), size.reshape(-1))
        numbers = out[begin : begin + len(items)]
        numbers[:] = values.reshape(numbers.shape)
        if not right.all():
            good &= (right.reshape(value.shape) | absent).all(axis=0)
        if lacking:
            needed = np.array([item.default is None for item in items])
            good &= ~(absent & needed[:, None]).any(axis=0)
            filling = np.array([0 if item.default is None else item.default for item in items], out.dtype)
            np.copyto(numbers, filling[:, None], where=absent)
    return dict(zip([slot for slot, _ in some], out, strict=True))


def _integers(array: ByteArray, value: IntArray, head: WordArray, size: IntArray) -> tuple[IntArray, Mask]:
    """Single int64, packed or not; and which of them are that."""
    differs = size.view(np.uint64) * _INT_GROWTH
    differs += _INT_BASE
    differs ^= head
    differs &= _SIX_BYTES
    if not differs.any() and size.min() >= _LEAST_INT:
        return varints_of_width(array, value + 6, size - 6)
    good, packed = _single(array, value, size, 0x1A, 0x08)
    skip = np.where(packed, 6, 5)
    widths = size - skip
    good &= (widths > 0) & (widths <= 10)
    numbers, right = varints_of_width(array, value + skip, np.where(good, widths, 1))
    return numbers, good & right


def _floats(array: ByteArray, value: IntArray, head: WordArray, size: IntArray) -> tuple[npt.NDArray[np.float32], Mask]:
    """Single float32, packed or not; and which of them are that."""
    good: Mask = (head & _SIX_BYTES) == _FLOAT_HEAD
    good &= size == _FLOAT_BYTES
    if good.all():
        return floats_at(array, value + 6), good
    good, packed = _single(array, value, size, 0x12, 0x0D)
    skip = np.where(packed, 6, 5)
    good &= size == skip + 4
    return floats_at(array, value + skip), good


def _single(array: ByteArray, value: IntArray, size: IntArray, tag: int, item: int) -> tuple[Mask, Mask]:
    """Checks the bytes in front of numbers, as many as fit a length of one byte: which are right, which are packed."""
    good: Mask = array.take(value) == 0x12
    good &= size <= 16
    good &= array.take(value + 1) == size - 2
    good &= array.take(value + 2) == tag
    good &= array.take(value + 3) == size - 4
    first = array.take(value + 4)
    packed: Mask = first == 0x0A
    good &= np.where(packed, array.take(value + 5) == size - 6, first == item)
    return good, packed


# --- lists


def _messages(array: ByteArray, value: IntArray, size: IntArray) -> tuple[IntArray, IntArray]:
    """Where Features begin and end; where there is none, something empty."""
    stop = value + size
    if int(size.max()) < 0x80:
        return np.minimum(value + 2, stop), stop
    _, widths, _ = lengths_at(array, value + 1)
    return np.minimum(value + 1 + widths, stop), stop


def _read_list(array: ByteArray, begin: IntArray, stop: IntArray, absent: Mask, item: Wanted, good: Mask) -> Column:
    """The lists of one feature."""
    right: Mask = array.take(begin) == TAG_OF_KIND[item.kind]
    first = enter(array, begin + 1, stop, right)
    right |= absent
    good &= right
    if item.default is None:
        good &= ~absent
    if item.single:
        return _read_strings(array, first, stop, absent, item, good)
    # What is left out has no values.
    begin, stop = np.where(good & ~absent, (first, stop), 0)
    values: npt.NDArray[Any] | BytesArray
    if item.kind == "bytes":
        values, counts = _unpack_strings(array, begin, stop, good)
    else:
        filled = begin < stop
        packed: Mask = array.take(begin) == 0x0A
        begin = enter(array, begin + 1, stop, packed)
        good &= packed | ~filled
        begin, stop = np.where(packed & filled, (begin, stop), 0)
        values, counts = (_unpack_integers if item.kind == "int64" else _unpack_floats)(array, begin, stop, good)
    if item.count < 0:
        if item.step != 1:
            good &= counts % item.step == 0
        return RaggedArray.from_row_lengths(values, counts)
    whole = counts == item.count
    if whole.all():
        return np.asarray(values).reshape(len(good), *item.shape)
    good &= whole | absent
    out = np.empty((len(good), *item.shape), object if item.kind == "bytes" else item.kind)
    # Not -1 for the number: a shape may hold nothing.
    out[whole] = np.asarray(values)[np.repeat(whole, counts)].reshape(np.count_nonzero(whole), *item.shape)
    if item.default is not None:
        out[absent] = item.default
    return out


def _read_strings(
    array: ByteArray, first: IntArray, stop: IntArray, absent: Mask, item: Wanted, good: Mask
) -> BytesArray:
    """Lists of one string, which stay where they are unless some are defaults."""
    right = first < stop
    keep_inside(first, array, right)
    right &= array.take(first) == 0x0A
    rows = np.empty((len(good), 2), np.int64)
    rows[:, 0] = enter(array, first + 1, stop, right)
    np.subtract(stop, rows[:, 0], out=rows[:, 1])
    good &= right | absent
    right &= ~absent
    if not right.all():
        rows[~right] = 0
    found = BytesArray(array, rows)
    if item.default and absent.any():
        return BytesArray.from_items(
            [item.default if gone else view for gone, view in zip(absent, found.views(), strict=True)]
        )
    return found


def _unpack_strings(array: ByteArray, begin: IntArray, stop: IntArray, good: Mask) -> tuple[BytesArray, IntArray]:
    """The strings of all lists, which stay where they are, and how many each list has."""
    runs = list(fields_of(array, begin, stop, good))
    counts = np.zeros(len(good), np.int64)
    for run in runs:
        for message in run.messages:
            counts[message] += 1
    firsts = np.cumsum(counts) - counts
    rows = np.empty((int(counts.sum()), 2), np.int64)
    for run in runs:
        place = firsts.take(run.message)
        place += run.step
        rows[place, 0] = run.begin
        rows[place, 1] = run.stop - run.begin
    return BytesArray(array, rows), counts


def _unpack_floats(
    array: ByteArray, begin: IntArray, stop: IntArray, good: Mask
) -> tuple[npt.NDArray[np.float32], IntArray]:
    """The numbers of all packed lists, and how many each has."""
    odd = (stop - begin) % 4 != 0
    if odd.any():
        good &= ~odd
        stop = np.where(odd, begin, stop)
    return _joined(array, begin, stop).view("<f4").astype(np.float32), (stop - begin) // 4


def _unpack_integers(array: ByteArray, begin: IntArray, stop: IntArray, good: Mask) -> tuple[IntArray, IntArray]:
    """The same. Raises ``WireError`` where a list is damaged."""
    del good
    joined = _joined(array, begin, stop)
    splits = np.concatenate((np.zeros(1, np.int64), np.cumsum(stop - begin)))
    numbers = np.empty(int(np.count_nonzero(joined < 0x80)), np.int64)
    firsts = np.zeros(len(splits), np.int64)
    most = _UNPACK * len(joined) // max(len(numbers), 1)
    done = at = 0
    while done < len(begin):
        until = max(int(np.searchsorted(splits, splits[done] + most, "right")) - 1, done + 1)
        found, last = unpack_varints(joined[splits[done] : splits[until]])
        firsts[done + 1 : until + 1] = np.searchsorted(last, splits[done + 1 : until + 1] - splits[done]) + at
        numbers[at : at + len(found)] = found
        done, at = until, at + len(found)
    counts = np.diff(firsts)
    if (joined[splits[1:][stop > begin] - 1] >= 0x80).any():
        raise WireError("the last varint of a list is cut off")
    return numbers, counts


def _joined(array: ByteArray, begin: IntArray, stop: IntArray) -> ByteArray:
    data = array.data
    pieces = [data[low:high] for low, high in zip(begin.tolist(), stop.tolist(), strict=True)]
    return np.frombuffer(b"".join(pieces), np.uint8)
