from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from asyncdata.memory.ragged import RaggedArray
from asyncdata.preprocessing.moments import Moments, Normalization
from asyncdata.preprocessing.normalize import Normalize
from tests.samples import samples

VALUES = st.floats(-1e6, 1e6) | st.just(np.nan)


def merged(parts: list[Moments], tree: int) -> Moments:
    """The parts merged from the left, from the right, or in halves."""
    if tree == 0 or len(parts) < 3:
        return functools.reduce(Moments.merged, parts)
    if tree == 1:
        return parts[0].merged(merged(parts[1:], tree))
    half = len(parts) // 2
    return merged(parts[:half], tree).merged(merged(parts[half:], tree))


@settings(max_examples=samples(40, 1000), deadline=None)
@given(
    batches=st.lists(
        st.integers(1, 5).flatmap(lambda n: arrays.arrays(np.float64, (n, 2, 3), elements=VALUES)),
        min_size=1,
        max_size=6,
    ),
    axis=st.sampled_from([-1, None, (-2, -1), -2]),
    tree=st.integers(0, 2),
)
def test_batches_and_merges_do_not_matter(batches: list[Any], axis: Any, tree: int) -> None:
    """However data is cut into batches and merged: numpy's mean and variance of all that is not NaN."""
    learner = Normalization(axis)
    found = merged([learner.summary(batch) for batch in batches], tree)
    data = np.concatenate(batches)
    over = tuple(place for place in range(3) if place - 3 not in learner.axis)
    known = ~np.isnan(data)
    if not known.any(axis=over).all():
        with pytest.raises(ValueError, match="every value is missing"):
            learner.learned(found)
        return
    function = learner.learned(found)
    np.testing.assert_allclose(function.mean, np.nanmean(data, axis=over), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(function.variance, np.nanvar(data, axis=over), rtol=1e-7, atol=1e-4)


def test_a_large_mean_costs_no_precision() -> None:
    """Differences of one around a billion keep their variance."""
    learner = Normalization(None)
    parts = [learner.summary(np.array([1e9, 1e9 + 2])) for _ in range(1000)]
    assert learner.learned(merged(parts, 0)).variance == pytest.approx(1)


def test_large_batches_are_summarized_in_parts() -> None:
    """Of any shape: rows that are longer than a part, one number, no row."""
    for shape in ((700_000,), (3, 400_000), (2, 600, 700), (1,), ()):
        data = np.random.default_rng(1).normal(3, 2, shape)
        learner = Normalization(None)
        function = learner.learned(learner.summary(data))
        np.testing.assert_allclose([function.mean, function.variance], [data.mean(), data.var()], rtol=1e-9)
    assert Normalization().summary(np.zeros((0, 3))).count.tolist() == [0, 0, 0]
    nothing = Normalization().summary(np.zeros((0, 3))).merged(Normalization().summary(np.ones((2, 3))))
    assert Normalization().learned(nothing).mean.tolist() == [1, 1, 1]


def test_a_value_and_its_batch_give_the_same() -> None:
    """Axes from the end mean the same with and without the batch axis, and in the rows of a RaggedArray."""
    function = Normalize([1.0, 2.0], [4.0, 9.0])
    batch = np.array([[3, 5], [1, 2], [5, 8]], np.uint8)
    expected = [[1, 1], [0, 0], [2, 2]]
    assert function(batch).tolist() == expected
    assert [function(value).tolist() for value in batch] == expected
    assert Normalization().summary(RaggedArray(batch, np.array([0, 2, 3]))).mean.tolist() == [3, 5]
    rows = RaggedArray(batch, np.array([0, 2, 3]))
    assert function(rows).to_list() == [expected[:2], expected[2:]]
    assert Normalize(1.0, 0.0)(2).item() == pytest.approx(1e7)
    assert Normalize(0.0, 1.0)([1e300, -1e300]).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Normalization(0), "counts from the end"),
        (lambda: Normalization((-1, -1)), "counts from the end"),
        (lambda: Normalization().summary(np.ones(5)), "batch"),
        (lambda: Normalization().summary(np.float32(5)), "batch"),
        (lambda: Normalization(None).summary(np.array(["a"])), "numbers are needed"),
        (lambda: Normalize([1.0], [1.0, 2.0]), "one axis per kept axis"),
        (lambda: Normalize(np.nan, 1.0), "finite"),
        (lambda: Normalize(0.0, 1e39), "finite in float32"),
        (lambda: Normalization(None).learned(Normalization(None).summary([1e30, 2e30])), "scale very large numbers"),
        (lambda: Normalize(0.0, -1.0), "not negative"),
        (lambda: Normalize([0.0, 1.0], [1.0, 1.0])([[1, 2, 3]]), "length 2"),
        (lambda: Normalize([0.0, 1.0], [1.0, 1.0])(RaggedArray.from_rows([[3.0], [1.0]])), "is ragged"),
        (lambda: Normalization(None).learned(Normalization(None).summary(np.array([np.inf, 1]))), "infinite"),
        (lambda: Normalization().summary(np.ones((2, 3))).merged(Normalization().summary(np.ones((2, 4)))), "differ"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Any, message: str) -> None:
    """The message says what to do."""
    with pytest.raises((TypeError, ValueError), match=message), np.errstate(invalid="ignore"):
        call()
