"""Checks and nodes of the transformations that join elements, take them apart, or keep them for later runs."""

from __future__ import annotations

import inspect
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset.handles import NodeOf, node_of
from asyncdata.errors import UnsupportedURLError
from asyncdata.formats.block_codec import CODECS
from asyncdata.memory.structure import flatten, registered_fields, unflatten
from asyncdata.plan.grouping import (
    Cache,
    GroupByWindow,
    MakeDataset,
    PaddedBatch,
    RaggedBatch,
    Rebatch,
    Snapshot,
    Window,
)
from asyncdata.plan.node import Node
from asyncdata.plan.transformations import Batch
from asyncdata.planner.element_spec import element_spec
from asyncdata.runtime.stages.store.stored import MemoryCell
from asyncdata.runtime.user_code import as_int
from asyncdata.spec import ArraySpec, BytesSpec, StrSpec
from asyncdata.storage.local.paths import path_of
from asyncdata.storage.urls import scheme_of


def batch(
    node: Node, batch_size: int, drop_remainder: bool, num_parallel_calls: int | None, deterministic: bool | None
) -> Node:
    """`Dataset.batch`."""
    arguments.integer_or_none("num_parallel_calls", num_parallel_calls, least=1, autotune=True)
    arguments.flag_or_none("deterministic", deterministic)
    return Batch(
        input=node,
        size=arguments.integer("batch_size", batch_size, least=1),
        drop_remainder=arguments.flag("drop_remainder", drop_remainder),
    )


def rebatch(node: Node, batch_size: int | Sequence[int] | npt.NDArray[Any], drop_remainder: bool) -> Node:
    """`Dataset.rebatch`."""
    several = isinstance(batch_size, np.ndarray) and batch_size.ndim > 0
    if several or isinstance(batch_size, Sequence):
        sizes = arguments.integers("batch_size", batch_size, least=1)
    else:
        sizes = (arguments.integer("batch_size", batch_size, least=1),)
    if not sizes:
        raise ValueError("batch_size must name at least one size")
    return Rebatch(input=node, sizes=sizes, drop_remainder=arguments.flag("drop_remainder", drop_remainder))


def ragged_batch(node: Node, batch_size: int, drop_remainder: bool, row_splits_dtype: Any) -> Node:
    """`Dataset.ragged_batch`."""
    dtype = arguments.dtype("row_splits_dtype", row_splits_dtype)
    if dtype not in (np.int32, np.int64):
        raise ValueError(f"row_splits_dtype must be int32 or int64, not {dtype}")
    return RaggedBatch(
        input=node,
        size=arguments.integer("batch_size", batch_size, least=1),
        drop_remainder=arguments.flag("drop_remainder", drop_remainder),
        splits_dtype=dtype.str,
        ranks=_ragged_ranks(element_spec(node)),
    )


def _ragged_ranks(spec: Any) -> Any:
    """Returns how many axes of every leaf become ragged, nested like the elements; None if it is not known."""
    if isinstance(spec, dict):
        return {key: _ragged_ranks(part) for key, part in spec.items()}
    if isinstance(spec, tuple):
        return tuple(_ragged_ranks(part) for part in spec)
    fields = registered_fields(spec)
    if fields is not None:
        return {name: _ragged_ranks(getattr(spec, name)) for name in fields}
    if not isinstance(spec, ArraySpec) or spec.shape is None:
        return None
    return max((axis for axis, extent in enumerate(spec.shape, start=1) if extent is None), default=0)


def _known_shapes(spec: Any) -> Any:
    """Returns the shape of every leaf, nested like the elements; None if it is not known."""
    leaves, structure = flatten(spec)
    shapes = [leaf.shape if isinstance(leaf, ArraySpec | BytesSpec | StrSpec) else None for leaf in leaves]
    return unflatten(structure, iter(shapes))


def window(make: MakeDataset, node: Node, size: int, shift: int | None, stride: int, drop_remainder: bool) -> Node:
    """`Dataset.window`."""
    size = arguments.integer("size", size, least=1)
    return Window(
        input=node,
        size=size,
        shift=size if shift is None else arguments.integer("shift", shift, least=1),
        stride=arguments.integer("stride", stride, least=1),
        drop_remainder=arguments.flag("drop_remainder", drop_remainder),
        make=make,
    )


def group_by_window(
    make: MakeDataset,
    node: Node,
    key_func: Callable[..., Any],
    reduce_func: Callable[[int, Any], Any],
    window_size: int | None,
    window_size_func: Callable[[int], Any] | None,
) -> Node:
    """`Dataset.group_by_window`."""
    if (window_size is None) == (window_size_func is None):
        raise ValueError("group_by_window needs either window_size or window_size_func")
    if window_size_func is None:
        window_size_func = _Always(arguments.integer("window_size", window_size, least=1))
    return GroupByWindow(
        input=node,
        key=arguments.plain_function("key_func", key_func),
        function=NodeOf(arguments.plain_function("reduce_func", reduce_func), "group_by_window"),
        window_size=arguments.plain_function("window_size_func", window_size_func),
        make=make,
    )


class _Always:
    """A constant function; a class, so that it can be pickled."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, _key: int) -> int:
        return self.value


def bucket_by_sequence_length(
    make: MakeDataset,
    node: Node,
    element_length_func: Callable[..., Any],
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    padded_shapes: Any,
    padding_values: Any,
    *,
    pad_to_bucket_boundary: bool,
    no_padding: bool,
    drop_remainder: bool,
) -> Node:
    """`Dataset.bucket_by_sequence_length`: groups by bucket number."""
    boundaries = arguments.integers("bucket_boundaries", bucket_boundaries)
    sizes = arguments.integers("bucket_batch_sizes", bucket_batch_sizes, least=1)
    if len(sizes) != len(boundaries) + 1:
        raise ValueError(
            f"bucket_batch_sizes must have one entry more than bucket_boundaries, but they have {len(sizes)} and "
            f"{len(boundaries)}"
        )
    if any(a >= b for a, b in pairwise(boundaries)):
        raise ValueError(f"bucket_boundaries must ascend, not {list(boundaries)}")
    bounded = arguments.flag("pad_to_bucket_boundary", pad_to_bucket_boundary)
    if bounded and padded_shapes is None:
        padded_shapes = _known_shapes(element_spec(node))
    reduce = _ReduceBucket(
        boundaries if bounded else None,
        sizes,
        padded_shapes,
        padding_values,
        padded=not arguments.flag("no_padding", no_padding),
        drop_remainder=arguments.flag("drop_remainder", drop_remainder),
    )
    length = arguments.plain_function("element_length_func", element_length_func)
    return GroupByWindow(
        input=node,
        key=_BucketOf(length, boundaries, bounded=bounded),
        function=reduce,
        window_size=_BucketSize(sizes),
        make=make,
        buckets=True,
    )


class _BucketOf:
    """Returns the number of an element's bucket; a class, like those below, so that it can be pickled.

    Args:
        length: Returns an element's length.
        boundaries: The boundaries between the buckets.
        bounded: Whether an element of the last bucket, which has no upper boundary, is an error.
    """

    def __init__(self, length: Callable[..., Any], boundaries: tuple[int, ...], *, bounded: bool) -> None:
        self._length = length
        self._boundaries = boundaries
        self._bounded = bounded

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the function; this is more than a wrapper of it, because the boundaries count, too."""
        return inspect.signature(self._length)

    def __call__(self, *element: Any) -> int:
        length = as_int(self._length(*element), "element_length_func")
        bucket = bisect_right(self._boundaries, length)
        if self._bounded and bucket == len(self._boundaries):
            raise ValueError(
                "with pad_to_bucket_boundary elements must be shorter than the last boundary, but one has length "
                f"{length}"
            )
        return bucket


class _BucketSize:
    """Returns the batch size of a bucket."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes

    def __call__(self, bucket: int) -> int:
        return self._sizes[bucket]


class _ReduceBucket:
    """Returns the node that makes one batch of a bucket's window.

    Args:
        boundaries: Upper boundaries to pad to, or None for the longest element.
        sizes: Elements per batch.
        shapes: See `padded_batch`.
        values: See `padded_batch`.
        padded: Whether elements are padded at all.
        drop_remainder: Whether to drop smaller batches.
    """

    def __init__(
        self,
        boundaries: tuple[int, ...] | None,
        sizes: tuple[int, ...],
        shapes: Any,
        values: Any,
        *,
        padded: bool,
        drop_remainder: bool,
    ) -> None:
        self.__qualname__ = "bucket_by_sequence_length"
        self._boundaries = boundaries
        self._sizes = sizes
        self._shapes = shapes
        self._values = values
        self._padded = padded
        self._drop = drop_remainder

    def __call__(self, bucket: int, window: Any) -> Node:
        node, size = node_of("the window", window), self._sizes[bucket]
        if not self._padded:
            return Batch(input=node, size=size, drop_remainder=self._drop)
        return PaddedBatch(
            input=node,
            size=size,
            shapes=self._shapes,
            values=self._values,
            drop_remainder=self._drop,
            longest=None if self._boundaries is None else self._boundaries[bucket] - 1,
        )


def cache(node: Node, filename: str | os.PathLike[str] | None) -> Node:
    """`Dataset.cache`."""
    name = "" if filename is None else arguments.url("filename", filename)
    return Cache(input=node, filename=_local_path(name, "cache") if name else None, cell=MemoryCell())


def snapshot(
    make: MakeDataset,
    node: Node,
    path: str | os.PathLike[str],
    compression: str | None,
    reader_func: Callable[[Any], Any] | None,
    shard_func: Callable[..., Any] | None,
) -> Node:
    """`Dataset.snapshot`."""
    arguments.choice("compression", compression, ("AUTO", *CODECS, "", None))
    if shard_func is not None:
        arguments.plain_function("shard_func", shard_func)
    if reader_func is not None:
        arguments.plain_function("reader_func", reader_func)
    return Snapshot(
        input=node,
        path=_local_path(arguments.url("path", path), "snapshot"),
        codec=compression if compression in CODECS else None,
        shard=shard_func,
        function=None if reader_func is None else NodeOf(reader_func, "snapshot"),
        make=make,
        node_of=partial(node_of, "the dataset of a shard"),
    )


def _local_path(name: str, what: str) -> str:
    """Returns the path that a name or ``file://`` URL means.

    Raises:
        UnsupportedURLError: The URL is not local.
        ValueError: It is empty.
    """
    if not name:
        raise ValueError(f"{what} needs the name of a directory, not ''")
    if scheme_of(name) != "file":
        raise UnsupportedURLError(f"{what} writes to local file systems only", url=name)
    return os.path.abspath(path_of(name))
