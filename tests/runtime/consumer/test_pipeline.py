"""Laws of a running plan: one error comes out, whatever went wrong, and everything is put back whoever cancels."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.advance import Advance
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, ObjectColumn
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.consumer.pipeline import _more, _raisable_only, _single


def test_a_group_of_one_is_that_one() -> None:
    """However deep it is nested; several stay a group."""
    one, two = ValueError("one"), ValueError("two")
    assert _single(None) is None
    assert _single(ExceptionGroup("", [ExceptionGroup("", [one])])) is one
    both = ExceptionGroup("", [one, two])
    assert _single(both) is both


@pytest.mark.parametrize(
    ("elements", "seconds", "more"),
    [
        (np.arange(3), 1e-4, 64),
        (np.arange(3), 1e-3, 0),  # slowly made
        (np.arange(64), 1e-4, 0),  # enough for one delivery
        (np.zeros((2, 4096), np.uint8), 1e-4, 16),
        (np.zeros((1, 1 << 17), np.uint8), 1e-4, 0),
        ([b"x" * 4096], 1e-4, 16),
        ([], 1e-4, 0),
    ],
)
def test_a_few_cheap_elements_may_wait(elements: Any, seconds: float, more: int) -> None:
    """Which are small, quickly made, and fewer than one delivery is worth."""
    column = ObjectColumn(elements) if isinstance(elements, list) else ArrayColumn(elements)
    count = len(elements)
    block = Block(LEAF, (column,), np.zeros((count, 4), np.int64), Advance(count))
    assert _more(block, seconds) == more


async def test_tasks_of_stages_cannot_end_the_loop() -> None:
    """SystemExit and KeyboardInterrupt of user code become errors of the pipeline; a cancellation stays one."""

    async def leave(kind: type[BaseException]) -> None:
        raise kind("user code")

    for kind in (SystemExit, KeyboardInterrupt, GeneratorExit):
        with pytest.raises(Exception, match=kind.__name__):
            await _raisable_only(leave(kind))
    with pytest.raises(asyncio.CancelledError):
        await _raisable_only(leave(asyncio.CancelledError))


def test_putting_back_cannot_be_cancelled() -> None:
    """A Runtime that closes while a pipeline is closing its stages waits for them to finish."""
    order: list[str] = []

    class Resource:
        async def __aenter__(self) -> int:
            return 1

        async def __aexit__(self, *error: object) -> None:
            for _ in range(20):
                await asyncio.to_thread(int)
            order.append("left")

    async def with_resource(x: int, resource: int) -> int:
        return int(x) + resource

    with ad.Runtime():
        iterator = iter(ad.Dataset.range(100).map(with_resource, 2, setup=Resource))
        assert next(iterator) == 1
        del iterator  # begins to put everything back
    assert order == ["left"]
