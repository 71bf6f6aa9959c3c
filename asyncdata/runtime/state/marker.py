"""`Marker`: where a stage writes its marks, and what its input's state is there. `FirstMark`: where there is but one.

    output rows   0 ──────────────── 1024 ─────────────── 2048 ──
    marks         ▲ {…, "input": …}  ▲ {…, "input": …}    ▲          at fixed rows, so that any blocking gives the same

A mark says what the stage must know to begin at its row, and nests the state of the input in front of the input row
that the output row is made of. Rows that come in any order have no marks, nor has anything that is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from asyncdata.memory.advance import Advance, Fold, Mark, Marks, Rows, State, tells_filling
from asyncdata.memory.block import Block

MARK_EVERY: Final = 1024
"""Rows of the output between two marks, counted from its beginning."""


class Marker:
    """See the module's docstring.

    Args:
        every: Rows between two marks.
        follows: Whether there is a mark behind each mark of the input, and at fixed rows only where it has none: what
            the input goes back to is then never far, however large its rows are.

    Attributes:
        rows: Of the output so far; while a block's marks are written, those in front of the block.
        input: The state of the stage's input, where it has one.
    """

    __slots__ = ("_begun", "_behind", "_every", "_follows", "input", "rows")

    def __init__(self, every: int = MARK_EVERY, *, follows: bool = False) -> None:
        self._every = every
        self._follows = follows
        self._behind: set[int] = set()
        self._begun = True
        self.rows = 0
        self.input = Fold()

    def begin(self, rows: int, state: State | None = None) -> None:
        """Goes on behind so many rows of the output, where the input's state is this."""
        self.rows = rows
        self.input = Fold(state)

    def places(self, rows: int, *, ordered: bool = True) -> Sequence[int]:
        """The rows of a block of so many rows, which comes next, where marks belong."""
        if not ordered:
            return ()
        places = range(-self.rows % self._every, rows, self._every)
        return places if self._begun or not rows or (places and not places[0]) else (0, *places)

    def marks(
        self, rows: int, write: Callable[[int], Mark], *, ordered: bool = True, also: Sequence[int] = ()
    ) -> Marks:
        """The marks of the next block: ``write(row)`` makes each of them.

        Args:
            rows: Of the block.
            write: Makes the mark of a row of the block.
            ordered: Whether there are any.
            also: Rows that have a mark beside those at fixed distances, wherever blocks begin and end.
        """
        places = self.places(rows, ordered=ordered)
        return self.marks_at(rows, write, sorted({*places, *also}) if also else places)

    def marks_at(self, rows: int, write: Callable[[int], Mark], places: Sequence[int]) -> Marks:
        """The marks of the next block at these rows."""
        marks = tuple((row, write(row)) for row in places)
        self.rows += rows
        self._begun = self._begun or rows > 0
        return marks

    def after(
        self,
        taken: Advance,
        rows: int,
        write: Callable[[int, State], Mark],
        at: Sequence[int] | Rows | None = None,
        also: Sequence[int] = (),
    ) -> Marks:
        """The marks of the next block of a stage with one input; folds what the block takes of it.

        Args:
            taken: Of the input rows.
            rows: Of the output.
            write: ``write(row, state)`` makes a mark; the state is that of the input in front of the row.
            at: The input row that each output row is made of; None where they are the same.
            also: Rows that have a mark beside those at fixed distances, wherever blocks begin and end.
        """

        def before(row: int) -> State:
            return self.input.in_front_of(taken, row if at is None else int(at[row]))

        places = self.places(rows, ordered=taken.ordered and self.input.ordered)
        if also and taken.ordered and self.input.ordered:
            places = sorted({*places, *also})
        if self._follows and taken.ordered:
            places = [row for row in places if self.input.at(taken, row if at is None else int(at[row])).mark is None]
            if self._behind or taken.marks:
                places = sorted({*places, *self._following(taken, rows, at)})
        marks = self.marks_at(rows, lambda row: write(row, before(row)), places)
        self.input.feed(taken)
        return marks

    def _following(self, taken: Advance, rows: int, at: Sequence[int] | Rows | None) -> set[int]:
        """The first row of the output behind each mark of the input; some come with the next block."""
        marked = np.array([*self._behind, *(row for row, _ in taken.marks)], np.int64)
        found = marked + 1 if at is None else np.searchsorted(np.asarray(at, np.int64), marked, side="right")
        self._behind = set(np.maximum(marked[found >= rows] - taken.rows, -1).tolist())
        return set(found[found < rows].tolist())

    def mark(self, block: Block, write: Callable[[int, State], Mark]) -> Block:
        """Marks the next block of a stage that passes its input's rows on."""
        block.advance = block.advance.with_marks(self.after(block.advance, len(block), write))
        return block

    def next_input(self) -> None:
        """The input that comes next is another one; its first row has a mark."""
        self.input = Fold()
        self._begun = False
        self._behind = set()


class FirstMark:
    """The only mark of a step that must see its whole input again: in which run elements that are kept were made.

    The mark is in front of the first row, where the input's mark says it.

    Attributes:
        begins: The input's state there, once it is known; None where nothing that it read was kept.
    """

    __slots__ = ("_input", "_is_known", "_is_written", "begins")

    def __init__(self) -> None:
        self._input = Fold()
        self._is_known = False
        self._is_written = False
        self.begins: State | None = None

    def feed(self, taken: Advance) -> None:
        """The next block of the input."""
        if not self._is_known:
            state = self._input.in_front_of(taken, 0)
            self._is_known = taken.rows > 0
            if self._is_known and tells_filling(state.mark):
                self.begins = state
            self._input.feed(taken)

    def marks(self, rows: int) -> Marks:
        """The marks of the next block of the output."""
        if not rows or self.begins is None or self._is_written:
            return ()
        self._is_written = True
        return ((0, {"at": 0, "begins": self.begins}),)
