"""Reads Examples that are laid out like one before them: one long value, and the same bytes around it.

Records of a file often differ in one long byte string and in numbers of the same width. Then everything else of a
record follows from its length::

    head, the same but for lengths                          stretch         tail, the same but for values
    0a len  0a len 0a 05 image 12 len 0a len 0a len         …payload…       0a 0e 0a 05 label 12 05 1a 03 0a 01 value

A `_Layout` is learned from one record. It gathers the heads and tails of many others at once, compares every byte that
has to be the same and every length with what it has to be, and so needs a fraction of the steps of ``columnar``, which
reads whatever differs. Nothing is trusted: what a layout accepts, the other parsers read in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.entries import CONTINUES, Entry, Slots, entries_of
from asyncdata.formats.example.fields import SPARE_BYTES, Mask
from asyncdata.formats.example.varints import ByteArray, IntArray, WireError, read_length
from asyncdata.formats.example.wanted import Wanted
from asyncdata.memory.bytesarray import BytesArray

_MOST_LAYOUTS: Final = 4
"""As many as widths of a number, or of a length, that are mixed in one block."""
_PAUSE: Final = 32
"""After a block with records of other layouts, so many are not looked at."""
_LEAST_STRETCH: Final = 32
_MOST_AROUND: Final = SPARE_BYTES - 8
_WIDEST_LENGTH: Final = 4
_WIDEST_VALUE: Final = 9
_SAME, _TAG = 0xFF, 0x0A


class LayoutReader:
    """Reads blocks of records that have one of a few layouts; remembers them.

    Args:
        wanted: The lists, all of them single values, one per key.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._slots = {item.key: (slot, item) for slot, item in enumerate(wanted)}
        self._layouts: list[_Layout] = []
        self._pause = 0

    def read(self, array: ByteArray, rows: IntArray) -> list[Any] | None:
        """Reads the records at ``rows`` = (offset, length); None unless each has a layout that is known, or now is.

        Returns:
            A column per list, in the order wanted.
        """
        if (pause := self._pause) > 0:
            self._pause = pause - 1
            return None
        # A list of its own: other threads may be reading blocks with the same reader.
        layouts = self._layouts.copy()
        left = np.arange(len(rows))
        columns: list[Any] | None = None
        counts: list[int] = []
        for tried in range(_MOST_LAYOUTS):
            if tried == len(layouts):
                at, size = rows[left[0]].tolist()
                learned = _learn(array[at : at + size].tobytes(), self._slots)
                if learned is None:
                    break
                layouts.append(learned)
            found = layouts[tried].read(array, rows[left] if tried else rows)
            if found is None:
                break
            values, right = found
            if right is None and columns is None:
                self._layouts = layouts
                return values
            columns = [_room(value, len(rows)) for value in values] if columns is None else columns
            kept = slice(None) if right is None else right
            for column, value in zip(columns, values, strict=True):
                _places(column)[left[kept]] = _places(value)[kept]
            counts.append(len(left))
            left = left[:0] if right is None else left[~right]
            counts[-1] -= len(left)
            if not len(left):
                # The one that most records had is tried first.
                layouts.insert(0, layouts.pop(counts.index(max(counts))))
                self._layouts = layouts
                return columns
        self._layouts, self._pause = [], _PAUSE
        return None


def _room(value: Any, count: int) -> Any:
    """A column for so many records, like one for fewer."""
    if isinstance(value, BytesArray):
        return BytesArray(value.memory, np.empty((count, 2), np.int64))
    return np.empty(count, value.dtype)


def _places(column: Any) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = column.places if isinstance(column, BytesArray) else column
    return found


class _Layout:
    """See the module's docstring.

    Args:
        record: The record it is learned from.
        entries: Of its map, all of them.
        stretch: The one that is long.
        outer: Where the length of the map begins, and where it ends.
    """

    def __init__(self, record: bytes, entries: Sequence[Entry], stretch: Entry, outer: tuple[int, int]) -> None:
        self._head, self._tail = stretch.begin, len(record) - stretch.stop
        width = -(-max(self._head, self._tail) // 8) * 8
        self._width = width
        free = len(record)
        mask = np.full(free, _SAME, np.uint8)
        shift = 2 * width - free  # from positions in the tail to columns of what is gathered
        numbers: list[tuple[int, int, int]] = []
        for begin, stop in (outer, *stretch.lengths):
            mask[begin:stop] = CONTINUES
            # What the length says beyond that of the stretch.
            numbers.append((begin, stop, self._head - stop + (self._tail if begin == outer[0] else 0)))
        self._lengths = len(numbers)
        self._integers: list[int] = []
        self._floats: list[tuple[int, int]] = []
        self._strings: list[tuple[int, int, int, int]] = []
        self._stretch = stretch.slot
        for entry in entries:
            column = entry.begin if entry.begin < self._head else entry.begin + shift
            size = entry.stop - entry.begin
            mask[entry.begin : entry.stop] = CONTINUES if entry.kind == "int64" else 0
            if entry is stretch or entry.slot is None:
                continue
            if entry.kind == "int64":
                self._integers.append(entry.slot)
                numbers.append((column, column + size, 0))
            elif entry.kind == "float32":
                self._floats.append((entry.slot, column))
            else:
                before = entry.begin < self._head
                self._strings.append((entry.slot, int(before), entry.begin - (0 if before else free), size))
        self._mask = np.zeros(2 * width, np.uint8)
        words = np.zeros(2 * width, np.uint8)
        data = np.frombuffer(record, np.uint8)
        for part, column in ((slice(0, self._head), 0), (slice(free - self._tail, free), 2 * width - self._tail)):
            size = part.stop - part.start
            self._mask[column : column + size] = mask[part]
            words[column : column + size] = data[part]
        self._mask = self._mask.view("<u8")
        self._words = words.view("<u8") & self._mask
        self._columns, self._weights, self._bias = _varints(numbers)

    def read(self, array: ByteArray, rows: IntArray) -> tuple[list[Any], Mask | None] | None:
        """A column per list, and which records have this layout, None for all; None near the end of the memory."""
        width = self._width
        places = rows.copy()
        places[:, 1] += rows[:, 0] - width
        np.maximum(places, 0, out=places)
        if int(places.max()) > len(array) - width:
            return None
        windows: npt.NDArray[Any] = np.ndarray((len(array) - width + 1,), f"V{width}", array, strides=(1,))
        words = windows[places].view("<u8")
        stretch = rows[:, 1] - (self._head + self._tail)
        columns = words.view(np.uint8).T
        numbers = np.multiply(columns[self._columns], self._weights, dtype=np.int64).sum(axis=0)
        numbers -= self._bias
        right: Mask | None = None
        odd = (words & self._mask) != self._words
        wrong = numbers[: self._lengths] != stretch
        if odd.any() or wrong.any():
            right = ~(odd.any(axis=1) | wrong.any(axis=0))
        found: dict[int, Any] = dict(zip(self._integers, numbers[self._lengths :], strict=True))
        for slot, column in self._floats:
            found[slot] = np.ndarray((len(rows),), "<f4", words, column, (2 * width,)).astype(np.float32)
        if self._stretch is not None:
            found[self._stretch] = _strings(array, rows[:, 0] + self._head, stretch)
        for slot, before, offset, size in self._strings:
            begin = rows[:, 0] + offset if before else rows[:, 0] + rows[:, 1] + offset
            found[slot] = _strings(array, begin, size)
        return [found[slot] for slot in range(len(found))], right


def _strings(array: ByteArray, begin: IntArray, sizes: IntArray | int) -> BytesArray:
    rows = np.empty((len(begin), 2), np.int64)
    rows[:, 0], rows[:, 1] = begin, sizes
    return BytesArray(array, rows)


def _varints(numbers: Sequence[tuple[int, int, int]]) -> tuple[IntArray, IntArray, IntArray]:
    """How varints at these columns are read: their bytes are multiplied by weights and added up, less a bias."""
    widest = max(stop - begin for begin, stop, _ in numbers)
    columns = np.zeros((widest, len(numbers)), np.intp)
    weights = np.zeros((widest, len(numbers), 1), np.int64)
    bias = np.zeros((len(numbers), 1), np.int64)
    for number, (begin, stop, more) in enumerate(numbers):
        bias[number] = more
        for byte, column in enumerate(range(begin, stop)):
            columns[byte, number] = column
            weights[byte, number] = 1 << 7 * byte
            bias[number] += CONTINUES << 7 * byte if column < stop - 1 else 0
    return columns, weights, bias


def _learn(record: bytes, slots: Slots) -> _Layout | None:
    """The layout of a record; None where it has something unusual, or no long value."""
    try:
        begin, stop = read_length(record, 1, len(record))
    except WireError:
        return None
    entries = entries_of(record, begin, slots)
    if entries is None or stop != len(record) or record[0] != _TAG:
        return None
    stretch = max(
        (entry for entry in entries if entry.kind == "bytes"), key=lambda entry: entry.stop - entry.begin, default=None
    )
    if stretch is None or any(entry.kind == "int64" and entry.stop - entry.begin > _WIDEST_VALUE for entry in entries):
        return None
    around = max(stretch.begin, len(record) - stretch.stop)
    outer = 1, begin
    widths = [stop - begin for begin, stop in (outer, *stretch.lengths)]
    if stretch.stop - stretch.begin < _LEAST_STRETCH or around > _MOST_AROUND or max(widths) > _WIDEST_LENGTH:
        return None
    return _Layout(record, entries, stretch, outer)
