"""`Normalization`: learns means and variances.

A summary is (count, mean, sum of squared differences from the mean) per kept position. Two summaries merge by the
formulas of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing sample variances", 1979),
which lose no precision where the mean is large. NaN means a missing value and is not counted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.preprocessing.function import numbers
from asyncdata.preprocessing.normalize import Axis, Floats, Normalize, axes_of, kept

_NUMBERS: Final = 1 << 18
"""Numbers that are summarized together: their copies in float64 stay in the processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """The first two moments of many numbers.

    Attributes:
        count: How many numbers.
        mean: Their mean; 0 where there is none.
        squares: The sum of their squared differences from the mean.
    """

    count: Floats
    mean: Floats
    squares: Floats

    def merged(self, other: Moments) -> Moments:
        """Returns the moments of the numbers of both.

        Raises:
            ValueError: Their shapes differ.
        """
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"the kept axes differ in length: {self.mean.shape} and {other.mean.shape}")
        count = self.count + other.count
        part = other.count / np.maximum(count, 1)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart * apart * self.count * part
        return Moments(count, self.mean + apart * part, squares)

    def close(self) -> None:
        """Nothing is held."""


def moments_of(values: npt.NDArray[Any], axis: tuple[int, ...]) -> Moments:
    """Returns the moments of a batch, reduced over all axes but these (counted from the front)."""
    over = tuple(place for place in range(values.ndim) if place not in axis)
    wide = values.astype(np.float64)
    known = ~np.isnan(wide)
    count = known.sum(axis=over, dtype=np.float64)
    if not known.all():
        wide[~known] = 0
    mean = wide.sum(axis=over) / np.maximum(count, 1)
    wide -= np.expand_dims(mean, over)
    if not known.all():
        wide[~known] = 0
    return Moments(count, np.asarray(mean), np.asarray(np.square(wide, out=wide).sum(axis=over)))


class Normalization:
    """For `adapt`: learns a mean and a variance, and becomes a `Normalize`.

    Args:
        axis: The axes that get a mean of their own, counted from the end; -1: one per position of the last axis, as in
            Keras. None: one mean for all numbers, as batches of single numbers need it.
        invert: The function multiplies and adds what it otherwise divides and subtracts.

    NaN means a missing value and is not counted.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.from_tensor_slices([1.0, 3.0]).batch(2)
        >>> normalize = ad.adapt(ds, ad.Normalization(axis=None))
        >>> normalize.mean.item(), normalize.variance.item()
        (2.0, 1.0)
    """

    def __init__(self, axis: Axis = -1, *, invert: bool = False) -> None:
        self.axis = axes_of(axis)
        self.invert = arguments.flag("invert", invert)

    def summary(self, leaf: Any) -> Moments:
        """Returns the moments of one leaf, in any process.

        Raises:
            ValueError: The leaf has too few axes.
            TypeError: It holds no numbers.
        """
        values = np.atleast_1d(numbers(leaf))
        axis = kept(values.ndim, self.axis)
        rows = max(1, _NUMBERS * len(values) // max(values.size, 1))
        parts = (moments_of(values[at : at + rows], axis) for at in range(0, max(len(values), 1), rows))
        return functools.reduce(Moments.merged, parts)

    def learned(self, found: Moments) -> Normalize:
        """Returns the map function.

        Raises:
            ValueError: Numbers were infinite, or all missing.
        """
        if not found.count.all():
            raise ValueError("there is no number to learn a mean from: every value is missing (NaN)")
        variance = found.squares / found.count
        if not (np.isfinite(found.mean).all() and np.isfinite(variance).all()):
            raise ValueError("the mean or the variance is not finite: remove infinite values, or clip them")
        return Normalize(found.mean, variance, self.axis or None, self.invert)
