"""Integers that no type of 64 bits holds together are not rounded: they stay what they are, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncdata as ad

LARGE = [2**63 + 1, -1]


def _elements(*rows: Any) -> ad.Dataset:
    return ad.Dataset.from_generator(lambda: iter(rows))


@pytest.mark.parametrize(
    ("ds", "expected"),
    [
        (ad.Dataset.from_tensor_slices(LARGE), LARGE),
        (ad.Dataset.from_tensors(LARGE), [LARGE]),
        (ad.Dataset.from_tensors(([1, 2], LARGE)).map(lambda _, large: large), [LARGE]),
        (_elements(LARGE).unbatch(), LARGE),
        (_elements(LARGE, [1, 2]).rebatch(1), [[2**63 + 1], [-1], [1], [2]]),
        (ad.Dataset.range(1).map(lambda _: LARGE), [LARGE]),
        (ad.Dataset.range(1).map(lambda _: LARGE).unbatch(), LARGE),
        (ad.Dataset.from_tensor_slices([LARGE, LARGE]).map(list), [LARGE, LARGE]),
    ],
)
def test_they_stay_exact(ds: ad.Dataset, expected: list[Any]) -> None:
    """As Python's or NumPy's integers."""
    found = [element.tolist() if isinstance(element, np.ndarray) else element for element in ds]
    assert found == expected


@pytest.mark.parametrize(
    "ds",
    [
        _elements(LARGE, LARGE).batch(2),
        _elements(*LARGE).batch(2),
        _elements(LARGE, [1]).padded_batch(2),
        _elements(*LARGE).padded_batch(2),
        _elements(LARGE, [1]).ragged_batch(2),
        ad.Dataset.range(2).map(lambda _: LARGE).batch(2),
        ad.Dataset.range(2).map(lambda number: LARGE[number]).batch(2),
        ad.Dataset.range(2).map(lambda _: [np.array(LARGE[:1], np.uint64), np.array(LARGE[1:])]).batch(2),
    ],
)
def test_they_are_no_batch(ds: ad.Dataset) -> None:
    """No array has a type for them."""
    with pytest.raises(ad.UnbatchableError):
        list(ds)


def test_floats_beside_integers_are_floats() -> None:
    """As NumPy has it, whatever it rounds: that is what was asked for."""
    (batch,) = _elements([2**60 + 1, 0.5]).batch(1)
    assert batch.dtype == np.float64
    assert list(ad.Dataset.from_tensor_slices([])) == []
