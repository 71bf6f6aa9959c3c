"""What consuming the rows of a block means for the state upstream.

Every block has an `Advance` next to its rows. It answers two questions for *any* row boundary of the block:

* `state(k)`: how to rebuild the pipeline so that it continues with row k. The answer is *base + skip*: the newest mark
  at or before row k, and how many outputs to drop after it. A stage writes a mark at fixed positions of its output
  (every so many rows counted from the epoch's beginning, never at a block's border), so the answer does not depend on
  how the rows were divided into blocks.
* `used(k)`: the provenance of every source row that the first k rows have used up, including rows that a filter
  dropped. This is the whole state of a sloppy pipeline: a cursor per shard and the few ids that came early.

Provenance ("origin") is one packed row of four int64, `ORIGIN_WIDTH`:

    shard or source number | record index | sub-index (flat_map, interleave of datasets), 0 without | byte offset

An advance has one of two kinds. *Ordered*: the rows come in the same order in every run, so marks describe positions.
*Unordered*: rows come as they are ready. There are no marks, because "the row after this one" differs from run to run,
and everything made of such rows is unordered too.

Advances can be divided (`split`) and joined (`concat`), and they survive dropped rows (`select`) and grouping
(`group`). Rows dropped after the last row of a block stay in the advance as its tail, which is used up with the next
row, in whichever block that is. A block without rows only has a tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[np.int64]

ORIGIN_WIDTH: Final = 4
NO_ORIGINS: Final = np.empty((0, ORIGIN_WIDTH), np.int64)
NO_ORIGINS.flags.writeable = False

Mark: TypeAlias = Any
"""JSON-able data that one stage understands; nests the state of what is upstream of it."""

Marks: TypeAlias = tuple[tuple[int, Mark], ...]
"""Each with the row in front of which it counts."""


class State(NamedTuple):
    """Base + skip: rebuild from `mark` (None: from the beginning of the epoch), then drop `skip` outputs."""

    mark: Mark
    skip: int


class Advance:
    """See the module's docstring.

    Attributes:
        rows: Number of output rows this advance belongs to.
        used_rows: ``int64[m, 4]`` origins of the source rows used up, in order.
        ends: ``int64[rows]``: once output row i is consumed, ``used_rows[:ends[i]]`` are used up. None: one each.
        marks: ``(row, mark)`` pairs in ascending order of row, 0 <= row <= rows.
        ordered: Of which kind it is.
    """

    __slots__ = ("ends", "marks", "ordered", "rows", "used_rows")

    def __init__(
        self,
        rows: int,
        used_rows: Rows,
        ends: Rows | None = None,
        marks: Marks = (),
        *,
        ordered: bool = True,
    ) -> None:
        assert ordered or not marks, "marks say nothing about rows in any order"
        self.ordered = ordered
        self.rows = rows
        self.used_rows = used_rows
        self.ends = ends
        self.marks = marks

    def __repr__(self) -> str:
        marks = list(self.marks) if self.ordered else "unordered"
        return f"Advance(rows={self.rows}, used={len(self.used_rows)}, marks={marks})"

    @property
    def has_news(self) -> bool:
        """Whether anything follows the last row."""
        return len(self.used_rows) > self.end(self.rows) or (len(self.marks) > 0 and self.marks[-1][0] == self.rows)

    def end(self, row: int) -> int:
        """How many entries of `used_rows` are used up after `row` rows; the tail never is."""
        if row == 0:
            return 0
        return row if self.ends is None else int(self.ends[row - 1])

    def used(self, row: int) -> Rows:
        """Origins used up by the first `row` rows."""
        return self.used_rows[: self.end(row)]

    def used_by_row(self) -> tuple[list[Rows], Rows]:
        """What each row uses up, and the tail."""
        *parts, tail = np.split(self.used_rows, self._all_ends())
        return parts, tail

    def split(self, row: int) -> tuple[Advance, Advance]:
        """The advances of the first `row` rows and of the rest; the tail always goes with the rest."""
        cut = self.end(row)
        head_ends = tail_ends = None
        if self.ends is not None:
            head_ends, tail_ends = self.ends[:row], self.ends[row:] - cut
        head_marks = tail_marks = self.marks
        if self.marks:
            head_marks = tuple(m for m in self.marks if m[0] < row)
            tail_marks = tuple((r - row, mark) for r, mark in self.marks if r >= row)
        head = self._alike(row, self.used_rows[:cut], head_ends, head_marks)
        return head, self._alike(self.rows - row, self.used_rows[cut:], tail_ends, tail_marks)

    def select(self, kept: Rows) -> Advance:
        """The advance when only the rows `kept` (ascending indices) are passed on; the others stay used up."""
        marks = tuple((int(np.searchsorted(kept, row)), mark) for row, mark in self.marks)
        return self._alike(len(kept), self.used_rows, self._all_ends()[kept], marks)

    def expand(self, counts: Rows) -> Advance:
        """The advance when input row i becomes ``counts[i]`` output rows; it is used up with the last of them.

        Marks stay valid only at the first output of a row, which is where they are put.
        """
        ends = self._all_ends()
        stops = np.cumsum(counts)
        starts = np.concatenate((np.zeros(1, np.int64), ends))[: self.rows]
        out = np.repeat(starts, counts)
        whole = counts > 0
        out[stops[whole] - 1] = ends[whole]
        positions = np.concatenate((np.zeros(1, np.int64), stops))
        marks = tuple((int(positions[row]), mark) for row, mark in self.marks)
        return self._alike(len(out), self.used_rows, out, marks)

    def reorder(self, order: Rows, marks: Marks) -> Advance:
        """The advance when the rows leave in another order (a permutation); each takes what it uses up along."""
        if self.ends is None and len(self.used_rows) == self.rows:
            return self._alike(self.rows, self.used_rows.take(order, axis=0), None, marks)
        ends = self._all_ends()
        counts = np.diff(ends, prepend=0)[order]
        new_ends = np.cumsum(counts)
        shift = (ends[order] - new_ends).repeat(counts)
        index = np.arange(len(self.used_rows))
        index[: len(shift)] += shift
        return self._alike(self.rows, self.used_rows.take(index, axis=0), new_ends, marks)

    def using(self, rows: Rows) -> Advance:
        """The advance when each row also uses up one of these, in front of its own source row."""
        ends = self._all_ends()
        used = np.insert(self.used_rows, np.maximum(ends - 1, 0), rows, axis=0)
        return self._alike(self.rows, used, ends + np.arange(1, self.rows + 1), self.marks)

    def group(self, stops: Sequence[int], marks: Marks) -> Advance:
        """The advance when rows up to ``stops[j]`` form output j; the stage supplies marks of its own."""
        ends = np.array([self.end(stop) for stop in stops], np.int64)
        return self._alike(len(stops), self.used_rows, ends, marks)

    def _all_ends(self) -> Rows:
        return self.ends if self.ends is not None else np.arange(1, self.rows + 1, dtype=np.int64)

    def with_marks(self, marks: Marks) -> Advance:
        """The same rows with the marks of another stage, which nest or replace those from upstream."""
        return self._alike(self.rows, self.used_rows, self.ends, marks)

    def unordered(self) -> Advance:
        """The same rows, which came as they were ready; nothing that was noted about their order counts any more."""
        return Advance(self.rows, self.used_rows, self.ends, ordered=False)

    def _alike(self, rows: int, used_rows: Rows, ends: Rows | None, marks: Marks) -> Advance:
        return Advance(rows, used_rows, ends, marks, ordered=self.ordered)

    @staticmethod
    def concat(parts: Sequence[Advance]) -> Advance:
        """One advance for blocks joined end to end; a part's tail is used up with the next row that follows.

        Of parts that are not all ordered nothing is.
        """
        if len(parts) == 1:
            return parts[0]
        rows = sum(part.rows for part in parts)
        used = np.concatenate([part.used_rows for part in parts])
        ends: Rows | None = None
        if any(part.ends is not None or len(part.used_rows) != part.rows for part in parts):
            pieces = []
            base = 0
            for part in parts:
                pieces.append(part._all_ends() + base)  # noqa: SLF001 -- of this class
                base += len(part.used_rows)
            ends = np.concatenate(pieces)
        if not all(part.ordered for part in parts):
            return Advance(rows, used, ends, ordered=False)
        marks: list[tuple[int, Mark]] = []
        row = 0
        for part in parts:
            marks.extend((row + r, mark) for r, mark in part.marks)
            row += part.rows
        return Advance(rows, used, ends, tuple(marks))


EMPTY: Final = Advance(0, NO_ORIGINS)
"""Nothing consumed; what a stage returns to keep its caller going without news."""


class Fold:
    """The state at one edge: everything that was delivered there so far, folded.

    A stage keeps one per input to write its own marks; the consumer's edge keeps one for ``state_dict()``. A mark at
    row r counts from the delivery of row r on, so that the state after k rows is the same however they were cut.

    Attributes:
        ordered: Whether everything so far was; else there is no state that base and skip could describe.
    """

    __slots__ = ("_mark", "_pending", "_skip", "ordered")

    def __init__(self, state: State | None = None) -> None:
        self.ordered = True
        self._mark: Mark = None
        self._skip = 0
        if state is not None:
            self._mark, self._skip = state
        self._pending: tuple[Mark, ...] = ()

    @property
    def state(self) -> State:
        """Base + skip after what was folded so far."""
        return State(self._mark, self._skip)

    def at(self, advance: Advance, row: int) -> State:
        """The state after the first `row` rows of the block that comes next, without folding anything."""
        if row == 0:
            return self.state
        mark, skip = self._mark, self._skip + row
        if self._pending:
            mark, skip = self._pending[0], row
        for position, value in advance.marks:
            if position >= row:
                break
            mark, skip = value, row - position
        return State(mark, skip)

    def feed(self, advance: Advance) -> None:
        """Folds a whole block."""
        self.ordered = self.ordered and advance.ordered
        self._mark, self._skip = self.at(advance, advance.rows)
        if advance.rows:
            self._pending = ()
        if advance.marks and advance.marks[-1][0] == advance.rows:
            self._pending = (advance.marks[-1][1],)
