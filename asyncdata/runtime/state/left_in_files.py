"""`LeftInFiles`: where those elements lie that were passed on and not delivered yet, of all tracks together.

    position   0 1 2 3 4 5 6 7 8 9
    delivered  ■ ■ ■ · ■ ■ · · ■            at = 3, later = 4, 5, 8
    kept             3     6 7   9          a state in front of 8 needs 3, 6 and 7

Elements arrive block by block, and are forgotten some time after they were delivered. There may be hundreds of tracks,
each with few elements: what is done to them is done to all at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.runtime.state.places import Places

_MOST_BLOCKS: Final = 1024
"""Blocks of elements that are kept until it is looked which of them were delivered."""

_AT_ONCE: Final = 1 << 16
"""Elements of which it is looked together whether they were delivered."""

_DENSE: Final = 1.25
"""If elements lie closer together, all of them are read."""

_REQUEST_BYTES: Final = 1 << 15
"""What a request costs beside many others, most of which are not waited for."""

_POSITION_BITS: Final = 40

_MOST_SPREAD: Final = 1 << 12
"""If the numbers of tracks lie closer together, they are looked up in a table."""


class Undelivered:
    """What was not delivered of tracks: marks of positions, those of all tracks one after the other.

    position   2 3 4 5 6 7 8 9        of a track with at = 3, later = 4, 5, 8
    mark       ■ · ■ ■ · · ■ ·        the first is that of all positions in front, the last that of all behind

    Args:
        numbers: Of the tracks, in ascending order.
        at: The first position of each that was not delivered.
        later: Positions behind it that were, in ascending order, of each.
        ends: Positions behind these where the rest of each track begins, which is left out; None: nothing is.
    """

    __slots__ = ("_at", "_begins", "_is_delivered", "_numbers", "_widths")

    def __init__(self, numbers: Rows, at: Rows, later: Sequence[Rows], ends: Rows | None = None) -> None:
        self._numbers = numbers
        known = np.array([each[-1] + 1 if len(each) else 0 for each in later], np.int64)
        widths = (known if ends is None else ends) - at
        np.maximum(widths, 0, out=widths)
        begins = np.cumsum(widths + 2) - widths - 1
        self._is_delivered = np.zeros(int((widths + 2).sum()) + 1, bool)
        self._is_delivered[begins - 1] = True
        self._is_delivered[begins + widths] = ends is not None
        self._is_delivered[np.concatenate(later) + np.repeat(begins - at, [len(each) for each in later])] = True
        # Of a track that is not known any more the index is the last one, which says that all was delivered.
        self._is_delivered[-1] = True
        self._at, self._widths = np.append(at, 0), np.append(widths, -1)
        self._begins = np.append(begins, len(self._is_delivered))

    def select(self, pairs: Rows) -> Rows:
        """Which of these (track, position) are not delivered; none of tracks that are not known any more."""
        track = self._index(pairs[:, 0])
        place = pairs[:, 1] - self._at.take(track)
        np.clip(place, -1, self._widths.take(track), out=place)
        place += self._begins.take(track)
        return np.flatnonzero(~self._is_delivered.take(place))

    def _index(self, numbers: Rows) -> Rows:
        """Which of the tracks these are; -1 for those that are not known."""
        first, last = int(self._numbers[0]), int(self._numbers[-1])
        if last - first < _MOST_SPREAD:
            # One place for each number, and one at the end for those that are not among them.
            places = np.full(last - first + 2, -1)
            places[self._numbers - first] = np.arange(len(self._numbers))
            near = numbers - first
            np.clip(near, -1, last - first + 1, out=near)
            return places.take(near)
        index = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
        return np.where(self._numbers[index] == numbers, index, -1)


class LeftInFiles:
    """See the module's docstring."""

    __slots__ = ("_added", "_blocks", "_kept", "_parts")

    def __init__(self) -> None:
        # Of one track each: those that were kept, in order, and blocks behind them.
        self._parts: list[tuple[int, Places]] = []
        self._blocks = self._kept = self._added = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def copy(self) -> LeftInFiles:
        """Another one, which knows the same."""
        made = LeftInFiles()
        made._parts = self._parts.copy()
        made._blocks, made._kept, made._added = self._blocks, self._kept, self._added
        return made

    def add(self, track: int, places: Places) -> None:
        """Elements of a track were passed on; each uses up one position."""
        self._parts.append((track, places))
        self._blocks += 1
        self._added += len(places)

    @property
    def is_long(self) -> bool:
        """Whether there are so many blocks that it is time to forget."""
        return self._blocks > _MOST_BLOCKS

    @property
    def has_grown(self) -> bool:
        """Whether much more was passed on since than was kept, so that forgetting costs little by the element."""
        return self._added > 2 * self._kept

    def only(self, tracks: Collection[int]) -> LeftInFiles:
        """Another one, which knows of some tracks."""
        made = LeftInFiles()
        made._parts = [part for part in self._parts if part[0] in tracks]
        return made

    def forget(self, undelivered: Undelivered) -> Mapping[int, Places]:
        """Lets go of what was delivered; returns what is left of each track, in order."""
        kept = []
        for places in self._taken_in_turn():
            rows = undelivered.select(_pairs(places))
            if len(rows):
                kept.append(places.chosen(rows))
        found = _by_track(Places.concat(kept)) if kept else {}
        self._parts = list(found.items())
        self._blocks, self._kept, self._added = 0, sum(map(len, kept)), 0
        return found

    def _taken_in_turn(self) -> Iterator[Places]:
        """Some parts at a time, which are not needed any more: all of them together would be there twice."""
        parts, self._parts = [places for _, places in reversed(self._parts)], []
        while parts:
            group, rows = [parts.pop()], 0
            while parts and (rows := rows + len(group[-1])) < _AT_ONCE:
                group.append(parts.pop())
            yield Places.concat(group)


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


def _by_track(places: Places) -> dict[int, Places]:
    """The elements of each track, in order."""
    tracks, positions = _pairs(places).T
    keys = (tracks << _POSITION_BITS) + positions
    if (keys[1:] < keys[:-1]).any():
        places = places.chosen(np.argsort(keys, kind="stable"))  # which finds that blocks are in order
        tracks = _pairs(places)[:, 0]
    begins = [0, *(np.flatnonzero(tracks[1:] != tracks[:-1]) + 1).tolist()]
    return {int(tracks[a]): places.between(a, b) for a, b in pairwise([*begins, len(tracks)])}


def _pairs(places: Places) -> Rows:
    assert places.used is not None
    return places.used.pairs
