"""`Bucketize`: numbers to the bins between boundaries, as ``keras.layers.Discretization`` does."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.memory.ragged import RaggedArray
from asyncdata.preprocessing.encoding import MODES, encoded, encoded_spec
from asyncdata.preprocessing.function import MapFunction, are_float32, numbers
from asyncdata.preprocessing.token_leaf import TokenLeaf


class Bucketize(MapFunction):
    """A map function from numbers to the numbers of their bins, or to vectors of these.

    Bin i contains the numbers from boundary i - 1 up to, but not including, boundary i. NaN is in the last bin. Numbers
    are compared as float32, as in Keras: of large ones, such as times in seconds, subtract the least first.

    Args:
        boundaries: Ascending numbers.
        output_mode: ``"int"`` (int32), ``"one_hot"``, ``"multi_hot"`` or ``"count"`` (float32); the latter two make one
            vector of the last axis.

    Example:
        >>> import asyncdata as ad
        >>> ad.Bucketize([18, 65])([3, 18, 70]).tolist()
        [0, 1, 2]
    """

    keras_layer: ClassVar[str] = "Discretization"

    def __init__(self, boundaries: Any, *, output_mode: str = "int") -> None:
        self.boundaries = [float(arguments.number("every item of boundaries", each)) for each in boundaries]
        self.output_mode: str = arguments.choice("output_mode", output_mode, MODES)
        if not are_float32(self.boundaries) or self.boundaries != sorted(self.boundaries):
            raise ValueError(
                f"boundaries must be finite in float32 and ascending, not {arguments.shown(self.boundaries)}"
            )
        # TensorFlow compares float32 with float32.
        self._boundaries = np.array(self.boundaries, np.float32)
        self._dtype = np.int32 if output_mode == "int" else np.float32

    def __call__(self, leaf: Any) -> Any:
        """Returns bins or vectors.

        Raises:
            TypeError: The leaf holds no numbers.
        """
        values = numbers(leaf)
        if isinstance(leaf, RaggedArray) and values.ndim > 1:
            if self.output_mode != "int":
                raise TypeError(f"rows of numbers are needed for {self.output_mode!r}, not rows of arrays")
            return RaggedArray.from_nested_row_splits(self._bins(values), leaf.nested_row_splits)
        shape = None if isinstance(leaf, RaggedArray) else values.shape
        tokens = TokenLeaf(values.ravel(), shape, leaf if isinstance(leaf, RaggedArray) else None)
        bins = self._bins(values.ravel())
        return encoded(bins, tokens, self.output_mode, depth=len(self.boundaries) + 1, dtype=self._dtype)

    def _bins(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
            return np.searchsorted(self._boundaries, values.astype(np.float32), side="right").astype(np.int32)

    def __element_spec__(self, given: Any) -> Any:
        """Returns the spec of the result for a leaf of the spec `given`."""
        return encoded_spec(given, self.output_mode, len(self.boundaries) + 1, self._dtype)

    def arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return {"boundaries": self.boundaries, "output_mode": self.output_mode}

    def keras_arguments(self) -> dict[str, Any]:
        """See `MapFunction`."""
        return {"bin_boundaries": self.boundaries, "output_mode": self.output_mode}
