"""`split`: the states of N readers of one source become states of M readers.

    element of the source    0 1 2 3 4 5 6 7 8
    of reader, N = 2         0 1 0 1 0 1 0 1 0
    delivered                ■ ■ ■ · ■ · ■ · ·      reader 0 is three elements ahead of 1
    of reader, M = 3         0 1 2 0 1 2 0 1 2      0 begins with 3 and leaves out 6, 1 begins with 7, and 2 with 5

What the readers have delivered is one set of elements of the source, where a track of the input of `shard` is known as
a position, and few later ones; see `asyncdata.runtime.state.tracks`. Datasets that were made of an element, such as the
records of a file, go to the reader that gets the element. Repetitions behind `shard` are divided one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any, Final, NamedTuple

import numpy as np

from asyncdata import arguments
from asyncdata.errors import StateError
from asyncdata.memory.advance import Rows, State
from asyncdata.planner.fingerprint import without_batch_sizes
from asyncdata.planner.sharing import shard_name
from asyncdata.runtime.stages.rows.numbering import rows_before
from asyncdata.runtime.state.document import (
    check,
    naming_damage,
    tracks_from_json,
    tracks_to_json,
    with_checksum,
)
from asyncdata.runtime.state.tracks import NO_POSITIONS, Owner, SavedTrack

_SAME: Final = {"epoch": "epoch ", "unordered": "no fixed order behind ", "division": "an order of "}
"""What must be the same in the states of all readers, beside the steps, and how it is called."""

Epochs = tuple[int, ...]
"""The repetitions around a track, the outermost first."""

_FURTHEST: Final = 1 << 28
"""Elements that one reader may be ahead of another: each of them is a number in memory."""

_BEGUN_ANEW: Final = ("skipped", "position", "state", "tracks", "shards")
"""Parts of a state that those of the new readers do not take over."""


class _Reader(NamedTuple):
    """What one state says.

    Attributes:
        document: The state.
        number: Of the reader.
        tracks: All of them, by number.
        outer: Numbers of those that do not belong to an element of `shard`, by the repetitions around them.
    """

    document: Mapping[str, Any]
    number: int
    tracks: dict[int, SavedTrack]
    outer: dict[Epochs, int]

    def at(self, epochs: Epochs) -> SavedTrack:
        """A track; nothing was delivered of one that has not begun."""
        number = self.outer.get(epochs)
        return SavedTrack(Owner(), len(epochs)) if number is None else self.tracks[number]


def split(states: Sequence[Mapping[str, Any]], new_count: int) -> list[dict[str, Any]]:
    """Makes states for another number of readers, in the middle of an epoch.

    Reader ``i`` of N has iterated a pipeline with ``shard(N, i)``, and each of the new readers, which are M, goes on
    with ``shard(M, j)`` and state number ``j``. Together they deliver every element that was not delivered, once: also
    what shuffle buffers and unfinished batches held. Batches may have another size.

    Behind `shard` there may be `map`, `filter`, `interleave`, `flat_map`, `shuffle`, `repeat`, `batch`,
    `padded_batch`, `ragged_batch`, `ignore_errors` and `prefetch`; in front of it any steps that have one order for all
    readers. A single reader has ``shard(1, 0)``.

    The counts of `position` and of error policies begin anew. Until the end of the epoch, states of the new readers
    say which elements were delivered, and no order: a resume delivers the others once, in another order.

    Args:
        states: One of each reader, in any order, of the same epoch.
        new_count: M.

    Returns:
        M states; number ``j`` is for the reader with ``shard(M, j)``.

    Raises:
        StateError: The states do not belong together, one is missing or there twice, the pipeline has a step that
            does not allow it, or one reader has finished a repetition that another one has not.

    Example:
        >>> import asyncdata as ad
        >>> def reader(count, index):
        ...     return ad.Dataset.range(12).shard(count, index).shuffle(4, seed=1).batch(2)
        >>> seen, states = [], []
        >>> for index in range(2):
        ...     with reader(2, index).iterator(epoch=0) as it:
        ...         seen += next(it).tolist()
        ...         states.append(it.state_dict())
        >>> for index, state in enumerate(ad.state.split(states, 3)):
        ...     for batch in reader(3, index).iterator(state=state):
        ...         seen += batch.tolist()
        >>> sorted(seen) == list(range(12))
        True
    """
    count = arguments.integer("new_count", new_count, least=1)
    with naming_damage():
        readers = _readers(states)
        common = _common(readers)
        made = []
        for index, tracks in enumerate(_divided(readers, count, int(common["division"]["step"]))):
            own = readers[index % len(readers)].document
            new = {**common, "seed": own["seed"], "drawn": own["drawn"], "position": 0, "state": None}
            new["shards"] = [[count, index]]
            if tracks:
                new["tracks"] = tracks_to_json(tracks)
            made.append(with_checksum(new))
        return made


# --- the states together --------------------------------------------------------------------------------------------


def _readers(states: Sequence[Mapping[str, Any]]) -> list[_Reader]:
    """The readers, in their order, if each of them is there once."""
    found: dict[int, _Reader] = {}
    counts = set()
    for state in states:
        check(state)
        division = state.get("division", {"refused": "it has no shard(...)"})
        if "refused" in division:
            raise StateError(f"states of this pipeline cannot be split: {division['refused']}")
        ((num_shards, index),) = state["shards"]
        if index in found:
            raise StateError(f"two of the states are of {shard_name(num_shards, index)}")
        counts.add(num_shards)
        tracks = {track.number: track for track in tracks_from_json(state)}
        found[index] = _Reader(state, index, tracks, _outer(tracks, division["step"]))
    if len(counts) != 1:
        raise StateError(f"the states are of {' and '.join(map(str, sorted(counts))) or 'no'} readers")
    (count,) = counts
    missing = [shard_name(count, index) for index in range(count) if index not in found]
    if missing:
        raise StateError(f"the state of {', '.join(missing)} is missing")
    return [found[index] for index in range(count)]


def _outer(tracks: Mapping[int, SavedTrack], level: int) -> dict[Epochs, int]:
    epochs: dict[int, Epochs] = {}
    for number, track in tracks.items():
        around = epochs.get(track.owner.track)
        if track.owner.track == Owner().track:
            epochs[number] = ()
        elif around is not None and len(around) < level:
            epochs[number] = (*around, track.owner.position)
    return {around: number for number, around in epochs.items()}


def _common(readers: Sequence[_Reader]) -> dict[str, Any]:
    """What the states have in common, which must be all that decides about elements and their order."""
    first = readers[0].document
    listings: dict[str, Any] = {}
    for reader in readers:
        name = shard_name(len(readers), reader.number)
        document = reader.document
        steps = zip_longest(without_batch_sizes(first["plan"]), without_batch_sizes(document["plan"]))
        unlike = [(one or "no more steps", other or "no more steps") for one, other in steps if one != other]
        for key, what in _SAME.items():
            if document[key] != first[key]:
                unlike.append((f"{what}{first[key]}", f"{what}{document[key]}"))
        if unlike:
            one, other = unlike[0]
            raise StateError(
                f"the states do not belong together: {one} in that of {shard_name(len(readers), 0)}, {other} in that "
                f"of {name}"
            )
        for listing in document.get("listings", ()):
            if listings.setdefault(listing["of"], listing)["digest"] != listing["digest"]:
                raise StateError(
                    f"{name} has begun its epoch with another list of files than a reader before it, so they were not "
                    "readers of one source"
                )
    common = {key: value for key, value in first.items() if key not in _BEGUN_ANEW}
    common["plan"] = without_batch_sizes(first["plan"])
    return {**common, "listings": list(listings.values())} if listings else common


# --- what is left of the source -------------------------------------------------------------------------------------


def _divided(readers: Sequence[_Reader], count: int, level: int) -> list[list[SavedTrack]]:
    """The tracks of the new readers."""
    made: list[list[SavedTrack]] = [[] for _ in range(count)]
    numbers: dict[Epochs, int] = {}
    for number, epochs in enumerate(sorted({key for reader in readers for key in reader.outer}, key=_by_depth)):
        numbers[epochs] = number
        tracks = [reader.at(epochs) for reader in readers]
        owner = Owner(numbers[epochs[:-1]], epochs[-1]) if epochs else Owner()
        if len(epochs) < level:
            _check_repetitions(tracks)
            kept = [tracks[0]] * count
        else:
            first, later = _joined(tracks)
            kept = [_share(tracks, first, later, count, index) for index in range(count)]
        for index, track in enumerate(kept):
            share = SavedTrack(owner, len(epochs), track.at, track.later, track.total, track.state, number=number)
            made[index].append(share)
    for reader in readers:
        _hand_over(reader, len(readers), numbers, made, level)
    return made


def _by_depth(epochs: Epochs) -> tuple[int, Epochs]:
    return len(epochs), epochs


def _check_repetitions(tracks: Sequence[SavedTrack]) -> None:
    for (one, before), (other, behind) in pairwise(enumerate(tracks)):
        if before.at != behind.at or before.later.tolist() != behind.later.tolist():
            ahead, back = (one, other) if before.at > behind.at else (other, one)
            raise StateError(
                f"reader {ahead} has finished a repetition of `repeat` that reader {back} has not: it is not known "
                "which elements of it are left. Put repeat in front of shard, or iterate the dataset once per epoch"
            )


def _joined(tracks: Sequence[SavedTrack]) -> tuple[int, Rows]:
    """The first element of the source that was not delivered, and those behind it that were."""
    count = len(tracks)
    first = min(track.at * count + index for index, track in enumerate(tracks))
    parts = [NO_POSITIONS]
    for index, track in enumerate(tracks):
        begin = -(-(first - index) // count)
        if track.at - begin > _FURTHEST:
            raise StateError(f"one reader is {track.at - begin} elements ahead of another: too many to divide the rest")
        run = np.arange(begin, track.at)
        parts += [positions * count + index for positions in (run, track.later)]
    return first, np.sort(np.concatenate(parts))


def _share(tracks: Sequence[SavedTrack], first: int, later: Rows, count: int, index: int) -> SavedTrack:
    """The track of one of the new readers."""
    at = -(-(first - index) // count)
    mine = later[later % count == index] // count
    in_a_row = mine == np.arange(at, at + len(mine))
    run = len(mine) if in_a_row.all() else int(np.argmin(in_a_row))
    share = SavedTrack(Owner(), 0, at + run, mine[run:], None, State(None, at + run))
    for track in tracks:
        # All of them are of the same input. The furthest mark is the best one.
        skip = share.at - rows_before(track.state.mark, count, index)
        if 0 <= skip < share.state.skip:
            share.state = State(track.state.mark, skip)
    return share


def _hand_over(
    reader: _Reader, count: int, numbers: Mapping[Epochs, int], made: Sequence[list[SavedTrack]], level: int
) -> None:
    """Gives the tracks of elements that were begun to the new readers of these elements."""
    outer = {number: epochs for epochs, number in reader.outer.items()}
    moved: dict[int, tuple[int, int]] = {}
    for number, track in reader.tracks.items():
        if number in outer:
            continue
        owner = track.owner
        if owner.track in outer:
            if len(outer[owner.track]) != level:
                raise StateError("a state is damaged: an element belongs to no reader")
            position, to = divmod(owner.position * count + reader.number, len(made))
            owner = owner._replace(track=numbers[outer[owner.track]], position=position)
        else:
            to, around = moved[owner.track]
            owner = owner._replace(track=around)
        moved[number] = to, len(made[to])
        # Not `closed`: the buffers that held what is left of those datasets are not handed over.
        share = SavedTrack(owner, track.step, track.at, track.later, track.total, track.state, track.keys, track.value)
        share.number = len(made[to])
        share.lying, share.begin, share.bare = track.lying, track.begin, track.bare
        made[to].append(share)
