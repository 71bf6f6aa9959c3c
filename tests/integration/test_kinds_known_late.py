"""Inner datasets without a fixed order, of which nothing is known before they are made."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncdata as ad

D = ad.Dataset


async def later(element: int) -> int:
    """What comes is ready at once, or after others."""
    for _ in range(int(element) % 3):
        await asyncio.sleep(0)
    return element


def inner(_: Any) -> ad.Dataset:
    """Eight numbers in any order."""
    return D.range(8).map(later, 3, deterministic=False)


def late() -> ad.Dataset:
    """80 numbers; that they have no fixed order shows when they come."""
    return D.range(5).interleave(lambda _: D.range(2).interleave(inner, 2), 2)


STEPS: dict[str, Callable[[ad.Dataset], ad.Dataset]] = {
    "nothing": lambda ds: ds,
    "zip": lambda ds: D.zip(ds, D.range(1000)).map(lambda one, _: one),
    "sample": lambda ds: D.sample_from_datasets([D.range(0), ds], seed=1, stop_on_empty_dataset=False),
    "choose": lambda ds: D.choose_from_datasets([ds], D.range(1).repeat(80)),
    "concatenate": lambda ds: D.range(0).concatenate(ds),
    "shuffle": lambda ds: ds.shuffle(10, seed=1),
    "batch": lambda ds: ds.batch(3).unbatch(),
    "window": lambda ds: ds.window(3).flat_map(lambda w: w.batch(3)).unbatch(),
    "group": lambda ds: ds.group_by_window(lambda x: x % 3, lambda _, w: w.batch(4), window_size=4).unbatch(),
    "scan": lambda ds: ds.scan(0, lambda count, x: (count + 1, x)),
    "cache": lambda ds: ds.cache(),
    "flat_map": lambda ds: ds.flat_map(D.from_tensors),
    "prefetch": lambda ds: ds.prefetch(4),
}


@pytest.mark.sampled
@pytest.mark.parametrize("step", STEPS)
def test_every_element_comes_once_and_a_state_is_refused_or_right(step: str) -> None:
    """Behind any step, in the middle of the epoch."""
    dataset = STEPS[step](late())
    state: dict[str, Any] | None = None
    with dataset.iterator() as it:
        first = [int(np.asarray(next(it))) for _ in range(30)]
        with contextlib.suppress(ad.StateError):
            state = it.state_dict()
        rest = [int(np.asarray(element)) for element in it]
    every = Counter(number for number in range(8) for _ in range(10))
    assert Counter(first + rest) == every
    if state is not None:
        assert Counter(first + [int(np.asarray(element)) for element in dataset.iterator(state=state)]) == every
