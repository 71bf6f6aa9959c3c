"""`Quantiles`: learns boundaries between which there are equally many numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncdata import arguments
from asyncdata.preprocessing.bucketize import Bucketize
from asyncdata.preprocessing.encoding import MODES
from asyncdata.preprocessing.function import numbers
from asyncdata.preprocessing.quantile_sketch import QuantileSketch


class Quantiles:
    """For `adapt`: learns quantiles, and becomes a `Bucketize` with `bins` bins of about equally many numbers.

    Boundary i has the rank i / bins among all numbers of the leaf, interpolated as in Keras, with an error of at most
    `epsilon`. Up to 32 / epsilon numbers, boundaries are exact. NaN means a missing value and is not counted.

    Args:
        bins: How many bins.
        epsilon: The largest error of a rank, as a part of all numbers. Memory grows with 1 / epsilon: 4 MB for 0.001
            and a billion numbers.
        output_mode: See `Bucketize`.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.range(1, 101).batch(10)
        >>> bucketize = ad.adapt(ds, ad.Quantiles(4))
        >>> bucketize.boundaries, bucketize([10, 50, 99]).tolist()
        ([25.0, 50.0, 75.0], [0, 2, 3])
    """

    def __init__(self, bins: int, *, epsilon: float = 0.001, output_mode: str = "int") -> None:
        self.bins = arguments.integer("bins", bins, least=1)
        self.epsilon = arguments.number("epsilon", epsilon, above=0)
        self.output_mode: str = arguments.choice("output_mode", output_mode, MODES)

    def summary(self, leaf: Any) -> QuantileSketch:
        """Returns a sketch of one leaf, in any process.

        Raises:
            TypeError: The leaf holds no numbers.
        """
        sketch = QuantileSketch(self.epsilon)
        sketch.add(numbers(leaf))
        return sketch

    def learned(self, found: QuantileSketch) -> Bucketize:
        """Returns the map function.

        Raises:
            ValueError: All numbers are missing, or a boundary is infinite.
        """
        if not found.count:
            raise ValueError("there is no number to learn quantiles from: every value is missing (NaN)")
        values, weights = found.weighted()
        if len(values) == found.count < self.bins:
            boundaries = values[:-1]  # as in Keras: no more boundaries than values lie below the greatest
        else:
            ranks = np.cumsum(weights) / weights.sum()
            with np.errstate(invalid="ignore"):
                boundaries = np.interp(np.arange(1, self.bins) / self.bins, ranks, values)
        if not np.isfinite(boundaries).all():
            raise ValueError("a boundary between bins is infinite: remove infinite values, or clip them")
        return Bucketize(boundaries.tolist(), output_mode=self.output_mode)
