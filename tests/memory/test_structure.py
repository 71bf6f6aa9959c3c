"""Nested elements come apart into leaves and together again."""

from __future__ import annotations

import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.structure import (
    LEAF,
    describe,
    element_bytes,
    flatten,
    flatten_as,
    leaf_count,
    leaf_names,
    leaves_of_all,
    unflatten,
)

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 -- users write it so

LEAVES = st.one_of(st.integers(), st.binary(max_size=3), st.lists(st.integers(), max_size=2))
NESTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
    ),
)


@given(NESTS)
def test_there_and_back(element: Any) -> None:
    """Flattened and put together again, an element is equal and of the same types; so after pickling."""
    leaves, structure = flatten(element)
    structure = pickle.loads(pickle.dumps(structure))
    assert len(leaves) == leaf_count(structure) == len(leaf_names(structure))
    again = unflatten(structure, iter(leaves))
    assert again == element
    assert type(again) is type(element)
    found: list[Any] = []
    assert flatten_as(structure, element, found)
    assert found == leaves
    describe(structure, iter("·" * len(leaves)))


@given(st.lists(NESTS, min_size=1, max_size=3), st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_all_at_once_as_one_by_one(nests: list[Any], order: list[int]) -> None:
    """The leaves of several elements are those of each; there are none if one has another structure."""
    elements = [nests[index % len(nests)] for index in order]
    each = [flatten(element) for element in elements]
    structure = each[0][1]
    found = leaves_of_all(structure, elements)
    if any(other != structure for _, other in each):
        assert found is None
    else:
        assert found == list(map(list, zip(*(leaves for leaves, _ in each), strict=True)))


def test_dicts_are_matched_by_key() -> None:
    """Keys of another order are the same structure; other keys, or another length, are not."""
    _, structure = flatten({"a": 1, "b": (2, 3)})
    for element, leaves in [
        ({"b": (5, 6), "a": 4}, [4, 5, 6]),
        ({"b": (5, 6)}, None),
        ({"a": 4, "c": (5, 6)}, None),
        ({"a": 4, "b": (5, 6, 7)}, None),
        ({"a": (4,), "b": (5, 6)}, None),
        ({"a": 4, "b": 5}, None),
        (4, None),
    ]:
        found: list[Any] = []
        assert flatten_as(structure, element, found) == (leaves is not None)
        if leaves is not None:
            assert found == leaves


def test_names_and_words() -> None:
    """Errors name leaves and show structures as a reader would write them."""
    _, structure = flatten({"image": 1, "boxes": (2, Point(3, {"k": 4}))})
    assert leaf_names(structure) == ["image", "boxes[0]", "boxes[1][0]", "boxes[1][1].k"]
    assert describe(structure, iter("abcd")) == "{image: a, boxes: (b, Point(c, {k: d}))}"
    assert leaf_names(LEAF) == [""]


@pytest.mark.parametrize(
    "nest",
    [
        lambda leaf: leaf,
        lambda leaf: (1, leaf),
        lambda leaf: Point(leaf, 2.0),
        lambda leaf: {"a": {"b": leaf}},
        lambda leaf: [leaf, None],
        lambda leaf: [[{"a": leaf}]],
        lambda leaf: np.array([leaf, None], object),
    ],
)
@pytest.mark.parametrize(
    "leaf", [b"a" * 5000, "a" * 5000, bytearray(5000), np.zeros(625), np.array(["a" * 1250]), [*range(5000 // 48)]]
)
def test_what_an_element_takes_is_counted_wherever_it_is(nest: Any, leaf: Any) -> None:
    """In nests, lists and arrays of objects; with some bytes for what is around it."""
    assert 4900 <= element_bytes(nest(leaf)) <= 5200


def test_only_numbers_of_bytes_are_counted() -> None:
    """Not what else an object calls so: a method, or what a class has for its instances."""
    storage = type("Storage", (), {"nbytes": lambda _: 3})
    assert element_bytes([storage(), storage, np.int64]) == element_bytes([None, None, None])


def test_a_list_in_itself_is_counted() -> None:
    """So far as it goes."""
    items: list[Any] = [b"a" * 1000]
    items.append(items)
    assert element_bytes(items) >= 1000
