"""`Positions`: states of the elements that were received last."""

from __future__ import annotations

import contextlib
import random
import sys

import numpy as np
import pytest

from asyncdata.errors import StateError
from asyncdata.memory.advance import Advance, Fold, State
from asyncdata.memory.used import Used
from asyncdata.runtime.consumer.positions import Positions
from asyncdata.runtime.state.tracks import UNTOUCHED, Begun, Ended, Event, Marked, Owner, Saved


def advances(seed: int, rows: int) -> list[Advance]:
    """Rows 0 … rows-1, cut at random, with a mark in front of every fifth."""
    rnd = random.Random(seed)
    made: list[Advance] = []
    at = 0
    while at < rows:
        count = min(rnd.randint(1, 7), rows - at)
        marks = tuple((row, {"at": at + row}) for row in range(count) if (at + row) % 5 == 0)
        made.append(Advance(count, marks))
        at += count
    return made


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_interrupt_in_the_middle_changes_no_state(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes, elements that were received count as received, and no others."""
    feed, armed = Fold.feed, [False]

    def interrupted(self: Fold, advance: Advance) -> None:
        if armed[0] and place == "before":
            raise KeyboardInterrupt
        feed(self, advance)
        if armed[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Fold, "feed", interrupted)
    made = advances(3, 60)
    for count in range(2, len(made)):
        positions, alone = Positions(0, UNTOUCHED, 0), Fold()
        for number, advance in enumerate(made[:count]):
            armed[0] = number == count - 1
            with contextlib.suppress(KeyboardInterrupt):
                positions.receive(advance)
            armed[0] = False
            feed(alone, advance)
        assert positions.at(sum(advance.rows for advance in made[:count])) == (alone.state, True)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kept", [0, 3, 100])
def test_states_of_the_last_elements(seed: int, kept: int) -> None:
    """They are those of one element at a time; older ones are known for as many elements as are kept."""
    positions = Positions(0, UNTOUCHED, kept)
    received = 0
    for advance in advances(seed, 60):
        positions.receive(advance)
        for position in range(max(0, received - kept), received + advance.rows + 1):
            state, ordered = positions.at(position)
            assert ordered
            mark = (position - 1) // 5 * 5
            assert state == (State({"at": mark}, position - mark) if position else State(None, 0))
        received += advance.rows
    assert positions.at(60)[0] == State({"at": 55}, 5)


def test_what_is_not_kept_is_an_error() -> None:
    """The message says what keeps it."""
    positions = Positions(10, Saved(State({"at": 10}, 0)), 2)
    for _ in range(20):
        positions.receive(Advance(1))
    assert positions.at(28)[0] == State({"at": 10}, 18)
    with pytest.raises(StateError, match="state_history"):
        positions.at(12)


def test_what_was_committed_is_kept() -> None:
    """However many elements come after it."""
    positions = Positions(0, UNTOUCHED, 0)
    positions.receive(Advance(3))
    positions.commit(2)
    for _ in range(50):
        positions.receive(Advance(1))
    assert positions.committed == 2
    assert positions.at(2)[0] == State(None, 2)


def test_an_unordered_part_is_told() -> None:
    """Behind it nothing is ordered, in front of it everything."""
    positions = Positions(0, UNTOUCHED, 100)
    positions.receive(Advance(3))
    positions.receive(Advance(3, ordered=False))
    assert [positions.at(position)[1] for position in range(7)] == [True] * 4 + [False] * 3


def calls_of_receiving(advance: Advance, events: list[Event]) -> int:
    """How many functions run for a batch, in the middle of a run."""
    positions = Positions(0, UNTOUCHED, 1, tracked=True)
    positions.receive(Advance(1, ordered=False))
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        positions.receive(advance, events)
    finally:
        sys.setprofile(before)
    return calls


def test_what_happened_to_tracks_is_looked_at_when_a_state_is_asked_for() -> None:
    """A batch is entered by references, however many tracks its elements are of."""
    used = np.array([(number, 0) for number in range(60)], np.int64)
    events: list[Event] = []
    for number in range(60):
        events += [Begun(number, Owner(), number), Marked(number, 0, "mark"), Ended(number, 1)]
    advance = Advance(1, (), Used(used, np.array([60])), ordered=False)
    assert calls_of_receiving(advance, events) == calls_of_receiving(Advance(1, ordered=False), events[:1])
    positions = Positions(0, UNTOUCHED, 1, tracked=True)
    positions.receive(advance, events)
    assert [track.at for track in positions.delivered(0).saved()] == [0] * 60
    assert [track.at for track in positions.delivered(1).saved()] == [1] * 60
