"""`Normalize`: numbers with the mean 0 and the variance 1, as ``keras.layers.Normalization`` computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.memory.ragged import RaggedArray
from asyncdata.preprocessing.function import MapFunction, are_float32, on_values
from asyncdata.spec import ArraySpec, RaggedSpec

Floats = npt.NDArray[np.float64]
Axis = int | Sequence[int] | None

_LEAST_DEVIATION: Final = 1e-7
"""Keras' epsilon: what a smaller standard deviation counts as."""


class Normalize(MapFunction):
    """A map function: ``(x - mean) / sqrt(variance)``, as float32. A standard deviation below 1e-7 counts as 1e-7.

    Args:
        mean: A number, or one per position of the axes.
        variance: Likewise.
        axis: The axes that have a mean of their own, counted from the end, so that they are the same for a value and
            for a batch of them: -1 is the last. None: one mean for everything.
        invert: Compute ``x * sqrt(variance) + mean`` instead.

    Example:
        >>> import asyncdata as ad
        >>> ad.Normalize([1.0, 10.0], [4.0, 25.0])([[3, 10], [1, 20]]).tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """

    keras_layer: ClassVar[str] = "Normalization"

    def __init__(self, mean: Any, variance: Any, axis: Axis = -1, invert: bool = False) -> None:
        self.mean: Floats = np.asarray(mean, np.float64)
        self.variance: Floats = np.asarray(variance, np.float64)
        self.axis = axes_of(axis) if self.mean.ndim else ()
        self.invert = arguments.flag("invert", invert)
        if self.mean.shape != self.variance.shape or self.mean.ndim != len(self.axis):
            raise ValueError(
                f"mean and variance need one axis per kept axis: their shapes are {self.mean.shape} and "
                f"{self.variance.shape}, and axis is {self.axis}"
            )
        if not (are_float32(self.mean) and are_float32(self.variance) and (self.variance >= 0).all()):
            raise ValueError(
                "mean and variance must be finite in float32, and the variance not negative: scale very large numbers"
            )
        shape = [1] * -min(self.axis, default=0)
        for place, length in zip(self.axis, self.mean.shape, strict=True):
            shape[place] = length
        self._mean = self.mean.astype(np.float32).reshape(shape)
        deviation = np.sqrt(self.variance.astype(np.float32)).reshape(shape)
        self._deviation = np.maximum(deviation, np.float32(_LEAST_DEVIATION))

    def __call__(self, leaf: Any) -> Any:
        """Returns the normalized numbers, of the leaf's shape.

        Raises:
            TypeError: The leaf holds no numbers.
            ValueError: Its axes have other lengths than the mean's, or one of them is ragged.
        """
        deepest = -min(self.axis, default=0)
        if isinstance(leaf, RaggedArray) and deepest >= np.ndim(leaf.flat_values):
            raise ValueError(f"axis={self.axis} is ragged in rows of the shape {leaf.shape}")
        return on_values(self._normalized, leaf)

    def _normalized(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        for place, length in zip(self.axis, self.mean.shape, strict=True):
            if values.ndim < -place or values.shape[place] != length:
                raise ValueError(f"axis {place} must have the length {length}, but the shape is {values.shape}")
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
            found: npt.NDArray[np.float32] = np.array(values, np.float32)
            if self.invert:
                found *= self._deviation
                found += self._mean
            else:
                found -= self._mean
                found /= self._deviation
        return found

    def __element_spec__(self, given: Any) -> Any:
        """Returns the spec of the result for a leaf of the spec `given`."""
        if isinstance(given, RaggedSpec):
            return RaggedSpec(given.shape, np.float32, given.ragged_rank)
        return ArraySpec(given.shape, np.float32) if isinstance(given, ArraySpec) else None

    def arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return {
            "mean": self.mean.tolist(),
            "variance": self.variance.tolist(),
            "axis": list(self.axis) or None,
            "invert": self.invert,
        }

    def keras_arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return self.arguments()


def axes_of(axis: Axis) -> tuple[int, ...]:
    """Returns kept axes in ascending order.

    Raises:
        ValueError: One is counted from the front, or occurs twice.
    """
    if axis is None:
        return ()
    found = arguments.integers("axis", [axis] if isinstance(axis, int | np.integer) else axis)
    if any(place >= 0 for place in found) or len(set(found)) < len(found):
        raise ValueError(f"axis counts from the end, -1 being the last axis, and names each axis once: not {axis}")
    return tuple(sorted(found))


def kept(ndim: int, axis: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the kept axes of a batch with so many axes, counted from the front.

    Raises:
        ValueError: One of them is the batch axis, or is not there.
    """
    deepest = max((-place for place in axis), default=0)
    if deepest >= max(ndim, 1):
        raise ValueError(
            f"axis={axis} needs batches with at least {deepest + 1} axes, the batch axis included, and this element "
            f"has {ndim}: call Dataset.batch first if the elements are single examples, or use axis=None to learn one "
            "mean for all numbers"
        )
    return tuple(place + ndim for place in axis)
