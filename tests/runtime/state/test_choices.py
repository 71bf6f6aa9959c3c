"""Choices of stages: packed and back, and repeated run by run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import StateError
from asyncdata.runtime.state.choices import AllChoices, Choices, pack, unpack

RUNS = st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(1, 1 << 40)), min_size=1)


@given(RUNS)
def test_runs_survive_packing(runs: list[tuple[int, int]]) -> None:
    """Whatever the numbers are."""
    assert unpack(pack(np.array(runs, np.int64))).tolist() == [list(run) for run in runs]


@given(RUNS, st.data())
def test_damage_is_an_error_or_runs(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    """Of one kind; never rows that do not exist."""
    packed = bytearray(pack(np.array(runs, np.int64)))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    try:
        found = unpack(bytes(packed))
    except StateError:
        return
    assert (found[:, 0] >= 0).all()
    assert (found[:, 1] > 0).all()


def test_runs_are_few_bytes() -> None:
    """Neighbours cost two bytes a run."""
    runs = np.stack((np.arange(1000) % 7 + 10**9, np.full(1000, 3)), axis=1)
    assert len(pack(runs[1:])) < 4 * 1000 + 1000 + 16
    assert len(pack(runs[1:] - [10**9, 0])) == 2 * 999 + 6


def test_runs_are_taken_in_parts() -> None:
    """A map's run goes on behind the rows that were taken, an interleave's with the same dataset."""
    recorded = [pack(np.array([(5, 3), (0, 1)])), pack(np.array([(9, 2)]))]
    choices = Choices(1, None, recorded)
    seen = [choices.wanted]
    choices.took(2, on=2)
    seen.append(choices.wanted)
    choices.took(1, on=1)
    seen.append(choices.wanted)
    choices.took(1)
    choices.took(1)
    seen.append(choices.wanted)
    choices.took(1)
    assert [*seen, choices.wanted] == [(5, 3), (7, 1), (0, 1), (9, 1), None]


def test_stages_are_told_apart() -> None:
    """By what is known of them, and equal ones by the order in which they are made; the same in every run."""
    numbers = []
    for _ in range(2):
        known = AllChoices(notes=True, recorded=None)
        for key in ((0, 1), (0, 2), (0, 1)):
            choices = known.begin(key, is_needed=True)
            assert choices is not None
            choices.note([(0, 1)])
        numbers.append([chosen.stage for chosen in known.take()])
        assert known.take() == ()
    assert numbers[0] == numbers[1]
    assert len(set(numbers[0])) == 3


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_stage_that_is_not_in_the_log(is_needed: bool) -> None:
    """It is at its end where it has a choice, and keeps the order where it has none."""
    choices = AllChoices(notes=False, recorded={}).begin((0,), is_needed=is_needed)
    assert (choices is not None and choices.repeats and choices.wanted is None) == is_needed
