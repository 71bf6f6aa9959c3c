"""`InputHistory`: the state in front of a row does not depend on how the rows came."""

from __future__ import annotations

import random

import pytest

from asyncdata.memory.advance import Advance, State
from asyncdata.runtime.state.history import InputHistory


@pytest.mark.parametrize("seed", range(20))
def test_states_in_front_of_rows(seed: int) -> None:
    """Counted from the newest mark before the row, or from where it began; forgetting changes no later answer."""
    rnd = random.Random(seed)
    first = rnd.choice([0, 7])
    begin = State({"at": "begin"}, 3)
    history = InputHistory()
    history.begin(first, begin)
    marked = sorted(rnd.sample(range(first, first + 80), 9))
    at = first
    while at < first + 80:
        count = rnd.randint(1, 9)
        marks = tuple((row - at, {"at": row}) for row in marked if at <= row < at + count)
        history.feed(Advance(count, marks))
        at += count
        row = rnd.randint(first, at)
        known = [mark for mark in marked if mark < row]
        expected = State({"at": known[-1]}, row - known[-1]) if known else State(begin.mark, 3 + row - first)
        assert history.before(row) == expected
        if rnd.random() < 0.3:
            history.forget(row)
            first_known = row
            assert history.before(first_known) == expected
            break
    assert history.rows == at
