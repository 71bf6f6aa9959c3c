"""`InputHistory`: the state of an input in front of a row that was taken from it long ago.

A shuffle's buffer holds rows of very different ages, an interleave has had its slots since different rows. Each of
them begins again in front of the oldest row that it still needs, and takes from the input what it needs.
"""

from __future__ import annotations

from collections import deque

from asyncdata.errors import StateError
from asyncdata.memory.advance import BEGINNING, Advance, State, tells_filling


class InputHistory:
    """See the module's docstring. Does not depend on how the rows were cut into blocks.

    Attributes:
        rows: Rows of the input so far.
    """

    __slots__ = ("_marks", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self._marks: deque[tuple[int, State]] = deque([(0, State(None, 0))])

    def begin(self, row: int, state: State | None) -> None:
        """The first row that comes is this one; in front of it the input's state is this."""
        self.rows = row
        self._marks = deque([(row, state or State(None, 0))])

    @property
    def first(self) -> int:
        """The first row of which `before` knows the state."""
        return self._marks[0][0]

    def feed(self, advance: Advance) -> None:
        """The next rows were taken."""
        for row, mark in advance.marks:
            self._marks.append((self.rows + row, State(mark, 0)))
        self.rows += advance.rows

    def before(self, row: int) -> State:
        """The state in front of a row, or behind the last one; not of those that were let go."""
        found = self._marks[0]
        for known in self._marks:
            # A mark counts from the row behind it on.
            if known[0] >= row:
                break
            found = known
        at, (mark, skip) = found
        state = State(mark, skip + row - at)
        if state == BEGINNING and row < self.rows:
            # As in `Fold.in_front_of`.
            first = [begun for place, begun in self._marks if place == row and tells_filling(begun.mark)]
            return first[-1] if first else state
        return state

    def too_short(self, rows: int, stage: str) -> StateError:
        """The error for an input that has fewer rows than when the state was taken."""
        return StateError(
            f"the input has {self.rows} elements; when the state was taken it had at least {rows}", stage=stage
        )

    def forget(self, row: int) -> None:
        """No earlier row will be asked for."""
        while len(self._marks) > 1 and self._marks[1][0] < row:
            self._marks.popleft()
