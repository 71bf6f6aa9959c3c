"""A block of Examples read by compiled code: the same groups and rest as ``columns`` gives.

One pass notes where the Feature of every wanted key lies, in records of any layout; then every list is read for all
records at once. Lists of any length are counted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.features import Wanted
from asyncdata.formats.example.scalar import TAG_OF_KIND
from asyncdata.formats.example.stepping import Group, Mask, Ragged, Spans, Values
from asyncdata.formats.example.varints import ByteArray, IntArray
from asyncdata.formats.fast.choice import kernels
from asyncdata.memory.bytesarray import BytesArray

_SINGLE: Final = {"int64": 1, "float32": 2}
_BASIS: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_MIX: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1
_FEW: Final = np.ndarray((2,), "<u8", bytes(16), 1, (1,))
"""Words at two odd places, for arrays that are too short to have any."""


Words: TypeAlias = tuple[npt.NDArray[np.uint64], int]


class FastReader:
    """The wanted lists in the form the kernels take.

    Args:
        wanted: What to look for; one list per key.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = tuple(wanted)
        keys = [item.key for item in wanted]
        self._keys = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
        self._bounds = np.cumsum([0, *map(len, keys)], dtype=np.int64)
        self._table = np.full(1 << (2 * len(keys)).bit_length(), -1, np.int32)
        for slot, key in enumerate(keys):
            place = (_hash(key) * _MIX & _WORD) >> 40
            while self._table[place % len(self._table)] >= 0:
                place += 1
            self._table[place % len(self._table)] = slot
        self._kinds = np.array([_SINGLE.get(item.kind, 0) if item.single else 0 for item in wanted], np.int8)
        self._defaults = [_default(item) for item in wanted]

    def parse(self, array: ByteArray, rows: IntArray) -> tuple[list[Group], IntArray]:
        """Reads the records at ``rows`` = (offset, length) together; returns a group, and the records left over."""
        locate, integers, floats, count, *fills = kernels()
        # An odd number of cache lines from one list to the next, so that they do not compete for the same few.
        begins, ends, numbers = np.empty((3, len(self._wanted), (len(rows) // 8 | 1) * 8 + 8), np.int64)
        good = np.empty(len(rows), np.bool_)
        rows = np.ascontiguousarray(rows)
        array = np.ascontiguousarray(array)
        words = _words(array)
        locate(array, rows, self._keys, self._bounds, self._table, self._kinds, begins, ends, numbers, good)
        fixed: dict[int, npt.NDArray[Any]] = {}
        counts: dict[int, IntArray] = {}
        begins, ends = begins[:, : len(rows)], ends[:, : len(rows)]
        for slot, item in enumerate(self._wanted):
            if self._kinds[slot]:
                fixed[slot] = _numbers(item, numbers[slot, : len(rows)], begins[slot], good)
            elif item.count < 0 or item.kind == "bytes":
                counts[slot] = np.empty(len(rows), np.int64)
                count(array, begins[slot], ends[slot], TAG_OF_KIND[item.kind], item.step, counts[slot], good)
                if item.count >= 0:
                    _check_strings(item, counts[slot], begins[slot], good)
            elif item.kind == "int64":
                out = np.empty((len(rows), item.count), np.int64)
                integers(array, *words, begins[slot], ends[slot], item.count, self._defaults[slot], out, good)
                fixed[slot] = out.reshape(len(rows), *item.shape)
            else:
                raw = np.empty((len(rows), 4 * item.count), np.uint8)
                floats(array, begins[slot], ends[slot], item.count, self._defaults[slot], raw, good)
                fixed[slot] = raw.view("<f4").astype(np.float32, copy=False).reshape(len(rows), *item.shape)
        picked = np.flatnonzero(good)
        every = len(picked) == len(rows)
        values: dict[int, Values] = {}
        for slot, item in enumerate(self._wanted):
            if slot in fixed:
                values[slot] = fixed[slot] if every else fixed[slot][picked]
                continue
            begin, end, sizes = begins[slot], ends[slot], counts[slot]
            if not every:
                begin, end, sizes = begin[picked], end[picked], sizes[picked]
            lists = _lists(array, words, (begin, end, sizes), item, fills)
            if lists is None:
                return [], np.arange(len(rows))
            values[slot] = lists
        return [Group(picked, values)], np.flatnonzero(~good)


def _words(array: ByteArray) -> Words:
    """The eight bytes from every position on, as the kernels take them, and from how many of them on there are ten."""
    if len(array) < 10:
        return _FEW, 0
    words: npt.NDArray[np.uint64] = np.ndarray((len(array) - 7,), "<u8", array, strides=(1,))
    words.flags.writeable = False
    return words, len(array) - 9


def _numbers(item: Wanted, found: IntArray, begins: IntArray, good: Mask) -> npt.NDArray[Any]:
    """Single numbers, those of records that lack them replaced by the default."""
    values = found.copy() if item.kind == "int64" else found.astype(np.uint32).view(np.float32)
    absent = begins < 0
    if absent.any():
        if item.default is None:
            good &= ~absent
        else:
            values[absent] = item.default
    return values


def _check_strings(item: Wanted, counts: IntArray, begins: IntArray, good: Mask) -> None:
    """A fixed number of strings must be there, or none at all and a default."""
    right = counts == item.count
    if item.default is not None:
        right |= begins < 0
    elif item.count == 0:
        right &= begins >= 0
    good &= right


def _lists(
    array: ByteArray, words: Words, places: tuple[IntArray, IntArray, IntArray], item: Wanted, fills: Sequence[Any]
) -> Any:
    """The values of counted lists; None if one of them is damaged after all."""
    begins, ends, counts = places
    fill_integers, fill_floats, fill_strings = fills
    splits = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=splits[1:])
    total = int(splits[-1])
    if item.kind == "int64":
        integers = np.empty(total, np.int64)
        return Ragged(integers, splits) if fill_integers(array, *words, begins, ends, splits, integers) else None
    if item.kind == "float32":
        raw = np.empty(4 * total, np.uint8)
        fill_floats(array, begins, ends, splits, raw)
        return Ragged(raw.view("<f4").astype(np.float32, copy=False), splits)
    rows = np.empty((total, 2), np.int64)
    fill_strings(array, begins, ends, splits, rows)
    if item.single:
        # Absent ones have no row: they take one that says so.
        begin = np.full(len(counts), -1, np.int64)
        filled = counts == 1
        begin[filled] = rows[:, 0]
        end = begin.copy()
        end[filled] += rows[:, 1]
        return Spans(begin, end, message=False)
    if item.count >= 0 and (counts != item.count).any():
        return _with_defaults(array, rows, counts, item)
    return Ragged(BytesArray(array, rows), splits)


def _with_defaults(array: ByteArray, rows: IntArray, counts: IntArray, item: Wanted) -> Ragged:
    """Shaped strings of which some are absent; their copies, and the defaults."""
    found = iter(BytesArray(array, rows))
    defaults = item.default.ravel().tolist()
    flat = [
        value for count in counts.tolist() for value in ([next(found) for _ in range(count)] if count else defaults)
    ]
    return Ragged(BytesArray.from_items(flat), np.arange(len(counts) + 1) * item.count)


def _default(item: Wanted) -> npt.NDArray[Any]:
    """A fixed number's default in the form of its kernel; empty, or of another length than any value, if none."""
    if item.kind == "bytes" or item.count < 0:
        return np.empty(0, np.uint8)
    if item.default is None:
        return np.empty(item.count + 1, np.int64) if item.kind == "int64" else np.empty(4 * item.count + 1, np.uint8)
    flat = np.asarray(item.default, item.kind).reshape(-1)
    return flat if item.kind == "int64" else flat.astype("<f4").view(np.uint8)


def _hash(key: bytes) -> int:
    """FNV-1a, as the kernels compute it."""
    found = _BASIS
    for byte in key:
        found = (found ^ byte) * _PRIME & _WORD
    return found
