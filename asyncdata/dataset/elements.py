"""Transformations that look at one element at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

from asyncdata import arguments
from asyncdata.dataset.handle import Handle, NodeOf
from asyncdata.plan import transformations

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset

DEFAULT_CYCLE: Final = 16
MOST_CYCLE: Final = 1 << 20
"""Datasets read in turn unless the caller says how many."""

_EXECUTORS: Final = ("process", "thread", "inline", None)


class Elements(Handle):
    """The part of `Dataset` with functions of elements."""

    __slots__ = ()

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
        """``map_func(element)`` for every element; a tuple becomes several arguments, a namedtuple is one.

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
            vectorized: Call the function for many elements at once, on the pipeline's loop: with an array per leaf
                whose first axis is the element (byte strings: a `BytesArray`), for as many as are at hand. It returns
                arrays with as many rows, and must treat every row alike and by itself.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(3).map(lambda x: x + 1)]
            [1, 2, 3]
            >>> ad.Dataset.range(3).map(lambda x: x + 1, vectorized=True).batch(3).get_single_element()
            array([1, 2, 3])
        """
        arguments.function("map_func", map_func)
        arguments.choice("executor", executor, _EXECUTORS)
        parallelism = arguments.integer_or_none("num_parallel_calls", num_parallel_calls, least=1, autotune=True)
        rng, zero_copy = arguments.flag("rng", rng), arguments.flag("zero_copy", zero_copy)
        if arguments.flag("vectorized", vectorized):
            executor = _check_vectorized(map_func, parallelism, executor, rng=rng, zero_copy=zero_copy)
        if arguments.is_async(map_func) and executor is not None:
            raise ValueError(
                f"an async function is awaited on the pipeline's loop; executor={executor!r} is for others"
            )
        if setup is not None and not arguments.is_async(map_func):
            raise ValueError("setup= is for async functions; a plain one is called without it")
        if setup is not None:
            arguments.function("setup", setup)
        return self._derive(
            transformations.Map(
                input=self._node,
                function=map_func,
                parallelism=parallelism,
                deterministic=arguments.flag_or_none("deterministic", deterministic),
                executor=executor,
                rng=rng,
                zero_copy=zero_copy,
                setup=setup,
            )
        )

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """Only the elements for which the predicate is true; it runs on the pipeline's loop.

        Example:
            >>> import asyncdata as ad
            >>> [int(x) for x in ad.Dataset.range(6).filter(lambda x: x % 3 == 0)]
            [0, 3]
        """
        arguments.plain_function("predicate", predicate)
        return self._derive(transformations.Filter(input=self._node, predicate=predicate))

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
            cycle_length: Datasets read in turn, a million (2**20) at most; 16 unless given (or `AUTOTUNE`).
            block_length: Elements taken from one before the next has its turn; 1 unless given.
            num_parallel_calls: Taken for compatibility; reading is always concurrent.
            deterministic: False passes over a dataset that has nothing ready; the order within each is kept.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(1, 4).interleave(lambda x: ad.Dataset.from_tensors(int(x)).repeat(3), 2, 2)
            >>> list(ds)
            [1, 1, 2, 2, 1, 2, 3, 3, 3]
        """
        cycle = arguments.integer_or_none("cycle_length", cycle_length, least=1, most=MOST_CYCLE, autotune=True)
        block = arguments.integer_or_none("block_length", block_length, least=1)
        parallelism = arguments.integer_or_none("num_parallel_calls", num_parallel_calls, least=1, autotune=True)
        return self._derive(
            transformations.Interleave(
                input=self._node,
                function=NodeOf(arguments.plain_function("map_func", map_func)),
                cycle_length=DEFAULT_CYCLE if cycle in (None, -1) else cycle,
                block_length=1 if block is None else block,
                parallelism=parallelism,
                deterministic=arguments.flag_or_none("deterministic", deterministic),
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
        return self.interleave(map_func, cycle_length=1, deterministic=True)


def _check_vectorized(
    function: Callable[..., Any], parallel: int | None, executor: str | None, *, rng: bool, zero_copy: bool
) -> str:
    """The executor of a vectorized function; refuses what goes element by element."""
    if arguments.is_async(function):
        raise TypeError("map_func must be a plain function to be vectorized")
    if parallel is not None or executor not in (None, "inline"):
        raise ValueError(
            "a vectorized function runs on the pipeline's loop: num_parallel_calls and executor are others'"
        )
    if rng or zero_copy:
        raise ValueError("rng and zero_copy belong to single elements; a vectorized function is called with many")
    return "vectorized"
