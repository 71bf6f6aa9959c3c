"""Reads Examples of short entries whose keys come in the order of one before them.

Records of single numbers and short strings differ in the widths of their varints, so that hardly two of them are laid
out alike. But every entry says in one byte how long it is, and everything else follows::

    0a E 0a 02 i 0 12 V 1a W 0a P varint   0a E 0a 02 f 0 12 08 12 06 0a 04 float32   0a E …
         └────────── so many bytes ────────┘

A `_Chain` is learned from one record. It steps through many others at once, from each entry whose size may vary to the
next, gathers what lies between in pieces of 32 bytes, compares every byte that has to be the same and every length with
what E says, and so needs a third of the steps of ``columnar``, which reads whatever differs. Nothing is trusted: what a
chain accepts, the other parsers read in the same way.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.entries import CONTINUES, FLOAT_BYTES, HEAD_BYTES, HEADS, Entry, entries_of
from asyncdata.formats.example.varints import ByteArray, IntArray, WordArray, join_varints
from asyncdata.formats.example.wanted import Wanted
from asyncdata.memory.bytesarray import BytesArray

_PAUSE: Final = 32
"""After a block with records of other keys, so many are not looked at."""
_PIECE: Final = 32
_WORD: Final = 8
_WORDS: Final = _PIECE // _WORD
_MOST_BYTES: Final = 1 << 14
_ROUND_BYTES: Final = 1 << 19
_MOST_ROWS: Final = 2048
"""Records are read in rounds whose pieces stay in the cache."""


class ShortEntriesReader:
    """Reads blocks of records that have the keys of one of them, in its order; remembers them.

    Args:
        wanted: The lists, all of them single values, one per key.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._slots = {item.key: (slot, item) for slot, item in enumerate(wanted)}
        self._chain: _Chain | None = None
        self._pause = 0

    def read(self, array: ByteArray, begin: IntArray, end: IntArray) -> list[Any] | None:
        """Reads many records; None unless all have the same short entries.

        Args:
            array: The bytes.
            begin: Where the map of each record begins.
            end: Where it ends, ``SPARE_BYTES`` before the end of the bytes at the latest.

        Returns:
            A column per list, in the order wanted.
        """
        if (pause := self._pause) > 0:
            self._pause = pause - 1
            return None
        # Looked up once: other threads may be reading blocks with the same reader.
        chain = self._chain
        if chain is not None and (columns := chain.read(array, begin, end)) is not None:
            return columns
        self._chain = chain = self._learn(array[begin[0] : end[0]].tobytes())
        if chain is not None and (columns := chain.read(array, begin, end)) is not None:
            return columns
        self._chain, self._pause = None, _PAUSE
        return None

    def _learn(self, data: bytes) -> _Chain | None:
        entries = entries_of(data, 0, self._slots) if len(data) <= _MOST_BYTES else None
        return None if entries is None or any(map(_is_long, entries)) else _Chain(data, entries)


def _is_long(entry: Entry) -> bool:
    begin, stop = entry.lengths[0]
    return stop - begin > 1


class _Value(NamedTuple):
    """Where a value of a record is found.

    Attributes:
        slot: Of its list; None where it is not wanted.
        kind: Of its list, or ``unknown``.
        piece: The piece that holds it, or what is in front of it if its size may vary.
        offset: Where in the piece.
        before: Bytes from behind E to a value whose size may vary.
    """

    slot: int | None
    kind: str
    piece: int
    offset: int
    before: int = 0


class _Pieces:
    """What lies between values whose sizes may vary, cut into pieces.

    Positions in a segment, which ends in front of such a value, count from its entry's E; those behind the last one
    count from the end of this value.

    Args:
        data: All of it.

    Attributes:
        mask: Which of its bits are the same in all records.
        places: The segment of each piece, and where it begins in it.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.mask = bytearray(b"\xff" * len(data))
        self.places: list[tuple[int, int]] = []
        self._begin = 0
        self._whole: list[tuple[int, int]] = []
        self._parts: list[bytes] = []

    def keep(self, begin: int, stop: int) -> None:
        """Some bytes of the segment come in one piece."""
        self._whole.append((begin, stop))

    def cut(self, stop: int, origin: int, following: int = 0) -> Callable[[int], tuple[int, int]]:
        """Ends the segment; says in which piece, and where in it, something begins that was to be kept.

        Args:
            stop: Where it ends.
            origin: What positions count from.
            following: Where the next one begins.
        """
        segment = 0 if not self.places else self.places[-1][0] + 1
        begins = []
        at = self._begin
        while at < stop:
            begins.append(at)
            until = min(stop, at + _PIECE)
            self._parts += [bytes(part[at:until]).ljust(_PIECE, b"\0") for part in (self._data, self.mask)]
            at = next((low for low, high in self._whole if low < at + _PIECE < high), at + _PIECE)
        first = len(self.places)
        self.places += [(segment, begin - origin) for begin in begins]
        self._begin, self._whole = following, []

        def find(at: int) -> tuple[int, int]:
            number = bisect.bisect_right(begins, at) - 1
            return first + number, at - begins[number]

        return find

    def words(self, times: int) -> tuple[WordArray, WordArray]:
        """What is the same in all records, each piece so many times, and which bits these are."""
        pieces, masks = (
            np.tile(np.frombuffer(b"".join(self._parts[kind::2]), "<u8").reshape(-1, _WORDS), times) for kind in (0, 1)
        )
        return pieces & masks, masks


class _Chain:
    """See the module's docstring.

    Args:
        data: The map it is learned from.
        entries: Its entries; all of them short.
    """

    def __init__(self, data: bytes, entries: Sequence[Entry]) -> None:
        pieces = _Pieces(data)
        self._sized: list[_Value] = []
        self._floats: list[_Value] = []
        self._steps: list[int] = []
        floats: list[Entry] = []
        behind = 0
        for entry in entries:
            if entry.kind == "float32":
                pieces.mask[entry.begin : entry.stop] = bytes(FLOAT_BYTES)
                pieces.keep(entry.begin, entry.stop)
                floats.append(entry)
                continue
            kind = "unknown" if entry.slot is None else entry.kind
            origin, head = entry.lengths[0][0], entry.begin - HEADS[kind].size
            pieces.mask[origin] = CONTINUES
            pieces.mask[head : entry.begin] = bytes(entry.begin - head)
            pieces.keep(head, head + HEADS[kind].read)
            find = pieces.cut(entry.begin, origin, entry.stop)
            self._floats += [_Value(each.slot, each.kind, *find(each.begin)) for each in floats]
            self._sized.append(_Value(entry.slot, kind, *find(head), entry.begin - origin - 1))
            self._steps.append(origin - behind)
            floats, behind = [], entry.stop - 1
        last = behind + 1 if self._steps else 0
        self._tail = len(data) - last
        self._steps.append(last - behind)
        find = pieces.cut(len(data), last)
        self._floats += [_Value(each.slot, each.kind, *find(each.begin)) for each in floats]
        self.pieces = len(pieces.places)
        self._segments, offsets = np.array(pieces.places).T
        self._offsets = offsets[:, None]
        self._most = max(min(_ROUND_BYTES // (_PIECE * self.pieces), _MOST_ROWS), 1)
        self._words, self._masks = pieces.words(self._most)
        heads = [HEADS[value.kind] for value in self._sized]
        self._head_masks = _column([head.mask for head in heads])
        self._bases = _column([head.base for head in heads])
        self._growths = _column([head.growth for head in heads])
        self._before = _column([value.before for value in self._sized]).view(np.int64)
        self._integers = [row for row, value in enumerate(self._sized) if value.kind == "int64"]
        self._strings = [row for row, value in enumerate(self._sized) if value.kind == "bytes"]

    def read(self, array: ByteArray, begin: IntArray, end: IntArray) -> list[Any] | None:
        """A column per list; None unless all records have these entries."""
        count = len(begin)
        integers = np.empty((len(self._integers), count), np.int64)
        floats = np.empty((len(self._floats), count), np.float32)
        places = np.empty((len(self._strings), count, 2), np.int64)
        for first in range(0, count, self._most):
            part = slice(first, first + self._most)
            if not self._read(array, begin[part], end[part], integers[:, part], floats[:, part], places[:, part]):
                return None
        found: dict[int | None, Any] = {
            self._sized[row].slot: BytesArray(array, some) for row, some in zip(self._strings, places, strict=True)
        }
        found |= zip([self._sized[row].slot for row in self._integers], integers, strict=True)
        found |= zip([value.slot for value in self._floats], floats, strict=True)
        return [found[slot] for slot in range(len(found))]

    def _read(
        self,
        array: ByteArray,
        begin: IntArray,
        end: IntArray,
        integers: IntArray,
        floats: npt.NDArray[np.float32],
        places: IntArray,
    ) -> bool:
        """Reads the records of one round; False where one has other entries."""
        count = len(begin)
        origins = np.empty((len(self._steps), count), np.int64)
        said = np.empty((len(self._sized), count), np.uint8)
        np.add(begin, self._steps[0], out=origins[0])
        for number, step in enumerate(self._steps[1:]):
            array.take(origins[number], out=said[number], mode="clip")
            np.add(origins[number], said[number], out=origins[number + 1])
            origins[number + 1] += step
        if (origins[-1] + self._tail != end).any():
            return False
        # So no entry goes on behind the end, and no piece farther than the spare bytes behind it.
        positions = origins[self._segments]
        positions += self._offsets
        windows: npt.NDArray[Any] = np.ndarray((len(array) - _PIECE + 1,), f"V{_PIECE}", array, strides=(1,))
        pieces = windows[positions.reshape(-1)]
        words = pieces.view("<u8").reshape(self.pieces, -1)
        if ((words & self._masks[:, : words.shape[1]]) != self._words[:, : words.shape[1]]).any():
            return False

        def column(value: _Value, dtype: str, behind: int = 0) -> npt.NDArray[Any]:
            offset = value.piece * count * _PIECE + value.offset + behind
            return np.ndarray((count,), dtype, pieces, offset, (_PIECE,))

        sizes = said - self._before
        heads = np.empty(sizes.shape, np.uint64)
        for row, value in enumerate(self._sized):
            heads[row] = column(value, "<u8")
        heads &= self._head_masks
        if (heads != sizes.view(np.uint64) * self._growths + self._bases).any():
            return False
        for place, row in zip(places, self._strings, strict=True):
            np.add(origins[row], self._sized[row].before + 1, out=place[:, 0])
            place[:, 1] = sizes[row]
        for number, value in zip(floats, self._floats, strict=True):
            number[:] = column(value, "<f4")
        return self._read_integers(column, sizes, integers)

    def _read_integers(self, column: Callable[..., npt.NDArray[Any]], sizes: IntArray, out: IntArray) -> bool:
        """Reads those of one round, whose sizes are known; False where one has another."""
        if not self._integers:
            return True
        values = [self._sized[row] for row in self._integers]
        words = np.empty(out.shape, np.uint64)
        for word, value in zip(words, values, strict=True):
            word[:] = column(value, "<u8", HEAD_BYTES)
        widths = sizes if len(values) == len(sizes) else sizes[self._integers]

        def more() -> npt.NDArray[np.uint16]:
            return np.array([column(value, "<u2", HEAD_BYTES + _WORD) for value in values])

        out[:], right = join_varints(words, widths, more)
        return bool(right.all())


def _column(numbers: Sequence[int]) -> WordArray:
    return np.array(numbers, np.uint64)[:, None]
