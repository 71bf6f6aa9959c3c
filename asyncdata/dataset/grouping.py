"""Transformations that join elements, or take them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset.buckets import BucketOf, BucketSize, ReduceBucket, check_buckets
from asyncdata.dataset.handle import Handle, NodeOf
from asyncdata.plan import grouping, transformations
from asyncdata.planner.element_spec import element_spec
from asyncdata.spec import ArraySpec

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Grouping(Handle):
    """The part of `Dataset` that makes one element of several, or several of one."""

    __slots__ = ()

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Stacks consecutive elements, leaf by leaf.

        Arrays and numbers are stacked along a new first axis, byte strings and texts into a `BytesArray`, arrays of
        them into arrays of objects.

        Args:
            batch_size: Elements of a batch.
            drop_remainder: Whether a last, smaller batch is left out.
            num_parallel_calls: Taken for compatibility: stacking is cheap, and done in the workers of a map before it.
            deterministic: Taken for compatibility: batches keep their order.

        Raises:
            UnbatchableError: While iterating, when elements of one batch differ in structure, shape or dtype.

        Example:
            >>> import asyncdata as ad
            >>> [batch.tolist() for batch in ad.Dataset.range(5).batch(2)]
            [[0, 1], [2, 3], [4]]
            >>> [batch.tolist() for batch in ad.Dataset.range(5).batch(2, drop_remainder=True)]
            [[0, 1], [2, 3]]
        """
        del num_parallel_calls, deterministic
        return self._derive(
            transformations.Batch(
                input=self._node,
                size=arguments.integer("batch_size", batch_size, least=1),
                drop_remainder=arguments.flag("drop_remainder", drop_remainder),
            )
        )

    def unbatch(self) -> Dataset:
        """The rows of every element, one by one: what `batch` and `ragged_batch` have joined.

        Leaves of an element must have one length. A row of a RaggedArray is an array, or a RaggedArray of one level
        less.

        Raises:
            UnbatchableError: While iterating, when a leaf is a scalar, or lengths differ.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_tensor_slices({"a": [[1, 2], [3, 4]], "b": [["x", "y"], ["z", ""]]})
            >>> [(int(row["a"]), str(row["b"])) for row in ds.unbatch()]
            [(1, 'x'), (2, 'y'), (3, 'z'), (4, '')]
        """
        return self._derive(grouping.Unbatch(input=self._node))

    def rebatch(self, batch_size: int | Sequence[int] | npt.NDArray[Any], drop_remainder: bool = False) -> Dataset:
        """The rows of batches in batches of another size: `unbatch` and `batch` in one.

        Args:
            batch_size: Rows of a batch; several sizes take turns.
            drop_remainder: Whether a last batch that is smaller than its size is left out.

        Raises:
            UnbatchableError: While iterating, when rows of one batch differ in shape or dtype.

        Example:
            >>> import asyncdata as ad
            >>> [batch.tolist() for batch in ad.Dataset.range(7).batch(3).rebatch([2, 1])]
            [[0, 1], [2], [3, 4], [5], [6]]
        """
        several = isinstance(batch_size, np.ndarray) and batch_size.ndim > 0
        if several or isinstance(batch_size, Sequence):
            sizes = arguments.integers("batch_size", batch_size, least=1)
        else:
            sizes = (arguments.integer("batch_size", batch_size, least=1),)
        if not sizes:
            raise ValueError("batch_size must name at least one size")
        dropped = arguments.flag("drop_remainder", drop_remainder)
        return self._derive(grouping.Rebatch(input=self._node, sizes=sizes, drop_remainder=dropped))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Stacks consecutive elements whose shapes differ, each padded at the end of its axes.

        Arrays are padded to one shape; lists of byte strings become a two-dimensional array of objects; single byte
        strings and texts a `BytesArray`, as in `batch`.

        Args:
            batch_size: Elements of a batch.
            padded_shapes: None, or nested like the elements: per leaf a sequence of lengths, in which None (or -1)
                stands for the longest of the batch. None pads every axis to the longest.
            padding_values: None for zeros and empty strings; or a value for every leaf; or nested like the elements.
                Python numbers may be of a simpler type than the elements, numpy scalars must have their dtype. Byte
                strings may be padded with a ``str``.
            drop_remainder: Whether a last, smaller batch is left out.

        Raises:
            UnbatchableError: While iterating, when an element is larger than its padded shape, elements of one batch
                differ in structure, rank or dtype, or shapes and values do not fit them.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_generator(lambda: [[1], [2, 3], [4, 5, 6]])
            >>> [batch.tolist() for batch in ds.padded_batch(2, padding_values=-1)]
            [[[1, -1], [2, 3]], [[4, 5, 6]]]
            >>> [batch.shape for batch in ds.padded_batch(2, padded_shapes=[5])]
            [(2, 5), (1, 5)]
        """
        return self._derive(
            grouping.PaddedBatch(
                input=self._node,
                size=arguments.integer("batch_size", batch_size, least=1),
                shapes=padded_shapes,
                values=padding_values,
                drop_remainder=arguments.flag("drop_remainder", drop_remainder),
                longest=None,
            )
        )

    def ragged_batch(self, batch_size: int, drop_remainder: bool = False, row_splits_dtype: Any = np.int64) -> Dataset:
        """Joins consecutive elements whose shapes differ into RaggedArrays, without padding.

        Scalars, byte strings and texts are stacked as by `batch`. A leaf whose shape is known beforehand (see
        `element_spec`) becomes ragged up to its last axis of unknown length, or is stacked if there is none. Of
        another one all axes become ragged.

        Args:
            batch_size: Elements of a batch.
            drop_remainder: Whether a last, smaller batch is left out.
            row_splits_dtype: int64 or int32.

        Raises:
            UnbatchableError: While iterating, when elements of one batch differ in structure, rank or dtype.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_generator(lambda: [[1], [2, 3], [], [4]])
            >>> [batch.to_list() for batch in ds.ragged_batch(2)]
            [[[1], [2, 3]], [[], [4]]]
        """
        dtype = arguments.dtype("row_splits_dtype", row_splits_dtype)
        if dtype not in (np.int32, np.int64):
            raise ValueError(f"row_splits_dtype must be int32 or int64, not {dtype}")
        return self._derive(
            grouping.RaggedBatch(
                input=self._node,
                size=arguments.integer("batch_size", batch_size, least=1),
                drop_remainder=arguments.flag("drop_remainder", drop_remainder),
                splits_dtype=dtype.str,
                ranks=_ragged_ranks(element_spec(self._node)),
            )
        )

    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Dataset:
        """Groups elements into windows, each of which is a Dataset; nested elements give a nest of Datasets.

        A window is a private copy of its elements: it may be kept, iterated over again, and turned into batches by
        ``flat_map(lambda w: w.batch(size))``.

        Args:
            size: Elements of a window.
            shift: From the beginning of one window to that of the next; `size` unless given.
            stride: From one element of a window to the next.
            drop_remainder: Whether windows that are not full are left out.

        Example:
            >>> import asyncdata as ad
            >>> [[int(x) for x in window] for window in ad.Dataset.range(7).window(3, shift=2)]
            [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6]]
            >>> ds = ad.Dataset.range(7).window(3, drop_remainder=True)
            >>> [batch.tolist() for batch in ds.flat_map(lambda window: window.batch(3))]
            [[0, 1, 2], [3, 4, 5]]
        """
        size = arguments.integer("size", size, least=1)
        return self._derive(
            grouping.Window(
                input=self._node,
                size=size,
                shift=size if shift is None else arguments.integer("shift", shift, least=1),
                stride=arguments.integer("stride", stride, least=1),
                drop_remainder=arguments.flag("drop_remainder", drop_remainder),
                make=self._derive,
            )
        )

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[int, Dataset], Dataset],
        window_size: int | None = None,
        window_size_func: Callable[[int], Any] | None = None,
    ) -> Dataset:
        """Collects elements by key, and goes on with what `reduce_func` makes of each full window.

        When the input has ended, what is left is reduced in order of the keys. Both functions run on the pipeline's
        loop.

        Args:
            key_func: ``key_func(element)`` returns an integer; a tuple element becomes several arguments.
            reduce_func: ``reduce_func(key, window)`` returns a Dataset, whose elements are passed on.
            window_size: Elements of a full window.
            window_size_func: ``window_size_func(key)``, asked once per key; instead of `window_size`.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(7).group_by_window(lambda x: x % 2, lambda key, w: w.batch(2), window_size=2)
            >>> [batch.tolist() for batch in ds]
            [[0, 2], [1, 3], [4, 6], [5]]
        """
        if (window_size is None) == (window_size_func is None):
            raise ValueError("group_by_window needs either window_size or window_size_func")
        if window_size_func is None:
            window_size_func = _Always(arguments.integer("window_size", window_size, least=1))
        return self._derive(
            grouping.GroupByWindow(
                input=self._node,
                key=arguments.plain_function("key_func", key_func),
                function=NodeOf(arguments.plain_function("reduce_func", reduce_func), "group_by_window"),
                window_size=arguments.plain_function("window_size_func", window_size_func),
                make=self._derive,
            )
        )

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Batches elements of similar length together, so that little is padded.

        Args:
            element_length_func: ``element_length_func(element)`` returns its length; runs on the pipeline's loop.
            bucket_boundaries: Ascending: bucket i holds lengths from ``bucket_boundaries[i - 1]`` to below
                ``bucket_boundaries[i]``.
            bucket_batch_sizes: Elements of a batch per bucket: one more than there are boundaries.
            padded_shapes: See `padded_batch`.
            padding_values: See `padded_batch`.
            pad_to_bucket_boundary: Pads lengths that are not given to one below the bucket's upper boundary instead of
                the longest in the batch. Elements must be shorter than the last boundary. Leaves of several axes need
                `padded_shapes`.
            no_padding: Batches with `batch` instead: elements of a bucket must be alike.
            drop_remainder: Whether smaller batches are left out at the end.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_generator(lambda: [[1], [2, 2, 2], [3], [4, 4], [5, 5, 5]])
            >>> [batch.tolist() for batch in ds.bucket_by_sequence_length(len, [2], [2, 2])]
            [[[1], [3]], [[2, 2, 2], [4, 4, 0]], [[5, 5, 5]]]
        """
        boundaries, sizes = check_buckets(bucket_boundaries, bucket_batch_sizes)
        bounded = arguments.flag("pad_to_bucket_boundary", pad_to_bucket_boundary)
        reduce = ReduceBucket(
            boundaries=boundaries if bounded else None,
            sizes=sizes,
            shapes=padded_shapes,
            values=padding_values,
            padded=not arguments.flag("no_padding", no_padding),
            drop_remainder=arguments.flag("drop_remainder", drop_remainder),
        )
        length = arguments.plain_function("element_length_func", element_length_func)
        bucket = BucketOf(length, boundaries, bounded=bounded)
        return self.group_by_window(bucket, reduce, window_size_func=BucketSize(sizes))


def _ragged_ranks(spec: Any) -> Any:
    """How many axes of every leaf become ragged, nested like the elements; None where it is not known."""
    if isinstance(spec, dict):
        return {key: _ragged_ranks(part) for key, part in spec.items()}
    if isinstance(spec, tuple):
        return tuple(_ragged_ranks(part) for part in spec)
    if not isinstance(spec, ArraySpec) or spec.shape is None:
        return None
    return max((axis for axis, extent in enumerate(spec.shape, start=1) if extent is None), default=0)


class _Always:
    """Gives one answer; a class, so that it can be pickled."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, _key: int) -> int:
        return self.value
