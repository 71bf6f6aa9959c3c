"""`Track`: the elements of one ordered input of an unordered part, each known by its position.

    files ─▶ TrackedStage ─▶ sloppy interleave ─┬─▶ shuffle ─▶ batch ─▶ consumer
             track 0                            │                       positions of track 0 … n that were delivered
             inner dataset ─▶ TrackedStage ─────┘
                              track 1 … n, each of a position of track 0

Rows of the unordered part carry the (track, position) pairs that they use up in their advances, through every stage.
What else must be known beside these pairs are events: a track has begun, here its input may begin again, it has ended,
the dataset of an element has. Events travel with the next delivery, wherever the consumer is.

Steps that count have a track, too: each of their rows uses up a number of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Advance, Mark, Rows, State
from asyncdata.memory.used import Used
from asyncdata.runtime.state.places import Places

WHOLE: Final = -1
"""The position that means all of a track."""


class Owner(NamedTuple):
    """What an input or a step that counts belongs to.

    Attributes:
        track: Number of the track; -1: the pipeline.
        position: The element of the track that an inner dataset or an epoch is made of, or `WHOLE`.
        branches: Inputs of steps with several, on the way from there.
    """

    track: int = -1
    position: int = WHOLE
    branches: tuple[int, ...] = ()

    def branch(self, number: int) -> Owner:
        """That of an input of a step with several."""
        return self._replace(branches=(*self.branches, number))


class Begun(NamedTuple):
    """A track has begun.

    Attributes:
        track: Its number.
        owner: What it belongs to.
        step: Number of its step, see `asyncdata.planner.unordered`.
    """

    track: int
    owner: Owner
    step: int


class Marked(NamedTuple):
    """A track's input can begin at a mark, which is in front of a position."""

    track: int
    position: int
    mark: Mark


class Lying(NamedTuple):
    """The next elements of a track lie in files.

    Attributes:
        track: Its number.
        places: Where, and the position of each, in ascending order.
        bare: Whether nothing is made of them in the dataset that the track is of.
    """

    track: int
    places: Places
    bare: bool


class Ended(NamedTuple):
    """A track has so many elements."""

    track: int
    total: int


class Closed(NamedTuple):
    """An element that datasets were made of gives nothing more.

    Attributes:
        used: What it uses up, its own position last, once all elements of its datasets were delivered.
    """

    used: Rows


class Keyed(NamedTuple):
    """What a step must remember of elements that are delivered.

    Attributes:
        track: Its number.
        keys: ``int64[n, 3]``: the number that the element uses up, and 16 bytes.
    """

    track: int
    keys: Rows


class Carried(NamedTuple):
    """What a step carries from element to element.

    Attributes:
        track: Its number.
        numbers: That elements use up.
        values: Behind each of them.
    """

    track: int
    numbers: Rows
    values: Sequence[Any]


class Dropped(NamedTuple):
    """Elements that nothing was made of."""

    used: Rows


class Refused(NamedTuple):
    """No state can be taken from now on."""

    why: str


class Bound(NamedTuple):
    """What was delivered means nothing to another reader from now on."""

    why: str


Event: TypeAlias = Begun | Marked | Lying | Ended | Closed | Keyed | Carried | Dropped | Refused | Bound

BEGINNING: Final = State(None, 0)

_UNKNOWN: Final = -1
"""For a total."""

NO_POSITIONS: Final = np.empty(0, np.int64)
NO_POSITIONS.flags.writeable = False

KEY_BYTES: Final = 11
"""What states say of a key: 15 letters. Among 10^9 elements two have the same with a chance of 2 in 10^9."""

NO_KEYS: Final = np.empty((0, 2), np.int64)
NO_KEYS.flags.writeable = False


@dataclass(slots=True)
class SavedTrack:
    """A track in a state.

    Attributes:
        owner: What it belongs to.
        step: Number of its step.
        at: The first position that was not delivered.
        later: Positions behind it that were delivered, in ascending order.
        total: How many elements there are, where that was known.
        state: The input's state in front of `at`, or of `begin`; of no meaning where that is the end.
        keys: ``int64[n, 2]``: what the step remembers of the elements that were delivered, `KEY_BYTES` of
            each and zeros.
        value: What it carries behind the last of them; none where it carries nothing.
        closed: Positions, not delivered, whose datasets have ended: what is left of these is in buffers, so that a
            pipeline which begins at a position does not make them again.
        number: Of the track; those of a state keep theirs, because rows of buffers use up elements by number.
        lying: Where in files the first elements lie that were not delivered, in their order.
        begin: The position that `state` is in front of, where it is not `at`: the one behind those in `lying`.
        bare: Of those in `lying`, see `Lying`.
    """

    owner: Owner
    step: int
    at: int = 0
    later: Rows = field(default_factory=lambda: NO_POSITIONS)
    total: int | None = None
    state: State = BEGINNING
    keys: Rows = field(default_factory=lambda: NO_KEYS)
    value: tuple[Any, ...] = ()
    closed: Rows = field(default_factory=lambda: NO_POSITIONS)
    number: int = 0
    lying: Places | None = None
    begin: int | None = None
    bare: bool = False

    @property
    def delivered(self) -> int:
        """How many elements were delivered."""
        return self.at + len(self.later)

    @property
    def first(self) -> int:
        """Position of the element that the input's state is in front of."""
        return self.at if self.begin is None else self.begin

    @property
    def missing(self) -> Rows:
        """Positions of the elements that lie in files: those in front of `first` that were not delivered."""
        return np.setdiff1d(np.arange(self.at, self.first), self.later, assume_unique=True)

    @property
    def to_read(self) -> Places | None:
        """The elements that lie in files, with what each of them uses up."""
        if self.lying is None:
            return None
        positions = self.missing
        return self.lying.using(Used(np.column_stack((np.full(len(positions), self.number, np.int64), positions))))


class Saved(NamedTuple):
    """What a pipeline begins at.

    Attributes:
        state: Of its last step; None where its elements have no fixed order, or at the beginning.
        tracks: What was delivered, where that is tracked.
    """

    state: State | None = None
    tracks: tuple[SavedTrack, ...] = ()

    def running_tracks(self, *, ordered: bool) -> Tracks:
        """The tracks of a pipeline that begins here.

        Args:
            ordered: Whether its elements have a fixed order. If so, they still have it behind a state of the last
                step, which then says alone where every step begins; but not where delivered ones are left out.
        """
        if ordered and self.state is not None:
            begun = [SavedTrack(track.owner, track.step, number=track.number) for track in self.tracks]
            return Tracks(begun, in_order=True)
        return Tracks(self.tracks, in_order=ordered and not self.tracks)


UNTOUCHED: Final = Saved()
"""Nothing was delivered."""


class Track:
    """See the module's docstring. Stage loop only.

    Attributes:
        number: Names it in what rows use up.
        saved: What was delivered before.
        is_restored: Whether a state had it.
        left: Elements that lie in files and are to be read first.
        begun: Positions of which the state had tracks, too.
    """

    def __init__(
        self,
        number: int,
        saved: SavedTrack,
        events: list[Event],
        *,
        is_restored: bool,
        left: Places | None = None,
        begun: Collection[int] = (),
    ) -> None:
        self.number = number
        self.saved = saved
        self.is_restored = is_restored
        self.left = left
        self.begun = begun
        self._ended = False
        self._events = events
        self._free = _free_numbers(saved)

    def begins(self, position: int, mark: Mark) -> None:
        """The input can begin in front of a position."""
        self._events.append(Marked(self.number, position, mark))

    def lies(self, places: Places, *, bare: bool) -> None:
        """The next elements lie in files; says what they use up, too. See `Lying`."""
        self._events.append(Lying(self.number, places, bare))

    def ends(self, total: int) -> None:
        """There are so many elements; said again at every later pull."""
        if not self._ended:
            self._ended = True
            self._events.append(Ended(self.number, total))

    @property
    def is_over(self) -> bool:
        """Whether all of it was delivered before; nothing is known of what it was made of then."""
        return self.saved.delivered == self.saved.total

    def closes(self, position: int) -> None:
        """The datasets of an element have ended."""
        self._events.append(Closed(self.used(np.array([position]))))

    def remembers(self, numbers: Rows, keys: Rows) -> None:
        """What the step must know of the elements that use up these numbers, once they are delivered."""
        if len(numbers):
            self._events.append(Keyed(self.number, np.column_stack((numbers, keys))))

    def carries(self, numbers: Rows, values: Sequence[Any]) -> None:
        """What the step carries behind the elements that use up these numbers."""
        self._events.append(Carried(self.number, numbers, values))

    def was_delivered(self, position: int) -> bool:
        """Whether an element was delivered before."""
        return position < self.saved.at or position in self.saved.later

    def next_numbers(self, count: int) -> Rows:
        """Numbers for the next rows of a step that counts, the lowest that no delivered row has."""
        return np.fromiter(self._free, np.int64, count)

    def used(self, positions: Rows) -> Rows:
        """These positions as pairs, see `asyncdata.memory.used`."""
        pairs = np.empty((len(positions), 2), np.int64)
        pairs[:, 0], pairs[:, 1] = self.number, positions
        return pairs

    def counted(self, advance: Advance, numbers: Rows | None = None) -> Advance:
        """The advance when each row also uses up a number of this track, by default the next ones."""
        chosen = self.next_numbers(advance.rows) if numbers is None else numbers
        return advance.using(self.used(chosen))


def _free_numbers(saved: SavedTrack) -> Iterator[int]:
    taken = set(saved.later.tolist())
    number = saved.at
    while True:
        if number not in taken:
            yield number
        number += 1


class Tracks:
    """The tracks of a running pipeline. Stage loop only.

    Args:
        saved: Those of a state.
        in_order: Whether elements keep the order of their inputs, as far as no step mixes them.

    Attributes:
        in_order: See above.
    """

    def __init__(self, saved: Sequence[SavedTrack] = (), *, in_order: bool = False) -> None:
        self.in_order = in_order
        self._bound = False
        self._saved = {(track.owner, track.step): track for track in saved}
        self._begun: defaultdict[int, set[int]] = defaultdict(set)
        for track in saved:
            self._begun[track.owner.track].add(track.owner.position)
        self._left = {track.number: places for track in saved if (places := track.to_read) is not None}
        self._count = 1 + max((track.number for track in saved), default=-1)
        self._events: list[Event] = []

    def begin(self, owner: Owner, step: int) -> Track:
        """The track of an input, or of a step that counts."""
        known = self._saved.get((owner, step))
        if known is not None:
            left, begun = self._left.get(known.number), self._begun.get(known.number, ())
            return Track(known.number, known, self._events, is_restored=True, left=left, begun=begun)
        number = self._count
        self._count += 1
        self._events.append(Begun(number, owner, step))
        return Track(number, SavedTrack(owner, step), self._events, is_restored=False)

    def take_left(self, owner: Owner, step: int, most: int, *, of_datasets: bool) -> Places | None:
        """Elements that lie in files, for a step that has them in its buffer: their inputs do not read them any more.

        Args:
            owner: Of the track.
            step: Likewise.
            most: So many elements, or fewer.
            of_datasets: Elements not of the track, but of datasets that were made of its elements.
        """
        known = self._saved.get((owner, step))
        if known is None:
            return None
        tracks = [known]
        if of_datasets:
            tracks = [track for track in self._saved.values() if track.owner.track == known.number and track.bare]
            # Inputs that have ended need not be opened if nothing of them is left to be read.
            tracks.sort(key=lambda track: track.first != track.total)
        parts = []
        for number in (track.number for track in tracks if track.number in self._left):
            places = self._left.pop(number)
            if len(places) > most:
                self._left[number] = places.chosen(np.arange(most, len(places)))
                places = places.chosen(np.arange(most))
            parts.append(places)
            most -= len(places)
            if not most:
                break
        return Places.concat(parts) if parts else None

    def close(self, used: Rows) -> None:
        """The dataset of an element that uses these up has ended."""
        self._events.append(Closed(used))

    def drop(self, used: Rows) -> None:
        """Nothing is made of what these are."""
        if len(used):
            self._events.append(Dropped(used))

    def refuse(self, why: str) -> None:
        """No state can be taken from now on."""
        self._events.append(Refused(why))

    def bind(self, why: str) -> None:
        """What is delivered from now on means nothing to another reader; said once."""
        if not self._bound:
            self._bound = True
            self._events.append(Bound(why))

    def take_events(self) -> tuple[Event, ...]:
        """What happened since the last time."""
        if not self._events:
            return ()
        events = tuple(self._events)
        self._events.clear()
        return events


def to_saved(tracks: Sequence[SavedTrack]) -> dict[str, Any]:
    """Data that `from_saved` reads, and that JSON can hold by way of `json_codec`: columns, of which few are long."""
    numbers = [
        (*track.owner[:2], track.step, track.at, _UNKNOWN if track.total is None else track.total, len(track.later))
        for track in tracks
    ]
    return {
        "tracks": np.array([track.number for track in tracks], np.int64),
        "numbers": np.array(numbers, np.int64).ravel(),
        "branches": {str(n): list(track.owner.branches) for n, track in enumerate(tracks) if track.owner.branches},
        "later": np.concatenate([NO_POSITIONS, *(track.later for track in tracks)]),
        "states": [track.state for track in tracks],
        "keys": {str(number): _short(track.keys) for number, track in enumerate(tracks) if len(track.keys)},
        "values": {str(number): track.value for number, track in enumerate(tracks) if track.value},
        "closed": {str(number): track.closed for number, track in enumerate(tracks) if len(track.closed)},
        **_lying_to_saved(tracks),
    }


def _short(keys: Rows) -> npt.NDArray[np.uint8]:
    """Keys without the bytes that are zero."""
    return np.ascontiguousarray(keys).view(np.uint8).reshape(-1, 16)[:, :KEY_BYTES].ravel()


def _whole(keys: npt.NDArray[Any], count: int) -> Rows:
    """The inverse of `_short`; keys of older states had 16 bytes.

    Raises:
        ValueError: They are not those of so many elements.
    """
    whole = np.zeros((count if len(keys) else 0, 16), np.uint8)
    if keys.dtype == np.int64 and keys.shape in {(2 * count,), (0,)}:
        whole[:, :KEY_BYTES] = keys.view(np.uint8).reshape(-1, 16)[:, :KEY_BYTES]
    elif keys.dtype == np.uint8 and keys.shape == (KEY_BYTES * count,):
        whole[:, :KEY_BYTES] = keys.reshape(-1, KEY_BYTES)
    else:
        raise ValueError("the keys of a track")
    return whole.view(np.int64)


def _lying_to_saved(tracks: Sequence[SavedTrack]) -> dict[str, Any]:
    """All elements that lie in files as one table, because each track has few of them."""
    found = [(number, track, track.lying) for number, track in enumerate(tracks) if track.lying is not None]
    if not found:
        return {}
    numbers = [(number, len(places), track.begin, track.bare) for number, track, places in found]
    places = Places.concat([places for *_, places in found])
    return {"lying": {"numbers": np.array(numbers, np.int64).ravel(), "places": places}}


def from_saved(value: Any) -> tuple[SavedTrack, ...]:
    """The tracks of a state.

    Raises:
        KeyError: They are damaged.
        TypeError: They are damaged.
        ValueError: They are damaged.
    """
    numbers, later = np.asarray(value["numbers"]), np.asarray(value["later"])
    states, branches, all_keys = value["states"], value["branches"], value.get("keys", {})
    values, all_closed = (value.get(key, {}) for key in ("values", "closed"))
    if numbers.dtype != np.int64 or later.dtype != np.int64 or numbers.shape != (6 * len(states),):
        raise ValueError("the numbers of tracks")
    own = np.asarray(value["tracks"])
    if own.dtype != np.int64 or own.shape != (len(states),) or (np.diff(own, prepend=-1) <= 0).any():
        raise ValueError("which tracks there are")
    tracks: list[SavedTrack] = []
    known = {Owner().track}
    used = 0
    for number, (row, state) in enumerate(zip(numbers.reshape(-1, 6).tolist(), states, strict=True)):
        track, position, step, at, total, count = row
        behind = later[used : used + max(count, 0)]
        used += len(behind)
        inputs = tuple(branches.get(str(number), ()))
        if track not in known or min(at, step) < 0 or len(behind) != count:
            raise ValueError(f"the numbers of track {number}")
        if (np.diff(behind, prepend=at) <= 0).any() or not all(type(each) is int for each in inputs):
            raise ValueError(f"the positions of track {number}")
        if not isinstance(state, State):
            raise TypeError(f"the state of track {number}")
        keys = _whole(np.asarray(all_keys.get(str(number), NO_POSITIONS)), at + len(behind))
        owner = Owner(track, position, inputs)
        carried = values.get(str(number), ())
        if not isinstance(carried, tuple) or len(carried) > 1:
            raise TypeError(f"the value of track {number}")
        closed = np.asarray(all_closed.get(str(number), NO_POSITIONS))
        if closed.dtype != np.int64 or closed.ndim != 1 or (closed < 0).any():
            raise ValueError(f"the datasets of track {number} that have ended")
        known.add(int(own[number]))
        total_known = None if total == _UNKNOWN else total
        made = SavedTrack(owner, step, at, behind, total_known, state, keys, carried)
        made.closed, made.number = closed, int(own[number])
        tracks.append(made)
    if "lying" in value:
        _lie(tracks, **value["lying"])
    return tuple(tracks)


def _lie(tracks: Sequence[SavedTrack], numbers: Any, places: Any) -> None:
    """Tells tracks which of their elements lie in files: all of those in front of `begin` that were not delivered."""
    table = np.asarray(numbers)
    if not isinstance(places, Places) or table.dtype != np.int64 or table.ndim != 1:
        raise TypeError("where elements of tracks lie")
    row = 0
    for number, count, begin, bare in table.reshape(-1, 4).tolist():
        track = tracks[number]
        missing = begin - track.at - int(np.searchsorted(track.later, begin))
        if number < 0 or missing != count or count < 1 or (track.total is not None and begin > track.total):
            raise ValueError("how many elements of a track lie in files")
        track.lying, track.begin, track.bare = places.between(row, row + count), begin, bool(bare)
        row += count
    if row != len(places):
        raise ValueError("how many elements lie in files")
