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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats import unordered
from asyncdata.formats.features import Kind, Wanted
from asyncdata.formats.one_example import TAG_OF_KIND
from asyncdata.formats.stepping import (
    MAX_KEY_BYTES,
    SPARE_BYTES,
    Group,
    Mask,
    Ragged,
    Spans,
    Values,
    enter_map,
    keep_inside,
)
from asyncdata.formats.unordered import KeyTable
from asyncdata.formats.wire import (
    ByteArray,
    IntArray,
    WireError,
    lengths_at,
    read_length,
    unpack_varints,
    varints_of_width,
)

FEWEST_RECORDS: Final = 8
"""Fewer records than this are cheaper one by one."""
_MAX_LAYOUTS: Final = 4
_RARE: Final = 4
"""A layout that fewer than one in this many records share says that there is no common one."""
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


def parse(
    array: ByteArray, rows: IntArray, table: KeyTable, slots: Mapping[bytes, int]
) -> tuple[list[Group], IntArray]:
    """Reads the records at ``rows`` = (offset, length) together; returns groups, and the records left over."""
    left = np.arange(len(rows))
    over: list[int] = []
    groups: list[Group] = []
    if len(array) < SPARE_BYTES:
        return groups, left
    for _ in range(_MAX_LAYOUTS):
        if len(left) < FEWEST_RECORDS:
            break
        offset, length = rows[left[0]].tolist()
        steps = _layout(array[offset : offset + length].tobytes(), table.wanted, slots)
        if steps is None:
            over.append(int(left[0]))
            left = left[1:]
            continue
        ran = _run(array, rows[left], steps, table.wanted)
        if ran is None:
            break
        group, good = ran
        if len(group.indices):
            groups.append(Group(left[group.indices], group.values))
        if not good[0]:
            over.append(int(left[0]))
            good[0] = True
        left = left[~good]
    if len(left) >= FEWEST_RECORDS:
        group, good = unordered.parse(array, rows[left], table)
        if len(group.indices):
            groups.append(Group(left[group.indices], group.values))
            left = left[~good]
    return groups, np.sort(np.concatenate((np.array(over, np.int64), left)))


def _layout(sample: bytes, wanted: Sequence[Wanted], slots: Mapping[bytes, int]) -> list[_Number | _Entry] | None:
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
    return steps


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


def _run(
    array: ByteArray, rows: IntArray, steps: list[_Number | _Entry], wanted: Sequence[Wanted]
) -> tuple[Group, Mask] | None:
    """Steps all records through one layout; returns the group of those that keep to it, and a mask of them.

    None as soon as they are so few that this is no common layout.
    """
    ends = rows[:, 0] + rows[:, 1]
    position, good = enter_map(array, rows)
    raw: dict[int, Any] = {}
    for step in steps:
        if np.count_nonzero(good) * _RARE < len(good):
            return None
        keep_inside(position, array, good)
        if isinstance(step, _Number):
            raw[step.slot], position = _read_number(array, position, step, good)
            continue
        item = None if step.slot is None else wanted[step.slot]
        spans, position = _read_entry(array, position, step, good, item)
        if step.slot is not None:
            raw[step.slot] = spans
    good &= position == ends
    return _finish(array, raw, good, wanted)


def _read_number(array: ByteArray, position: IntArray, step: _Number, good: Mask) -> tuple[npt.NDArray[Any], IntArray]:
    """One comparison of everything in front of the number, then the number."""
    count = len(step.prefix)
    heads: npt.NDArray[np.uint64] = _windows(array, 8 * count)[position].view("<u8").reshape(-1, count)
    value_at = position + step.size
    unused = np.uint64(8 * (8 * count - step.size))
    if step.kind == "float32":
        for word in range(count - 1):
            good &= heads[:, word] == step.prefix[word]
        good &= (heads[:, -1] << unused) == (step.prefix[-1] << unused)
        floats: npt.NDArray[np.float32] = np.ndarray((len(array) - 3,), "<f4", array, strides=(1,))[value_at]
        return floats, value_at + 4
    widths = array[position + step.width_at].astype(np.int64) - step.width_base
    widths &= 0xFF
    grown = widths.view(np.uint64)
    for word in range(count - 1):
        good &= heads[:, word] == step.prefix[word] + grown * step.growth[word]
    good &= (heads[:, -1] << unused) == ((step.prefix[-1] + grown * step.growth[-1]) << unused)
    values, fine = varints_of_width(array, value_at, widths)
    good &= fine
    return values, value_at + widths


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
    begin = _enter(array, key + size, stop, good)
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
    first = _enter(array, begin + 1, stop, good)
    empty = first == stop
    keep_inside(first, array, good)
    if item.kind == "bytes":
        good &= array[first] == 0x0A
        return Spans(_enter(array, first + 1, stop, good), stop, message=False), stop
    filled: Mask = array[first] == 0x0A
    begin = _enter(array, first + 1, stop, filled)
    good &= filled | empty
    return Spans(np.where(empty, stop, begin), stop, message=False), stop


def _enter(array: ByteArray, position: IntArray, stop: IntArray, good: Mask) -> IntArray:
    """Reads a length that must reach exactly to ``stop``; gives where its field begins."""
    keep_inside(position, array, good)
    sizes, widths, fine = lengths_at(array, position)
    begin = position + widths
    good &= fine
    good &= begin + sizes == stop
    return begin


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
        values[slot] = ragged.values.reshape(-1, *item.shape) if item.count >= 0 else ragged
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
