"""`Delivered`: which elements of each track the consumer was given; see `asyncdata.runtime.state.tracks`.

    position   0 1 2 3 4 5 6 7 8
    delivered  ■ ■ ■ · ■ ■ · · ■        at = 3, later = 4, 5, 8

An element that datasets were made of counts as delivered once all of theirs are, and lets their tracks go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from asyncdata.memory.advance import Rows, State
from asyncdata.runtime.state.left_in_files import LeftInFiles, are_spread, positions_of, worth_reading
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.tracks import (
    BEGINNING,
    WHOLE,
    Begun,
    Bound,
    Carried,
    Closed,
    Dropped,
    Ended,
    Event,
    Keyed,
    Lying,
    Marked,
    Owner,
    Refused,
    SavedTrack,
)

_POSITION_BITS: Final = 40
"""Of a position; the rest is left for the number of its track among those that are sorted together."""

_TRACK_BITS: Final = 63 - _POSITION_BITS

_SETTLE_ROWS: Final = 1 << 17
"""Rows that are collected before they are sorted: sorting costs less by the row than keeping each in its place."""

_SETTLE_EVENTS: Final = 1 << 10
"""What happened to tracks is collected, too: all of it is of no use until a state is asked for."""

_LEFT_ROWS: Final = 1 << 17
"""Elements that lie in files, beside as many as were left the last time, until it is looked which were delivered."""

_MOST_PARTS: Final = 1024
"""Arrays of keys that are joined then."""


class _Track:
    """What is known of one track."""

    __slots__ = (
        *(
            "at",
            "bases",
            "carried",
            "closed",
            "keys",
            "known",
            "later",
            "left_bare",
            "open",
            "owner",
            "step",
            "total",
        ),
    )

    def __init__(self, saved: SavedTrack) -> None:
        self.owner = saved.owner
        self.step = saved.step
        self.at = saved.at
        self.later = saved.later
        self.total = saved.total
        self.bases = deque([(saved.first, saved.state)])
        self.left_bare = saved.bare
        # What its step remembers of elements, those that were delivered before a state and those passed on since.
        self.known = saved.keys
        self.keys: list[Rows] = []
        # What its step carries behind elements, each with the number behind it.
        self.carried = deque((saved.at, value) for value in saved.value)
        # Tracks of the datasets that were made of an element, and what is used up when these are complete.
        self.open: dict[int, set[int]] = {}
        self.closed: dict[int, Rows] = {}

    def copy(self) -> _Track:
        made = _Track.__new__(_Track)  # for a state all tracks are copied, in a fraction of the time of `copy.copy`
        made.owner, made.step, made.total = self.owner, self.step, self.total
        made.at, made.later = self.at, self.later
        made.bases, made.carried = self.bases.copy(), self.carried.copy()
        made.left_bare = self.left_bare
        made.known, made.keys = self.known, list(self.keys)
        made.open = {position: set(tracks) for position, tracks in self.open.items()} if self.open else {}
        made.closed = dict(self.closed)
        return made

    def remember(self, keys: Rows) -> None:
        """Elements were passed on, some of which are not delivered yet."""
        self.keys.append(keys)
        if len(self.keys) > _MOST_PARTS:
            self.keys = [np.concatenate(self.keys)]

    def delivered_keys(self) -> Rows:
        """What its step remembers of the elements that were delivered."""
        if not self.keys:
            return self.known
        keys = np.concatenate(self.keys)
        is_delivered = (keys[:, 0] < self.at) | np.isin(keys[:, 0], self.later)
        return np.concatenate((self.known, keys[is_delivered, 1:]))

    def saved(self) -> SavedTrack:
        position, (mark, skip) = self.bases[0]
        state = State(mark, skip + self.at - position)
        value = (self.carried[0][1],) if self.carried and self.carried[0][0] <= self.at else ()
        return SavedTrack(self.owner, self.step, self.at, self.later, self.total, state, value=value)

    @property
    def may_begin_later(self) -> bool:
        """Whether it may be better to begin behind elements that lie in files, if all that are missing there do."""
        if not len(self.later) and self.bases[0][0] <= self.at and not are_spread(1, 1):
            return False  # none lies among others that were delivered
        return any(
            self.bases[0][0] > self.at or are_spread(self._missing(begin), begin - self.at)
            for begin, _ in self._later_bases()
        )

    def later_base(self, known: Rows) -> tuple[int, State, int] | None:
        """The last place behind the first undelivered element where the input can begin, and how many are left before.

        Args:
            known: Positions of undelivered elements that lie in files: all that are left there do.
        """
        for begin, state in self._later_bases():
            count = int(known.searchsorted(begin))
            if count == self._missing(begin):
                return begin, state, count
        return None

    def _missing(self, begin: int) -> int:
        """How many elements in front of a position were not delivered."""
        return begin - self.at - int(self.later.searchsorted(begin))

    def _later_bases(self) -> Iterator[tuple[int, State]]:
        """Behind the first element that is missing: the next one behind all that were delivered, and earlier ones."""
        if (nearest := self._behind_delivered()) is not None:
            yield nearest
        yield from (base for base in reversed(self.bases) if self.at < base[0] <= self.last)

    def _behind_delivered(self) -> tuple[int, State] | None:
        """The first place behind all elements that were delivered where the input can begin, or its end."""
        nearest = (self.total, BEGINNING) if self.total is not None and self.total > self.last else None
        for base in reversed(self.bases):
            if base[0] <= self.last:
                break
            nearest = base if base[0] != self.total else nearest  # nothing is opened for no elements
        return nearest

    @property
    def last(self) -> int:
        """Position of the last element that was delivered, or of the first that was not if that is behind it."""
        return int(self.later[-1]) if len(self.later) else self.at

    @property
    def reach(self) -> int:
        """What is said of elements in a state is of those in front of this position."""
        nearest = self._behind_delivered()
        return self.last + 1 if nearest is None else nearest[0]

    def add(self, positions: Rows) -> None:
        """These were delivered, too; in ascending order."""
        count = len(positions)
        if count and not len(self.later) and positions[0] == self.at and positions[-1] == self.at + count - 1:
            self.at += count  # the usual case, and much the fastest
            self._advance()
            return
        # Two sorted parts, which a stable sort merges. Each was delivered once, unless the state was damaged.
        later = np.concatenate((self.later, positions))
        later.sort(kind="stable")
        if (later[1:] == later[:-1]).any() or (len(later) and later[0] < self.at):
            later = np.unique(later[later >= self.at])
        self.later = later
        if not len(later) or later[0] != self.at:
            return  # the first one is still missing, as it is most of the time behind a shuffle
        run = bisect_left(range(len(later)), 1, key=lambda index: int(later[index]) - index - self.at)
        self.at += run
        self.later = later[run:]
        self._advance()

    def _advance(self) -> None:
        """Forgets the marks that nothing goes back to any more."""
        while len(self.bases) > 1 and self.bases[1][0] <= self.at:
            self.bases.popleft()
        while len(self.carried) > 1 and self.carried[1][0] <= self.at:
            self.carried.popleft()

    def has(self, position: int) -> bool:
        """Whether an element was delivered."""
        return position < self.at or (len(self.later) > 0 and position in self.later)

    @property
    def is_complete(self) -> bool:
        """Whether nothing of it is left to deliver."""
        return self.at + len(self.later) == self.total and not self.open.keys() - {WHOLE}


class Delivered:
    """See the module's docstring.

    Args:
        saved: The tracks of the state that the pipeline was brought back to.

    Attributes:
        refused: Why no state can be taken, or None.
        bound: Why a state cannot be divided among other readers, or None.
    """

    def __init__(self, saved: Sequence[SavedTrack] = ()) -> None:
        self.refused: str | None = None
        self.bound: str | None = None
        self._tracks: dict[int, _Track] = {}
        self._left = LeftInFiles()
        self._heard: list[Event] = []
        self._pending: list[Rows] = []
        self._pending_rows = 0
        self._ended: list[int] = []
        self._closed: list[tuple[int, int]] = []
        for track in saved:
            self._enter(track.number, track)
        self.hear([Closed(np.array([(track.number, position)])) for track in saved for position in track.closed])

    def copy(self) -> Delivered:
        """Another one, which knows the same."""
        self._settle()
        if self._left.has_grown:
            self._forget_delivered()
        made = Delivered()
        made.refused, made.bound = self.refused, self.bound
        made._tracks = {number: track.copy() for number, track in self._tracks.items()}
        made._left = self._left.copy()
        return made

    def _enter(self, number: int, saved: SavedTrack) -> None:
        self._tracks[number] = _Track(saved)
        if (left := saved.to_read) is not None:
            self._left.add(number, left)
        around = self._tracks.get(saved.owner.track)
        if around is not None:
            around.open.setdefault(saved.owner.position, set()).add(number)

    def _begin(self, number: int, owner: Owner, step: int) -> None:
        if self._is_open(owner):
            self._enter(number, SavedTrack(owner, step))

    def _hear_step(self, event: Marked | Lying | Keyed | Carried) -> None:
        track = self._tracks.get(event.track)
        if track is None:
            return
        if isinstance(event, Marked):
            track.bases.append((event.position, State(event.mark, 0)))
        elif isinstance(event, Lying):
            track.left_bare = event.bare
            self._left.add(event.track, event.places)
        elif isinstance(event, Keyed):
            track.remember(event.keys)
        else:
            track.carried.extend(zip((event.numbers + 1).tolist(), event.values, strict=True))

    def hear(self, events: Sequence[Event]) -> None:
        """What happened to tracks, before their next rows are fed."""
        self._heard += events
        if len(self._heard) > _SETTLE_EVENTS:
            self._settle()

    def _enter_events(self) -> None:
        heard, self._heard = self._heard, []
        for event in heard:
            match event:
                case Begun(number, owner, step):
                    self._begin(number, owner, step)
                case Ended(number, total):
                    if number in self._tracks:
                        self._tracks[number].total = total
                        self._ended.append(number)
                case Closed(used):
                    number, position = used[-1].tolist()
                    if number in self._tracks:
                        self._tracks[number].closed[position] = used
                        self._closed.append((number, position))
                case Marked() | Lying() | Keyed() | Carried():
                    self._hear_step(event)
                case Dropped(used):
                    self._pending.append(used)
                case Refused() | Bound():
                    self._restrict(event)

    def _restrict(self, event: Refused | Bound) -> None:
        """The first reason counts."""
        if isinstance(event, Refused):
            self.refused = self.refused or event.why
        else:
            self.bound = self.bound or event.why

    def _is_open(self, owner: Owner) -> bool:
        """Whether something of what tracks belong to may be left to deliver.

        Not of what `take` did not need, nor of elements that are made again in front of a state.
        """
        if owner.track == Owner().track:
            return True
        around = self._tracks.get(owner.track)
        return around is not None and not (owner.position != WHOLE and around.has(owner.position))

    def feed(self, used: Rows) -> None:
        """Rows that were used up."""
        self._pending.append(used)
        self._pending_rows += len(used)
        if self._pending_rows > _SETTLE_ROWS:
            self._settle()

    def saved(self, *, in_order: bool = False) -> tuple[SavedTrack, ...]:
        """The tracks for a state: those with something left to deliver, and those of the pipeline itself.

        Args:
            in_order: Whether the state is also a position. From there on, datasets that have ended do not end again.
                What else their elements use up, which are others that were dropped, counts as delivered then.
        """
        self._settle()
        if in_order:
            for track in self._tracks.values():
                self._pending += [used[:-1] for used in track.closed.values()]
            self._settle()
        found = {}
        for number in sorted(self._tracks):
            track = self._tracks[number]
            found[number] = saved = track.saved()
            saved.number, saved.keys = number, track.delivered_keys()
            if in_order and track.closed:
                saved.closed = np.array(sorted(track.closed), np.int64)
        self._begin_later(found)
        return tuple(found.values())

    def _forget_delivered(self) -> None:
        """It is not needed any more where elements lie that were delivered."""
        self._left.forget({number: (track.at, track.later) for number, track in self._tracks.items()})

    def _begin_later(self, saved: Mapping[int, SavedTrack]) -> None:
        """Lets inputs begin behind elements that lie in files, where it is better to read these by themselves."""
        found = []
        for number in self._left.tracks:
            track = self._tracks[number]
            if not track.may_begin_later:
                continue
            places = self._left.undelivered(number, track.at, track.later, track.reach)
            if places is None or (base := track.later_base(positions_of(places))) is None:
                continue
            begin, state, count = base
            elements, lying = begin - track.at, places.between(0, count)
            if track.bases[0][0] > track.at:  # it does not go back to where it began
                self._begin_at(saved[number], begin, state, lying)
            elif are_spread(count, elements):
                found.append((number, begin, state, lying, elements))
        if not found:
            return
        is_worth = worth_reading([lying for *_, lying, _ in found], np.array([elements for *_, elements in found]))
        for (number, begin, state, lying, _), is_better in zip(found, is_worth.tolist(), strict=True):
            if is_better:
                self._begin_at(saved[number], begin, state, lying)

    def _begin_at(self, saved: SavedTrack, begin: int, state: State, lying: Places) -> None:
        saved.begin, saved.state, saved.lying = begin, state, lying.using(None)
        saved.bare = self._tracks[saved.number].left_bare

    def _settle(self) -> None:
        self._enter_events()
        touched, self._ended = self._ended, []
        pending, self._pending, self._pending_rows = self._pending, [], 0
        closed, self._closed = self._closed, []
        touched += self._add([used for used in pending if len(used)])
        for number, position in closed:
            self._close(number, position)
        for number in touched:
            self._end(number)
        for number in self._left.tracks:
            track = self._tracks.get(number)
            self._left.let_go(number, None if track is None else track.at)
        if self._left.rows > _LEFT_ROWS and self._left.has_grown:
            self._forget_delivered()

    def _add(self, parts: Sequence[Rows]) -> list[int]:
        """Enters positions; returns their tracks."""
        if not parts:
            return []
        first, last = min(int(used[:, 0].min()) for used in parts), max(int(used[:, 0].max()) for used in parts)
        if last - first >> _TRACK_BITS:
            near = [used[used[:, 0] <= first + (1 << _TRACK_BITS - 1)] for used in parts]
            far = [used[used[:, 0] > first + (1 << _TRACK_BITS - 1)] for used in parts]
            return [number for each in (near, far) for number in self._add([used for used in each if len(used)])]
        # Both in one number, which sorts in a fraction of the time; part by part, so that little memory is touched.
        keys = np.empty(sum(map(len, parts)), np.int64)
        stop = 0
        for used in parts:
            start, stop = stop, stop + len(used)
            np.subtract(used[:, 0], first, out=keys[start:stop])
            keys[start:stop] <<= _POSITION_BITS
            keys[start:stop] += used[:, 1]
        keys.sort()
        found = []
        stop = 0
        while stop < len(keys):
            start, track = stop, int(keys[stop]) >> _POSITION_BITS
            stop = start + int(keys[start:].searchsorted(track + 1 << _POSITION_BITS))
            if (known := self._tracks.get(first + track)) is not None:
                known.add(keys[start:stop] & ((1 << _POSITION_BITS) - 1))
                found.append(first + track)
        return found

    def _end(self, number: int) -> None:
        """What a track that has nothing left means for the element that it belongs to."""
        track = self._tracks.get(number)
        if track is not None and track.is_complete:
            self._forget_inside(track)
            self._close(track.owner.track, track.owner.position)

    def _close(self, number: int, position: int) -> None:
        """Counts an element as delivered if all its datasets are, and lets their tracks go."""
        track = self._tracks.get(number)
        # What belongs to the pipeline stays, because a state must say that it has ended.
        if track is None or position not in track.closed:
            return
        inner = track.open.get(position, set())
        if all(self._tracks[each].is_complete for each in inner):
            for each in inner:
                self._forget_inside(self._tracks.pop(each))
            track.open.pop(position, None)
            for each in self._add([track.closed.pop(position)]):
                self._end(each)

    def _forget_inside(self, track: _Track) -> None:
        for numbers in track.open.values():
            for number in numbers:
                self._forget_inside(self._tracks.pop(number))
        track.open.clear()
