"""Many Examples at once, whatever the order of their keys: the way for blocks that share no layout.

Two passes. The first steps all records from entry to entry, reading nothing but the length of each. That gives one
long table of entries, from all records, which the second pass reads in one go: the bytes of the key are masked, hashed
without collisions and compared; then every list is read for all records at once: single numbers and single strings are
decoded, of everything else the place is noted, to be decoded one by one.
Records with anything unusual in them (fields in another order, damage) are left over for the parser of single records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.formats.features import Wanted
from asyncdata.formats.stepping import SPARE_BYTES, Group, Mask, Spans, Values, enter, enter_map
from asyncdata.formats.wire import ByteArray, IntArray, WordArray, floats_at, lengths_at, varints_of_width, words_at

_MAX_ENTRIES: Final = 1024
"""Records with more entries than this are left over, so that damage cannot make many tiny steps."""
_CELLS: Final = 1 << 15
"""Records times lists that are read in one go: what is looked at again and again stays in the cache."""
_FEWEST: Final = 64
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MOST_BITS: Final = 20

_TAG: Final = np.uint8(0x0A)

# A single packed int64 whose Feature is VL bytes long: 12 VL 1a VL-2 0a VL-4 value. As a word it is base + VL * growth.
_SIX_BYTES: Final = np.uint64((1 << 48) - 1)
_INT_BASE: Final = np.uint64(((0x12 | 0x1A << 16 | 0x0A << 32) - (2 << 24) - (4 << 40)) % (1 << 64))
_INT_GROWTH: Final = np.uint64(1 << 8 | 1 << 24 | 1 << 40)
_FLOAT_HEAD: Final = np.uint64(0x040A06120812)
"""A single packed float32: 12 08 12 06 0a 04 value."""


class KeyTable:
    """The keys of a spec, ready to be looked up by the thousand.

    Attributes:
        wanted: The features, one per key; keys of at most ``MAX_KEY_BYTES``.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.wanted = wanted
        # A key as it lies in an entry: its tag, its length, its bytes; in words, what is behind them masked.
        heads = [b"\x0a" + bytes([len(item.key)]) + item.key for item in wanted]
        self._count = -(-max(map(len, heads)) // 8)
        size = 8 * self._count
        words = np.frombuffer(b"".join(head.ljust(size, b"\0") for head in heads), "<u8").reshape(-1, self._count)
        self._words = [np.ascontiguousarray(words[:, word]) for word in range(self._count)]
        kept = np.arange(size) < np.arange(256)[:, None] + 2
        masks = (kept * np.uint8(0xFF)).astype(np.uint8).view("<u8")
        self._masks = [np.ascontiguousarray(masks[:, word]) for word in range(self._count)]
        self._factors, self._shift, self._slots = self._without_collisions()

    def _without_collisions(self) -> tuple[list[np.uint64], np.uint64, npt.NDArray[np.int64]]:
        """Factors of a hash that keeps all keys apart, and the slots by hash."""
        source = np.random.default_rng(1)
        bits = len(self.wanted).bit_length() + 2
        while True:
            for _ in range(64):
                factors = [np.uint64(int(number) * 2 + 1) for number in source.integers(0, 1 << 62, self._count)]
                shift = np.uint64(64 - bits)
                hashes = self._hash(self._words, factors, shift)
                if len(np.unique(hashes)) == len(hashes):
                    slots = np.zeros(1 << bits, np.int64)
                    slots[hashes] = np.arange(len(hashes))
                    return factors, shift, slots
            bits += 1
            if bits > _MOST_BITS:
                raise AssertionError("keys that differ have hashes that differ")

    @staticmethod
    def _hash(words: Sequence[WordArray], factors: Sequence[np.uint64], shift: np.uint64) -> IntArray:
        found = words[0] * factors[0]
        for word, factor in zip(words[1:], factors[1:], strict=True):
            found ^= found >> np.uint64(29)
            found = (found ^ word) * factor
        found ^= found >> np.uint64(32)
        return ((found * _MULTIPLIER) >> shift).view(np.int64)

    def look_up(self, array: ByteArray, key: IntArray, head: WordArray, sizes: IntArray) -> tuple[IntArray, Mask]:
        """The slot of each key in ``array``, and whether it is really wanted.

        Args:
            array: The bytes.
            key: Where the tag of each key lies.
            head: The words there.
            sizes: Length of each key, at most 255.
        """
        words = [head & self._masks[0][sizes]]
        words += [words_at(array, key + 8 * word) & self._masks[word][sizes] for word in range(1, self._count)]
        slots = self._slots[self._hash(words, self._factors, self._shift)]
        same: Mask = words[0] == self._words[0][slots]
        for word in range(1, self._count):
            same &= words[word] == self._words[word][slots]
        return slots, same


class _Entries(NamedTuple):
    """Entries of all records.

    Attributes:
        value: Where the tag of the value lies.
        head: The 8 bytes there.
        begin: Where the Feature begins.
        stop: Where it ends.
    """

    value: IntArray
    head: WordArray
    begin: IntArray
    stop: IntArray


_Read: TypeAlias = Callable[[ByteArray, _Entries, IntArray], tuple[npt.NDArray[Any], Mask]]


def parse(array: ByteArray, rows: IntArray, table: KeyTable) -> tuple[Group, Mask]:
    """Reads the records at ``rows``; returns the group of those that are as usual, and a mask of them."""
    most = max(_CELLS // len(table.wanted), _FEWEST)
    if len(rows) < 2 * most:
        return _parse(array, rows, table)
    parts = [_parse(array, rows[begin : begin + most], table) for begin in range(0, len(rows), most)]
    good = np.concatenate([mask for _, mask in parts])
    groups = [group for group, _ in parts if len(group.indices)]
    slots = set().union(*(group.values for group in groups)) if groups else set()
    if any(len(group.values) != len(slots) for group in groups):
        return _parse(array, rows, table)  # a list that a whole part of the records lacks
    values = {slot: _joined([group.values[slot] for group in groups]) for slot in slots}
    return Group(np.flatnonzero(good), values), good


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Spans):
        begins, ends, messages = zip(*parts, strict=True)
        return Spans(np.concatenate(begins), np.concatenate(ends), messages[0])
    return np.concatenate(parts)


def _parse(array: ByteArray, rows: IntArray, table: KeyTable) -> tuple[Group, Mask]:
    records, key, stop, good = _steps(array, rows)
    head = words_at(array, key)
    sizes = ((head >> np.uint64(8)) & np.uint64(0xFF)).view(np.int64)
    value = key + sizes
    value += 2
    fine: Mask = (head & np.uint64(0xFF)) == np.uint64(0x0A)
    fine &= sizes < 0x80
    fine &= value < stop - 1
    if not fine.all():
        np.minimum(value, len(array) - SPARE_BYTES, out=value)
    at_value = words_at(array, value)
    fine &= (at_value & np.uint64(0xFF)) == np.uint64(0x12)
    lengths = ((at_value >> np.uint64(8)) & np.uint64(0xFF)).view(np.int64)
    if (lengths < 0x80).all():
        begin = value + 2
    else:
        lengths, widths, short = lengths_at(array, value + 1)
        fine &= short
        begin = value + 1 + widths
    fine &= begin + lengths == stop
    slots, same = table.look_up(array, key, head, sizes)
    if not fine.all():
        good[records[~fine]] = False
        same &= fine
    same &= lengths > 0
    cells = slots * len(rows)
    cells += records
    # Of several entries of a key the last one that has a value counts: it is the last to be written.
    grid = np.full(len(table.wanted) * len(rows), -1)
    if same.all():
        grid[cells] = np.arange(len(cells))
    else:
        kept = np.flatnonzero(same)
        grid[cells[kept]] = kept
    entries = _Entries(value, at_value, begin, stop)
    values = _values(array, entries, grid.reshape(len(table.wanted), len(rows)), table.wanted, good)
    return _picked(np.flatnonzero(good), values, every=bool(good.all())), good


def _steps(array: ByteArray, rows: IntArray) -> tuple[IntArray, IntArray, IntArray, Mask]:
    """Every entry of every record: record, where its key's tag lies, where it ends; and which records are whole."""
    ends = rows[:, 0] + rows[:, 1]
    position, good = enter_map(array, rows)
    good &= ends <= len(array) - SPARE_BYTES
    active = np.flatnonzero(good & (position < ends))
    position, end = position[active], ends[active]
    found: list[tuple[IntArray, IntArray, IntArray]] = []
    for _ in range(_MAX_ENTRIES):
        if not len(active):
            break
        odd = array.take(position)
        odd ^= _TAG
        sizes = array.take(position + 1)
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
        return none, none, none, good
    records, keys, stops = (np.concatenate(column) for column in zip(*found, strict=True))
    return records, keys, stops, good


def _values(
    array: ByteArray, entries: _Entries, grid: IntArray, wanted: Sequence[Wanted], good: Mask
) -> dict[int, Any]:
    """The values of every list; ``grid`` says by slot and record which entry holds it, -1 for none."""
    values: dict[int, Any] = {}
    integers: list[int] = []
    floats: list[int] = []
    for slot, item in enumerate(wanted):
        if item.single and item.kind != "bytes":
            (integers if item.kind == "int64" else floats).append(slot)
        else:
            _note_places(array, entries, grid[slot], (slot, item), values, good)
    for slots, read, kind in ((integers, _integers, "int64"), (floats, _floats, "float32")):
        if slots:
            found = _numbers(array, entries, grid if len(slots) == len(wanted) else grid[slots], read, good)
            _fill_in(found, [wanted[slot].default for slot in slots], kind, good)
            if found is not None:
                values |= zip(slots, found[0], strict=True)
    return values


def _note_places(
    array: ByteArray,
    entries: _Entries,
    chosen: IntArray,
    wanted: tuple[int, Wanted],
    values: dict[int, Any],
    good: Mask,
) -> None:
    """Where the byte string, or the Feature, of each record lies."""
    slot, item = wanted
    absent = chosen < 0
    if absent.any():
        if item.default is None:
            good &= ~absent
        chosen = np.maximum(chosen, 0)
    if not len(entries.begin):
        return
    begin, stop = entries.begin[chosen], entries.stop[chosen]
    if item.single:
        begin = _string(array, begin, stop, absent, good)
        stop = np.where(begin < 0, -1, stop)
    else:
        stop = np.where(absent, begin, stop)
    values[slot] = Spans(begin, stop, message=not item.single)


def _numbers(
    array: ByteArray, entries: _Entries, chosen: IntArray, read: _Read, good: Mask
) -> tuple[npt.NDArray[Any], Mask] | None:
    """The numbers of some lists, by list and record, and which of them are absent; None if all are."""
    latest = int(chosen.max())
    if latest < 0:
        return None
    absent: Mask = chosen < 0
    if absent.any():
        # Read as another number, which is as good as any, and overwritten later.
        chosen = np.where(absent, latest, chosen)
    found, right = read(array, entries, chosen.reshape(-1))
    if not right.all():
        good &= (right.reshape(chosen.shape) | absent).all(axis=0)
    return found.reshape(chosen.shape), absent


def _fill_in(found: tuple[npt.NDArray[Any], Mask] | None, defaults: list[Any], kind: str, good: Mask) -> None:
    """Defaults where numbers are absent; records that lack one without a default are not good."""
    if found is None:
        if None in defaults:
            good[:] = False
        return
    numbers, absent = found
    if not absent.any():
        return
    needed = np.array([default is None for default in defaults])
    if needed.any():
        good &= ~(absent & needed[:, None]).any(axis=0)
    filling = np.array([0 if default is None else default for default in defaults], kind)
    np.copyto(numbers, filling[:, None], where=absent)


def _integers(array: ByteArray, entries: _Entries, chosen: IntArray) -> tuple[IntArray, Mask]:
    """Single int64 of the chosen entries, packed or not; and which of them are that."""
    head = entries.head[chosen]
    sizes = (head >> np.uint64(8)) & np.uint64(0xFF)
    good: Mask = ((_INT_BASE + sizes * _INT_GROWTH) ^ head) & _SIX_BYTES == np.uint64(0)
    good &= sizes > np.uint64(4)
    if good.all():
        widths = sizes.view(np.int64)
        widths -= 4
        position = entries.value[chosen]
        position += 6
        numbers, right = varints_of_width(array, position, widths)
        return numbers, right
    begin, stop = entries.begin[chosen], entries.stop[chosen]
    good, size, packed = _single(array, begin, stop, 0x1A, 0x08)
    skip = np.where(packed, 4, 3)
    widths = size - skip
    good &= (widths > 0) & (widths <= 10)
    numbers, right = varints_of_width(array, begin + skip, np.where(good, widths, 1))
    return numbers, good & right


def _floats(array: ByteArray, entries: _Entries, chosen: IntArray) -> tuple[npt.NDArray[np.float32], Mask]:
    """Single float32 of the chosen entries, packed or not; and which of them are that."""
    good: Mask = (entries.head[chosen] & _SIX_BYTES) == _FLOAT_HEAD
    if good.all():
        position = entries.value[chosen]
        position += 6
        return floats_at(array, position), good
    begin, stop = entries.begin[chosen], entries.stop[chosen]
    good, size, packed = _single(array, begin, stop, 0x12, 0x0D)
    skip = np.where(packed, 4, 3)
    good &= size == skip + 4
    return floats_at(array, begin + skip), good


def _single(array: ByteArray, begin: IntArray, stop: IntArray, tag: int, item: int) -> tuple[Mask, IntArray, Mask]:
    """Checks the bytes in front of a single number: which are right, their sizes, and which are packed."""
    good: Mask = array[begin] == tag
    size = stop - begin
    good &= size <= 14
    good &= array[begin + 1] == size - 2
    first = array[begin + 2]
    packed: Mask = first == 0x0A
    good &= np.where(packed, array[begin + 3] == size - 4, first == item)
    return good, size, packed


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
