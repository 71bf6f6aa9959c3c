"""`Dataset`: an immutable handle on one node of a plan. Each method appends a node; nothing runs before iteration.

Names, arguments and semantics are tf.data's (https://www.tensorflow.org/api_docs/python/tf/data/Dataset), unless stated
otherwise. This file contains only the vocabulary: each method is a signature, a docstring and the node that it makes.
If arguments depend on each other, a function in the family's file next to this one checks them and makes the node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.dataset import answers, combining, fused, grouping, sequence, sources, transformations
from asyncdata.dataset.parquet_spec import with_known_rows
from asyncdata.options import Options
from asyncdata.plan.flat import flattened, restored
from asyncdata.plan.grouping import PaddedBatch, Unbatch
from asyncdata.plan.label import steps_of
from asyncdata.plan.node import Node
from asyncdata.plan.sequence import Enumerate, Random, Scan, TakeWhile, Unique
from asyncdata.plan.sources import ManifestFile
from asyncdata.plan.transformations import Filter, IgnoreErrors, Prefetch, Shuffle, Skip, Take
from asyncdata.planner.element_spec import element_spec
from asyncdata.planner.explain import Explanation
from asyncdata.runtime.consumer.iterate import PipelineIterator
from asyncdata.types import Element

R = TypeVar("R")
S = TypeVar("S")


@arguments.suggesting
class Dataset:
    """Describes a sequence of elements, which is produced when it is iterated.

    ``for`` and ``async for`` work on a Dataset directly; `iterator` returns an iterator that can be closed. Each
    iteration of one handle is the next epoch, counted from 0, so a shuffle differs from one to the next.

    Example:
        >>> import asyncdata as ad
        >>> ds = ad.Dataset.range(10).filter(lambda x: x % 2 == 0).map(lambda x: x * x).batch(3)
        >>> [batch.tolist() for batch in ds]
        [[0, 4, 16], [36, 64]]
    """

    __slots__ = ("_epochs", "_node")

    def __init__(self, node: Node | None = None) -> None:
        """Wraps a node; use the constructors of `Dataset` instead."""
        if not isinstance(node, Node):
            raise TypeError(
                "a Dataset is made by a constructor, such as Dataset.from_tensor_slices([1, 2]) or "
                "TFRecordDataset(path)"
            )
        self._node = node
        self._epochs = answers.Epochs()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (flattened(self._node),)

    def __iter__(self) -> PipelineIterator:
        return answers.collected(self._node) or self.iterator()

    def __aiter__(self) -> PipelineIterator:
        return answers.collected_later(self._node) or self.iterator()

    def __len__(self) -> int:
        return answers.length(self._node)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Dataset {steps_of(self._node)}>"

    def _repr_html_(self) -> str:
        """The explanation as a table, for notebooks."""
        return answers.shown(self._node, repr(self))

    # --- where elements come from ------------------------------------------------------------------------------------

    @staticmethod
    def list_files(
        file_pattern: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        shuffle: bool | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """URLs (``str``) of the files that match, with their sizes and versions.

        Args:
            file_pattern: A URL or glob (``gs://bucket/train-*.tfrecord``, ``/data/**/x?.tfrecord``), or several.
            shuffle: True (the default) shuffles anew in every epoch; False sorts by URL.
            seed: Seed of that order; without it (and without `Options.seed`) every iteration differs.

        Raises:
            ObjectNotFoundError: During iteration, if a pattern matches nothing.

        Example:
            >>> import asyncdata as ad
            >>> import pathlib, tempfile
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> for name in ("b.txt", "a.txt"):
            ...     _ = (folder / name).write_text(name)
            >>> [url.rpartition("/")[2] for url in ad.Dataset.list_files(f"{folder}/*.txt", shuffle=False)]
            ['a.txt', 'b.txt']
        """
        return Dataset(sources.list_files(file_pattern, shuffle, seed))

    @staticmethod
    def from_manifest(url: str | os.PathLike[str], shuffle: bool | None = None, seed: int | None = None) -> Dataset:
        """URLs (``str``) in a manifest, with their sizes and versions; nothing is listed.

        Args:
            url: URL of a file of JSON lines, as `write_manifest` makes it.
            shuffle: True (the default) shuffles anew in every epoch; False keeps the manifest's order.
            seed: Seed of that order; without it (and without `Options.seed`) every iteration differs.

        Raises:
            DataError: During iteration, if the file is not a manifest.

        Example:
            >>> import tempfile, asyncdata as ad
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ad.TFRecordWriter(f"{folder}/a.rec").close()
            ...     _ = ad.write_manifest(f"{folder}/*.rec", f"{folder}/all.jsonl")
            ...     [url.rpartition("/")[2] for url in ad.Dataset.from_manifest(f"{folder}/all.jsonl")]
            ['a.rec']
        """
        return Dataset(
            ManifestFile(
                url=arguments.url("url", url),
                shuffle=arguments.flag_or_none("shuffle", shuffle) is not False,
                seed=arguments.seed("seed", seed),
            )
        )

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """One element per row of the arrays' first axis.

        Args:
            tensors: An array, or anything ``numpy.asarray`` accepts, or a tuple or dict of them, all of one length.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_tensor_slices({"a": [1, 2], "b": ["x", "y"]}))
            [{'a': np.int64(1), 'b': 'x'}, {'a': np.int64(2), 'b': 'y'}]
        """
        return Dataset(sources.slices(tensors))

    @staticmethod
    def from_tensors(tensors: Element) -> Dataset:
        """One element: the argument. Arrays in it are copied and read-only; lists of numbers or texts become arrays.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_tensors({"a": [1, 2], "b": "x"}))
            [{'a': array([1, 2]), 'b': 'x'}]
        """
        return Dataset(sources.single(tensors))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] | None = None,
        output_signature: Any = None,
        *,
        state: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None,
        every: int = 1000,
    ) -> Dataset:
        """The elements that a generator function yields. It is called for every iteration.

        An iterator that resumes from a state replays the generator: it regenerates the elements that were delivered
        before, and drops them. A generator that can begin anywhere says where it is with `state`.

        Args:
            generator: A function that returns an iterable (run in a thread), or an async generator function (run on
                the pipeline's loop). It may reuse an array or list that it has already yielded.
            output_types: dtypes, nested like the elements, to which leaves are converted; ``str`` and ``bytes`` are not
                converted. By default elements are not converted at all.
            output_shapes: Shapes with the same nesting, for `element_spec`.
            args: Arguments of the function.
            output_signature: Types and shapes together: specs such as `ArraySpec` (or anything with `shape` and
                `dtype`).
            state: ``(get, set)``, plain functions that are called where the generator runs. ``get()`` is called while
                the generator waits after an element, and returns numbers, texts, bytes, arrays, or lists, tuples and
                dicts of these. In an iterator that resumes from a state, ``set(value)`` is called before the generator
                function, and the generator then yields what follows. Generators that run at the same time, as in an
                interleave, need an object each.
            every: Calls `get` after every `every` elements. A resume regenerates and drops at most that many.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_generator(lambda n: iter("ab" * n), args=(2,)))
            ['a', 'b', 'a', 'b']
            >>> class Squares:
            ...     begin = 0
            ...     def __call__(self):
            ...         numbers, self.begin = range(self.begin, 1000), 0
            ...         for number in numbers:
            ...             self.number = number
            ...             yield number**2
            ...     def get(self):
            ...         return self.number + 1
            ...     def set(self, value):
            ...         self.begin = value
            >>> squares = Squares()
            >>> ds = ad.Dataset.from_generator(squares, state=(squares.get, squares.set), every=100)
            >>> with ds.iterator() as it:
            ...     taken = [next(it) for _ in range(950)]
            ...     state = it.state_dict()
            >>> with ds.iterator(state=state) as it:  # begins with the square of 900
            ...     next(it)
            902500
        """
        return Dataset(sources.generated(generator, output_types, output_shapes, args, output_signature, state, every))

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1, output_type: Any = np.int64) -> Dataset:
        """``range(stop)`` or ``range(start, stop, step)`` as numpy scalars.

        Args:
            start: The first number; if it is the only argument, the end.
            stop: The end, which is not included.
            step: The difference between two numbers; not 0.
            output_type: dtype of the numbers.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(2, 8, 3)]
            [2, 5]
        """
        return Dataset(sources.numbers(start, stop, step, output_type))

    @staticmethod
    def counter(start: float = 0, step: float = 1, dtype: Any = np.int64) -> Dataset:
        """``start, start + step, …`` without end.

        Args:
            start: The first number: an integer, unless `dtype` is a float.
            step: The difference between two numbers; an integer, too, unless `dtype` is a float.
            dtype: dtype of the numbers.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.counter(start=5, step=-2).take(3)]
            [5, 3, 1]
        """
        return Dataset(sources.counted(start, step, dtype))

    @staticmethod
    def random(seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Dataset:
        """Random integers from 0 to 2**32 - 1 without end.

        Args:
            seed: Seed of the draws; without it (and without `Options.seed`) one is drawn for this dataset.
            rerandomize_each_iteration: Whether epochs differ; False by default.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.random(seed=4).take(3)
            >>> list(ds) == list(ds)
            True
        """
        return Dataset(
            Random(
                seed=arguments.seed("seed", seed),
                rerandomize=bool(arguments.flag_or_none("rerandomize_each_iteration", rerandomize_each_iteration)),
            )
        )

    # --- functions of elements ---------------------------------------------------------------------------------------

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
        vectorized: bool = False,
    ) -> Dataset:
        """``map_func(element)`` for every element. A tuple is unpacked into arguments; a namedtuple is one argument.

        Args:
            map_func: A plain function, or an ``async def`` function, which is awaited on the pipeline's loop.
            num_parallel_calls: Calls that run at a time. `AUTOTUNE` finds the number while the pipeline runs: of async
                functions 16 to 256. None: one after the other, but `AUTOTUNE` if `executor` is ``"process"`` or
                ``"thread"``.
            deterministic: False delivers results as they are ready; None uses `Options.deterministic`.
            executor: Where a plain function runs: ``"process"`` (the default for parallel calls), ``"thread"`` for
                functions that release the GIL, ``"inline"`` on the pipeline's loop. With `AUTOTUNE`, `parse_example`
                of fixed-length features begins on the loop, or in processes if it has more than 16 values, and moves
                if the other place is better.
            rng: Pass ``rng=``, a ``numpy.random.Generator`` keyed by seed, epoch and the element's provenance. It does
                not depend on the number of workers or the order of arrival, and differs in each repetition of `repeat`.
            zero_copy: Pass byte strings as memoryviews that are valid only during the call.
            setup: For async functions: returns an async context manager, which is entered on the pipeline's loop before
                the first call. Its value, such as an HTTP session, is passed as the last argument.
            vectorized: Call the function on the pipeline's loop with many elements at once, as many alike as arrived:
                one array per leaf, whose first axis is the element (byte strings: a `BytesArray`). The function returns
                arrays with as many rows, and must treat every row in the same way and independently.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(3).map(lambda x: x + 1)]
            [1, 2, 3]
            >>> ad.Dataset.range(3).map(lambda x: x + 1, vectorized=True).batch(3).get_single_element()
            array([1, 2, 3])
        """
        return Dataset(
            transformations.mapped(
                self._node, map_func, num_parallel_calls, deterministic, executor, rng, zero_copy, setup, vectorized
            )
        )

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Keeps the elements for which the predicate is true. It runs on the pipeline's loop.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(6).filter(lambda x: x % 3 == 0)]
            [0, 3]
        """
        return Dataset(Filter(input=self._node, predicate=arguments.plain_function("predicate", predicate)))

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Makes a dataset of every element and reads `cycle_length` of them in turn.

        asyncdata opens the files of the next datasets early, so that the pipeline does not wait for their first byte.
        It needs no `num_parallel_calls` for this.

        Args:
            map_func: Returns a Dataset; `TFRecordDataset` itself will do.
            cycle_length: Datasets read in turn, at most a million (2**20); 16 by default (or with `AUTOTUNE`).
            block_length: Elements taken from one dataset per turn; 1 by default.
            num_parallel_calls: Accepted for compatibility: files are always read concurrently. What else a dataset
                does, such as a generator, happens in its turn, unless it ends in `prefetch` or `deterministic` is
                False.
            deterministic: False skips a dataset that has nothing ready; the order within each is kept.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(1, 4).interleave(lambda x: ad.Dataset.from_tensors(int(x)).repeat(3), 2, 2)
            >>> list(ds)
            [1, 1, 2, 2, 1, 2, 3, 3, 3]
        """
        return Dataset(
            transformations.interleaved(
                self._node, map_func, cycle_length, block_length, num_parallel_calls, deterministic
            )
        )

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """Makes a dataset of every element and reads one after the other.

        Example:
            >>> import asyncdata as ad
            >>> words = ad.Dataset.from_tensor_slices(["ab", "c"])
            >>> list(words.flat_map(lambda word: ad.Dataset.from_tensor_slices(list(word))))
            ['a', 'b', 'c']
        """
        return Dataset(transformations.flattened(self._node, map_func))

    # --- order and number of elements --------------------------------------------------------------------------------

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset:
        """Draws elements at random from a buffer of the next `buffer_size` elements.

        Args:
            buffer_size: Elements in the buffer. The shuffle is uniform if the buffer is no smaller than the dataset.
            seed: Seed of the draws; without it (and without `Options.seed`) every iteration differs.
            reshuffle_each_iteration: Whether epochs differ; True by default. With False, all iterations of this
                dataset, and of datasets derived from it, have one order. Without a seed this order is drawn when
                `shuffle` is called, so another process that runs the same program has another one.

        Example:
            >>> import asyncdata as ad
            >>> sorted(int(x) for x in ad.Dataset.range(5).shuffle(5, seed=1))
            [0, 1, 2, 3, 4]
            >>> ds = ad.Dataset.range(5).shuffle(5, reshuffle_each_iteration=False)
            >>> sorted([*ds.take(2), *ds.skip(2)]) == list(range(5))
            True
        """
        return Dataset(
            Shuffle(
                input=self._node,
                buffer_size=arguments.integer("buffer_size", buffer_size, least=1),
                seed=arguments.seed("seed", seed),
                reshuffle=arguments.flag_or_none("reshuffle_each_iteration", reshuffle_each_iteration) is not False,
            )
        )

    def repeat(self, count: int | None = None) -> Dataset:
        """Repeats the dataset `count` times; forever if None or -1. Shuffles upstream differ between repetitions.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(3).repeat(2)]
            [0, 1, 2, 0, 1, 2]
        """
        return Dataset(transformations.repeated(self._node, count))

    def take(self, count: int) -> Dataset:
        """The first `count` elements; all of them if -1.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(10).take(2)]
            [0, 1]
        """
        return Dataset(Take(input=self._node, count=arguments.integer("count", count)))

    def skip(self, count: int) -> Dataset:
        """All but the first `count` elements; none if -1.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(5).skip(3)]
            [3, 4]
        """
        return Dataset(Skip(input=self._node, count=arguments.integer("count", count)))

    def prefetch(self, buffer_size: int) -> Dataset:
        """Makes up to `buffer_size` elements ahead of the consumer; `AUTOTUNE` finds how many.

        Example:
            >>> import asyncdata as ad
            >>> [batch.tolist() for batch in ad.Dataset.range(4).batch(2).prefetch(ad.AUTOTUNE)]
            [[0, 1], [2, 3]]
        """
        return Dataset(
            Prefetch(
                input=self._node, buffer_size=arguments.integer("buffer_size", buffer_size, least=0, autotune=True)
            )
        )

    def ignore_errors(self, log_warning: bool = False) -> Dataset:
        """Skips the elements that fail in the steps before this one, without a limit on their number.

        If a record's checksum does not match, or ``map``, ``filter`` or a parser raises for an element, this element is
        skipped. If a file cannot be read further (damaged framing, missing, replaced), the rest of the file is skipped.
        If more than 10,000 elements in a row fail in one step (or ``ErrorPolicy.max_in_a_row``), the pipeline ends with
        ``TooManyErrorsError``. For a quota and a list of the skipped elements, see ``Options.errors``.

        Args:
            log_warning: Log every failure.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_tensor_slices([1, 0, 2]).map(lambda x: 2 // int(x))
            >>> [int(x) for x in ds.ignore_errors()]
            [2, 1]
        """
        return Dataset(IgnoreErrors(input=self._node, log_warning=arguments.flag("log_warning", log_warning)))

    def enumerate(self, start: int = 0) -> Dataset:
        """Each element with its number: ``(start + i, element)``.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_tensor_slices(["a", "b"]).enumerate(start=5))
            [(np.int64(5), 'a'), (np.int64(6), 'b')]
        """
        return Dataset(Enumerate(input=self._node, start=arguments.integer("start", start)))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Every `num_shards`-th element, beginning with number `index`.

        Call it early, on the dataset of file names, because elements of other shards are otherwise produced and then
        dropped. Steps before it must not draw an order without a seed or deliver elements as they are ready; otherwise
        the shards of several processes would overlap.

        Args:
            num_shards: Number of shards.
            index: Which shard: 0 to ``num_shards - 1``.

        Raises:
            PipelineError: During iteration, if the order differs from process to process.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(7).shard(num_shards=3, index=1)]
            [1, 4]
        """
        return Dataset(sequence.shard(self._node, num_shards, index))

    def take_while(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements before the first one for which the predicate is false. It runs on the pipeline's loop.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(10).take_while(lambda x: x < 3)]
            [0, 1, 2]
        """
        return Dataset(TakeWhile(input=self._node, predicate=arguments.plain_function("predicate", predicate)))

    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], tuple[Any, Any]]) -> Dataset:
        """A map with a state: ``state, output = scan_func(state, element)`` for each element; yields the outputs.

        Args:
            initial_state: The first state; must be copyable.
            scan_func: Takes the state, which it may change in place, and the element (a tuple is one argument), and
                returns the new state and the output. Runs on the pipeline's loop, one element after the other.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(5).scan(0, lambda total, x: (total + x, total + x))]
            [0, 1, 3, 6, 10]
        """
        return Dataset(
            Scan(
                input=self._node,
                initial_state=initial_state,
                function=arguments.plain_function("scan_func", scan_func),
            )
        )

    def unique(self) -> Dataset:
        """Each element the first time it occurs.

        Accepts any kind of element. Remembers what it has seen, with about 150 bytes per leaf of a different element.

        Raises:
            MemoryLimitError: During iteration, if this memory and that of other steps exceed
                `Options.memory_limit_bytes`.

        Example:
            >>> import asyncdata as ad
            >>> list(ad.Dataset.from_tensor_slices(["b", "a", "b", "c", "a"]).unique())
            ['b', 'a', 'c']
        """
        return Dataset(Unique(input=self._node))

    def assert_cardinality(self, expected_cardinality: int) -> Dataset:
        """The same dataset with a declared `cardinality`, which iterating checks.

        Args:
            expected_cardinality: The number of elements; `INFINITE_CARDINALITY` if they do not end.

        Raises:
            PipelineError: During iteration, if there are more or fewer.

        Example:
            >>> import asyncdata as ad
            >>> len(ad.Dataset.range(10).filter(lambda x: x % 2 == 0).assert_cardinality(5))
            5
        """
        return Dataset(sequence.assert_cardinality(self._node, expected_cardinality))

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Sequence[float] | npt.NDArray[Any],
        initial_dist: Sequence[float] | npt.NDArray[Any] | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """Drops and repeats elements so that classes have a target distribution; yields ``(class, element)``.

        As in tf.data, one part of the result is this dataset unchanged. The other part is drawn from the dataset once
        more, and keeps each element with the probability that its class needs to reach the target. The two parts are
        mixed at random until one of them ends. This dataset is therefore read twice (three times without
        `initial_dist`), and an element may occur twice; put a `cache` before it if reading is expensive. With
        `initial_dist`, if the target of a class is 0, the first part is empty, and nothing is read or occurs twice.

        Args:
            class_func: Returns the class of an element: an integer from 0 to ``len(target_dist) - 1``. Runs on the
                pipeline's loop.
            target_dist: The target share of each class.
            initial_dist: The share of each class in this dataset; by default the elements seen so far are counted.
            seed: Seed of the draws; without it (and without `Options.seed`) every iteration differs.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(1000).rejection_resample(lambda x: int(x >= 900), [0.5, 0.5], [0.9, 0.1], seed=1)
            >>> classes = [int(c) for c, x in ds]
            >>> 0.4 < sum(classes) / len(classes) < 0.6
            True
        """
        return Dataset(sequence.resampled(Dataset, self._node, class_func, target_dist, initial_dist, seed))

    # --- several elements in one, and one taken apart ----------------------------------------------------------------

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Stacks consecutive elements, leaf by leaf.

        Arrays and numbers are stacked along a new first axis, byte strings and texts into a `BytesArray`, and arrays of
        byte strings or texts into arrays of objects.

        Args:
            batch_size: Elements per batch.
            drop_remainder: Whether to drop a last, smaller batch.
            num_parallel_calls: Accepted for compatibility: stacking is cheap, and the workers of a preceding map do it.
            deterministic: Accepted for compatibility: batches keep their order.

        Raises:
            UnbatchableError: During iteration, if elements of one batch differ in structure, shape or dtype.

        Example:
            >>> import asyncdata as ad
            >>> [batch.tolist() for batch in ad.Dataset.range(5).batch(2)]
            [[0, 1], [2, 3], [4]]
            >>> [batch.tolist() for batch in ad.Dataset.range(5).batch(2, drop_remainder=True)]
            [[0, 1], [2, 3]]
        """
        return Dataset(grouping.batch(self._node, batch_size, drop_remainder, num_parallel_calls, deterministic))

    def unbatch(self) -> Dataset:
        """The rows of every element, one by one: the inverse of `batch` and `ragged_batch`.

        All leaves of an element must have one length. A row of a RaggedArray is an array, or a RaggedArray with one
        level less.

        Raises:
            UnbatchableError: During iteration, if a leaf is a scalar or lengths differ.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_tensor_slices({"a": [[1, 2], [3, 4]], "b": [["x", "y"], ["z", ""]]})
            >>> [(int(row["a"]), str(row["b"])) for row in ds.unbatch()]
            [(1, 'x'), (2, 'y'), (3, 'z'), (4, '')]
        """
        return Dataset(Unbatch(input=self._node))

    def rebatch(self, batch_size: int | Sequence[int] | npt.NDArray[Any], drop_remainder: bool = False) -> Dataset:
        """The rows of batches in batches of another size: `unbatch` and `batch` in one.

        Args:
            batch_size: Rows per batch; several sizes take turns.
            drop_remainder: Whether to drop a last batch that is smaller than its size.

        Raises:
            UnbatchableError: During iteration, if rows of one batch differ in shape or dtype.

        Example:
            >>> import asyncdata as ad
            >>> [batch.tolist() for batch in ad.Dataset.range(7).batch(3).rebatch([2, 1])]
            [[0, 1], [2], [3, 4], [5], [6]]
        """
        return Dataset(grouping.rebatch(self._node, batch_size, drop_remainder))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Stacks consecutive elements of different shapes, each padded at the end of its axes.

        Arrays are padded to one shape. Lists of byte strings become a two-dimensional array of objects, and single byte
        strings and texts a `BytesArray`, as in `batch`.

        Args:
            batch_size: Elements per batch.
            padded_shapes: None, or nested like the elements: per leaf a sequence of lengths, in which None (or -1)
                means the longest of the batch. None pads every axis to the longest.
            padding_values: None for zeros and empty strings; or a value for every leaf; or nested like the elements.
                Python numbers may have a simpler type than the elements; numpy scalars must have their dtype. Byte
                strings may be padded with a ``str``.
            drop_remainder: Whether to drop a last, smaller batch.

        Raises:
            UnbatchableError: During iteration, if an element is larger than its padded shape, elements of one batch
                differ in structure, rank or dtype, or shapes and values do not fit them.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_generator(lambda: [[1], [2, 3], [4, 5, 6]])
            >>> [batch.tolist() for batch in ds.padded_batch(2, padding_values=-1)]
            [[[1, -1], [2, 3]], [[4, 5, 6]]]
            >>> [batch.shape for batch in ds.padded_batch(2, padded_shapes=[5])]
            [(2, 5), (1, 5)]
        """
        return Dataset(
            PaddedBatch(
                input=self._node,
                size=arguments.integer("batch_size", batch_size, least=1),
                shapes=padded_shapes,
                values=padding_values,
                drop_remainder=arguments.flag("drop_remainder", drop_remainder),
                longest=None,
            )
        )

    def ragged_batch(self, batch_size: int, drop_remainder: bool = False, row_splits_dtype: Any = np.int64) -> Dataset:
        """Joins consecutive elements of different shapes into RaggedArrays, without padding.

        Scalars, byte strings and texts are stacked as in `batch`. A leaf whose shape is known in advance (see
        `element_spec`) becomes ragged up to its last axis of unknown length, or is stacked if there is none. In other
        leaves all axes become ragged.

        Args:
            batch_size: Elements per batch.
            drop_remainder: Whether to drop a last, smaller batch.
            row_splits_dtype: int64 or int32.

        Raises:
            UnbatchableError: During iteration, if elements of one batch differ in structure, rank or dtype.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_generator(lambda: [[1], [2, 3], [], [4]])
            >>> [batch.to_list() for batch in ds.ragged_batch(2)]
            [[[1], [2, 3]], [[], [4]]]
        """
        return Dataset(grouping.ragged_batch(self._node, batch_size, drop_remainder, row_splits_dtype))

    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Dataset:
        """Groups elements into windows. Each window is a Dataset; nested elements give a nest of Datasets.

        A window is a private copy of its elements. You may keep it, iterate it again, and turn it into batches with
        ``flat_map(lambda w: w.batch(size))``.

        Args:
            size: Elements per window.
            shift: Elements from the start of one window to the start of the next; `size` by default.
            stride: Distance between the elements of a window.
            drop_remainder: Whether to drop windows that are not full.

        Example:
            >>> import asyncdata as ad
            >>> [[int(x) for x in window] for window in ad.Dataset.range(7).window(3, shift=2)]
            [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6]]
            >>> ds = ad.Dataset.range(7).window(3, drop_remainder=True)
            >>> [batch.tolist() for batch in ds.flat_map(lambda window: window.batch(3))]
            [[0, 1, 2], [3, 4, 5]]
        """
        return Dataset(grouping.window(Dataset, self._node, size, shift, stride, drop_remainder))

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[int, Dataset], Dataset],
        window_size: int | None = None,
        window_size_func: Callable[[int], Any] | None = None,
    ) -> Dataset:
        """Collects elements by key, and yields what `reduce_func` makes of each full window.

        When the input has ended, the incomplete windows are reduced in order of their keys. Both functions run on the
        pipeline's loop.

        Args:
            key_func: ``key_func(element)`` returns an integer; a tuple is unpacked into arguments.
            reduce_func: ``reduce_func(key, window)`` returns a Dataset, whose elements are yielded.
            window_size: Elements per full window.
            window_size_func: ``window_size_func(key)``, called once per key; instead of `window_size`.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(7).group_by_window(lambda x: x % 2, lambda key, w: w.batch(2), window_size=2)
            >>> [batch.tolist() for batch in ds]
            [[0, 2], [1, 3], [4, 6], [5]]
        """
        return Dataset(
            grouping.group_by_window(Dataset, self._node, key_func, reduce_func, window_size, window_size_func)
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
        """Batches elements of similar length together, so that batches need little padding.

        Args:
            element_length_func: ``element_length_func(element)`` returns its length; runs on the pipeline's loop.
            bucket_boundaries: Ascending: bucket i holds lengths from ``bucket_boundaries[i - 1]`` to below
                ``bucket_boundaries[i]``.
            bucket_batch_sizes: Batch size per bucket: one more than there are boundaries.
            padded_shapes: See `padded_batch`.
            padding_values: See `padded_batch`.
            pad_to_bucket_boundary: Pad to the bucket's upper boundary minus one instead of to the longest element. Axes
                whose length is given keep that length: `padded_shapes` gives it, or else `element_spec`. Leaves of
                several axes need one of them. Elements must be shorter than the last boundary.
            no_padding: Use `batch` instead; the elements of a bucket must be alike.
            drop_remainder: Whether to drop smaller batches at the end.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.from_generator(lambda: [[1], [2, 2, 2], [3], [4, 4], [5, 5, 5]])
            >>> [batch.tolist() for batch in ds.bucket_by_sequence_length(len, [2], [2, 2])]
            [[[1], [3]], [[2, 2, 2], [4, 4, 0]], [[5, 5, 5]]]
        """
        return Dataset(
            grouping.bucket_by_sequence_length(
                Dataset,
                self._node,
                element_length_func,
                bucket_boundaries,
                bucket_batch_sizes,
                padded_shapes,
                padding_values,
                pad_to_bucket_boundary=pad_to_bucket_boundary,
                no_padding=no_padding,
                drop_remainder=drop_remainder,
            )
        )

    # --- several datasets in one -------------------------------------------------------------------------------------

    def zip(*args: Any, datasets: Any = None) -> Dataset:
        """Combines one element of each dataset into one element, until the shortest ends.

        Args:
            *args: Datasets, whose elements become a tuple; or one nest (tuple, namedtuple, dict) of datasets, whose
                elements nest in the same way. If called on a dataset, that dataset comes first.
            datasets: The nest, as a keyword.

        Raises:
            TypeError: The nest contains something other than a Dataset.

        Example:
            >>> import asyncdata as ad
            >>> numbers, letters = ad.Dataset.range(3), ad.Dataset.from_tensor_slices(["a", "b"])
            >>> list(ad.Dataset.zip({"n": numbers, "l": letters}))
            [{'n': np.int64(0), 'l': 'a'}, {'n': np.int64(1), 'l': 'b'}]
            >>> list(letters.zip(numbers))
            [('a', np.int64(0)), ('b', np.int64(1))]
        """
        return Dataset(combining.zipped(args, datasets))

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of this dataset, then those of the other.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(2).concatenate(ad.Dataset.range(5, 7))]
            [0, 1, 5, 6]
        """
        return Dataset(combining.concatenated(self._node, dataset))

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset],
        weights: Sequence[float] | npt.NDArray[Any] | Dataset | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Takes each element from a dataset drawn at random; the order within each is kept.

        Args:
            datasets: The datasets to draw from.
            weights: How likely each dataset is, not normalized; equal by default. A Dataset gives the weights of each
                draw, and the result ends when it ends.
            seed: Seed of the draws; without it (and without `Options.seed`) one is drawn for this dataset.
            stop_on_empty_dataset: Whether to stop when a dataset is drawn that has ended, so that the weights hold to
                the end. Otherwise ended datasets are skipped.
            rerandomize_each_iteration: Whether epochs differ; False by default.

        Example:
            >>> import asyncdata as ad
            >>> tens = [ad.Dataset.range(10 * i, 10 * i + 3) for i in range(3)]
            >>> ds = ad.Dataset.sample_from_datasets(tens, weights=[0.5, 0.5, 0.0], seed=1)
            >>> sorted(int(x) for x in ds)
            [0, 1, 2, 10, 11, 12]
        """
        return Dataset(combining.sampled(datasets, weights, seed, stop_on_empty_dataset, rerandomize_each_iteration))

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = True
    ) -> Dataset:
        """Takes each element from the dataset whose number `choice_dataset` gives.

        Args:
            datasets: The datasets to choose from.
            choice_dataset: Yields integers from 0 to ``len(datasets) - 1``; the result ends when it ends.
            stop_on_empty_dataset: Whether to stop when a dataset is chosen that has ended. Otherwise ended datasets are
                skipped.

        Raises:
            PipelineError: During iteration, if a choice is not one of these integers.

        Example:
            >>> import asyncdata as ad
            >>> words = [ad.Dataset.from_tensors(word).repeat() for word in ("a", "b", "c")]
            >>> list(ad.Dataset.choose_from_datasets(words, ad.Dataset.range(3).repeat(2)))
            ['a', 'b', 'c', 'a', 'b', 'c']
        """
        return Dataset(combining.chosen(datasets, choice_dataset, stop_on_empty_dataset))

    # --- elements kept for later runs --------------------------------------------------------------------------------

    def cache(self, filename: str | os.PathLike[str] | None = "") -> Dataset:
        """Keeps the elements of the first complete run; later runs read them instead of the input.

        In memory the elements belong to this dataset, count against `Options.memory_limit_bytes` of every pipeline that
        uses them, and are freed with the dataset. In a file they outlive it: the same pipeline finds them there in any
        process, and another pipeline gets an error, see `snapshot`. An incomplete run keeps nothing. Steps before the
        cache, such as a shuffle, happen once. With `Options.isolate` a cache in memory lasts for one iteration.

        If a pipeline uses the dataset several times, all uses read the input until the cache is complete, in one order.
        Steps after the cache have random numbers of their own in each use.

        Args:
            filename: A path on a local file system; None or ``""`` for memory. A file can contain numbers, arrays,
                bytes, str and nests of them; nothing is pickled.

        Raises:
            MemoryLimitError: During iteration, if the elements do not fit into the memory limit.
            PipelineError: During iteration, if an element cannot be written to the file.
            StaleDataError: During iteration, if the file was made by other steps, functions or files.
            BrokenFrameError: During iteration, if the file is damaged or not asyncdata's.

        Example:
            >>> import asyncdata as ad
            >>> read = []
            >>> ds = ad.Dataset.range(3).map(lambda x: read.append(int(x)) or x * x).cache()
            >>> [int(x) for x in ds], [int(x) for x in ds], read
            ([0, 1, 4], [0, 1, 4], [0, 1, 2])
        """
        return Dataset(grouping.cache(self._node, filename))

    def snapshot(
        self,
        path: str | os.PathLike[str],
        compression: str | None = "AUTO",
        reader_func: Callable[[Dataset], Dataset] | None = None,
        shard_func: Callable[..., Any] | None = None,
    ) -> Dataset:
        """Writes the elements of the first complete run to a directory; later runs read it, in any process.

        The snapshot records what its elements are made of: the steps before it and their settings, digests of the
        functions' code, constants and references, and sizes and versions of the files that were read. If any of this
        differs, reading a complete snapshot raises an error that names the first difference. Settings that change no
        element do not count (parallelism, executors, prefetching, memory), nor do `compression` and `reader_func`. A
        warning names what cannot be compared: objects that cannot be pickled, and objects that functions change while
        they run.

        If one pipeline uses the dataset several times while the snapshot is being written, each use reads the input in
        an order and with random numbers of its own; if several uses write it, the last one to finish wins.

        Args:
            path: A directory on a local file system.
            compression: ``"GZIP"`` or ``"ZSTD"``; ``"AUTO"`` and None mean none. Reading detects it.
            reader_func: ``reader_func(datasets)`` gets a dataset with one dataset per shard and returns the dataset to
                read; by default their elements in turn.
            shard_func: ``shard_func(element)`` returns the number of the element's shard; by default there is one
                shard. Runs on the pipeline's loop.

        Raises:
            PipelineError: During iteration, if an element cannot be written.
            StaleDataError: During iteration, if the snapshot was made by another pipeline or of other files.
            DataError: During iteration, if the snapshot is damaged or not asyncdata's.

        Example:
            >>> import asyncdata as ad
            >>> import tempfile
            >>> def in_turn(shards):
            ...     return shards.flat_map(lambda shard: shard)
            >>> with tempfile.TemporaryDirectory() as path:
            ...     ds = ad.Dataset.range(6).snapshot(path, reader_func=in_turn, shard_func=lambda x: x % 2)
            ...     [int(x) for x in ds], [int(x) for x in ds]
            ([0, 1, 2, 3, 4, 5], [0, 2, 4, 1, 3, 5])
        """
        return Dataset(grouping.snapshot(Dataset, self._node, path, compression, reader_func, shard_func))

    # --- older names for two steps at once ---------------------------------------------------------------------------

    def map_and_batch(
        self,
        map_func: Callable[..., Any],
        batch_size: int,
        num_parallel_batches: int | None = None,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
    ) -> Dataset:
        """``map(map_func, num_parallel_calls).batch(batch_size, drop_remainder)``.

        Args:
            map_func: See `map`.
            batch_size: See `batch`.
            num_parallel_batches: Equivalent to ``num_parallel_calls=num_parallel_batches * batch_size``.
            drop_remainder: See `batch`.
            num_parallel_calls: See `map`.

        Example:
            >>> import asyncdata as ad
            >>> [batch.tolist() for batch in ad.Dataset.range(4).map_and_batch(lambda x: x * x, 2)]
            [[0, 1], [4, 9]]
        """
        return self.map(map_func, fused.calls_at_once(num_parallel_calls, num_parallel_batches, batch_size)).batch(
            batch_size, drop_remainder
        )

    def shuffle_and_repeat(self, buffer_size: int, count: int | None = None, seed: int | None = None) -> Dataset:
        """``shuffle(buffer_size, seed).repeat(count)``.

        Example:
            >>> import asyncdata as ad
            >>> sorted(int(x) for x in ad.Dataset.range(2).shuffle_and_repeat(2, count=2))
            [0, 0, 1, 1]
        """
        return self.shuffle(buffer_size, seed).repeat(count)

    def parallel_interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: int,
        block_length: int = 1,
        sloppy: bool | None = False,
        buffer_output_elements: int | None = None,
        prefetch_input_elements: int | None = None,
    ) -> Dataset:
        """``interleave(map_func, cycle_length, block_length, deterministic=not sloppy)``.

        Args:
            map_func: See `interleave`.
            cycle_length: See `interleave`.
            block_length: See `interleave`.
            sloppy: Whether to skip a dataset that has nothing ready; None uses `Options.deterministic`.
            buffer_output_elements: Accepted for compatibility: the memory limit governs read-ahead.
            prefetch_input_elements: Accepted for compatibility: the next datasets are always opened early.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(2).parallel_interleave(lambda x: ad.Dataset.from_tensors(x).repeat(2), 2)
            >>> [int(x) for x in ds]
            [0, 1, 0, 1]
        """
        return self.interleave(
            map_func,
            cycle_length,
            block_length,
            deterministic=fused.unless_sloppy(sloppy, buffer_output_elements, prefetch_input_elements),
        )

    # --- the dataset as a whole --------------------------------------------------------------------------------------

    def apply(self, transformation_func: Callable[[Dataset], R]) -> R:
        """Returns ``transformation_func(self)``, for use in a chain of calls.

        Example:
            >>> import asyncdata as ad
            >>> def every_other(ds):
            ...     return ds.filter(lambda x: x % 2 == 0)
            >>> [int(x) for x in ad.Dataset.range(5).apply(every_other)]
            [0, 2, 4]
        """
        return cast("R", arguments.function("transformation_func", transformation_func)(self))

    def with_options(self, options: Options) -> Dataset:
        """The same dataset with these options. Fields that they do not give keep the values of earlier calls.

        The options of all calls are merged field by field, ``storage`` by scheme and key; the later call wins. The
        ``storage`` of one input of `zip` or `concatenate`, or of an inner dataset of `interleave`, applies only to that
        input; all other options apply to the whole pipeline.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(3).with_options(ad.Options(memory_limit_bytes=64 << 20, num_workers=0))
            >>> [int(x) for x in ds]
            [0, 1, 2]
        """
        return Dataset(transformations.with_options(self._node, options))

    def iterator(self, epoch: int | None = None, state: Mapping[str, Any] | None = None) -> PipelineIterator:
        """Starts the pipeline and returns its iterator, for ``with`` or ``async with``.

        Args:
            epoch: Number of the epoch; by default the handle's next one.
            state: Of `PipelineIterator.state_dict`: the iterator continues after it, in its epoch.

        Example:
            >>> import asyncdata as ad
            >>> with ad.Dataset.range(3).iterator() as numbers:
            ...     int(next(numbers)), int(next(numbers))
            (0, 1)
        """
        return answers.started(self._node, self._epochs, epoch, state)

    def as_numpy_iterator(self) -> Iterator[Element]:
        """The same as ``iter``, because elements consist of numpy arrays and scalars anyway.

        Example:
            >>> import asyncdata as ad
            >>> next(ad.Dataset.range(3).as_numpy_iterator())
            np.int64(0)
        """
        return iter(self.iterator())

    def explain(self) -> Explanation:
        """Says what asyncdata makes of this dataset, without running it or reading anything.

        Which steps are joined, where each step runs and why, what memory is reserved, and what a resume repeats, under
        the options of the dataset, or of the `Runtime` around the call.

        Returns:
            A frozen value. ``print`` shows it as text, notebooks as a table.

        Raises:
            PipelineError: The plan cannot run.
            MemoryLimitError: It cannot run within the memory limit.

        Example:
            >>> import asyncdata as ad
            >>> plan = ad.Dataset.range(100).map(abs, num_parallel_calls=2).batch(10).explain()
            >>> [step.name for step in plan.steps]
            ['range', 'map(abs).batch(10)']
            >>> print(plan.steps[1].runs, "because", plan.steps[1].because)
            in worker processes because joined: tasks write the finished batch; num_parallel_calls is given
        """
        return answers.explained(self._node)

    def cardinality(self) -> int:
        """Returns the number of elements, if it is known without running the pipeline.

        Returns:
            The number, or `INFINITE_CARDINALITY` (-1), or `UNKNOWN_CARDINALITY` (-2).

        Example:
            >>> import asyncdata as ad
            >>> ad.Dataset.range(10).batch(3).cardinality()
            4
            >>> ad.Dataset.range(10).repeat().cardinality() == ad.INFINITE_CARDINALITY
            True
            >>> ad.Dataset.range(10).filter(bool).cardinality() == ad.UNKNOWN_CARDINALITY
            True
        """
        return answers.count(self._node)

    @property
    def element_spec(self) -> Any:
        """The specs of the leaves, such as `ArraySpec`, nested like an element.

        None means that only running would tell, as for the result of a function. For `ParquetDataset` this reads the
        footer of one file. A spec does not say whether a value may be missing.

        Raises:
            StorageError: This file cannot be read.

        Example:
            >>> import asyncdata as ad
            >>> ad.Dataset.from_tensor_slices({"x": [1.0, 2.0], "name": ["a", "b"]}).batch(2).element_spec
            {'x': ArraySpec(shape=(None,), dtype=dtype('float64')), 'name': StrSpec(shape=(None,))}
        """
        return element_spec(with_known_rows(self._node))

    def reduce(self, initial_state: S, reduce_func: Callable[[S, Any], S]) -> S:
        """Runs the pipeline, folds its elements with ``state = reduce_func(state, element)``, returns the last state.

        Args:
            initial_state: The first state, and the result if there are no elements.
            reduce_func: Called in this thread; a tuple element is one argument.

        Example:
            >>> import asyncdata as ad
            >>> int(ad.Dataset.range(5).reduce(0, lambda total, x: total + x))
            10
        """
        return answers.reduced(self.iterator, initial_state, reduce_func)

    async def areduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`reduce` for asyncio programs; `reduce_func` may be ``async def``.

        Example:
            >>> import asyncdata as ad, asyncio
            >>> int(asyncio.run(ad.Dataset.range(5).areduce(0, lambda total, x: total + x)))
            10
        """
        return await answers.reduced_later(self.iterator, initial_state, reduce_func)

    def get_single_element(self) -> Element:
        """Returns the only element.

        Raises:
            ValueError: There is no element, or more than one.

        Example:
            >>> import asyncdata as ad
            >>> int(ad.Dataset.range(5).skip(4).get_single_element())
            4
        """
        return answers.single(self.iterator)


def _restored(steps: tuple[Node, ...]) -> Dataset:
    return Dataset(restored(steps))
