"""`Delivered` against sets: what a state says of tracks, however rows arrive."""

from __future__ import annotations

import random

import numpy as np
import pytest

from asyncdata.memory.advance import State
from asyncdata.memory.used import Used
from asyncdata.runtime.state import delivered as delivered_module
from asyncdata.runtime.state import left_in_files
from asyncdata.runtime.state.delivered import Delivered
from asyncdata.runtime.state.json_codec import from_json, to_json
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.tracks import (
    KEY_BYTES,
    Begun,
    Closed,
    Dropped,
    Ended,
    Lying,
    Marked,
    Owner,
    Refused,
    SavedTrack,
    Tracks,
    from_saved,
    to_saved,
)
from tests.samples import samples


def used(*pairs: tuple[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(pairs, np.int64).reshape(-1, 2)


def positions(track: SavedTrack) -> set[int]:
    return {*range(track.at), *track.later.tolist()}


@pytest.mark.parametrize("seed", range(samples(20, 1000)))
def test_positions_in_any_order(seed: int) -> None:
    """In parts of any size, with copies in between; the base is the last mark in front of what is missing."""
    draw = random.Random(seed)
    total = draw.randint(1, 60)
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), *(Marked(0, row, f"mark {row}") for row in range(7, total, 7))])
    order = list(range(total))
    draw.shuffle(order)
    while order:
        count = draw.randint(1, 20)
        part, order = order[:count], order[count:]
        delivered.feed(used(*((0, row) for row in part)))
        if draw.random() < 0.5:
            copied = delivered.copy()
            delivered.feed(used())
            delivered = copied
        (track,) = delivered.saved()
        assert positions(track) == set(range(total)) - set(order)
        base = max([0, *(row for row in range(7, total, 7) if row <= track.at)])
        assert track.state == State(f"mark {base}" if base else None, track.at - base)


def lying(track: int, first: int, last: int, nbytes: int = 100) -> Lying:
    """Elements of one file, as many bytes each, whose numbers there are twice their positions."""
    rows = np.arange(first, last)
    origin = np.column_stack((np.full(len(rows), 5), 2 * rows, np.zeros(len(rows), np.int64), 2 * nbytes * rows))
    pairs = np.column_stack((np.full(len(rows), track), rows))
    return Lying(track, Places(origin, np.full(len(rows), nbytes), lambda _: "v", Used(pairs)), bare=True)


@pytest.mark.parametrize("seed", range(samples(30, 2000)))
def test_what_lies_in_files_is_all_that_is_missing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In front of the place where the input goes on, through states of states; some elements lie nowhere."""
    monkeypatch.setattr(left_in_files, "_DENSE", 0)
    monkeypatch.setattr(left_in_files, "_REQUEST_BYTES", 0)
    monkeypatch.setattr(delivered_module, "_SETTLE_ROWS", 20)
    draw = random.Random(seed)
    sources = [_Source(number, draw) for number in sorted(draw.sample([3, 4, 70, 2**45], draw.randint(1, 4)))]
    delivered = Delivered()
    delivered.hear([Begun(source.number, Owner(), source.number) for source in sources])
    while any(source.left for source in sources):
        for source in sources:
            source.read_on(delivered, draw)
        part = [pair for source in sources for pair in source.deliver(draw)]
        delivered.feed(used(*draw.sample(part, len(part))))
        saved = from_saved(from_json(to_json(to_saved(delivered.copy().saved()))))
        assert [track.number for track in saved] == [source.number for source in sources]
        for source, track in zip(sources, saved, strict=True):
            source.check(track)
        if draw.random() < 0.3:
            # Another pipeline begins there; it reads again what was behind.
            delivered = Delivered(saved)
            for source, track in zip(sources, saved, strict=True):
                source.begin_at(track)


class _Source:
    """A track of some elements, one of which may lie nowhere."""

    def __init__(self, number: int, draw: random.Random) -> None:
        self.number = number
        self.total = draw.randint(1, 90)
        self.nowhere = draw.choice([self.total, draw.randrange(self.total)])
        self.left = set(range(self.total))
        self.read = 0
        self.bases = {0}
        self.lying: set[int] = set()

    def read_on(self, delivered: Delivered, draw: random.Random) -> None:
        for _ in range(draw.randint(0, 3)):
            count = min(draw.randint(1, 12), self.total - self.read)
            if draw.random() < 0.4:
                delivered.hear([Marked(self.number, self.read, f"mark {self.read}")])
                self.bases.add(self.read)
            if count and not self.read <= self.nowhere < self.read + count:
                delivered.hear([lying(self.number, self.read, self.read + count)])
                self.lying |= {*range(self.read, self.read + count)}
            self.read += count
            if not count:
                delivered.hear([Ended(self.number, self.total)])
                self.bases.add(self.total)

    def deliver(self, draw: random.Random) -> list[tuple[int, int]]:
        known = [position for position in self.left if position < self.read]
        part = draw.sample(known, draw.randint(0, min(len(known), 12)))
        self.left -= set(part)
        return [(self.number, position) for position in part]

    def begin_at(self, track: SavedTrack) -> None:
        self.read = track.first
        self.bases = {track.first} | ({track.total} if track.total is not None else set())
        self.lying = set(track.missing.tolist())

    def check(self, track: SavedTrack) -> None:
        assert positions(track) == set(range(self.total)) - self.left
        last = max([track.at, *track.later.tolist()])
        behind = sorted(base for base in self.bases if base > last)[:1]
        between = sorted((base for base in self.bases if track.at < base <= last), reverse=True)
        bases = [base for base in behind + between if {n for n in self.left if n < base} <= self.lying]
        assert track.first == (bases or [track.at])[0]
        missing = [position for position in sorted(self.left) if position < track.first]
        assert track.missing.tolist() == missing
        assert (track.lying is not None) == bool(missing)
        if track.lying is not None:
            assert track.lying.origin[:, 1].tolist() == [2 * position for position in missing]
            assert track.state == State(None if track.first == track.total else f"mark {track.first}", 0)


def test_elements_that_lie_close_together_are_read_on() -> None:
    """Where nearly all of them are missing, or where they are few bytes."""
    for nbytes, missing, is_lying in [(100, 2, False), (5000, 2, True), (5000, 90, False)]:
        delivered = Delivered()
        delivered.hear([Begun(0, Owner(), 0), lying(0, 0, 100, nbytes), Ended(0, 100)])
        delivered.feed(used(*((0, position) for position in range(100) if not 5 < position <= 5 + missing)))
        (track,) = delivered.saved()
        assert (track.lying is not None) is is_lying


def test_elements_behind_those_that_were_delivered_are_read_on() -> None:
    """If none of them overtook another one, the input's own state says all, however much was read ahead."""
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), lying(0, 0, 100, 5000), Marked(0, 90, "mark"), Ended(0, 100)])
    delivered.feed(used(*((0, position) for position in range(60))))
    (track,) = delivered.saved()
    assert (track.at, track.lying, track.state) == (60, None, State(None, 60))


def test_where_delivered_elements_lie_is_forgotten() -> None:
    """Without a state: whole blocks at once, and what is left of others when they have become many."""
    rows, delivered = 3 * delivered_module._LEFT_ROWS, Delivered()
    delivered.hear([Begun(0, Owner(), 0)])
    for first in range(0, rows, 4096):
        delivered.hear([lying(0, first, first + 4096)])
        # One in 4096 is late.
        delivered.feed(used(*((0, first + row) for row in range(1, 4096))))
    assert delivered._left.rows < rows // 2
    delivered.feed(used(*((0, row) for row in range(0, rows, 4096))))
    (track,) = delivered.saved()
    assert (track.at, track.lying, delivered._left.rows) == (rows, None, 0)


def test_an_element_is_delivered_with_its_datasets() -> None:
    """Not before all of their elements are, even if they have ended."""
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), Begun(1, Owner(0, 0), 0), Begun(2, Owner(0, 1), 0), Ended(1, 2)])
    delivered.hear([Closed(used((0, 0))), Closed(used((0, 1)))])
    delivered.feed(used((1, 1), (2, 0)))
    assert [positions(track) for track in delivered.saved()] == [set(), {1}, {0}]
    delivered.feed(used((1, 0)))
    outer, inner = delivered.saved()
    assert (positions(outer), inner.owner) == ({0}, Owner(0, 1))
    delivered.hear([Ended(2, 1)])
    (outer,) = delivered.saved()
    assert positions(outer) == {0, 1}


def test_a_dataset_waits_for_its_element() -> None:
    """It may be complete long before the element has no more datasets."""
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), Begun(1, Owner(0, 0), 0), Ended(1, 1)])
    delivered.feed(used((1, 0)))
    assert len(delivered.saved()) == 2
    delivered.hear([Closed(used((0, 0)))])
    assert [positions(track) for track in delivered.saved()] == [{0}]


def test_what_is_over_takes_everything_inside_along() -> None:
    """Behind `take` nothing is left to deliver of what it did not take; the pipeline's own tracks say so."""
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), Begun(1, Owner(0), 1), Begun(2, Owner(1, 5), 0), Ended(0, 2)])
    delivered.feed(used((0, 0), (1, 3), (0, 1), (2, 8)))
    (track,) = delivered.saved()
    assert (track.at, track.total) == (2, 2)
    delivered.hear([Begun(3, Owner(1, 9), 0), Marked(2, 1, "late"), Ended(1, 3)])
    delivered.feed(used((3, 1)))
    assert len(delivered.saved()) == 1


def test_a_state_goes_on_in_the_next_life() -> None:
    """Tracks keep their numbers, because rows of buffers name them."""
    delivered = Delivered()
    delivered.hear([Begun(4, Owner(), 0), Begun(9, Owner(4, 3), 1), Marked(9, 2, {"at": 2})])
    delivered.feed(used((9, 0), (9, 1), (9, 3), (4, 0)))
    value = to_saved(delivered.saved())
    saved = from_saved(from_json(to_json(value)))
    assert [(track.number, track.owner) for track in saved] == [(4, Owner()), (9, Owner(4, 3))]
    again = Delivered(saved)
    again.feed(used((9, 2)))
    assert [track.at for track in again.saved()] == [1, 4]
    assert again.saved()[1].state == State({"at": 2}, 2)
    tracks = Tracks(saved)
    assert [tracks.begin(Owner(4, position), 1).number for position in (3, 5)] == [9, 10]


def test_keys_of_earlier_versions_are_known_by_their_beginnings() -> None:
    """They had 16 bytes; as many as are kept now are compared."""
    keys = np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, (3, 2))
    track = SavedTrack(Owner(), 0, 3, np.empty(0, np.int64), None, State(None, 0), keys)
    value = to_saved([track])
    assert value["keys"]["0"].nbytes == 3 * KEY_BYTES
    (now,) = from_saved(from_json(to_json(value)))
    assert now.keys.view(np.uint8).reshape(3, 16)[:, :KEY_BYTES].tobytes() == value["keys"]["0"].tobytes()
    assert not now.keys.view(np.uint8).reshape(3, 16)[:, KEY_BYTES:].any()
    value["keys"]["0"] = keys.ravel()
    (before,) = from_saved(value)
    assert (before.keys == now.keys).all()
    for damaged in (keys.ravel()[:-1], keys.ravel().view(np.uint8)):
        value["keys"]["0"] = damaged
        with pytest.raises(ValueError, match="keys"):
            from_saved(value)


def test_what_is_left_in_a_buffer_completes_its_element() -> None:
    """The dataset has ended before the state, and does not end again behind a position."""
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), Begun(3, Owner(0, 2), 0), Ended(3, 3), Closed(used((0, 1), (0, 2)))])
    delivered.feed(used((3, 0), (3, 2)))
    saved = from_saved(from_json(to_json(to_saved(delivered.saved(in_order=True)))))
    assert [track.closed.tolist() for track in saved] == [[2], []]
    again = Delivered(saved)
    assert [positions(track) for track in again.saved()] == [{1}, {0, 2}]
    again.feed(used((3, 1)))
    assert [positions(track) for track in again.saved()] == [{1, 2}]
    # A state that is no position makes the dataset again, which ends then.
    assert [len(track.closed) for track in delivered.saved()] == [0, 0]


def test_tracks_may_be_far_apart() -> None:
    """Numbers grow as long as a pipeline runs, however often it is resumed."""
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), Begun(1 << 40, Owner(), 1)])
    delivered.feed(used((1 << 40, 1), (0, 0), (1 << 40, 3), (0, 7), (1 << 40, 0)))
    assert [positions(track) for track in delivered.saved()] == [{0, 7}, {0, 1, 3}]


def test_the_first_refusal_counts() -> None:
    """It names a step."""
    delivered = Delivered()
    delivered.hear([Refused("one"), Refused("two")])
    assert delivered.copy().refused == "one"


def test_what_an_element_uses_up_waits_with_it() -> None:
    """Such as its number among those that `take` has let pass."""
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), Begun(1, Owner(0), 1), Begun(2, Owner(1, 7), 0), Ended(2, 2)])
    delivered.hear([Closed(used((0, 4), (1, 7)))])
    delivered.feed(used((2, 0)))
    assert [positions(track) for track in delivered.saved()] == [set(), set(), {0}]
    delivered.feed(used((2, 1)))
    assert [positions(track) for track in delivered.saved()] == [{4}, {7}]


def test_what_is_dropped_is_not_delivered_again() -> None:
    """Nothing was made of it."""
    delivered = Delivered()
    delivered.hear([Begun(0, Owner(), 0), Dropped(used((0, 0), (0, 2)))])
    assert [positions(track) for track in delivered.saved()] == [{0, 2}]
