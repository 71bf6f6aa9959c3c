"""Transformations that join elements, or take them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncdata.dataset.handle import Handle
from asyncdata.plan import transformations

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Grouping(Handle):
    """The part of `Dataset` that makes one element of several."""

    __slots__ = ()

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Stacks consecutive elements, leaf by leaf.

        Arrays and numbers are stacked along a new first axis, byte strings and texts into a `BytesArray`.

        Args:
            batch_size: Elements of a batch.
            drop_remainder: Whether a last, smaller batch is left out.

        Raises:
            UnbatchableError: While iterating, when elements of one batch differ in structure, shape or dtype.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        return self._derive(
            transformations.Batch(input=self._node, size=int(batch_size), drop_remainder=drop_remainder)
        )
