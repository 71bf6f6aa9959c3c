from __future__ import annotations

import asyncio

import pytest

from asyncdata.errors import StorageError
from asyncdata.storage.groups import gather_bounded


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_results_are_in_the_order_of_the_items(limit: int) -> None:
    """Whoever ends first; and no more are under way than allowed."""
    under_way = most = 0

    async def call(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(item % 7):
            await asyncio.sleep(0)
        under_way -= 1
        return item * item

    assert await gather_bounded(call, range(40), limit) == [item * item for item in range(40)]
    assert most <= limit


async def test_a_failure_comes_alone_and_ends_the_others() -> None:
    """Not in a group, and not before the others have let go."""
    ended = []

    async def call(item: int) -> None:
        try:
            if item != 3:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            raise StorageError("no")
        finally:
            ended.append(item)

    with pytest.raises(StorageError, match="no"):
        await gather_bounded(call, range(4), 4)
    assert sorted(ended) == [0, 1, 2, 3]


async def test_an_unexpected_error_outranks_storage_errors() -> None:
    """A bug is not hidden behind a failed request."""

    async def call(item: int) -> None:
        await asyncio.sleep(0)
        raise KeyError if item == 2 else StorageError("no")

    with pytest.raises(KeyError):
        await gather_bounded(call, range(3), 3)
