"""Numbers of 64 bits in the 32 bits that JAX keeps of them, unless x64 is enabled.

    int64 → int32    uint64 → uint32    float64 → float32    complex128 → complex64

A batch for JAX is written so where it is collected. What was made elsewhere is converted when it is handed over; which
values do not fit is the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.leaf import Leaf

_BYTES: Final = {"i": 8, "u": 8, "f": 8, "c": 16}


def half_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of half the size, in this machine's byte order; the same type where JAX keeps it."""
    if _BYTES.get(dtype.kind) != dtype.itemsize:
        return dtype
    return np.dtype(f"{dtype.kind}{dtype.itemsize // 2}")


def halved_leaf(leaf: Leaf) -> Leaf:
    """The leaf of a batch that is written in half the size; it remembers what it is written from."""
    if leaf.kind != "array":
        return leaf
    dtype = np.dtype(leaf.dtype)
    half = half_of(dtype)
    return leaf if half is dtype else dataclasses.replace(leaf, dtype=half.str, wide=leaf.dtype)


def fits(values: npt.NDArray[Any], half: np.dtype[Any]) -> bool:
    """Whether all values are of another type's range; digits of a float may be lost."""
    if not values.size:
        return True
    if half.kind == "c":
        part = np.empty(0, half).real.dtype
        return fits(values.real, part) and fits(values.imag, part)
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = values.min(), values.max()
        if half.kind in "iu":
            most = np.iinfo(half)
            return bool(most.min <= low and high <= most.max)
        largest = float(np.finfo(half).max)
        if -largest <= low and high <= largest:
            return True
        # There is a NaN, an infinite value, one that is rounded to the largest, or one that is too large.
        return bool(np.array_equal(np.isfinite(values.astype(half)), np.isfinite(values)))


def too_large(dtype: np.dtype[Any], half: np.dtype[Any]) -> UnbatchableError:
    """The error for a value that does not fit."""
    return UnbatchableError(f"a value of type {dtype.name} is too large for {half}, the type that jax would make of it")


def halved(values: npt.NDArray[Any], half: np.dtype[Any]) -> npt.NDArray[Any]:
    """A copy in another type.

    Raises:
        UnbatchableError: A value does not fit.
    """
    if not fits(values, half):
        raise too_large(values.dtype, half)
    return values.astype(half)
