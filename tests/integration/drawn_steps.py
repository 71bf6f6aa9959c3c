"""The steps that the law of places draws around the functions whose place is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import asyncdata as ad
from tests.integration.drawn_functions import same_element, size

Step = Callable[[ad.Dataset], ad.Dataset]


def twice(*parts: Any) -> ad.Dataset:
    """A dataset of an element, and of it again."""
    return ad.Dataset.from_tensors(same_element(*parts)).repeat(2)


def is_even(*parts: Any) -> bool:
    """Whether the size of an element is; fails at some."""
    if size(*parts) % 13 == 5:
        raise LookupError("no answer")
    return size(*parts) % 2 == 0


def counted(state: int, element: Any) -> tuple[int, Any]:
    """The element, and how many there were."""
    return state + 1, (state, element)


async def awaited(*parts: Any) -> Any:
    """The element itself."""
    return same_element(*parts)


WITH_FUNCTIONS: Final[dict[str, Step]] = {
    "filter": lambda ds: ds.filter(lambda *parts: size(*parts) % 3 != 1),
    "filter that fails": lambda ds: ds.filter(is_even),
    "take_while": lambda ds: ds.take_while(lambda *parts: size(*parts) < 60),
    "scan": lambda ds: ds.scan(0, counted),
    "flat_map": lambda ds: ds.flat_map(twice),
    "interleave": lambda ds: ds.interleave(twice, cycle_length=2),
    "unique": lambda ds: ds.unique(),
    "group_by_window": lambda ds: ds.group_by_window(
        lambda *parts: size(*parts) % 3, lambda _, window: window, window_size=2
    ),
    "group_by_window with batches": lambda ds: ds.group_by_window(
        lambda *parts: size(*parts) % 2, lambda _, window: window.batch(2), window_size_func=lambda key: int(key) + 1
    ),
    "buckets": lambda ds: ds.bucket_by_sequence_length(size, [3, 6], [2, 3, 2]),
    "buckets without padding": lambda ds: ds.bucket_by_sequence_length(size, [5], [2, 2], no_padding=True),
    "rejection_resample": lambda ds: ds.rejection_resample(
        lambda *parts: size(*parts) % 2, [0.5, 0.5], [0.4, 0.6], seed=1
    ),
    "parallel_interleave": lambda ds: ds.apply(ad.parallel_interleave(twice, 2)),
    "vectorized": lambda ds: ds.map(same_element, vectorized=True),
    "with a coroutine": lambda ds: ds.map(awaited, 2),
}
"""Functions of the user that have one place: the pipeline's loop."""

BEFORE: Final[dict[str, Step]] = {
    "": lambda ds: ds,
    "in slabs": lambda ds: ds.map(same_element, 2, executor="thread"),
    "shuffled": lambda ds: ds.shuffle(4, seed=3),
    "batch": lambda ds: ds.batch(2),
    "larger batch": lambda ds: ds.batch(64),
    "batches of batches": lambda ds: ds.batch(2, drop_remainder=True).batch(2),
    "batches shuffled": lambda ds: ds.batch(4).shuffle(3, seed=1),
    "batch in slabs": lambda ds: ds.map(same_element, 2, executor="thread").batch(3),
    "padded": lambda ds: ds.padded_batch(3),
    "ragged": lambda ds: ds.ragged_batch(2),
    "windows": lambda ds: ds.window(2).flat_map(lambda *parts: parts[0].batch(2) if len(parts) == 1 else parts[0]),
    "batched and apart": lambda ds: ds.batch(4).unbatch(),
    "in a nest": lambda ds: ds.enumerate().map(lambda n, x: {"n": n, "x": (x, b"b")}),
    **WITH_FUNCTIONS,
}
BEHIND: Final[dict[str, Step]] = {
    "": lambda ds: ds,
    "batch": lambda ds: ds.batch(2),
    "batch kept": lambda ds: ds.batch(3, drop_remainder=True),
    "padded": lambda ds: ds.padded_batch(2),
    "ragged": lambda ds: ds.ragged_batch(2),
    "apart": lambda ds: ds.unbatch(),
    "shuffled": lambda ds: ds.shuffle(3, seed=1).batch(2),
    "prefetched": lambda ds: ds.prefetch(2).batch(2),
    "twice": lambda ds: ds.repeat(2),
    "cached": lambda ds: ds.cache().repeat(2),
    "shuffle_and_repeat": lambda ds: ds.apply(ad.shuffle_and_repeat(3, 2, seed=1)),
    "map_and_batch": lambda ds: ds.apply(ad.map_and_batch(same_element, 2, num_parallel_calls=2)),
    "rebatched": lambda ds: ds.batch(2).rebatch(3),
    "windows": lambda ds: ds.window(2).flat_map(lambda *parts: parts[0].batch(2) if len(parts) == 1 else parts[0]),
    **WITH_FUNCTIONS,
    **{
        f"{name}, batched": lambda ds, step=step: step(ds).batch(2)  # type: ignore[misc]  # has a default
        for name, step in WITH_FUNCTIONS.items()
    },
}
