from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import asyncdata as ad

Pair = namedtuple("Pair", "x y")  # noqa: PYI024 -- any types
HALF = ad.Normalize(0.0, 4.0)


@pytest.mark.parametrize(
    ("functions", "element", "expected"),
    [
        ({"x": HALF}, {"x": 2, "y": 3}, {"x": 1.0, "y": 3}),
        ({"a": {"x": HALF}}, {"a": {"x": 2}}, {"a": {"x": 1.0}}),
        ({0: HALF}, {0: 2, 1: 2}, {0: 1.0, 1: 2}),
        ((HALF, None), (2, 3), (1.0, 3)),
        ((HALF,), (2,), (1.0,)),
        ((HALF, {"x": HALF}), (2, {"x": 4}), (1.0, {"x": 2.0})),
        ((None, HALF), Pair(2, 4), Pair(2, 2.0)),
    ],
)
def test_the_rest_of_an_element_stays(functions: Any, element: Any, expected: Any) -> None:
    """Leaves that are not named pass, tuples keep their class, and `map` passes tuples in parts."""
    learned = ad.ByLeaf(functions)
    found = list(ad.Dataset.from_generator(lambda: iter([element])).map(learned))
    assert found == [expected]
    assert type(found[0]) is type(expected)


def test_an_element_without_the_leaf_is_refused() -> None:
    """The message names the leaf, and what is there instead."""
    learned = ad.ByLeaf({"a": {"x": HALF}})
    with pytest.raises(KeyError, match=r"a\.x.*'y'"):
        learned({"a": {"y": 1}})
    with pytest.raises(KeyError, match="'a'"):
        learned(np.ones(3))
    with pytest.raises(KeyError, match="'a'"):
        learned((1, 2))
    with pytest.raises(TypeError, match="tuples of 2 parts"):
        ad.ByLeaf((HALF, None))({"x": 1})
    assert ad.ByLeaf((HALF, None))((4, 1)) == ad.ByLeaf((HALF, None))(4, 1) == (2.0, 1)
    with pytest.raises(TypeError) as caught:
        learned({"a": {"x": "text"}})
    assert caught.value.__notes__ == ["in the leaf 'a.x'"]


def test_specs_pass_through() -> None:
    """What a learned function returns is known without running it."""
    ds = ad.Dataset.from_tensor_slices({"x": np.ones((4, 3)), "y": [1, 2, 3, 4]}).batch(2, drop_remainder=True)
    spec = ds.map(ad.ByLeaf({"x": HALF})).element_spec
    assert spec == {"x": ad.ArraySpec((2, 3), np.float32), "y": ad.ArraySpec((2,), np.int64)}
    assert ds.map(ad.ByLeaf((HALF, HALF))).element_spec is None
