"""Where leaves lie in a batch slab, and what is said when they do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncdata.errors import UnbatchableError
from asyncdata.memory.layout import (
    mismatch,
    parts_of,
    plan_layout,
    row_text,
    structure_mismatch,
    value_leaf,
)
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import LEAF, TupleOf, flatten


@pytest.mark.parametrize(
    ("value", "leaf"),
    [
        (b"x", Leaf("table", shape=(4,))),
        (bytearray(b"x"), Leaf("table", shape=(4,))),
        (memoryview(b"x"), Leaf("table", shape=(4,))),
        ("x", Leaf("table", shape=(4,), text=True)),
        (1, Leaf("array", "<i8", (4,))),
        (np.float16(1), Leaf("array", "<f2", (4,))),
        (np.zeros((2, 3), ">i2"), Leaf("array", ">i2", (4, 2, 3))),
        ([1, 2], Leaf("array", "<i8", (4, 2))),
    ],
)
def test_what_values_become(value: Any, leaf: Leaf) -> None:
    """Numbers and arrays become arrays, byte strings and texts become tables."""
    assert value_leaf(value, 4) == leaf


@pytest.mark.parametrize("value", [None, object(), {1}, [[1], [2, 3]], np.array(["a"]), ["a"], np.zeros(1, "i4,i4")])
def test_what_cannot_be_batched(value: Any) -> None:
    """Everything else says what to return instead, or what is wrong."""
    with pytest.raises(UnbatchableError, match="cannot be batched"):
        value_leaf(value, 4)


def test_leaves_lie_apart_on_boundaries_inside_the_slab() -> None:
    """Every part begins on 64 bytes, none overlaps another, and a part of no bytes begins inside too."""
    leaves = [
        Leaf("array", "<i1", (3,)),
        Leaf("array", "<f8", (3, 0)),
        Leaf("table", shape=(3,)),
        Leaf("array", "<i8", (3,)),
        Leaf("array", "<i8", (3, 0)),
    ]
    layout = plan_layout(TupleOf((LEAF,) * 5), leaves)
    assert all(offset % 64 == 0 for offset in layout.offsets)
    assert layout.offsets[-1] < layout.nbytes
    memory = np.zeros(1000, np.uint8)
    for number, part in enumerate(parts_of(memory, 64, layout)):
        assert part.shape[0] == 3
        part[...] = number + 1
    again = parts_of(memory, 64, layout)
    assert [set(part.reshape(-1).tolist()) for part in again] == [{1}, set(), {3}, {4}, set()]
    assert again[2].shape == (3, 2)
    assert not memory[:64].any()


def test_an_empty_nest_takes_something() -> None:
    """A batch without leaves still has a size, for slabs of no bytes do not exist."""
    assert plan_layout(TupleOf(()), []).nbytes == 1


def test_mismatches_show_both_sides() -> None:
    """The message names the leaf, what the batch began with and what came."""
    _, structure = flatten({"a": 1, "b": 2})
    first = [value_leaf(1, 2), value_leaf(np.zeros((2, 2), "f4"), 2)]
    text = str(mismatch(structure, first, [first[0], value_leaf(b"", 2)], 7))
    assert "float32[2, 2] in the batch's first element" in text
    assert "leaf b" in text
    assert "bytes in element 7" in text
    text = str(mismatch(LEAF, first[:1], [value_leaf("x", 2)], 1))
    assert "differ: int64[] in" in text
    assert row_text(value_leaf("x", 2)) == "str"
    with pytest.raises(AssertionError):
        mismatch(structure, first, first, 1)
    text = str(structure_mismatch(structure, TupleOf((LEAF, LEAF)), 3))
    assert "{a: ·, b: ·}" in text
    assert "(·, ·)" in text
