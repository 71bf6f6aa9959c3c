"""Random draws as a pure function of key and position."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.runtime.randomness import below, permutation, stage_key, words

WORDS = st.integers(0, 2**64 - 1) | st.integers(2**64 - 3000, 2**64 - 1)
KEYS = st.tuples(WORDS, WORDS)


@given(KEYS, st.integers(0, 2**62), st.integers(0, 50), st.integers(0, 50))
def test_a_draw_depends_on_its_position_alone(key: tuple[int, int], start: int, before: int, count: int) -> None:
    """However draws are cut into calls, the word at a position is the same."""
    whole = words(key, start, before + count)
    assert words(key, start + before, count).tolist() == whole[before:].tolist()
    assert words(key, start, before).tolist() == whole[:before].tolist()


def test_the_words_stay_what_they_were() -> None:
    """Orders that users have seen stay: the words are those of Philox4x64-10, by position."""
    assert words((1, 2), 0, 3).tolist() == np.random.Philox(key=[1, 2], counter=0).random_raw(3).tolist()
    assert words((1, 2), 5, 1).tolist() == np.random.Philox(key=[1, 2], counter=0).random_raw(6)[5:].tolist()
    assert stage_key(7, "3", (0,)) == (2599979023183953082, 12918008521432771580)


@given(KEYS, st.lists(st.integers(1, 2**40), max_size=30), st.integers(0, 1000))
def test_draws_stay_below_their_bounds(key: tuple[int, int], bounds: list[int], start: int) -> None:
    """Every draw lies below its own bound, and depends on it and its position alone."""
    drawn = below(key, start, np.array(bounds, np.int64))
    assert all(0 <= value < bound for value, bound in zip(drawn.tolist(), bounds, strict=True))
    for i, bound in enumerate(bounds):
        assert below(key, start + i, np.array([bound]))[0] == drawn[i]


@given(KEYS, st.integers(0, 200))
def test_a_permutation_has_every_number_once(key: tuple[int, int], count: int) -> None:
    """Nothing is lost or doubled."""
    assert sorted(permutation(key, count).tolist()) == list(range(count))


def test_permutations_are_uniform() -> None:
    """All orders of four are equally frequent (chi-square, 23 degrees, 0.999 quantile)."""
    counts: dict[tuple[int, ...], int] = {}
    for key in range(2400):
        order = tuple(permutation((key, 0), 4).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 49.7


def test_keys_differ_by_seed_stage_and_epoch() -> None:
    """Each part of the key matters, and where one ends and the next begins."""
    keys = {
        stage_key(seed, stage, epoch)
        for seed in (0, 1, -1, 2**70)
        for stage in ("1", "2", "1.1")
        for epoch in ((), (0,), (1,), (0, 0))
    }
    assert len(keys) == 4 * 3 * 4
