"""Which element is to blame where elements make no batch, however they were divided among tasks."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from asyncdata.memory.layout import batch_leaves
from asyncdata.memory.structure import flatten
from asyncdata.memory.unlike import Kinds, first_misfit

LARGE = np.int64(2**40)


def kinds(elements: list[Any], size: int, *, narrow: bool = False) -> Kinds:
    """Of some elements of a batch, as they come from another process."""
    found = Kinds(size, narrow)
    for element in elements:
        found.add(element)
    loaded: Kinds = pickle.loads(pickle.dumps(found))
    return loaded


@pytest.mark.parametrize(
    ("elements", "row", "leaf", "message"),
    [
        ([1, 1, 1.5, "x"], 2, None, "int64[] in the batch's first element but float64[] in element 2"),
        ([1, 1.5, (1,)], 2, None, "in structure: · in the batch's first element but (·) in element 2"),
        ([{"a": 1, "b": 1}, {"b": 2.5, "a": 1}, {"a": 2.5, "b": 1}], 2, "a", "float64[] in element 2"),
        ([None, 1], 0, None, "a value of type NoneType"),
        ([1, {1}, 2.5], 1, None, "a value of type set"),
        (["\ud800", "x", b"x"], 2, None, "str in the batch's first element but bytes in element 2"),
        (["x", "\ud800"], 1, None, "cannot be encoded as UTF-8"),
        ([["x"], ["x", "y"]], 1, None, "str[1] in the batch's first element but str[2] in element 1"),
        ([np.timedelta64(1, "s"), np.timedelta64(1, "ms")], 1, None, "timedelta64[ms][]"),
        ([np.int64(1), LARGE], 1, None, "too large for int32"),
        ([(np.int64(1), 1), (LARGE, "x")], 1, "[0]", "too large for int32"),
    ],
)
def test_the_first_error_is_that_of_the_first_leaf(
    elements: list[Any], row: int, leaf: str | None, message: str
) -> None:
    """Structures are compared before leaves, and kinds of all elements before their values."""
    blamed, error = first_misfit([(0, kinds(elements, len(elements), narrow=True))])
    assert (blamed, error.leaf) == (row, leaf)
    assert message in str(error)


ELEMENTS = st.sampled_from(
    [1, 2, LARGE, 1.5, "x", "\ud800", b"x", None, ["x"], ["y"], {"a": 1, "b": 2}, {"b": 1.5, "a": 2}, (1, "x"), (1, 2)]
)


@given(
    elements=st.lists(ELEMENTS, min_size=2, max_size=8),
    cuts=st.sets(st.integers(1, 7)),
    narrow=st.booleans(),
)
def test_tasks_of_any_sizes_tell_the_same(elements: list[Any], cuts: set[int], narrow: bool) -> None:
    """Those whose elements are all alike tell them by their layout."""
    size = len(elements)
    try:
        row, error = first_misfit([(0, kinds(elements, size, narrow=narrow))])
    except StopIteration:
        assume(False)
    bounds = [0, *sorted(cut for cut in cuts if cut < size), size]
    parts = []
    for start, stop in itertools.pairwise(bounds):
        part = kinds(elements[start:stop], size, narrow=narrow)
        if stop - start == 1 and type(elements[start]) in (int, float, bytes, tuple) and not narrow:
            part = Kinds(size, narrow)
            leaves, structure = flatten(elements[start])
            part.add_alike(structure, batch_leaves(structure, leaves, size), 1)
        parts.append((start, part))
    blamed, other = first_misfit([*parts, (size, Kinds(size, narrow))])
    assert (blamed, str(other), other.leaf) == (row, str(error), error.leaf)
