"""`Positions`: the states of the elements that the consumer was given last."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence

from asyncdata.errors import StateError
from asyncdata.memory.advance import Advance, Fold, State
from asyncdata.runtime.state.delivered import Delivered
from asyncdata.runtime.state.tracks import Event, Saved


class Positions:
    """Keeps references only; a state is made when it is asked for.

    Args:
        position: Elements that were delivered before, in this epoch.
        state: Behind these.
        kept: How many elements back states are known.
        tracked: Whether it is known what elements have used up of each track.
        bound: Why this means nothing to another reader, or None.

    Attributes:
        first: Elements that were delivered before.
    """

    def __init__(
        self, position: int, state: Saved, kept: int, *, tracked: bool = False, bound: str | None = None
    ) -> None:
        self._delivered = Delivered(state.tracks)
        self._delivered.bound = bound
        if tracked and position and not state.tracks:
            self._delivered.refused = "the state that the iterator began at does not say what was delivered"
        self._fold = Fold(state.state)
        # What leaves out elements that were delivered is not where the same number of elements was delivered.
        self._fold.ordered = state.state is not None or not state.tracks
        self.first = self._begin = self._end = position
        self._kept = kept
        # The number of the first of elements that were received together, and what consuming them means.
        self._spans: deque[tuple[int, Advance]] = deque()
        self._committed: int | None = None
        self._least = position
        self._before: Positions | None = None

    def follow(self, before: Positions) -> None:
        """Takes the place of those of a pipeline that another one goes on from: they know the elements before."""
        self._before, self._committed, self._least = before, before._committed, before._least

    def receive(self, advance: Advance, events: Sequence[Event] = ()) -> None:
        """The next elements were received, of which none was handed out yet, with what happened to tracks."""
        if events:
            self._delivered.hear(events)
        spans, end = self._spans, self._end
        spans.append((end, advance))
        oldest = end - self._kept
        self._end = end + advance.rows
        if self._committed is not None and self._committed < oldest:
            oldest = self._committed
        if oldest >= self.first:
            self._before = None
        while len(spans) > 1 and spans[1][0] <= oldest:
            old, begin = spans[0][1], spans[1][0]
            fold = self._fold.after(old)
            # No signal is handled between these: its handler may take a state, or raise.
            self._begin, self._fold = begin, fold
            del spans[0]
            if old.used is not None:
                self._delivered.feed(old.used.pairs)

    @property
    def committed(self) -> int | None:
        """What `commit` said last."""
        return self._committed

    @property
    def least(self) -> int:
        """What `commit` may say: so many, or more."""
        return self._least if self._committed is None else self._committed

    def commit(self, position: int) -> None:
        """So many elements were used; states of earlier positions will not be asked for."""
        self._committed = position

    def delivered(self, position: int) -> Delivered:
        """What the first elements, so many, have used up of each track.

        Raises:
            StateError: It is not known any more.
        """
        if self._before is not None and position < self.first:
            return self._before.delivered(position)
        self._check(position)
        found = self._delivered.copy()
        for first, advance in self._spans:
            row = position - first
            if row <= 0:
                break
            if (used := advance.used) is not None:
                found.feed(used.pairs if row > advance.rows else used.pairs[: used.end(row)])
        return found

    def at(self, position: int) -> tuple[State, bool]:
        """The state behind so many elements, and whether all of them came in an order that is the same in every run.

        Raises:
            StateError: It is not known any more.
        """
        if self._before is not None and position < self.first:
            return self._before.at(position)
        self._check(position)
        fold = copy.copy(self._fold)
        for first, advance in self._spans:
            row = position - first
            if row < advance.rows or not row:
                return fold.at(advance, row), fold.ordered and (not row or advance.ordered)
            fold.feed(advance)
        return fold.state, fold.ordered

    def _check(self, position: int) -> None:
        if position < self._begin:
            raise StateError(
                f"the state after {position} elements is not kept any more, only those after {self._begin} and more: "
                "Options(state_history=...) keeps more of them, and commit() keeps the last one that was used"
            )
