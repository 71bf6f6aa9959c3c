r"""Positions of the records and fields of CSV, found with numpy, one window of bytes at a time.

The rules are those of tf.data's CsvDataset (RFC 4180, with all line ends): records end with LF, CR or CRLF; a field may
be quoted as a whole; delimiters and line ends inside quotes are data; a quote inside is written twice; a quote anywhere
else is an error. A byte is inside quotes if an odd number of quotes precedes it in its record. This holds up to the
first misplaced quote; nothing behind it is examined.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.formats.framing import Positions

Octets = npt.NDArray[np.uint8]

QUOTE_BYTE: Final = 0x22
_LF_BYTE: Final = 0x0A
_CR_BYTE: Final = 0x0D
_OTHER: Final = 0
_DELIMITER: Final = 1
_LF: Final = 2
_CR: Final = 3
_QUOTE: Final = 4

_PIECE: Final = 1 << 18
_SMALLEST_WINDOW: Final = 1 << 14
_LARGEST_WINDOW: Final = 1 << 20


class Split(NamedTuple):
    """Whole records, taken apart.

    Attributes:
        starts: Position of each record's first byte.
        ends: Position behind each record's last byte, its line end left out.
        stop: Position behind the last record's line end.
        field_starts: Of all fields of all records, in order.
        field_ends: Likewise.
        first_field: Index of each record's first field, and the number of all fields: one entry more than records.
        quotes: Positions of all quotes in the bytes looked at.
        breaks: Positions of all line ends, those inside quotes included: of the LF, or of a lone CR.
        misplaced: Position of the first misplaced quote, behind the records; -1 if there is none.
        unclosed: Whether the object ends inside quotes.
        cut_off: Whether all bytes were looked at and a record without an end is left.
    """

    starts: Positions
    ends: Positions
    stop: int
    field_starts: Positions
    field_ends: Positions
    first_field: Positions
    quotes: Positions
    breaks: Positions
    misplaced: int
    unclosed: bool
    cut_off: bool


class Splitter:
    """See the module's docstring.

    Args:
        delimiter: One byte.
        quotes: Whether quotes have a meaning.
    """

    def __init__(self, delimiter: bytes, *, quotes: bool) -> None:
        self._kinds = np.zeros(256, np.uint8)
        self._kinds[[_LF_BYTE, _CR_BYTE]] = _LF, _CR
        if quotes:
            self._kinds[QUOTE_BYTE] = _QUOTE
        self._kinds[delimiter[0]] = _DELIMITER
        self._window = _SMALLEST_WINDOW

    def split(self, array: Octets, start: int, stop: int, *, limit: int, at_least: int, last: bool) -> Split:
        """Up to `limit` whole records of ``array[start:stop]``.

        Args:
            array: The bytes.
            start: Where a record begins.
            stop: End of the bytes that are there.
            limit: The most records.
            at_least: Look further until there are so many, or the bytes are at their end.
            last: Nothing follows: a record needs no line end.
        """
        window = self._window
        while True:
            until = min(stop, start + window)
            found = self._scan(array, start, until, limit=limit, final=last and until == stop)
            if len(found.starts) >= at_least or until == stop or found.misplaced >= 0:
                break
            window *= 4
        if len(found.starts):
            mean = (found.stop - start) / len(found.starts)
            self._window = int(min(max(1.25 * mean * limit, _SMALLEST_WINDOW), _LARGEST_WINDOW))
        cut_off = until == stop and len(found.starts) < limit and found.stop < stop
        return found._replace(cut_off=cut_off)

    def _scan(self, array: Octets, start: int, until: int, *, limit: int, final: bool) -> Split:
        marks = _Marks(start)
        for begin in range(start, until, _PIECE):
            end = min(begin + _PIECE, until)
            # With the byte on either side, as far as there is one.
            first = max(begin - 1, start)
            marks.add(self._kinds[array[first : min(end + 1, until)]], array, first, begin, end, until)
            if marks.misplaced >= 0:
                break
        position, kind = marks.separators()
        misplaced, odd = marks.misplaced, marks.odd
        position, kind, after = _line_ends(position, kind, until=until, final=final)
        ends = np.flatnonzero(kind != _DELIMITER)
        if misplaced >= 0:
            ends = ends[position[ends] < misplaced]
        elif final and not odd and len(ends) < limit:
            behind = int(after[ends[-1]]) if len(ends) else start
            if behind < until:
                # The last record has no line end.
                position, after = np.append(position, until), np.append(after, until)
                ends = np.append(ends, len(position) - 1)
        ends = ends[:limit]
        return _taken_apart(
            start,
            position,
            after,
            ends,
            quotes=marks.quotes(),
            breaks=marks.breaks(),
            misplaced=misplaced,
            unclosed=final and odd and misplaced < 0,
        )


class _Marks:
    """Quotes, line ends and separators, found piece by piece: a piece takes many times its size for a moment.

    Of a record that is not whole yet, and may be as large as the memory allows, little is kept: not the separators
    inside its quotes, and of its line ends their number.

    Args:
        start: Where the first record begins.

    Attributes:
        odd: The bytes so far end inside quotes.
        misplaced: Position of the first misplaced quote; -1 if there is none.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._positions: list[Positions] = []
        self._kinds: list[Octets] = []
        self._quotes: list[Positions] = []
        self._breaks: list[Positions] = []
        self._breaks_within = 0
        self.odd = False
        self.misplaced = -1

    def add(self, kinds: Octets, array: Octets, first: int, begin: int, end: int, until: int) -> None:
        """The piece from `begin` to `end`; `kinds` begin at `first`, and go one byte further where there is one."""
        skip = begin - first
        inner = kinds[skip : skip + end - begin]
        marked = np.flatnonzero(inner)
        kind = inner[marked]
        position = marked + begin
        breaks = _breaks(array, position, kind, until)
        is_quote = kind == _QUOTE
        quotes = position[is_quote]
        if len(quotes):
            wrong = _misplaced(kinds, quotes - first, odd=self.odd, at_start=first == self._start)
            self.misplaced = wrong + first if wrong >= 0 else -1
        if len(quotes) or self.odd:
            outside = ((np.cumsum(is_quote, dtype=np.int32) + self.odd) & 1 == 0) & ~is_quote
            position, kind = position[outside], kind[outside]
        self.odd ^= len(quotes) % 2 == 1
        self._quotes.append(quotes)
        self._positions.append(position)
        self._kinds.append(kind)
        if self._breaks or (kind > _DELIMITER).any():
            self._breaks.append(breaks)
        else:
            self._breaks_within += len(breaks) if self.misplaced < 0 else int(np.searchsorted(breaks, self.misplaced))

    def separators(self) -> tuple[Positions, Octets]:
        """Positions and kinds of what separates fields and records."""
        if not self._positions:
            return np.empty(0, np.int64), np.empty(0, np.uint8)
        return np.concatenate(self._positions), np.concatenate(self._kinds)

    def quotes(self) -> Positions:
        """Positions of all quotes."""
        return np.concatenate(self._quotes) if self._quotes else np.empty(0, np.int64)

    def breaks(self) -> Positions:
        """Positions of all line ends; of those in pieces that the first record goes beyond, where it begins."""
        if not self._breaks and not self.misplaced >= 0:
            return np.empty(0, np.int64)
        return np.concatenate([np.full(self._breaks_within, self._start, np.int64), *self._breaks])


def _taken_apart(
    start: int,
    position: Positions,
    after: Positions,
    ends: Positions,
    *,
    quotes: Positions,
    breaks: Positions,
    misplaced: int,
    unclosed: bool,
) -> Split:
    """The records whose separators with these indices are their line ends."""
    count = int(ends[-1]) + 1 if len(ends) else 0
    field_starts = np.empty(count, np.int64)
    if count:
        field_starts[0] = start
        field_starts[1:] = after[: count - 1]
    first_field = np.empty(len(ends) + 1, np.int64)
    first_field[0] = 0
    np.add(ends, 1, out=first_field[1:])
    return Split(
        starts=field_starts[first_field[:-1]],
        ends=position[ends],
        stop=int(after[count - 1]) if count else start,
        field_starts=field_starts,
        field_ends=position[:count],
        first_field=first_field,
        quotes=quotes,
        breaks=breaks,
        misplaced=misplaced,
        unclosed=unclosed,
        cut_off=False,
    )


def _line_ends(position: Positions, kind: Octets, *, until: int, final: bool) -> tuple[Positions, Octets, Positions]:
    """Separators with CR and LF made one, their kinds, and the position behind each."""
    after = position + 1
    returns = np.flatnonzero(kind == _CR)
    if not len(returns):
        return position, kind, after
    if not final and position[returns[-1]] == until - 1:
        # The LF that belongs to it may follow.
        kept = slice(None, int(returns[-1]))
        position, kind, after = position[kept], kind[kept], after[kept]
        returns = returns[:-1]
    following = returns + 1
    followed = following[following < len(kind)]
    pairs = followed[(kind[followed] == _LF) & (position[followed] == position[followed - 1] + 1)]
    after[pairs - 1] += 1
    single = np.ones(len(kind), np.bool_)
    single[pairs] = False
    return position[single], kind[single], after[single]


def _breaks(array: Octets, position: Positions, kind: Octets, until: int) -> Positions:
    feeds: Positions = position[kind == _LF]
    returns = position[kind == _CR]
    if not len(returns):
        return feeds
    lone = returns[array[np.minimum(returns + 1, until - 1)] != _LF_BYTE]
    found: Positions = np.sort(np.concatenate((feeds, lone)))
    return found


def _misplaced(kinds: Octets, quotes: Positions, *, odd: bool, at_start: bool) -> int:
    """Position of the first quote that neither opens a field, nor closes one, nor is one of two inside one; or -1.

    A separator, or the first quote of a pair, precedes an opening quote; a separator, or the second one, follows a
    closing quote.

    Args:
        kinds: Of the bytes.
        quotes: Positions among them.
        odd: Whether the first of the quotes closes.
        at_start: Whether a record begins with the first byte.
    """
    openers, closers = quotes[odd::2], quotes[not odd :: 2]
    in_front = kinds[np.maximum(openers - 1, 0)]
    wrong = openers[(in_front == _OTHER) & ((openers > 0) | (not at_start))]
    behind = kinds[np.minimum(closers + 1, len(kinds) - 1)]
    wrong_closers = closers[(behind == _OTHER) & (closers < len(kinds) - 1)]
    found = [int(places[0]) for places in (wrong, wrong_closers) if len(places)]
    return min(found, default=-1)


def field_index(split: Split, column: int) -> tuple[Positions, npt.NDArray[np.bool_]]:
    """The index of each record's field number `column`, and whether it has one (else the index is of its first)."""
    first, following = split.first_field[:-1], split.first_field[1:]
    present = first + column < following
    index: Positions = np.where(present, first + column, first)
    return index, present


def lines_at(split: Split, positions: Positions, line: int) -> Positions:
    """The number of the line that each of these positions lies on, `line` being that of the first byte."""
    lines: Positions = np.searchsorted(split.breaks, positions).astype(np.int64) + line
    return lines
