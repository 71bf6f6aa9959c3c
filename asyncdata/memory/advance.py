"""What consuming the rows of a block means for the state upstream.

Every block has an `Advance` next to its rows. For *any* row boundary of the block, it says how to rebuild the pipeline
so that it continues there. It is of one of two kinds:

* *Ordered*: the rows come in the same order in every run, so a position describes what is left. The answer is *base +
  skip*: the newest mark at or before the row, and how many outputs to drop after it. A stage writes a mark at fixed
  positions of its output (every so many rows counted from the epoch's beginning, never at a block's border), so the
  answer does not depend on how the rows were divided into blocks.
* *Unordered*: rows come as they are ready. There are no marks, because "the row after this one" differs from run to
  run, and everything made of such rows is unordered too.

Where it is tracked which elements were delivered, rows also carry what they use up of each track (`Used`): always where
they are unordered, and behind `shard`, where other readers may divide the rest.

Advances can be divided (`split`) and joined (`concat`), and they survive dropped rows (`select`) and grouping
(`group`). Marks and used elements behind the last row of a block stay in the advance as its tail, which belongs to the
next row, in whichever block that is. A block without rows only has a tail.

Next to it lies the provenance of each row ("origin"), which names records in errors and keys random numbers. It is one
packed row of four int64, `ORIGIN_WIDTH`:

    shard or source number | record index | sub-index, 0 without | byte offset

The sub-index tells apart what has the same place: rows of one batch that `unbatch` took apart, one element in several
repetitions, and what datasets made of these.
"""

from __future__ import annotations

import copy
import operator
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.memory.used import Used

Rows: TypeAlias = npt.NDArray[np.int64]

ORIGIN_WIDTH: Final = 4
SUB_INDEX: Final = 2
NO_ORIGINS: Final = np.empty((0, ORIGIN_WIDTH), np.int64)
NO_ORIGINS.flags.writeable = False

Mark: TypeAlias = Any
"""What one stage is brought back to once it was written as JSON and read; nests the state of what is upstream of it."""

Marks: TypeAlias = tuple[tuple[int, Mark], ...]
"""Each with the row in front of which it counts."""


class State(NamedTuple):
    """Base + skip: rebuild from `mark` (None: from the beginning of the epoch), then drop `skip` outputs."""

    mark: Mark
    skip: int


class RecordMark(NamedTuple):
    """Of a file: the record that reading can begin at, and the byte where it is."""

    record: int
    offset: int
    version: str | None

    def written(self) -> dict[str, Any]:
        """What a stage is brought back to."""
        return self._asdict()


class Slots(NamedTuple):
    """Of a mark: for each slot of an `interleave` the row of its dataset and the state of that.

    The consumer forgets a mark with nearly every batch, when its objects are in no cache any more. So there are few of
    them, and marks that follow each other share what is the same.

    Attributes:
        rows: None where a slot is free.
        marks: What is no `RecordMark`; of those, the version.
        numbers: Record, offset and skip of each, int64; the record is -1 where the mark is none.
    """

    rows: tuple[int | None, ...]
    marks: tuple[Mark, ...]
    numbers: bytes

    @classmethod
    def of(cls, slots: Iterable[tuple[int, State] | None], before: Slots | None = None) -> Slots:
        """From each slot's row and state; `before` is what was made last."""
        rows: list[int | None] = []
        marks: list[Mark] = []
        numbers = array("q")
        for slot in slots:
            row, (mark, skip) = (None, BEGINNING) if slot is None else slot
            record, offset, mark = mark if type(mark) is RecordMark else (-1, 0, mark)
            rows.append(row)
            marks.append(mark)
            numbers.extend((record, offset, skip))
        if before is None:
            return cls(tuple(rows), tuple(marks), numbers.tobytes())
        return cls(_or_same(rows, before.rows), _or_same(marks, before.marks), numbers.tobytes())

    def written(self) -> list[dict[str, Any] | None]:
        """What a stage is brought back to."""
        numbers = array("q", self.numbers).tolist()
        found: list[dict[str, Any] | None] = []
        for index, (row, mark) in enumerate(zip(self.rows, self.marks, strict=True)):
            record, offset, skip = numbers[3 * index : 3 * index + 3]
            state = State(mark if record < 0 else RecordMark(record, offset, mark), skip)
            found.append(None if row is None else {"row": row, "state": state})
        return found


def _or_same(made: list[Any], before: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(made) == len(before) and all(map(operator.is_, made, before)):
        return before
    return tuple(made)


BEGINNING: Final = State(None, 0)
"""Nothing was delivered, and nothing is known."""

FILLING: Final = "filling"
"""Of marks: in which run the elements were made that a `cache` or `snapshot` passes on.

This cannot be found out where another run begins at the beginning. So such a mark already holds in front of its row if
nothing was delivered before: the marks that other stages write there contain it."""


def tells_filling(mark: Mark) -> bool:
    """Whether a mark says, or one inside of it, in which run elements were made."""
    if isinstance(mark, dict):
        return FILLING in mark or any(map(tells_filling, mark.values()))
    return isinstance(mark, list | tuple) and any(map(tells_filling, mark))


class Advance:
    """See the module's docstring.

    Attributes:
        rows: Number of output rows this advance belongs to.
        marks: ``(row, mark)`` pairs in ascending order of row, 0 <= row <= rows.
        used: What the rows use up of tracks; None where nothing is tracked.
        ordered: Of which kind it is.
    """

    __slots__ = ("marks", "ordered", "rows", "used")

    def __init__(self, rows: int, marks: Marks = (), used: Used | None = None, *, ordered: bool = True) -> None:
        assert ordered or not marks, "marks say nothing about rows in any order"
        self.rows = rows
        self.marks = marks
        self.used = used
        self.ordered = ordered

    def __repr__(self) -> str:
        marks = list(self.marks) if self.ordered else "unordered"
        used = "" if self.used is None else f", used={len(self.used.pairs)}"
        return f"Advance(rows={self.rows}{used}, marks={marks})"

    @property
    def has_news(self) -> bool:
        """Whether anything follows the last row."""
        if self.marks and self.marks[-1][0] == self.rows:
            return True
        return self.used is not None and len(self.used.pairs) > self.used.end(self.rows)

    def split(self, row: int) -> tuple[Advance, Advance]:
        """The advances of the first `row` rows and of the rest; the tail always goes with the rest."""
        head_marks = tail_marks = self.marks
        if self.marks:
            head_marks = tuple(m for m in self.marks if m[0] < row)
            tail_marks = tuple((r - row, mark) for r, mark in self.marks if r >= row)
        head, tail = (None, None) if self.used is None else self.used.split(row)
        return (
            Advance(row, head_marks, head, ordered=self.ordered),
            Advance(self.rows - row, tail_marks, tail, ordered=self.ordered),
        )

    def select(self, kept: Rows) -> Advance:
        """The advance when only the rows `kept` (ascending indices) are passed on; the others stay used up."""
        marks = tuple((int(np.searchsorted(kept, row)), mark) for row, mark in self.marks)
        used = None if self.used is None else self.used.select(kept)
        return Advance(len(kept), marks, used, ordered=self.ordered)

    def expand(self, counts: Rows) -> Advance:
        """The advance when input row i becomes ``counts[i]`` output rows, of which marks are put at the first."""
        assert self.used is None, "a row that becomes several cannot be tracked"
        stops = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        marks = tuple((int(stops[row]), mark) for row, mark in self.marks)
        return Advance(int(stops[-1]), marks, ordered=self.ordered)

    def reorder(self, order: Rows, marks: Marks) -> Advance:
        """The advance when the rows leave in another order (a permutation); each takes what it uses up along."""
        used = None if self.used is None else self.used.reorder(order)
        return Advance(self.rows, marks, used, ordered=self.ordered)

    def using(self, pairs: Rows) -> Advance:
        """The advance when each row also uses up one of these, in front of its own."""
        used = self.used or Used.nothing(self.rows)
        return Advance(self.rows, self.marks, used.adding(pairs), ordered=self.ordered)

    def group(self, stops: Sequence[int], marks: Marks) -> Advance:
        """The advance when rows up to ``stops[j]`` form output j; the stage supplies marks of its own."""
        used = None if self.used is None else self.used.group(stops)
        return Advance(len(stops), marks, used, ordered=self.ordered)

    def dropped(self) -> Advance:
        """The advance when none of the rows is passed on, and another stage's marks take the place of these."""
        used = None if self.used is None else Used(self.used.pairs, np.empty(0, np.int64))
        return Advance(0, (), used, ordered=self.ordered)

    def with_marks(self, marks: Marks) -> Advance:
        """The same rows with the marks of another stage, which nest or replace those from upstream."""
        return Advance(self.rows, marks, self.used, ordered=self.ordered)

    def unordered(self) -> Advance:
        """The same rows, which came as they were ready; nothing that was noted about their order counts any more."""
        return Advance(self.rows, (), self.used, ordered=False)

    @staticmethod
    def concat(parts: Sequence[Advance]) -> Advance:
        """One advance for blocks joined end to end; a part's tail belongs to the next row that follows.

        Of parts that are not all ordered nothing is.
        """
        if len(parts) == 1:
            return parts[0]
        rows = sum(part.rows for part in parts)
        used = _all_used(parts)
        joined = None if used is None else Used.concat(used)
        if not all(part.ordered for part in parts):
            return Advance(rows, (), joined, ordered=False)
        marks: list[tuple[int, Mark]] = []
        row = 0
        for part in parts:
            marks.extend((row + r, mark) for r, mark in part.marks)
            row += part.rows
        return Advance(rows, tuple(marks), joined)

    @staticmethod
    def side_by_side(parts: Sequence[Advance], marks: Marks = ()) -> Advance:
        """The advance when one row of each part makes an output row."""
        used = _all_used(parts)
        return Advance(
            parts[0].rows,
            marks,
            None if used is None else Used.side_by_side(used),
            ordered=all(part.ordered for part in parts),
        )


def _all_used(parts: Sequence[Advance]) -> list[Used] | None:
    """What each part uses up, None where nothing is tracked in any of them."""
    if all(part.used is None for part in parts):
        return None
    return [part.used or Used.nothing(part.rows) for part in parts]


EMPTY: Final = Advance(0)
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

    def in_front_of(self, advance: Advance, row: int) -> State:
        """The state in front of a row of the block that comes next, for the marks that other stages write there.

        At the beginning there may be a mark that holds in front of its row, see `FILLING`.
        """
        found = self.at(advance, row)
        if found == BEGINNING and row < advance.rows:
            marks = [*self._pending, *(mark for at, mark in advance.marks if at == row)]
            return State(marks[-1], 0) if marks and tells_filling(marks[-1]) else found
        return found

    def after(self, advance: Advance) -> Fold:
        """Another one, which has folded one block more."""
        made = copy.copy(self)
        made.feed(advance)
        return made

    def feed(self, advance: Advance) -> None:
        """Folds a whole block."""
        self.ordered = self.ordered and advance.ordered
        self._mark, self._skip = self.at(advance, advance.rows)
        if advance.rows:
            self._pending = ()
        if advance.marks and advance.marks[-1][0] == advance.rows:
            self._pending = (advance.marks[-1][1],)
