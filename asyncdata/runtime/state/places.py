"""`Places`: where in files the rows of a buffer are, so that a resume reads these rows and few others.

    buffer   slot 0          slot 1          slot 2          …
    row      file 3, byte 9  file 0, byte 4  file 3, byte 7  …
                          │ plan: by file and offset, near ones together
                          ▼
    spans    file 0: [4, 6)      file 3: [7, 11)

Everything here is pure. Rows are known by their provenance, see `asyncdata.memory.advance`. How many bytes a row has is
a guess, by which spans are cut: who reads a row goes on to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import ORIGIN_WIDTH, SUB_INDEX, Rows
from asyncdata.memory.used import Used

Versions: TypeAlias = Callable[[int], str | None]
"""The version of a file, by the number of the source."""

REQUEST_BYTES: Final = 1 << 16
"""A request costs about as much as so many bytes: gaps that are no longer are read and dropped."""

_MOST_GAPS: Final = 2
"""All gaps have no more bytes than so many times the rows."""

_IN_TURN_BYTES: Final = 1 << 18
"""Of a span of rows that are needed one after the other: the first ones do not wait for many others."""

_FIRST: Final = 64
_FIRST_BYTES: Final = 1 << 15
"""So many rows that are needed first are in spans of their own, with so few bytes that none waits for many others."""

_AROUND: Final = 16
"""What a format puts around a record, at the most."""

_UNKNOWN_BYTES: Final = 1 << 12
"""Size of a record, where neither it nor the distance to another one is known."""

_MORE: Final = 4
_MOST_MORE: Final = 1 << 13
"""Where sizes are guessed, so much more is read behind the last row of a span: less than another request costs."""

_FEW: Final = 1 << 11
_TABLE_BITS: Final = 16
_WIDEST: Final = 8
_MOST: Final = 1 << 63
_MOST_ALIKE: Final = 1 << 26
"""Rows of which a damaged state could say that they are all alike, without a byte for each."""


class RowSpan(NamedTuple):
    """Rows of one file that are read together.

    Attributes:
        file: Number of the source.
        first: Number of the record that the span begins with.
        offset: First byte of the first row.
        nbytes: Up to the last byte of the last row, as far as it is known.
        records: Numbers of the rows' records, ascending.
        rows: Which rows of the buffer these are.
    """

    file: int
    first: int
    offset: int
    nbytes: int
    records: Rows
    rows: Rows

    def rest(self, record: int, offset: int, nbytes: int) -> RowSpan:
        """The rows from a record on, which begins at a byte."""
        left = self.records >= record
        return RowSpan(self.file, record, offset, nbytes, self.records[left], self.rows[left])


class _InPlace(NamedTuple):
    """Rows by file and offset, `order` says which; the gap behind each, and whether it is read with the next one."""

    order: Rows
    file: Rows
    record: Rows
    offset: Rows
    sizes: Rows
    gaps: Rows
    joined: npt.NDArray[np.bool_]


class Places:
    """See the module's docstring.

    Args:
        origin: Provenance of each row.
        sizes: Bytes of each row; 0 where nobody knows.
        versions: Of the files.
        used: What each row uses up of tracks; None where nothing is tracked.
        turns: When each row is needed; None: all at once.
        numbers: Which element of the input each row is; None where nobody asks.
    """

    __slots__ = ("_order", "_turns", "_versions", "numbers", "origin", "sizes", "used")

    def __init__(
        self,
        origin: Rows,
        sizes: Rows,
        versions: Versions,
        used: Used | None = None,
        turns: Rows | None = None,
        numbers: Rows | None = None,
    ) -> None:
        self.origin = origin
        self.sizes = sizes
        self.used = used
        self.numbers = numbers
        self._order: Rows | None = None
        self._versions = versions
        self._turns = turns

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def files(self) -> list[int]:
        """Numbers of the sources."""
        return _distinct(self.origin[:, 0])[0]

    def __repr__(self) -> str:
        return f"Places({len(self)} rows)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Places.from_columns, (self.columns(_narrow),)

    def version(self, file: int) -> str | None:
        """The version of a file, where it is known."""
        return self._versions(file)

    # --- as data -----------------------------------------------------------------------------------------------

    def columns(self, stored: Callable[[Rows], Any] = np.asarray) -> dict[str, Any]:
        """As data that `from_columns` reads.

        Args:
            stored: How a column is: as it is, or as few bytes.
        """
        files, index = _distinct(self.origin[:, 0])
        columns = {
            "rows": len(self),
            "files": files,
            "versions": [self._versions(file) for file in files],
            "file": stored(index),
            "record": stored(self.origin[:, 1]),
            "offset": stored(self.origin[:, 3]),
            "bytes": stored(self.sizes),
        }
        if self.origin[:, SUB_INDEX].any():
            columns["sub_index"] = stored(self.origin[:, SUB_INDEX])
        if self.used is not None:
            columns |= {"track": stored(self.used.pairs[:, 0]), "position": stored(self.used.pairs[:, 1])}
            if self.used.ends is not None:
                columns["pairs"] = stored(np.diff(self.used.ends, prepend=0))
        if self.numbers is not None:
            columns["number"] = stored(self.numbers)
        return columns

    @staticmethod
    def from_columns(columns: Mapping[str, Any]) -> Places:
        """What `columns` made.

        Raises:
            KeyError: It is damaged.
            TypeError: It is damaged.
            ValueError: It is damaged.
        """
        count, files, versions = columns["rows"], columns["files"], columns["versions"]
        if type(count) is not int or not all(type(file) is int and 0 <= file < _MOST for file in files):
            raise TypeError("rows of a buffer, or numbers of files")
        if not all(version is None or type(version) is str for version in versions):
            raise TypeError("versions of files")
        index = _wide(columns["file"], count)
        if (index >= len(files)).any():
            raise ValueError("a file is missing")
        origin = np.zeros((count, ORIGIN_WIDTH), np.int64)
        origin[:, 0] = np.array(files, np.int64).take(index)
        origin[:, 1] = _wide(columns["record"], count)
        if "sub_index" in columns:
            origin[:, SUB_INDEX] = _wide(columns["sub_index"], count)
        origin[:, 3] = _wide(columns["offset"], count)
        sizes, versions_by_file = _wide(columns["bytes"], count), dict(zip(files, versions, strict=True))
        used = _used(columns, count) if "track" in columns else None
        numbers = _wide(columns["number"], count) if "number" in columns else None
        return Places(origin, sizes, versions_by_file.get, used, numbers=numbers)

    def chosen(self, rows: Rows, turns: Rows | None = None) -> Places:
        """Some of the rows, and when each of them is needed."""
        used = None if self.used is None else self.used.pick(rows)
        numbers = None if self.numbers is None else self.numbers[rows]
        return Places(self.origin.take(rows, axis=0), self.sizes.take(rows), self._versions, used, turns, numbers)

    def between(self, start: int, stop: int) -> Places:
        """Neighbouring rows, of which each uses up one position or none; without when they are needed."""
        used = None if self.used is None else Used(self.used.pairs[start:stop])
        return Places(self.origin[start:stop], self.sizes[start:stop], self._versions, used)

    def using(self, used: Used | None) -> Places:
        """The same rows, which use up something else of tracks."""
        return Places(self.origin, self.sizes, self._versions, used)

    @staticmethod
    def concat(parts: Sequence[Places]) -> Places:
        """The rows of all parts, each of which says what its rows use up, or none of them does."""
        if len(parts) == 1:
            return parts[0]
        origin = np.concatenate([part.origin for part in parts])
        sizes = np.concatenate([part.sizes for part in parts])
        used = [part.used for part in parts if part.used is not None]
        known = list(dict.fromkeys(part._versions for part in parts))  # noqa: SLF001 -- of this class
        versions = known[0]
        if len(known) > 1:
            files, _ = _distinct(origin[:, 0])
            versions = {file: next(filter(None, (of(file) for of in known)), None) for file in files}.get
        return Places(origin, sizes, versions, Used.concat(used) if used else None)

    def find(self, origin: Rows) -> Rows:
        """Which rows these are, by their provenance: all of them are at these places."""
        if self._order is None:
            self._order = by_place(self.origin)
        found = np.empty(len(origin), np.int64)
        files, offsets = self.origin[self._order, 0], self.origin[self._order, 3]
        for file in np.unique(origin[:, 0]).tolist():
            here = np.flatnonzero(origin[:, 0] == file)
            begin, end = np.searchsorted(files, (file, file + 1)).tolist()
            found[here] = begin + np.searchsorted(offsets[begin:end], origin[here, 3])
        rows: Rows = self._order[found]
        return rows

    # --- to be read --------------------------------------------------------------------------------------------

    def _in_place(self, order: Rows) -> _InPlace:
        file, record, _, offset = self.origin.take(order, axis=0).T
        sizes = self.sizes.take(order) + _AROUND if self.sizes.any() else guessed(file, record, offset)
        gaps = np.maximum(offset[1:] - offset[:-1] - sizes[:-1], 0)
        follows = (file[1:] == file[:-1]) & (offset[1:] >= offset[:-1])
        joined = joinable(gaps, follows, _MOST_GAPS * int(sizes.sum()))
        return _InPlace(order, file, record, offset, sizes, gaps, joined)

    def costs(self, begins: Rows) -> tuple[Rows, Rows]:
        """The bytes of the rows in each part, and about how many requests it takes to read them as they follow.

        Args:
            begins: Row that each part begins with; the first one with the first row.
        """
        rows = self._in_place(np.arange(len(self)))
        is_asked = np.ones(len(self), bool)
        is_asked[1:] = ~rows.joined
        is_asked[begins] = True
        return np.add.reduceat(rows.sizes, begins), np.add.reduceat(is_asked, begins, dtype=np.int64)

    def spans(self, most_bytes: int) -> list[RowSpan]:
        """What is read together: by file and offset, or that first which is needed first.

        Args:
            most_bytes: Of a span, unless it is of one row.
        """
        order = by_place(self.origin)
        if self._turns is None:
            return self._spans(order, most_bytes)
        last = np.sort(self._turns)[:_FIRST][-1:]
        is_first = self._turns[order] <= last
        spans = self._spans(order[is_first], _FIRST_BYTES)
        spans += self._spans(order[~is_first], min(most_bytes, _IN_TURN_BYTES))
        return sorted(spans, key=lambda span: int(self._turns[span.rows].min()))  # type: ignore[index]  # they are known

    def _spans(self, order: Rows, most_bytes: int) -> list[RowSpan]:
        """The spans of some rows, which are by file and offset."""
        if not len(order):
            return []
        order, file, record, offset, sizes, _, joined = self._in_place(order)
        begins = [0]
        starts, ends = offset.tolist(), (offset + sizes).tolist()
        more = [0] * len(order) if self.sizes.any() else np.minimum(_MORE * sizes, _MOST_MORE).tolist()
        for row, is_joined in enumerate(joined.tolist(), 1):
            if not is_joined or ends[row] - starts[begins[-1]] > most_bytes:
                begins.append(row)
        return [
            RowSpan(
                *(int(file[a]), int(record[a]), starts[a], ends[b - 1] + more[b - 1] - starts[a]),
                *(record[a:b], order[a:b]),
            )
            for a, b in zip(begins, [*begins[1:], len(order)], strict=True)
        ]


class LaterPlaces(Places):
    """Places that are put together when somebody asks, because most marks are never read.

    Args:
        make: Puts them together.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Places]) -> None:
        self._make: Callable[[], Places] | None = make

    def __getattr__(self, name: str) -> Any:
        # Only what is not set yet comes here.
        if name not in Places.__slots__:
            raise AttributeError(name)
        if (make := self._make) is not None:
            made = make()
            for each in Places.__slots__:
                setattr(self, each, getattr(made, each))
            self._make = None  # what it was made of is not needed any more
        return getattr(self, name)


def by_place(origin: Rows) -> Rows:
    """The rows by file and offset."""
    return np.lexsort((origin[:, 3], origin[:, 0]))


def joinable(gaps: Rows, same_file: npt.NDArray[np.bool_], most_bytes: int) -> npt.NDArray[np.bool_]:
    """Which neighbours are read by one request: as many as possible, and none that cost more than a request saves.

    Args:
        gaps: Bytes between each row and the next one.
        same_file: Whether both are of one file.
        most_bytes: All gaps that are read together have no more.
    """
    joined = same_file & (gaps <= REQUEST_BYTES)
    # The smallest gaps first: so that many of them fit. Sorting them takes a fraction of the time of sorting places.
    smallest = np.sort(gaps[joined])
    count = int(np.cumsum(smallest).searchsorted(most_bytes, side="right"))
    if count < len(smallest):
        least = smallest[count]
        alike = np.flatnonzero(joined & (gaps == least))
        joined &= gaps <= least
        joined[alike[count - int(smallest.searchsorted(least)) :]] = False
    return joined


def guessed(file: Rows, record: Rows, offset: Rows) -> Rows:
    """The size of each row: the mean of the records up to the next row of its file; rows are by file and offset."""
    same = file[1:] == file[:-1]
    between = np.diff(offset)[same] // np.maximum(np.diff(record)[same], 1)
    sizes = np.full(len(file), int(between.mean()) if len(between) else _UNKNOWN_BYTES, np.int64)
    sizes[:-1][same] = between
    return np.maximum(sizes, 1)


def _distinct(numbers: Rows) -> tuple[list[int], Rows]:
    """The different numbers, and for each of the numbers which one it is."""
    if len(numbers) < _FEW:
        found, index = np.unique(numbers, return_inverse=True)
        return found.tolist(), index
    low = numbers & ((1 << _TABLE_BITS) - 1)
    table = np.zeros(1 << _TABLE_BITS, np.int64)
    table[low] = numbers
    if (table[low] != numbers).any():
        found, index = np.unique(numbers, return_inverse=True)
        return found.tolist(), index
    # None has the low bits of another one, which takes a tenth of the time of sorting them.
    present = np.zeros(len(table), bool)
    present[low] = True
    places = np.flatnonzero(present)
    numbered = np.empty(len(table), np.int64)
    numbered[places] = np.arange(len(places))
    return table[places].tolist(), numbered[low]


def _used(columns: Mapping[str, Any], count: int) -> Used:
    ends = np.cumsum(_wide(columns["pairs"], count)) if "pairs" in columns else None
    total = count if ends is None else int(ends[-1]) if count else 0
    return Used(np.column_stack([_wide(columns[key], total) for key in ("track", "position")]), ends)


def _narrow(column: Rows) -> list[Any]:
    """The least of the numbers, and in as few bytes as the largest needs how much each is more."""
    if not len(column):
        return []
    least = int(column.min())
    more = np.ascontiguousarray(column - least)
    width = (int(more.max()).bit_length() + 7) // 8
    return [least, more.astype("<u8").view(np.uint8).reshape(-1, _WIDEST)[:, :width].tobytes()]


def _wide(stored: Any, count: int) -> Rows:
    """A column that is as it was, or what `_narrow` made of it, as states of versions up to 5 have it."""
    if isinstance(stored, np.ndarray):
        if stored.dtype != np.int64 or stored.shape != (count,) or (stored < 0).any():
            raise ValueError("a column of a buffer")
        return stored
    least, data = stored or (0, b"")
    if type(least) is not int or type(data) is not bytes or not 0 <= least < _MOST:
        raise TypeError("a column of a buffer")
    width, rest = divmod(len(data), count) if count > 0 else (0, count)
    if rest or width > _WIDEST or (not width and count > _MOST_ALIKE):
        raise ValueError("the rows of a buffer")
    octets = np.zeros((count, _WIDEST), np.uint8)
    octets[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    column = octets.view("<i8").reshape(count) + least
    if (column < 0).any():
        raise ValueError("a column of a buffer")
    return column
