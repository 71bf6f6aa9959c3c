from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import asyncdata as ad
from asyncdata.preprocessing.quantile_sketch import QuantileSketch
from asyncdata.preprocessing.quantiles import Quantiles
from tests.samples import samples


def sketches(data: Any, epsilon: float, cuts: list[int]) -> list[QuantileSketch]:
    """A sketch of each part of the data."""
    parts = []
    for values in np.split(data, sorted(cut % (len(data) + 1) for cut in cuts)):
        sketch = QuantileSketch(epsilon)
        sketch.add(values)
        parts.append(pickle.loads(pickle.dumps(sketch)))
    return parts


def merged(parts: list[QuantileSketch], *, halves: bool) -> QuantileSketch:
    """The parts merged from the left, or in halves."""
    if halves and len(parts) > 2:
        half = len(parts) // 2
        return merged(parts[:half], halves=halves).merged(merged(parts[half:], halves=halves))
    return functools.reduce(QuantileSketch.merged, parts)


@settings(max_examples=samples(40, 1000), deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    count=st.integers(1, samples(20_000, 300_000)),
    order=st.sampled_from(["random", "rising", "falling", "few", "waves"]),
    epsilon=st.sampled_from([0.3, 0.1, 0.02]),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=30),
    halves=st.booleans(),
    bins=st.integers(2, 12),
)
def test_ranks_are_within_epsilon(
    seed: int, count: int, order: str, epsilon: float, cuts: list[int], halves: bool, bins: int
) -> None:
    """Whatever the order of the numbers, however cut and merged: ranks are off by epsilon at most."""
    drawn = np.random.default_rng(seed).normal(size=count)
    data = {
        "random": drawn,
        "rising": np.sort(drawn),
        "falling": np.sort(drawn)[::-1],
        "few": np.round(drawn),
        "waves": np.sort(drawn).reshape(-1, 2).T.ravel() if count % 2 == 0 else drawn,
    }[order]
    found = merged(sketches(data, epsilon, cuts), halves=halves)
    assert found.count == count
    boundaries = Quantiles(bins, epsilon=epsilon).learned(found).boundaries
    ranks = np.arange(1, bins) / bins
    data = np.sort(data)
    if count < bins:
        assert boundaries == data[:-1].tolist()
        return
    # A number has all ranks from that of the value below it to that of the value above it.
    below, above = np.searchsorted(data, boundaries, "left") - 1, np.searchsorted(data, boundaries, "right") + 1
    assert (below / count <= ranks + epsilon).all()
    assert (above / count >= ranks - epsilon).all()
    held, _ = found.weighted()
    assert len(held) <= found.capacity * (2 + np.log2(1 + count / found.capacity))


class Searched(list[Any]):
    """A list that counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        return super().__iter__()


def test_single_numbers_cost_as_much_as_the_last_one() -> None:
    """What is there already is not gone through again for each; a missing one leaves nothing."""
    sketch = QuantileSketch(0.1)
    level = sketch._levels[0] = Searched()
    for number in range(sketch.capacity // 2):
        one = QuantileSketch(0.1)
        one.add(np.array([number]))
        sketch = sketch.merged(one)
        sketch.add(np.array([np.nan]))
        sketch.add(np.array([number]))
    assert (level.times, len(level)) == (0, sketch.capacity)


@settings(max_examples=samples(40, 1000), deadline=None)
@given(
    values=arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6) | st.just(np.nan)),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    bins=st.integers(1, 8),
)
def test_few_numbers_are_exact(values: Any, cuts: list[int], bins: int) -> None:
    """Up to the capacity every cut and merge gives the same boundaries, and NaN is left out."""
    learner = Quantiles(bins)
    whole = sketches(values, learner.epsilon, [])[0]
    if np.isnan(values).all():
        with pytest.raises(ValueError, match="missing"):
            learner.learned(whole)
        return
    parts = merged(sketches(values, learner.epsilon, cuts), halves=True)
    assert learner.learned(parts) == learner.learned(whole)


def test_the_bounds_of_bins() -> None:
    """A boundary belongs to the bin above it; NaN is in the last one; rows of a RaggedArray stay rows."""
    bucketize = ad.Bucketize([0.0, 0.5, 0.5, 2.0])
    assert bucketize([-1, 0, 0.25, 0.5, 2, np.inf, np.nan]).tolist() == [0, 1, 1, 3, 4, 4, 4]
    assert bucketize([-1e300, 1e300]).tolist() == [0, 4]
    assert int(bucketize(7)) == 4
    rows = ad.RaggedArray.from_rows([[0.0], [], [1.0, 2.0]])
    assert bucketize(rows).to_list() == [[1], [], [3, 4]]
    assert ad.Bucketize([1], output_mode="count")(rows).tolist() == [[1, 0], [0, 0], [0, 2]]


@pytest.mark.parametrize("width", [1, 2])
def test_rows_of_arrays_keep_their_shape(width: int) -> None:
    """Bins of what is in rows of a RaggedArray; only rows of numbers can be counted."""
    rows = ad.RaggedArray(np.arange(3.0 * width).reshape(3, width), np.array([0, 2, 3]))
    found = ad.Bucketize([1.5])(rows)
    assert (found.shape, found.dtype) == (rows.shape, np.int32)
    assert found.flat_values.tolist() == (np.asarray(rows.flat_values) >= 1.5).astype(int).tolist()
    with pytest.raises(TypeError, match="rows of numbers"):
        ad.Bucketize([1.5], output_mode="count")(rows)


def test_more_bins_than_numbers_are_kept() -> None:
    """Boundaries go by the ranks of all numbers, of which the sketch keeps some."""
    learner = Quantiles(200, epsilon=0.1)
    boundaries = np.array(learner.learned(learner.summary(np.arange(321.0))).boundaries)
    assert len(boundaries) == 199
    assert np.abs(boundaries / 321 - np.arange(1, 200) / 200).max() <= 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ad.Bucketize([2, 1]), "ascending"),
        (lambda: ad.Bucketize([np.inf]), "finite"),
        (lambda: ad.Bucketize([1e39]), "finite in float32"),
        (lambda: ad.Bucketize(["1"]), "number"),
        (lambda: ad.Bucketize([1], output_mode="tf_idf"), "output_mode"),
        (lambda: ad.Bucketize([1])(["a"]), "numbers are needed"),
        (lambda: Quantiles(0), "bins"),
        (lambda: Quantiles(2, epsilon=0), "epsilon"),
        (lambda: Quantiles(2).learned(Quantiles(2).summary([np.inf, np.inf])), "infinite"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Any, message: str) -> None:
    """The message says what it is about."""
    with pytest.raises((TypeError, ValueError), match=message):
        call()
