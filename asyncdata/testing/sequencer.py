"""Forces one order of events on concurrent tasks, so that a race is the same race every time.

Each task wraps the part whose turn matters::

    async def writer(turn):
        async with turn(0):
            ...
        async with turn(2):
            ...

    async def reader(turn):
        async with turn(1):
            ...

Blocks run in the order of their numbers, each after the one before it has ended. A number is used once. A block that
raises or is cancelled breaks the sequence: tasks that wait for a later turn get ``BrokenSequenceError`` at once instead
of waiting forever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class BrokenSequenceError(RuntimeError):
    """An earlier turn failed, so this one will never come."""


class Sequencer:
    """Hands out turns; see the module's text. Belongs to one event loop.

    Example:
        >>> async def scenario():
        ...     turn, order = Sequencer(), []
        ...     async def step(number):
        ...         async with turn(number):
        ...             order.append(number)
        ...     async with asyncio.TaskGroup() as group:
        ...         for number in (2, 0, 1):
        ...             group.create_task(step(number))
        ...     return order
        >>> asyncio.run(scenario())
        [0, 1, 2]
    """

    def __init__(self) -> None:
        self._next = 0
        self._taken: set[int] = set()
        self._broken_by: BaseException | None = None
        self._waiting: dict[int, asyncio.Event] = {}

    @contextlib.asynccontextmanager
    async def __call__(self, number: int) -> AsyncIterator[None]:
        """Waits for turn ``number``, counted from 0, and holds it for the length of the block."""
        if number in self._taken:
            raise ValueError(f"turn {number} was taken before")
        self._taken.add(number)
        event = self._waiting.setdefault(number, asyncio.Event())
        try:
            if self._next == number or self._broken_by is not None:
                event.set()
            await event.wait()
            if self._broken_by is not None:
                raise BrokenSequenceError(f"turn {number} never comes") from self._broken_by
            yield
        except BaseException as error:
            if self._broken_by is None:
                self._broken_by = error
            for waiting in self._waiting.values():
                waiting.set()
            raise
        self._next += 1
        self._waiting.setdefault(self._next, asyncio.Event()).set()
