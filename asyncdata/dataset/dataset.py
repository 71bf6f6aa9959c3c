"""`Dataset`: an immutable handle on one node of a plan. A method appends one node; nothing runs before iteration.

Names, arguments and semantics are tf.data's (https://www.tensorflow.org/api_docs/python/tf/data/Dataset), unless said
otherwise. Constructors stand here; transformations in one file per family, of which `Dataset` is made.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from asyncdata import arguments
from asyncdata.dataset.answers import Answers
from asyncdata.dataset.combining import Combining
from asyncdata.dataset.fused import Fused
from asyncdata.dataset.sequence import Sequential
from asyncdata.dataset.signature import Renewed, converted, signature_of
from asyncdata.dataset.storing import Storing
from asyncdata.memory.structure import flatten, unflatten
from asyncdata.plan import sequence, sources
from asyncdata.plan.flat import flattened, restored
from asyncdata.plan.node import Node
from asyncdata.runtime.stages.sources.generator import is_async_generator
from asyncdata.types import Element


class Dataset(Fused, Combining, Sequential, Storing, Answers):
    """A sequence of elements that is described here and produced when it is iterated.

    ``for`` and ``async for`` work on a Dataset directly; `iterator` gives an iterator to hold on to. Every iteration
    of one handle is an epoch of its own, counted from 0, so that a shuffle differs from one to the next.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.range(10).filter(lambda x: x % 2 == 0).map(lambda x: x * x).batch(3)
        >>> [batch.tolist() for batch in ds]
        [[0, 4, 16], [36, 64]]
    """

    __slots__ = ()

    def _derive(self, node: Node) -> Dataset:
        return Dataset(node)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (flattened(self._node),)

    @staticmethod
    def list_files(
        file_pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        shuffle: bool | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """URLs (``str``) of the files that match, with their sizes and versions listed once.

        Args:
            file_pattern: A URL or glob (``gs://bucket/train-*.tfrecord``, ``/data/**/x?.tfrecord``), or several.
            shuffle: Whether the order is random, anew in every epoch; True unless given. Otherwise by URL.
            seed: Of that order; without one every iteration differs.

        Raises:
            ObjectNotFoundError: While iterating, when a pattern matches nothing.

        Example:
            >>> import asyncdata as ad
            >>> import pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> for name in ("b.txt", "a.txt"):
            ...     _ = (folder / name).write_text(name)
            >>> [url.rpartition("/")[2] for url in ad.Dataset.list_files(f"{folder}/*.txt", shuffle=False)]
            ['a.txt', 'b.txt']
        """
        patterns = arguments.urls("file_pattern", file_pattern)
        if not patterns:
            raise ValueError("file_pattern must name at least one pattern")
        shuffled = arguments.flag_or_none("shuffle", shuffle) is not False
        return Dataset(sources.ListFiles(patterns=patterns, shuffle=shuffled, seed=arguments.seed("seed", seed)))

    @staticmethod
    def from_manifest(url: str | os.PathLike[str], shuffle: bool | None = None, seed: int | None = None) -> Dataset:
        """URLs (``str``) of the files that a manifest names, with their sizes and versions; nothing is listed.

        Args:
            url: Of a file of JSON lines, as `write_manifest` makes it.
            shuffle: Whether the order is random, anew in every epoch; True unless given. Otherwise the manifest's.
            seed: Of that order; without one every iteration differs.

        Raises:
            DataError: While iterating, when the file is not a manifest.

        Example:
            >>> import tempfile, asyncdata as ad
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ad.TFRecordWriter(f"{folder}/a.rec").close()
            ...     _ = ad.write_manifest(f"{folder}/*.rec", f"{folder}/all.jsonl")
            ...     [url.rpartition("/")[2] for url in ad.Dataset.from_manifest(f"{folder}/all.jsonl")]
            ['a.rec']
        """
        shuffled = arguments.flag_or_none("shuffle", shuffle) is not False
        return Dataset(
            sources.ManifestFile(url=arguments.url("url", url), shuffle=shuffled, seed=arguments.seed("seed", seed))
        )

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
        """One element: what is given. Arrays in it are copied, and read-only; lists of numbers or texts become arrays.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_tensors({"a": [1, 2], "b": "x"}))
            [{'a': array([1, 2]), 'b': 'x'}]
        """
        leaves, structure = flatten(tensors)
        return Dataset(sources.Items(items=(unflatten(structure, map(_frozen, leaves)),)))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] | None = None,
        output_signature: Any = None,
    ) -> Dataset:
        """What a generator function yields; it is called anew for every iteration.

        Args:
            generator: A function that returns an iterable (run in a thread), or an async generator function (run on
                the pipeline's loop).
            output_types: dtypes, nested like the elements, to which their leaves are converted; ``str`` and ``bytes``
                are left as they are. Unless given, elements come as they are yielded.
            output_shapes: Shapes, nested in the same way, for `element_spec`.
            args: For the function.
            output_signature: Both at once: `ArraySpec` and its like (or anything with a `shape` and a `dtype`).

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_generator(lambda n: iter("ab" * n), args=(2,)))
            ['a', 'b', 'a', 'b']
        """
        if not callable(generator):
            raise TypeError(
                f"generator must be a function that returns an iterable, not {arguments.shown(generator)}; "
                "wrap it: lambda: my_iterable"
            )
        if not inspect.isgeneratorfunction(generator) and not is_async_generator(generator):
            generator = Renewed(generator)
        signature = signature_of(output_types, output_shapes, output_signature)
        if signature is not None:
            generator = converted(generator, signature)
        if args is not None and (isinstance(args, str | bytes) or not isinstance(args, Iterable)):
            raise TypeError(f"args must be a tuple of the function's arguments, not {arguments.shown(args)}")
        given = () if args is None else tuple(args)
        return Dataset(sources.Generator(function=generator, args=given, signature=signature))

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1, output_type: Any = np.int64) -> Dataset:
        """``range(stop)`` or ``range(start, stop, step)`` as numpy scalars.

        Args:
            start: First number; or the end, when it is the only argument.
            stop: The end, which is not included.
            step: The distance; not 0.
            output_type: dtype of the numbers.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(2, 8, 3)]
            [2, 5]
        """
        first, end = arguments.integer("start", start), arguments.integer_or_none("stop", stop)
        if end is None:
            first, end = 0, first
        distance = arguments.integer("step", step)
        if distance == 0:
            raise ValueError("step must not be 0")
        dtype = arguments.dtype("output_type", output_type, "iuf")
        return Dataset(sources.Range(start=first, stop=end, step=distance, dtype=dtype.str))

    @staticmethod
    def counter(start: int = 0, step: int = 1, dtype: Any = np.int64) -> Dataset:
        """``start, start + step, …`` without an end.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.counter(start=5, step=-2).take(3)]
            [5, 3, 1]
        """
        first, distance = arguments.integer("start", start), arguments.integer("step", step)
        kept = arguments.dtype("dtype", dtype, "iuf")
        return Dataset(sequence.Counter(start=first, step=distance, dtype=kept.str))

    @staticmethod
    def random(seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Dataset:
        """Random integers from 0 to 2**32 - 1 without an end.

        Args:
            seed: Of the draws; unless given (or `Options.seed`) one is drawn for this dataset.
            rerandomize_each_iteration: Whether epochs differ; they do not unless it is True.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.random(seed=4).take(3)
            >>> list(ds) == list(ds)
            True
        """
        rerandomize = arguments.flag_or_none("rerandomize_each_iteration", rerandomize_each_iteration)
        return Dataset(sequence.Random(seed=arguments.seed("seed", seed), rerandomize=bool(rerandomize)))


def _restored(steps: tuple[Node, ...]) -> Dataset:
    return Dataset(restored(steps))


def _frozen(leaf: Any) -> Any:
    """A copy of what others could change."""
    if isinstance(leaf, list):
        try:
            array = np.array(leaf)
        except ValueError:
            return leaf
        if array.dtype.kind in "US":
            texts = _texts(leaf, array.shape)
            leaf = texts if all(isinstance(item, str | bytes) for item in texts.flat) else leaf
        elif array.dtype.kind in "biufc":
            leaf = array
    elif isinstance(leaf, np.ndarray):
        leaf = leaf.copy()
    if isinstance(leaf, np.ndarray):
        leaf.flags.writeable = False
    return leaf


def _texts(value: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Byte strings and texts as they came: in an array of numpy's they lose trailing zeros and their own lengths."""
    array = np.empty(shape, object)
    array[...] = np.array(value, object)
    array.reshape(-1)[:] = [str(item) if isinstance(item, np.str_) else item for item in array.flat]
    return array


def _as_rows(value: Any) -> np.ndarray[Any, Any]:
    if any(isinstance(each, np.ma.MaskedArray) for each in (value, *(value if isinstance(value, list) else ()))):
        raise TypeError(
            "from_tensor_slices would lose the mask of a masked array: give array.filled(value), or array.data and "
            "np.ma.getmaskarray(array) as two arrays"
        )
    if isinstance(value, AbstractSet | Iterator):
        raise TypeError(
            f"tensors must be arrays or lists, not {arguments.shown(value)}; make a list of it, or use from_generator"
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"from_tensor_slices needs arrays, or lists of one length on every level, not {arguments.shown(value)}; "
            "from_generator takes rows of different lengths"
        ) from error
    if array.dtype.kind == "T":
        array = array.astype(object)
        if not all(isinstance(item, str) for item in array.flat):
            raise TypeError("from_tensor_slices needs a str in the place of every missing one of a StringDType array")
    if array.dtype.kind in "US" and array.ndim:
        array = _texts(value, array.shape)
    if array.ndim == 0:
        raise ValueError(
            "from_tensor_slices needs arrays with at least one axis; use from_tensors for a single element"
        )
    return sources.byte_order(array) if array.dtype != object else array
