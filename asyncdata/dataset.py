"""`Dataset`: an immutable handle on one node of a plan. A method appends one node; nothing runs before iteration.

Names, arguments and semantics are tf.data's (https://www.tensorflow.org/api_docs/python/tf/data/Dataset), unless said
otherwise.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, overload

import numpy as np

from asyncdata.formats.compression import check_compression_type
from asyncdata.memory.structure import flatten
from asyncdata.options import Options
from asyncdata.plan import sources, transformations
from asyncdata.plan.node import Node
from asyncdata.runtime.iterate import PipelineIterator
from asyncdata.types import Element

R = TypeVar("R")

_EXECUTORS = (None, "process", "thread", "inline")


class Dataset:
    """A sequence of elements that is described here and produced when it is iterated.

    ``for`` and ``async for`` work on a Dataset directly; `iterator` gives an iterator to hold on to. Every iteration
    of one handle is an epoch of its own, counted from 0, so that a shuffle differs from one to the next.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.range(10).filter(lambda x: x % 2 == 0).map(lambda x: x * x).batch(3)
        >>> [batch.tolist() for batch in ds]
        [[0, 4, 16], [36, 64]]
    """

    __slots__ = ("_epochs", "_node")

    def __init__(self, node: Node) -> None:
        """Wraps a node; use the constructors below instead."""
        self._node = node
        self._epochs = itertools.count()

    # --- constructors ------------------------------------------------------------------------------------------

    @staticmethod
    def list_files(file_pattern: str | Sequence[str], shuffle: bool | None = None, seed: int | None = None) -> Dataset:
        """URLs (``str``) of the files that match, with their sizes and versions listed once.

        Args:
            file_pattern: A URL or glob (``gs://bucket/train-*.tfrecord``, ``/data/**/x?.tfrecord``), or several.
            shuffle: Whether the order is random, anew in every epoch; True unless given. Otherwise by URL.
            seed: Of that order; without one every iteration differs.

        Raises:
            ObjectNotFoundError: While iterating, when a pattern matches nothing.
        """
        patterns = (file_pattern,) if isinstance(file_pattern, str) else tuple(file_pattern)
        if not patterns:
            raise ValueError("list_files needs at least one pattern")
        return Dataset(sources.ListFiles(patterns=patterns, shuffle=shuffle is not False, seed=seed))

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """One element per row of the arrays' first axis.

        Args:
            tensors: An array, or anything ``numpy.asarray`` takes, or a tuple or dict of such. All of one length.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_tensor_slices({"a": [1, 2], "b": ["x", "y"]}))
            [{'a': np.int64(1), 'b': 'x'}, {'a': np.int64(2), 'b': 'y'}]
        """
        leaves, structure = flatten(tensors)
        if not leaves:
            raise ValueError("from_tensor_slices needs at least one array")
        arrays = tuple(_as_rows(leaf) for leaf in leaves)
        lengths = sorted({len(array) for array in arrays})
        if len(lengths) != 1:
            raise ValueError(f"from_tensor_slices needs arrays of one length, not of {lengths}")
        return Dataset(sources.TensorSlices(arrays=arrays, structure=structure))

    @staticmethod
    def from_tensors(tensors: Element) -> Dataset:
        """One element: what is given."""
        return Dataset(sources.Items(items=(tensors,)))

    @staticmethod
    def from_generator(generator: Callable[..., Any], args: Sequence[Any] = ()) -> Dataset:
        """What a generator function yields; it is called anew for every iteration.

        Args:
            generator: A function that returns an iterable (run in a thread), or an async generator function (run on
                the pipeline's loop).
            args: For the function.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_generator(lambda n: iter("ab" * n), args=(2,)))
            ['a', 'b', 'a', 'b']
        """
        if not callable(generator):
            raise TypeError(
                f"from_generator needs a function that returns an iterable, not a {type(generator).__name__}; "
                "wrap it: lambda: my_iterable"
            )
        return Dataset(sources.Generator(function=generator, args=tuple(args)))

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1, output_type: Any = np.int64) -> Dataset:
        """``range(stop)`` or ``range(start, stop, step)`` as numpy scalars.

        Args:
            start: First number; or the end, when it is the only argument.
            stop: The end, which is not included.
            step: The distance; not 0.
            output_type: dtype of the numbers.
        """
        if stop is None:
            start, stop = 0, start
        return Dataset(sources.Range(start=int(start), stop=int(stop), step=int(step), dtype=np.dtype(output_type).str))

    # --- transformations ---------------------------------------------------------------------------------------

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        *,
        executor: str | None = None,
        rng: bool = False,
        zero_copy: bool = False,
        setup: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    ) -> Dataset:
        """``map_func(element)`` for every element; a tuple element becomes several arguments.

        Args:
            map_func: A plain function, or an ``async def`` one, which is awaited on the pipeline's loop.
            num_parallel_calls: Calls under way at a time, or `AUTOTUNE`. None: one after the other.
            deterministic: False delivers results as they are ready; None takes `Options.deterministic`.
            executor: Where a plain function runs: ``"process"`` (when parallel, unless given), ``"thread"`` for
                functions that release the GIL, ``"inline"`` on the pipeline's loop.
            rng: Call with ``rng=``, a ``numpy.random.Generator`` keyed by seed, epoch and the element's provenance:
                the same whatever the number of workers and the order of arrival.
            zero_copy: Hand byte strings out as memoryviews that are valid during the call only.
            setup: For async functions: returns an async context manager entered on the pipeline's loop before the
                first call; what it gives is passed as the last argument (an HTTP session, say).

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.range(3).map(lambda x: int(x) + 1))
            [1, 2, 3]
        """
        if executor not in _EXECUTORS:
            raise ValueError(f"executor must be 'process', 'thread' or 'inline', not {executor!r}")
        _check_parallel("num_parallel_calls", num_parallel_calls)
        return Dataset(
            transformations.Map(
                input=self._node,
                function=map_func,
                parallelism=num_parallel_calls,
                deterministic=deterministic,
                executor=executor,
                rng=rng,
                zero_copy=zero_copy,
                setup=setup,
            )
        )

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Only the elements for which the predicate is true; it runs on the pipeline's loop."""
        return Dataset(transformations.Filter(input=self._node, predicate=predicate))

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Makes a dataset of every element and reads `cycle_length` of them in turn.

        Files of the datasets that come next are opened ahead, so that their first byte is never waited for; this
        needs no `num_parallel_calls`, which is taken for compatibility.

        Args:
            map_func: Returns a Dataset; `TFRecordDataset` itself will do.
            cycle_length: Datasets read in turn; 16 unless given (or `AUTOTUNE`).
            block_length: Elements taken from one before the next has its turn; 1 unless given.
            num_parallel_calls: Taken for compatibility; reading is always concurrent.
            deterministic: False passes over a dataset that has nothing ready; the order within each is kept.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(1, 4).interleave(lambda x: ad.Dataset.from_tensors(int(x)).repeat(3), 2, 2)
            >>> list(ds)
            [1, 1, 2, 2, 1, 2, 3, 3, 3]
        """
        cycle = _DEFAULT_CYCLE if cycle_length is None or cycle_length < 0 else cycle_length
        block = 1 if block_length is None else block_length
        if cycle < 1 or block < 1:
            raise ValueError(f"cycle_length and block_length must be at least 1, not {cycle} and {block}")
        _check_parallel("num_parallel_calls", num_parallel_calls)
        return Dataset(
            transformations.Interleave(
                input=self._node,
                function=_NodeOf(map_func),
                cycle_length=cycle,
                block_length=block,
                parallelism=num_parallel_calls,
                deterministic=deterministic,
            )
        )

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """Makes a dataset of every element and reads one after the other."""
        return self.interleave(map_func, cycle_length=1, deterministic=True)

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset:
        """Draws at random from a buffer of the next `buffer_size` elements.

        Args:
            buffer_size: Elements in the buffer; uniform over all of them when it is no smaller than the dataset.
            seed: Of the draws; without one every iteration differs.
            reshuffle_each_iteration: Whether epochs differ; True unless given.
        """
        if buffer_size < 1:
            raise ValueError(f"buffer_size must be at least 1, not {buffer_size}")
        return Dataset(
            transformations.Shuffle(
                input=self._node,
                buffer_size=int(buffer_size),
                seed=seed,
                reshuffle=reshuffle_each_iteration is not False,
            )
        )

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
        return Dataset(transformations.Batch(input=self._node, size=int(batch_size), drop_remainder=drop_remainder))

    def repeat(self, count: int | None = None) -> Dataset:
        """The dataset `count` times over; for ever when None or -1. Shuffles upstream differ from one to the next."""
        return Dataset(
            transformations.Repeat(input=self._node, count=None if count is None or count < 0 else int(count))
        )

    def take(self, count: int) -> Dataset:
        """The first `count` elements; all of them when -1."""
        return Dataset(transformations.Take(input=self._node, count=int(count)))

    def skip(self, count: int) -> Dataset:
        """All but the first `count` elements; none when -1."""
        return Dataset(transformations.Skip(input=self._node, count=int(count)))

    def prefetch(self, buffer_size: int) -> Dataset:
        """Makes up to `buffer_size` elements ahead of the consumer; `AUTOTUNE` lets asyncdata choose."""
        _check_parallel("buffer_size", buffer_size or None)
        return Dataset(transformations.Prefetch(input=self._node, buffer_size=int(buffer_size)))

    def apply(self, transformation_func: Callable[[Dataset], R]) -> R:
        """``transformation_func(self)``, to keep a chain of calls."""
        return transformation_func(self)

    def with_options(self, options: Options) -> Dataset:
        """The same dataset run with these options; the outermost ones win."""
        return Dataset(transformations.WithOptions(input=self._node, options=options))

    # --- iteration ---------------------------------------------------------------------------------------------

    def iterator(self, epoch: int | None = None) -> PipelineIterator:
        """Starts the pipeline and returns its iterator, for ``with`` or ``async with``.

        Args:
            epoch: Number of the epoch; the handle's next one unless given.
        """
        return PipelineIterator(self._node, next(self._epochs) if epoch is None else epoch)

    def __iter__(self) -> Iterator[Element]:
        return self.iterator()

    def __aiter__(self) -> AsyncIterator[Element]:
        return self.iterator()

    def __repr__(self) -> str:
        return f"<Dataset {self._node.label}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._node,)


class _NodeOf:
    """A function that returns a Dataset, as the plan wants it: returning its node. Picklable if the function is."""

    def __init__(self, function: Callable[..., Dataset]) -> None:
        self.function = function
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, *element: Any) -> Node:
        dataset = self.function(*element)
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"the function of interleave or flat_map must return a Dataset, not a {type(dataset).__name__}"
            )
        return dataset._node  # noqa: SLF001 -- the handle and its plan belong together


class TFRecordDataset(Dataset):
    """The records of TFRecord files, as ``bytes``.

    Args:
        filenames: A URL, a list of URLs, or a Dataset of URLs.
        compression_type: None (or ``""``), ``"GZIP"`` or ``"ZLIB"``.
        num_parallel_reads: Files read in turn, one record each; None: one file after the other.

    Raises:
        BrokenFrameError: While iterating, when a file is truncated or its framing damaged.
        CorruptRecordError: While iterating, when a payload's checksum does not match.
    """

    __slots__ = ()

    def __init__(
        self,
        filenames: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Dataset,
        compression_type: str | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        compression = check_compression_type(compression_type) or None
        if isinstance(filenames, Dataset):
            urls: Dataset = filenames
        else:
            names: tuple[Any, ...]
            names = (filenames,) if isinstance(filenames, str | bytes | os.PathLike) else tuple(filenames)
            urls = Dataset(sources.Items(items=tuple(_as_url(name) for name in names)))
            if len(names) == 1:
                super().__init__(sources.TFRecordFile(url=_as_url(names[0]), compression=compression))
                return
        _check_parallel("num_parallel_reads", num_parallel_reads)
        cycle = _DEFAULT_CYCLE if num_parallel_reads == -1 else (num_parallel_reads or 1)
        super().__init__(
            urls.interleave(_OpenTFRecord(compression), cycle_length=cycle)._node  # noqa: SLF001 -- the same class
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._node,)


class _OpenTFRecord:
    """Opens one file; a class, so that it can be pickled."""

    __qualname__ = "TFRecordDataset"

    def __init__(self, compression: str | None) -> None:
        self.compression = compression

    def __call__(self, url: str) -> Dataset:
        return TFRecordDataset(url, self.compression)


_DEFAULT_CYCLE = 16


@overload
def _as_url(name: str) -> str: ...
@overload
def _as_url(name: Any) -> str: ...
def _as_url(name: Any) -> str:
    if isinstance(name, bytes):
        return name.decode()
    if isinstance(name, str):
        return str(name)
    if hasattr(name, "__fspath__"):
        return str(name)
    raise TypeError(f"a file name must be a str, not a {type(name).__name__}")


def _as_rows(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.kind in "US":
        # Items of a numpy string array have lost their trailing zeros and their own lengths; take them as they came.
        items = list(value)
        array = np.empty(len(items), object)
        array[:] = [str(item) if isinstance(item, np.str_) else item for item in items]
    if array.ndim == 0:
        raise ValueError(
            "from_tensor_slices needs arrays with at least one axis; use from_tensors for a single element"
        )
    return sources.byte_order(array) if array.dtype != object else array


def _check_parallel(name: str, value: int | None) -> None:
    if value is not None and value < 1 and value != -1:
        raise ValueError(f"{name} must be AUTOTUNE, or at least 1, not {value}")
