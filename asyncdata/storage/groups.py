"""Awaits many awaitables at once and raises one error for their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from asyncdata.errors import StorageError

S = TypeVar("S")
T = TypeVar("T")


async def gather_bounded(call: Callable[[S], Awaitable[T]], items: Iterable[S], limit: int) -> list[T]:
    """The results of ``call(item)`` in the order of the items, at most ``limit`` under way at a time.

    The first failure cancels the others, and is raised by itself when they have ended.
    """
    waiting = iter(enumerate(items))
    results: dict[int, T] = {}

    async def work() -> None:
        for index, item in waiting:
            results[index] = await call(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(limit):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise worst_of(failures) from None
    return [results[index] for index in range(len(results))]


def worst_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group that is not storage's own; where all are, the first."""
    flat: list[BaseException] = []
    todo: list[BaseException] = [failures]
    while todo:
        error = todo.pop(0)
        if isinstance(error, BaseExceptionGroup):
            todo.extend(error.exceptions)
        else:
            flat.append(error)
    return next((error for error in flat if not isinstance(error, StorageError)), flat[0])
