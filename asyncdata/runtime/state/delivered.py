"""`Delivered`: which elements of each track the consumer was given; see `asyncdata.runtime.state.tracks`.

    position   0 1 2 3 4 5 6 7 8
    delivered  ■ ■ ■ · ■ ■ · · ■        at = 3, later = 4, 5, 8

An element that datasets were made of counts as delivered once all of theirs are, and lets their tracks go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from asyncdata.memory.advance import Rows, State
from asyncdata.runtime.state.tracks import WHOLE, Begun, Ended, Event, Marked, Place, Refused, SavedTrack

_SETTLE_ROWS = 1 << 16
"""Rows that are collected before they are sorted: sorting costs less by the row than keeping each in its place."""


class _Track:
    """What is known of one track."""

    __slots__ = ("at", "bases", "held", "later", "open", "place", "step", "total")

    def __init__(self, saved: SavedTrack) -> None:
        self.place = saved.place
        self.step = saved.step
        self.at = saved.at
        self.later = saved.later
        self.total = saved.total
        self.bases = deque([(saved.at, saved.state)])
        # Tracks of the datasets that were made of an element, and elements that wait for these alone.
        self.open: dict[int, set[int]] = {}
        self.held: set[int] = set()

    def copy(self) -> _Track:
        made = _Track(self.saved())
        made.bases = self.bases.copy()
        made.open = {position: set(tracks) for position, tracks in self.open.items()}
        made.held = set(self.held)
        return made

    def saved(self) -> SavedTrack:
        position, (mark, skip) = self.bases[0]
        state = State(mark, skip + self.at - position)
        return SavedTrack(self.place, self.step, self.at, self.later, self.total, state)

    def add(self, positions: Rows) -> None:
        """These were delivered, too."""
        if self.open:
            held = np.fromiter((position in self.open for position in positions.tolist()), bool, len(positions))
            self.held.update(positions[held].tolist())
            positions = positions[~held]
        # Each was delivered once; what a damaged state says beyond that changes nothing.
        later = np.union1d(self.later, positions[positions >= self.at])
        gap = np.flatnonzero(later != np.arange(self.at, self.at + len(later)))
        run = int(gap[0]) if len(gap) else len(later)
        self.at += run
        self.later = later[run:]
        while len(self.bases) > 1 and self.bases[1][0] <= self.at:
            self.bases.popleft()

    @property
    def is_complete(self) -> bool:
        """Whether nothing of it is left to deliver."""
        return self.at + len(self.later) == self.total and not self.held and not self.open.keys() - {WHOLE}


class Delivered:
    """See the module's docstring.

    Args:
        saved: The tracks of the state that the pipeline was brought back to.

    Attributes:
        refused: Why no state can be taken, or None.
    """

    def __init__(self, saved: Sequence[SavedTrack] = ()) -> None:
        self.refused: str | None = None
        self._tracks: dict[int, _Track] = {}
        self._pending: list[Rows] = []
        self._pending_rows = 0
        self._ended: list[int] = []
        for number, track in enumerate(saved):
            self._enter(number, track)

    def copy(self) -> Delivered:
        """Another one, which knows the same."""
        self._settle()
        made = Delivered()
        made.refused = self.refused
        made._tracks = {number: track.copy() for number, track in self._tracks.items()}
        return made

    def _enter(self, number: int, saved: SavedTrack) -> None:
        self._tracks[number] = _Track(saved)
        around = self._tracks.get(saved.place.track)
        if around is not None:
            around.open.setdefault(saved.place.position, set()).add(number)

    def hear(self, events: Sequence[Event]) -> None:
        """What happened to tracks, before their next rows are fed."""
        for event in events:
            match event:
                case Begun(number, place, step):
                    # What belongs to an element that is complete, such as the end of what `take` did not need, is not.
                    if place.track == Place().track or place.track in self._tracks:
                        self._enter(number, SavedTrack(place, step))
                case Marked(number, position, mark):
                    if number in self._tracks:
                        self._tracks[number].bases.append((position, State(mark, 0)))
                case Ended(number, total):
                    if number in self._tracks:
                        self._tracks[number].total = total
                        self._ended.append(number)
                case Refused(why):
                    self.refused = self.refused or why

    def feed(self, used: Rows) -> None:
        """Rows that were used up."""
        self._pending.append(used)
        self._pending_rows += len(used)
        if self._pending_rows > _SETTLE_ROWS:
            self._settle()

    def saved(self) -> tuple[SavedTrack, ...]:
        """The tracks for a state: those with something left to deliver, and those of the pipeline itself."""
        self._settle()
        numbers = {number: place for place, number in enumerate(sorted(self._tracks))}
        found = []
        for number in numbers:
            saved = self._tracks[number].saved()
            around = saved.place.track
            saved.place = saved.place._replace(track=numbers.get(around, around))
            found.append(saved)
        return tuple(found)

    def _settle(self) -> None:
        if not self._pending and not self._ended:
            return
        touched = set(self._ended)
        self._ended = []
        if self._pending:
            used = np.concatenate(self._pending)
            self._pending, self._pending_rows = [], 0
            used = used[np.argsort(used[:, 0], kind="stable"), :2]
            starts = np.flatnonzero(np.diff(used[:, 0], prepend=-1))
            for rows in np.split(used, starts[1:]) if len(used) else ():
                number = int(rows[0, 0])
                if number in self._tracks:
                    self._tracks[number].add(rows[:, 1])
                    touched.add(number)
        # Inner datasets first: their end may be what an element waits for.
        for number in sorted(touched, reverse=True):
            track = self._tracks.get(number)
            for position in () if track is None else sorted(track.held):
                self._close(number, position)
            self._end(number)

    def _end(self, number: int) -> None:
        """What a track that has nothing left means for the element that it belongs to."""
        track = self._tracks.get(number)
        if track is not None and track.is_complete:
            self._forget_inside(track)
            self._close(track.place.track, track.place.position)

    def _close(self, number: int, position: int) -> None:
        """Counts an element as delivered if all its datasets are, and lets their tracks go."""
        track = self._tracks.get(number)
        # What belongs to the pipeline stays, because a state must say that it has ended.
        if track is None or position not in track.held:
            return
        inner = track.open[position]
        if all(self._tracks[each].is_complete for each in inner):
            for each in inner:
                self._forget_inside(self._tracks.pop(each))
            del track.open[position]
            track.held.discard(position)
            track.add(np.array([position], np.int64))
            self._end(number)

    def _forget_inside(self, track: _Track) -> None:
        for numbers in track.open.values():
            for number in numbers:
                self._forget_inside(self._tracks.pop(number))
        track.open.clear()
