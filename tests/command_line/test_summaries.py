"""Summaries of records: exact where they promise it, small whatever is summed up."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.command_line.summaries import FieldSummaries, Sizes


@given(st.lists(st.integers(0, 1 << 50), min_size=1))
def test_sizes(numbers: list[int]) -> None:
    """Minimum and maximum are exact; the median is, to three digits."""
    sizes = Sizes()
    for number in numbers:
        sizes.add(number)
    figures = sizes.figures()
    assert figures is not None
    assert (sizes.count, sizes.total, figures["min"], figures["max"]) == (
        len(numbers),
        sum(numbers),
        min(numbers),
        max(numbers),
    )
    exact = statistics.median_low(numbers)
    assert figures["min"] <= figures["median"] <= figures["max"]
    assert abs(figures["median"] - exact) <= exact / 100


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.int64(3), np.int64(-1)], {"dtypes": ["int64"], "shapes": [[]], "min": -1, "max": 3}),
        ([b"ab", b""], {"dtypes": ["bytes"], "shapes": [[]], "min_bytes": 0, "max_bytes": 2}),
        (["ä", None], {"dtypes": ["none", "str"], "min_bytes": 1, "max_bytes": 1}),
        ([np.array([np.nan, 2.0, np.inf])], {"dtypes": ["float64"], "shapes": [[3]], "min": 2.0, "max": 2.0}),
        ([np.array([np.nan])], {"min": None, "max": None}),
        ([[[1], [2, 3]]], {"dtypes": ["int64"], "shapes": [[2]], "min": 1, "max": 3}),
        ([[]], {"dtypes": [], "shapes": [[0]]}),
        ([[{"a": 1}]], {"dtypes": ["dict"]}),
        ([True, False], {"dtypes": ["bool"], "min": False, "max": True}),
        ([np.datetime64("2020-01-01")], {"dtypes": ["datetime64[D]"]}),
        ([np.zeros(size) for size in range(9)], {"shapes": None}),
        ([1 << 80], {"dtypes": ["int"]}),
        ([np.int64(18), b"", np.int64(70), b"unknown"], {"dtypes": ["bytes", "int64"], "min": 18, "max": 70}),
        ([["ab", None]], {"dtypes": ["none", "str"], "min_bytes": 2, "max_bytes": 2}),
    ],
    ids=str,
)
def test_values(values: list[Any], expected: dict[str, Any]) -> None:
    """Types, shapes and ranges of what records hold; NaN and infinity are in no range."""
    fields = FieldSummaries()
    for value in values:
        fields.add({"x": value})
    figures = fields.summaries["x"].figures()
    assert figures["records"] == len(values)
    assert {name: figures[name] for name in expected} == expected
