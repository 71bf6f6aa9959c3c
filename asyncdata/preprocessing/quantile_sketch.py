"""`QuantileSketch`: quantiles of many numbers in little memory, with a bound on the error that holds for every input.

    level 0   capacity ──▶ values of weight 1  ──full: sorted, every second one──▶
    level 1                values of weight 2  ──full: sorted, every second one──▶
    level 2                values of weight 4  …

The structure is that of Munro and Paterson ("Selection and sorting with limited storage", 1980) and of Manku,
Rajagopalan and Lindsay ("Approximate medians and other quantiles in one pass and with limited memory", 1998). KLL
(Karnin, Lang and Liberty, 2016) draws at random which half is kept and needs less memory, but its bound may fail.

*The bound.* Keeping every second one of m sorted values of weight w changes the rank of any number by at most w. At
least `capacity` values take part each time, so a level contributes at most n / capacity to the error of a rank. For n
below 2**30 times the capacity no more than 30 levels are halved, and the weight of a single value is at most two more
such parts: epsilon = 32 / capacity. The argument does not mention how the values came together, so it also holds for
sketches that were merged in any order. Up to `capacity` numbers nothing is lost.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_NUMBERS: Final = 1 << 18
"""Numbers that are added together, because they are copied."""
_PARTS: Final = 32
"""How many parts of n / capacity the error of a rank may have; see above."""


class QuantileSketch:
    """Approximate ranks of numbers.

    Args:
        epsilon: The largest error of a rank, as a part of all numbers.

    Attributes:
        capacity: How many numbers a level holds before it is halved.
        count: How many numbers there were.
    """

    def __init__(self, epsilon: float) -> None:
        self.capacity = math.ceil(_PARTS / epsilon)
        self.count = 0
        self._levels: list[list[Values]] = [[]]
        self._sizes = [0]  # how many numbers each level holds: single elements are as many arrays
        self._upper: list[bool] = [False]

    def add(self, values: npt.NDArray[Any]) -> None:
        """Adds numbers; NaN means a missing value and is left out."""
        everything = values.ravel()
        for at in range(0, len(everything), _NUMBERS):
            flat = everything[at : at + _NUMBERS].astype(np.float64)
            flat = flat[~np.isnan(flat)]
            self.count += len(flat)
            self._levels[0] += [flat] if len(flat) else []
            self._sizes[0] += len(flat)
            self._halve()

    def merged(self, other: QuantileSketch) -> QuantileSketch:
        """Takes the numbers of another one, which is not used afterwards."""
        self.count += other.count
        for level, parts in enumerate(other._levels):
            self._ensure(level)
            self._levels[level] += parts
            self._sizes[level] += other._sizes[level]
        self._halve()
        return self

    def weighted(self) -> tuple[Values, Values]:
        """Returns ascending values and their weights, which add up to nearly the count."""
        levels = [np.concatenate([np.empty(0), *parts]) for parts in self._levels]
        values = np.concatenate(levels)
        weights = np.repeat(2.0 ** np.arange(len(levels)), list(map(len, levels)))
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]

    def close(self) -> None:
        """Nothing is held."""

    def _ensure(self, level: int) -> None:
        while len(self._levels) <= level:
            self._levels.append([])
            self._sizes.append(0)
            self._upper.append(False)

    def _halve(self) -> None:
        """Moves half of the values of full levels to the next one, with twice the weight."""
        level = 0
        while level < len(self._levels):
            if self._sizes[level] > self.capacity:
                values = np.sort(np.concatenate(self._levels[level]))
                even = len(values) // 2 * 2
                self._ensure(level + 1)
                # The lower and the upper ones in turn, so that errors tend to cancel.
                self._levels[level + 1].append(values[int(self._upper[level]) : even : 2])
                self._sizes[level + 1] += even // 2
                self._upper[level] = not self._upper[level]
                self._levels[level], self._sizes[level] = [values[even:]], len(values) - even
            level += 1
