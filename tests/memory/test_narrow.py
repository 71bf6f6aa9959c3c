"""Numbers of 64 bits in 32: which types, and which values fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncdata.errors import UnbatchableError
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.narrow import fits, half_of, halved, halved_leaf

HALVES = {"<i8": "<i4", ">i8": "<i4", "<u8": "<u4", "<f8": "<f4", ">f8": "<f4", "<c16": "<c8"}
OTHERS = ["?", "<i4", ">i4", "<u1", "<f2", "<f4", "<c8", "<M8[s]", "<m8[s]", "S8", "V8", "O"]
LARGEST = float(np.finfo(np.float32).max)
ROUNDED_UP = 2.0**128 - 2.0**103
"""The least float64 that float32 has no finite number for."""


def test_types_of_64_bits_have_a_half_and_no_others() -> None:
    """In the byte order of this machine; a leaf remembers what it is written from."""
    for wide, half in HALVES.items():
        assert half_of(np.dtype(wide)) == np.dtype(half)
        assert halved_leaf(Leaf("array", wide, (4, 2))) == Leaf("array", half, (4, 2), wide=wide)
    for other in OTHERS:
        assert half_of(np.dtype(other)) == np.dtype(other)
        assert halved_leaf(Leaf("array", other, (4,))) == Leaf("array", other, (4,))
    assert halved_leaf(Leaf("table", shape=(4,))) == Leaf("table", shape=(4,))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
@example([2**31 - 1, -(2**31)])
@example([2**31])
@example([-(2**31) - 1])
def test_integers_fit_if_they_come_back(values: list[int]) -> None:
    """Signed and unsigned."""
    array = np.array(values, np.int64)
    assert fits(array, np.dtype(np.int32)) == np.array_equal(array.astype(np.int32), array)
    unsigned = array.astype(np.uint64)
    assert fits(unsigned, np.dtype(np.uint32)) == np.array_equal(unsigned.astype(np.uint32), unsigned)


@given(values=st.lists(st.floats(), max_size=4), real=st.booleans())
@example(values=[LARGEST, -LARGEST], real=True)
@example(values=[np.nan, np.inf, -np.inf], real=True)
@example(values=[np.nextafter(ROUNDED_UP, 0)], real=True)
@example(values=[np.nextafter(ROUNDED_UP, 0), np.nan], real=True)
@example(values=[ROUNDED_UP], real=True)
@example(values=[-ROUNDED_UP, np.nan], real=False)
def test_floats_fit_if_finite_ones_stay_finite(values: list[float], *, real: bool) -> None:
    """Real and imaginary parts alike."""
    array = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        stays = np.array_equal(np.isfinite(array.astype(np.float32)), np.isfinite(array))
    assert fits(array, np.dtype(np.float32)) == stays
    pairs = np.zeros(len(array), np.complex128)
    if real:
        pairs.real = array
    else:
        pairs.imag = array
    assert fits(pairs, np.dtype(np.complex64)) == stays


@pytest.mark.parametrize(("wide", "value"), [("i8", 2**31), ("u8", 2**32), ("f8", 1e39), ("c16", 1e60j)])
def test_a_copy_of_what_does_not_fit_is_refused(wide: str, value: Any) -> None:
    """The error names both types; what fits is converted."""
    half = half_of(np.dtype(wide))
    with pytest.raises(UnbatchableError, match=f"a value of type {np.dtype(wide).name} is too large for {half}"):
        halved(np.array([1, value], wide), half)
    assert halved(np.array([1, 2], wide), half).tolist() == [1, 2]
    assert halved(np.array([], wide), half).dtype == half
