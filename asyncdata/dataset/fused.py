"""Older names for two steps in one, as functions for `Dataset.apply`. They make the same plans as the methods.

The planner joins the two steps whenever that is cheaper, whatever they were called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncdata import arguments

if TYPE_CHECKING:
    from asyncdata.dataset.dataset import Dataset


def calls_at_once(num_parallel_calls: int | None, num_parallel_batches: int | None, batch_size: int) -> int | None:
    """Returns the parallelism of `map_and_batch`, which has two arguments for it."""
    if num_parallel_batches is None:
        return num_parallel_calls
    if num_parallel_calls is not None:
        raise ValueError("num_parallel_batches and num_parallel_calls set the same thing; give one")
    batches = arguments.integer("num_parallel_batches", num_parallel_batches, least=1)
    return batches * arguments.integer("batch_size", batch_size, least=1)


def unless_sloppy(
    sloppy: bool | None, buffer_output_elements: int | None, prefetch_input_elements: int | None
) -> bool | None:
    """Returns the `deterministic` that `sloppy` means. The other arguments are only checked."""
    arguments.integer_or_none("buffer_output_elements", buffer_output_elements, least=0, autotune=True)
    arguments.integer_or_none("prefetch_input_elements", prefetch_input_elements, least=0, autotune=True)
    said = arguments.flag_or_none("sloppy", sloppy)
    return None if said is None else not said


@arguments.suggests
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


@arguments.suggests
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


@arguments.suggests
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
