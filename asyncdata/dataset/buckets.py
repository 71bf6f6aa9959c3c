"""The functions that `bucket_by_sequence_length` gives to `group_by_window`: classes, so that they can be pickled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from asyncdata import arguments
from asyncdata.plan import grouping
from asyncdata.runtime.user_code import as_int

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


def check_buckets(boundaries: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Boundaries and batch sizes as tuples.

    Raises:
        ValueError: Their numbers do not agree, or boundaries do not ascend.
    """
    limits = arguments.integers("bucket_boundaries", boundaries)
    counts = arguments.integers("bucket_batch_sizes", sizes, least=1)
    if len(counts) != len(limits) + 1:
        raise ValueError(
            f"bucket_batch_sizes must have one entry more than bucket_boundaries, but they have {len(counts)} and "
            f"{len(limits)}"
        )
    if any(a >= b for a, b in pairwise(limits)):
        raise ValueError(f"bucket_boundaries must ascend, not {list(limits)}")
    return limits, counts


class BucketOf:
    """The number of an element's bucket.

    Args:
        length: Gives an element's length.
        boundaries: Between the buckets.
        bounded: Whether an element of the last bucket, which has no upper boundary, is an error.
    """

    def __init__(self, length: Callable[..., Any], boundaries: tuple[int, ...], *, bounded: bool) -> None:
        self._length = length
        self._boundaries = boundaries
        self._bounded = bounded

    def __call__(self, *element: Any) -> int:
        """See the class."""
        length = as_int(self._length(*element), "element_length_func")
        bucket = bisect_right(self._boundaries, length)
        if self._bounded and bucket == len(self._boundaries):
            raise ValueError(
                "with pad_to_bucket_boundary elements must be shorter than the last boundary, but one has length "
                f"{length}"
            )
        return bucket


class BucketSize:
    """Elements of a batch of a bucket."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes

    def __call__(self, bucket: int) -> int:
        """See the class."""
        return self._sizes[bucket]


class ReduceBucket:
    """Makes one batch of a bucket's window.

    Args:
        boundaries: Upper boundaries to pad to, or None for the longest element.
        sizes: Elements of a batch.
        shapes: As of `padded_batch`.
        values: Likewise.
        padded: Whether elements are padded at all.
        drop_remainder: Whether smaller batches are left out.
    """

    def __init__(
        self,
        *,
        boundaries: tuple[int, ...] | None,
        sizes: tuple[int, ...],
        shapes: Any,
        values: Any,
        padded: bool,
        drop_remainder: bool,
    ) -> None:
        self._boundaries = boundaries
        self.__qualname__ = "bucket_by_sequence_length"
        self._sizes = sizes
        self._shapes = shapes
        self._values = values
        self._padded = padded
        self._drop = drop_remainder

    def __call__(self, bucket: int, window: Dataset) -> Dataset:
        """See the class."""
        size = self._sizes[bucket]
        if not self._padded:
            return window.batch(size, self._drop)
        return window._derive(  # noqa: SLF001 -- a padded_batch whose unknown lengths are known
            grouping.PaddedBatch(
                input=window._node,  # noqa: SLF001 -- see above
                size=size,
                shapes=self._shapes,
                values=self._values,
                drop_remainder=self._drop,
                longest=None if self._boundaries is None else self._boundaries[bucket] - 1,
            )
        )
