"""Older names for two steps at once, as methods and as functions for `Dataset.apply`; they make the same plans.

The two steps are joined by the planner wherever that is cheaper, under these names or their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncdata import arguments
from asyncdata.dataset.elements import Elements
from asyncdata.dataset.flow import Flow
from asyncdata.dataset.grouping import Grouping

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


class Fused(Elements, Flow, Grouping):
    """The part of `Dataset` with the fused names."""

    __slots__ = ()

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
            map_func: As of `map`.
            batch_size: As of `batch`.
            num_parallel_batches: Another way to say ``num_parallel_calls=num_parallel_batches * batch_size``.
            drop_remainder: As of `batch`.
            num_parallel_calls: As of `map`.

        Example:
            >>> import asyncdata as ad
            >>> [batch.tolist() for batch in ad.Dataset.range(4).map_and_batch(lambda x: x * x, 2)]
            [[0, 1], [4, 9]]
        """
        if num_parallel_batches is not None:
            if num_parallel_calls is not None:
                raise ValueError("num_parallel_batches and num_parallel_calls say the same in two ways; give one")
            batches = arguments.integer("num_parallel_batches", num_parallel_batches, least=1)
            num_parallel_calls = batches * arguments.integer("batch_size", batch_size, least=1)
        return self.map(map_func, num_parallel_calls).batch(batch_size, drop_remainder)

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
            map_func: As of `interleave`.
            cycle_length: As of `interleave`.
            block_length: As of `interleave`.
            sloppy: Whether a dataset that has nothing ready is passed over; None takes `Options.deterministic`.
            buffer_output_elements: Taken for compatibility: what is read ahead is divided by the memory limit.
            prefetch_input_elements: Taken for compatibility: the next datasets are opened ahead in any case.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(2).parallel_interleave(lambda x: ad.Dataset.from_tensors(x).repeat(2), 2)
            >>> [int(x) for x in ds]
            [0, 1, 0, 1]
        """
        del buffer_output_elements, prefetch_input_elements
        sloppy = arguments.flag_or_none("sloppy", sloppy)
        deterministic = None if sloppy is None else not sloppy
        return self.interleave(map_func, cycle_length, block_length, deterministic=deterministic)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: int,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Callable[[Dataset], Dataset]:
    """`Dataset.map_and_batch` for `Dataset.apply`.

    Example:
        >>> import asyncdata as ad
        >>> [batch.tolist() for batch in ad.Dataset.range(4).apply(ad.map_and_batch(lambda x: x * x, 2))]
        [[0, 1], [4, 9]]
    """
    return lambda dataset: dataset.map_and_batch(
        map_func, batch_size, num_parallel_batches, drop_remainder, num_parallel_calls
    )


def shuffle_and_repeat(
    buffer_size: int, count: int | None = None, seed: int | None = None
) -> Callable[[Dataset], Dataset]:
    """`Dataset.shuffle_and_repeat` for `Dataset.apply`.

    Example:
        >>> import asyncdata as ad
        >>> sorted(int(x) for x in ad.Dataset.range(2).apply(ad.shuffle_and_repeat(2, count=2)))
        [0, 0, 1, 1]
    """
    return lambda dataset: dataset.shuffle_and_repeat(buffer_size, count, seed)


def parallel_interleave(
    map_func: Callable[..., Dataset],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool | None = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Callable[[Dataset], Dataset]:
    """`Dataset.parallel_interleave` for `Dataset.apply`.

    Example:
        >>> import asyncdata as ad
        >>> twice = ad.parallel_interleave(lambda x: ad.Dataset.from_tensors(x).repeat(2), cycle_length=2)
        >>> [int(x) for x in ad.Dataset.range(2).apply(twice)]
        [0, 1, 0, 1]
    """
    return lambda dataset: dataset.parallel_interleave(
        map_func, cycle_length, block_length, sloppy, buffer_output_elements, prefetch_input_elements
    )
