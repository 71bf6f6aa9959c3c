"""Many Examples at once: all records of a block are stepped through one layout together, in numpy.

Records of one writer mostly hold the same keys in the same order. The layout is read from one record (keys, kinds,
packed or not), then every step checks and reads one entry of all records: the bytes in front of a value are compared,
the lengths among them must agree with one another, and the next entry begins where this one ends::

    record 0:  ... | 0a 11 0a 05 label 12 08 1a 06 0a 04 .. .. .. .. | 0a ...
    record 1:  ... | 0a 0e 0a 05 label 12 05 1a 03 0a 01 ..          | 0a ...
                     ^ position of each record; lengths differ by the width of the value

Nothing is taken on trust: a record is stepped to its exact end or it is left over. What is left over is tried with the
layout of its own first record; where layouts are as many as records, ``unordered`` takes over. What neither can read
goes to the parser of single records, which also words the errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.features import Kind, Wanted
from asyncdata.formats.example.scalar import TAG_OF_KIND
from asyncdata.formats.example.stepping import (
    MAX_KEY_BYTES,
    SPARE_BYTES,
    Group,
    Mask,
    Ragged,
    Spans,
    Values,
    enter,
    enter_map,
    keep_inside,
)
from asyncdata.formats.example.unordered import UnorderedReader
from asyncdata.formats.example.varints import (
    ByteArray,
    IntArray,
    WireError,
    WordArray,
    floats_at,
    lengths_at,
    read_length,
    unpack_varints,
    varints_of_width,
    words_at,
)

FEWEST_RECORDS: Final = 8
"""Fewer records than this are cheaper one by one."""
_MAX_LAYOUTS: Final = 4
_RARE: Final = 4
"""A layout that fewer than one in this many records share says that there is no common one."""
_LOOK_AGAIN: Final = 32
"""After blocks without a common layout, one of so many is looked at again."""
_RUN: Final = 8192
"""So many numbers are looked at in one go: what is looked at again and again stays in the cache."""
_UNPACK_BYTES: Final = 1 << 16
"""Lists are unpacked in runs of about this many bytes, which stay in the cache."""


@dataclass(frozen=True, slots=True)
class _Number:
    """An entry with a single number behind one-byte lengths, the case that is read in one go.

    Attributes:
        slot: The feature.
        kind: What its list holds.
        prefix: The bytes from the entry's tag to the value, as words, with the value's width taken off the lengths.
        growth: A 1 in every byte of ``prefix`` that grows with the value's width.
        size: Length of the prefix in bytes.
        width_at: Which byte of the prefix tells the value's width.
        width_base: What that byte holds for a width of 0.
    """

    slot: int
    kind: Kind
    prefix: npt.NDArray[np.uint64]
    growth: npt.NDArray[np.uint64]
    size: int
    width_at: int
    width_base: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """Any other entry.

    Attributes:
        slot: The feature; None for a key that is not wanted, or that has no value.
        key: The bytes from the key's tag to the value's tag.
        empty: Whether the key has no value.
    """

    slot: int | None
    key: ByteArray
    empty: bool


class _Heads(NamedTuple):
    """What stands in front of those numbers of a layout whose prefixes are equally many words.

    Attributes:
        numbers: Which of the layout's numbers.
        prefix: By word, of each number: the bytes, the value's width taken off the lengths.
        growth: By word, of each number: a 1 in every byte that grows with the width.
        unused: Of each number: bits of the last word that lie behind the prefix.
    """

    numbers: IntArray
    prefix: WordArray
    growth: WordArray
    unused: WordArray


class _Layout:
    """The steps of a layout, and its numbers once more, side by side."""

    def __init__(self, steps: Sequence[_Number | _Entry]) -> None:
        self.steps = tuple(steps)
        self.numbers = [step for step in steps if isinstance(step, _Number)]
        self.integers = np.array([row for row, step in enumerate(self.numbers) if step.kind == "int64"], np.int64)
        self.floats = np.array([row for row, step in enumerate(self.numbers) if step.kind == "float32"], np.int64)
        self.sizes = np.array([step.size for step in self.numbers], np.int64)[:, None]
        self.heads = []
        for count in sorted({len(step.prefix) for step in self.numbers}):
            chosen = [row for row, step in enumerate(self.numbers) if len(step.prefix) == count]
            found = [self.numbers[row] for row in chosen]
            self.heads.append(
                _Heads(
                    np.array(chosen),
                    np.array([[[step.prefix[word]] for step in found] for word in range(count)]),
                    np.array([[[step.growth[word]] for step in found] for word in range(count)]),
                    np.array([[8 * (8 * count - step.size)] for step in found], np.uint64),
                )
            )


class BlockReader:
    """Reads blocks; remembers the layout of the last one, and whether there was one.

    Args:
        wanted: What to look for; one list per key.
        slots: The keys, numbered.
    """

    def __init__(self, wanted: Sequence[Wanted], slots: Mapping[bytes, int]) -> None:
        self._wanted = tuple(wanted)
        self._slots = slots
        self._unordered = UnorderedReader(wanted)
        self._recent: _Layout | None = None
        self._unlike = 0

    def parse(self, array: ByteArray, rows: IntArray) -> tuple[list[Group], IntArray]:
        """Reads the records at ``rows`` = (offset, length) together; returns groups, and the records left over."""
        left = np.arange(len(rows))
        over: list[int] = []
        groups: list[Group] = []
        if len(array) < SPARE_BYTES:
            return groups, left
        # Where layouts were as many as records, it is not looked for one in every block.
        tries = _MAX_LAYOUTS if self._unlike % _LOOK_AGAIN == 0 else 0
        recent = self._recent
        while tries and len(left) >= FEWEST_RECORDS:
            tries -= 1
            known = recent is not None
            layout, recent = recent or self._layout_of(array, rows[left[0]]), None
            if layout is None:
                over.append(int(left[0]))
                left = left[1:]
                continue
            ran = _run(array, rows[left], layout, self._wanted)
            if ran is None:
                if known:
                    continue
                break
            self._recent = layout
            group, good = ran
            if len(group.indices):
                groups.append(Group(left[group.indices], group.values))
            if not good[0] and not known:
                over.append(int(left[0]))
                good[0] = True
            left = left[~good]
        if len(left) >= FEWEST_RECORDS:
            self._unlike = self._unlike + 1 if 2 * len(left) > len(rows) else 0
            group, good = self._unordered.parse(array, rows[left])
            if len(group.indices):
                groups.append(Group(left[group.indices], group.values))
                left = left[~good]
        return groups, np.sort(np.concatenate((np.array(over, np.int64), left)))

    def _layout_of(self, array: ByteArray, row: IntArray) -> _Layout | None:
        offset, length = row.tolist()
        return _layout(array[offset : offset + length].tobytes(), self._wanted, self._slots)


def _layout(sample: bytes, wanted: Sequence[Wanted], slots: Mapping[bytes, int]) -> _Layout | None:
    """The layout of one record; None if it is unusual in any way, or lacks what has no default."""
    steps: list[_Number | _Entry] = []
    seen: set[bytes] = set()
    try:
        if not sample or sample[0] != 0x0A:
            return None
        position, end = read_length(sample, 1, len(sample))
        if end != len(sample):
            return None
        while position < end:
            entry, stop = read_length(sample, position + 1, end)
            key_size = sample[entry + 1]
            value_at = entry + 2 + key_size
            if (sample[position], sample[entry], sample[value_at]) != (0x0A, 0x0A, 0x12) or key_size > MAX_KEY_BYTES:
                return None
            key = sample[entry + 2 : value_at]
            begin, after = read_length(sample, value_at + 1, stop)
            if after != stop or key in seen:
                return None
            seen.add(key)
            slot = slots.get(key)
            steps.append(_step(sample, (position, entry, begin, stop), slot, None if slot is None else wanted[slot]))
            position = stop
    except (WireError, IndexError):
        return None
    absent = {step.key[2:-1].tobytes() for step in steps if isinstance(step, _Entry) and step.empty}
    if any(item.default is None and (item.key not in seen or item.key in absent) for item in wanted):
        return None
    return _Layout(steps)


def _step(sample: bytes, place: tuple[int, int, int, int], slot: int | None, wanted: Wanted | None) -> _Number | _Entry:
    """The step for the entry at ``place`` = (its tag, its key's tag, begin of its value, its end)."""
    position, entry, begin, stop = place
    key = np.frombuffer(sample[entry : entry + 3 + sample[entry + 1]], np.uint8)
    if slot is None or wanted is None or begin == stop:
        return _Entry(None, key, empty=begin == stop)
    if sample[begin] != TAG_OF_KIND[wanted.kind]:
        raise WireError("another kind than expected")
    first, end = read_length(sample, begin + 1, stop)
    if end != stop:
        raise WireError("bytes behind the list")
    number = None
    if wanted.kind != "bytes" and wanted.single and stop - position < 0x80:
        number = _number(sample, (position, begin, first, stop), slot, wanted.kind)
    return _Entry(slot, key, empty=False) if number is None else number


def _number(sample: bytes, place: tuple[int, int, int, int], slot: int, kind: Kind) -> _Number | None:
    """The step for a single number; None if it is not laid out as one."""
    position, begin, first, stop = place
    packed = sample[first] == 0x0A
    value = first + 2 if packed else first + 1
    width = stop - value
    prefix = bytearray(sample[position:value])
    if packed and prefix[-1] != width:
        return None
    if not packed and prefix[-1] != (0x0D if kind == "float32" else 0x08):
        return None
    if kind == "float32" and width != 4:
        return None
    # Lengths of the entry, of the Feature, of the list, and of the packed numbers.
    growing = [1, begin - position - 1, begin - position + 1]
    if packed:
        growing.append(len(prefix) - 1)
    size = len(prefix)
    growth = bytearray(-(-size // 8) * 8)
    if kind == "int64":
        for at in growing:
            prefix[at] -= width
            growth[at] = 1
    return _Number(
        slot,
        kind,
        prefix=np.frombuffer(bytes(prefix).ljust(len(growth), b"\0"), "<u8"),
        growth=np.frombuffer(bytes(growth), "<u8"),
        size=size,
        width_at=growing[-1],
        width_base=prefix[growing[-1]],
    )


def _run(array: ByteArray, rows: IntArray, layout: _Layout, wanted: Sequence[Wanted]) -> tuple[Group, Mask] | None:
    """Steps all records through one layout; returns the group of those that keep to it, and a mask of them.

    None if they are so few that this is no common layout.
    """
    ends = rows[:, 0] + rows[:, 1]
    position, good = enter_map(array, rows)
    raw: dict[int, Any] = {}
    # In one piece: the allocator keeps about twice the largest piece that was freed, and has to fault in the rest anew.
    positions, widths = np.empty((2, len(layout.numbers), len(rows)), np.int64)
    widths[layout.floats] = 4
    number = 0
    for step in layout.steps:
        keep_inside(position, array, good)
        if isinstance(step, _Number):
            # Where the next entry begins needs no more than the width of this number; all is looked at afterwards.
            positions[number] = position
            width = widths[number]
            if step.kind != "float32":
                width[:] = array.take(position + step.width_at)
                width -= step.width_base
                width &= 0xFF
            position = position + width
            position += step.size
            number += 1
            continue
        if np.count_nonzero(good) * _RARE < len(good):
            return None
        item = None if step.slot is None else wanted[step.slot]
        spans, position = _read_entry(array, position, step, good, item)
        if step.slot is not None:
            raw[step.slot] = spans
    good &= position == ends
    for heads in layout.heads:
        _check_heads(array, heads, positions, widths, good)
    if np.count_nonzero(good) * _RARE < len(good):
        return None
    positions += layout.sizes
    _read_numbers(array, layout, positions, widths, raw, good)
    return _finish(array, raw, good, wanted)


def _cuts(rows: IntArray, count: int) -> Iterator[slice]:
    """Cuts rows of so many records each into runs that stay in the cache."""
    several = max(_RUN // max(count, 1), 1)
    for begin in range(0, len(rows), several):
        yield slice(begin, begin + several)


def _check_heads(array: ByteArray, heads: _Heads, positions: IntArray, widths: IntArray, good: Mask) -> None:
    """Compares everything in front of numbers."""
    count = len(heads.prefix)
    for run in _cuts(heads.numbers, len(good)):
        some = heads.numbers[run]
        places, grown = positions[some], widths[some].view(np.uint64)
        for word in range(count):
            found = words_at(array, (places + 8 * word).reshape(-1)).reshape(places.shape)
            differs = grown * heads.growth[word, run]
            differs += heads.prefix[word, run]
            differs ^= found
            if word == count - 1:
                differs <<= heads.unused[run]
            good &= ~differs.any(axis=0)


def _read_numbers(
    array: ByteArray, layout: _Layout, places: IntArray, widths: IntArray, raw: dict[int, Any], good: Mask
) -> None:
    """The numbers themselves, those of one kind together; ``places`` is where each begins."""
    rows = layout.integers
    if len(rows):
        values = np.empty((len(rows), len(good)), np.int64)
        for run in _cuts(rows, len(good)):
            some = rows[run]
            found, fine = varints_of_width(array, places[some].reshape(-1), widths[some].reshape(-1))
            if not fine.all():
                good &= fine.reshape(len(some), -1).all(axis=0)
            values[run] = found.reshape(len(some), -1)
        raw |= zip([layout.numbers[row].slot for row in rows.tolist()], values, strict=True)
    rows = layout.floats
    if len(rows):
        floats = np.empty((len(rows), len(good)), np.float32)
        for run in _cuts(rows, len(good)):
            some = rows[run]
            floats[run] = floats_at(array, places[some].reshape(-1)).reshape(len(some), -1)
        raw |= zip([layout.numbers[row].slot for row in rows.tolist()], floats, strict=True)


def _read_entry(
    array: ByteArray, position: IntArray, step: _Entry, good: Mask, item: Wanted | None
) -> tuple[Spans, IntArray]:
    """Reads the lengths one by one; gives where the value lies."""
    good &= array[position] == 0x0A
    sizes, widths, fine = lengths_at(array, position + 1)
    good &= fine
    key = position + 1 + widths
    stop = key + sizes
    keep_inside(key, array, good)
    size = len(step.key)
    good &= (_windows(array, size)[key].view(np.uint8).reshape(-1, size) == step.key).all(axis=1)
    begin = enter(array, key + size, stop, good)
    if step.empty:
        good &= begin == stop
    message = Spans(begin, stop, message=True)
    if item is None:
        return message, stop
    if item.kind == "bytes" and not item.single:
        if item.default is None:
            good &= begin < stop
        return message, stop
    keep_inside(begin, array, good)
    good &= array[begin] == TAG_OF_KIND[item.kind]
    first = enter(array, begin + 1, stop, good)
    empty = first == stop
    keep_inside(first, array, good)
    if item.kind == "bytes":
        good &= array[first] == 0x0A
        return Spans(enter(array, first + 1, stop, good), stop, message=False), stop
    filled: Mask = array[first] == 0x0A
    begin = enter(array, first + 1, stop, filled)
    good &= filled | empty
    return Spans(np.where(empty, stop, begin), stop, message=False), stop


def _windows(array: ByteArray, width: int) -> npt.NDArray[Any]:
    """Every run of ``width`` bytes, as one item each."""
    return np.ndarray((len(array) - width + 1,), np.dtype((np.void, width)), array, strides=(1,))


def _finish(array: ByteArray, raw: dict[int, Any], good: Mask, wanted: Sequence[Wanted]) -> tuple[Group, Mask]:
    """Turns lists of numbers into values, for the records that kept to the layout."""
    picked = np.flatnonzero(good)
    every = len(picked) == len(good)
    values: dict[int, Values] = {}
    if not len(picked):
        return Group(picked, values), good
    for slot, value in raw.items():
        item = wanted[slot]
        if not isinstance(value, Spans):
            values[slot] = value if every else value[picked]
            continue
        spans = value if every else Spans(value.begin[picked], value.end[picked], value.message)
        if item.kind == "bytes":
            values[slot] = spans
            continue
        ragged = _unpack(array, spans, item.kind)
        counts = None if ragged is None else np.diff(ragged.splits)
        if ragged is None or counts is None or _miscounted(counts, item):
            return Group(picked[:0], {}), np.zeros(len(good), np.bool_)
        numbers = ragged.values
        assert isinstance(numbers, np.ndarray)
        values[slot] = numbers.reshape(len(picked), *item.shape) if item.count >= 0 else ragged
    return Group(picked, values), good


def _miscounted(counts: IntArray, item: Wanted) -> bool:
    return bool((counts != item.count).any() if item.count >= 0 else (counts % item.step).any())


def _unpack(array: ByteArray, spans: Spans, kind: Kind) -> Ragged | None:
    """The numbers of packed lists; None if one is damaged."""
    sizes = spans.end - spans.begin
    splits = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=splits[1:])
    data = array.data
    joined = np.frombuffer(
        b"".join([data[begin:end] for begin, end in zip(spans.begin.tolist(), spans.end.tolist(), strict=True)]),
        np.uint8,
    )
    if kind == "float32":
        if (sizes % 4).any():
            return None
        return Ragged(joined.view("<f4").astype(np.float32), splits // 4)
    filled = sizes > 0
    if (joined[splits[1:][filled] - 1] >= 0x80).any():
        return None
    numbers: list[IntArray] = [np.empty(0, np.int64)]
    lasts: list[IntArray] = [np.empty(0, np.int64)]
    try:
        for begin, end in _runs(splits):
            found, last = unpack_varints(joined[begin:end])
            numbers.append(found)
            lasts.append(last + begin)
    except WireError:
        return None
    return Ragged(np.concatenate(numbers), np.searchsorted(np.concatenate(lasts), splits))


def _runs(splits: IntArray) -> list[tuple[int, int]]:
    """Cuts between records that make runs of about ``_UNPACK_BYTES``."""
    cuts = [0]
    for bound in splits[1:].tolist():
        if bound - cuts[-1] >= _UNPACK_BYTES:
            cuts.append(bound)
    if cuts[-1] != int(splits[-1]):
        cuts.append(int(splits[-1]))
    return list(pairwise(cuts))
