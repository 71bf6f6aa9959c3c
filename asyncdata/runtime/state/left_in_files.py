"""`LeftInFiles`: where those elements lie that were passed on and not delivered yet, of all tracks together.

    position   0 1 2 3 4 5 6 7 8 9
    delivered  ■ ■ ■ · ■ ■ · · ■            at = 3, later = 4, 5, 8
    kept             3     6 7   9          a state in front of 8 needs 3, 6 and 7

Elements arrive block by block, and are forgotten some time after they were delivered: blocks of which all was delivered
without a look at their elements, and what was delivered of others once they are many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.runtime.state.places import Places

_GROWTH: Final = 3
"""It is looked which elements were delivered when they are so many times those that were not the last time."""

_DENSE: Final = 1.25
"""If elements lie closer together, all of them are read."""

_REQUEST_BYTES: Final = 1 << 15
"""What a request costs beside many others, most of which are not waited for."""


class LeftInFiles:
    """See the module's docstring.

    Attributes:
        rows: Elements that are kept.
    """

    __slots__ = ("_least", "_parts", "rows")

    def __init__(self) -> None:
        # Of each track: those that were kept, in order, and blocks behind them.
        self._parts: dict[int, list[Places]] = {}
        self.rows = self._least = 0

    def copy(self) -> LeftInFiles:
        """Another one, which knows the same."""
        made = LeftInFiles()
        made._parts = {track: parts.copy() for track, parts in self._parts.items()}
        made.rows, made._least = self.rows, self._least
        return made

    def add(self, track: int, places: Places) -> None:
        """Elements of a track were passed on, behind those before; each uses up one position."""
        self._parts.setdefault(track, []).append(places)
        self.rows += len(places)

    @property
    def tracks(self) -> list[int]:
        """Of which something is kept."""
        return list(self._parts)

    @property
    def has_grown(self) -> bool:
        """Whether much more was passed on since than was kept, so that forgetting costs little by the element."""
        return self.rows > _GROWTH * self._least

    def let_go(self, track: int, at: int | None) -> None:
        """Forgets blocks of which all was delivered.

        Args:
            track: Of the blocks.
            at: The first position that was not delivered; None: all of the track was.
        """
        parts = self._parts[track]
        count = 0
        while count < len(parts) and (at is None or _pairs(parts[count])[-1, 1] < at):
            self.rows -= len(parts[count])
            count += 1
        if count == len(parts):
            del self._parts[track]
        elif count:
            del parts[:count]

    def forget(self, delivered: Mapping[int, tuple[int, Rows]]) -> None:
        """Forgets all that was delivered: the positions in front of one, and later ones, of each track."""
        found = {track: self.undelivered(track, *delivered[track]) for track in self._parts}
        self._parts = {track: [places] for track, places in found.items() if places is not None}
        self.rows = self._least = sum(len(places) for (places,) in self._parts.values())

    def undelivered(self, track: int, at: int, later: Rows, end: int | None = None) -> Places | None:
        """The elements of a track that were not delivered, in order; None if there are none.

        Args:
            track: Which.
            at: The first position that was not delivered.
            later: Positions behind it that were, in ascending order.
            end: Those from this one on are left out; None: none are.
        """
        parts = self._parts.get(track, ())
        positions = list(map(positions_of, parts))
        last = max((int(each[-1]) for each in positions), default=-1)
        # The first one is for all positions in front.
        is_left = np.ones(max(last - at, -1) + 2, bool)
        is_left[0] = False
        is_left[later[: later.searchsorted(last + 1)] - (at - 1)] = False
        if end is not None:
            is_left[max(end - at + 1, 0) :] = False
        kept = []
        for places, known in zip(parts, positions, strict=True):
            first, behind = int(known[0]) - at + 1, int(known[-1]) - at + 2
            if first > 0 and behind - first == len(known):  # without a gap, as blocks are
                rows = np.flatnonzero(is_left[first:behind])
            else:
                rows = np.flatnonzero(is_left.take(np.maximum(known - (at - 1), 0)))
            if len(rows):
                kept.append(places if len(rows) == len(places) else places.chosen(rows))
        return Places.concat(kept) if kept else None


def are_spread(count: int, elements: int) -> bool:
    """Whether reading `count` elements by themselves may be better than reading all `elements` among which they lie."""
    return elements > count * _DENSE


def worth_reading(parts: Sequence[Places], elements: Rows) -> npt.NDArray[np.bool_]:
    """Where it is better to read elements where they lie than to read all elements that lie among them.

    Args:
        parts: Elements in the order of their positions.
        elements: How many would be read otherwise, instead of each part.
    """
    counts = np.array([len(part) for part in parts])
    nbytes, requests = Places.concat(parts).costs(np.cumsum(counts) - counts)
    is_worth: npt.NDArray[np.bool_] = nbytes * elements // counts > nbytes * _DENSE + requests * _REQUEST_BYTES
    return is_worth


def positions_of(places: Places) -> Rows:
    """The position of each element."""
    return _pairs(places)[:, 1]


def _pairs(places: Places) -> Rows:
    assert places.used is not None
    return places.used.pairs
