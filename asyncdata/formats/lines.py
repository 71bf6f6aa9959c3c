"""Text lines: the bytes between newlines, in any encoding.

As in tf.data, LF ends a line and is not part of it. Carriage returns are removed wherever they are, so files with CRLF
read the same. A last line needs no LF, but at least one byte that is not a carriage return.

numpy finds the newlines, one window at a time: as many bytes as the requested lines are expected to take.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats.framing import NOWHERE, Frames, Place, Positions, Refs
from asyncdata.memory.structure import LEAF, Structure

_LF: Final = 10
_CR: Final = 13
_SPACE: Final = 32
_SMALLEST_WINDOW: Final = 1 << 14
_LARGEST_WINDOW: Final = 1 << 20
_BLANK: Final = b" \t\r\v\f"


class LineFramer:
    """See the module's docstring.

    Args:
        skip_blank: For JSON: leave lines of white space out, count lines apart from records, and leave carriage returns
            in place, because there they are white space, and two numbers must not become one.
    """

    structure: Structure = LEAF
    in_thread = False

    def __init__(self, *, skip_blank: bool = False) -> None:
        self._skip_blank = skip_blank
        self._window = _SMALLEST_WINDOW

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`."""
        del remaining
        array = np.frombuffer(view, np.uint8)
        line = place.line
        while True:
            ends = self._newlines(array, start, stop, limit)
            cut_off = len(ends) < limit and (int(ends[-1]) + 1 if len(ends) else start) < stop
            if last and cut_off:
                ends = np.append(ends, stop)
            frames = self._lines(view, array, start, ends, stop, line)
            if len(frames.starts) or not len(ends):
                return frames
            # Blank lines, or carriage returns behind the last line: there may be more behind them.
            start, line = frames.stop, frames.next_line

    def _newlines(self, array: npt.NDArray[np.uint8], start: int, stop: int, limit: int) -> Positions:
        found: list[Positions] = []
        count, at, window = 0, start, self._window
        while at < stop and count < limit:
            until = min(stop, at + window)
            part = np.flatnonzero(array[at:until] == _LF)
            part += at
            found.append(part)
            count += len(part)
            at, window = until, min(2 * window, _LARGEST_WINDOW)
        if not count:
            return NOWHERE
        ends = found[0] if len(found) == 1 else np.concatenate(found)
        ends = ends[:limit]
        mean = (int(ends[-1]) + 1 - start) / len(ends)
        self._window = int(min(max(1.25 * mean * limit, _SMALLEST_WINDOW), _LARGEST_WINDOW))
        return ends

    def _lines(
        self, view: memoryview, array: npt.NDArray[np.uint8], start: int, ends: Positions, stop: int, line: int
    ) -> Frames:
        """The lines that end at these positions, of which the last may be the end of the object."""
        if not len(ends):
            nothing = Refs(np.empty((0, 2), np.int64))
            return Frames(starts=NOWHERE, values=(nothing,), stop=start, lines=NOWHERE, next_line=line)
        starts = np.empty(len(ends), np.int64)
        starts[0] = start
        np.add(ends[:-1], 1, out=starts[1:])
        rows = np.empty((len(ends), 2), np.int64)
        rows[:, 0] = starts
        np.subtract(ends, starts, out=rows[:, 1])
        if not self._skip_blank:
            returns = np.flatnonzero(array[start : int(ends[-1])] == _CR)
            if len(returns):
                _leave_out_returns(view, rows, ends, returns + start)
        lines = np.arange(line, line + len(ends))
        kept = slice(None) if not self._skip_blank else np.flatnonzero(_not_blank(view, array, rows))
        after = min(int(ends[-1]) + 1, stop)
        if ends[-1] == stop and not rows[-1, 1] and not self._skip_blank:
            kept = slice(None, -1)
        return Frames(
            starts=starts[kept],
            values=(Refs(rows[kept]),),
            stop=after,
            lines=lines[kept],
            next_line=line + len(ends),
        )


def _leave_out_returns(view: memoryview, rows: Positions, ends: Positions, returns: Positions) -> None:
    """Takes carriage returns out of the lines, in place.

    Those inside a line are moved to its beginning, not overwritten, so that the same bytes may be framed again.
    """
    owner = np.searchsorted(ends, returns)
    at_end = returns + 1 == ends[owner]
    single = np.bincount(owner, minlength=len(ends)) == 1
    plain = owner[at_end & single[owner]]
    rows[plain, 1] -= 1
    # Inside a line, or several: rare, line by line.
    for index in np.unique(owner[~(at_end & single[owner])]).tolist():
        begin, size = rows[index].tolist()
        rest = bytes(view[begin : begin + size]).replace(b"\r", b"")
        gone = size - len(rest)
        view[begin : begin + size] = b"\r" * gone + rest
        rows[index] = begin + gone, len(rest)


def _not_blank(view: memoryview, array: npt.NDArray[np.uint8], rows: Positions) -> npt.NDArray[np.bool_]:
    filled: npt.NDArray[np.bool_] = rows[:, 1] > 0
    doubtful = np.flatnonzero(filled)
    doubtful = doubtful[array[rows[doubtful, 0]] <= _SPACE]
    for index in doubtful.tolist():
        begin, size = rows[index].tolist()
        filled[index] = bool(bytes(view[begin : begin + size]).strip(_BLANK))
    return filled
