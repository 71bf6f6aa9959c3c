"""The async rim of ``schedule``: a future per waiting request, on one loop.

Who fills: ``enter``. Who drains: ``leave``. A cancelled ``enter`` leaves no trace: its ticket is withdrawn, or, when
the grant had already been given, handed on. After ``close`` waiting and new entries raise.
"""

from __future__ import annotations

import asyncio

from asyncdata.errors import PipelineClosedError
from asyncdata.storage.schedule import Priority, RequestQueue, Ticket


class Gate:
    """Lets at most ``limit`` requests, of ``most_bytes`` together, through at a time, the most urgent first."""

    def __init__(self, limit: int, most_bytes: int = 1 << 62) -> None:
        self._queue = RequestQueue(limit, most_bytes)
        self._futures: dict[Ticket, asyncio.Future[None]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<Gate {self._queue.held} of {self._queue.limit} in flight, {self._queue.waiting} waiting>"

    @property
    def held(self) -> int:
        """Requests in flight."""
        return self._queue.held

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return self._queue.waiting

    @property
    def limit(self) -> int:
        """The most requests in flight."""
        return self._queue.limit

    def enter_at_once(self, size: int = 0) -> Ticket | None:
        """Takes a slot, if there is one that nobody waits for; else, and when closed, ``enter`` is to be asked."""
        return None if self._closed else self._queue.enter_at_once(size)

    async def enter(self, priority: Priority, size: int = 0) -> Ticket:
        """Waits for a slot. The ticket must be given to ``leave``, whatever happens."""
        if self._closed:
            raise PipelineClosedError("the storage layer was closed")
        ticket = self._queue.enter(priority, size)
        if ticket.granted:
            return ticket
        future = asyncio.get_running_loop().create_future()
        self._futures[ticket] = future
        try:
            await future
        except BaseException:
            # The grant may have come in the same turn as the cancellation: then the slot goes to the next one.
            if ticket.granted:
                self.leave(ticket)
            elif not ticket.withdrawn:
                self._wake(self._queue.withdraw(ticket))
            raise
        finally:
            self._futures.pop(ticket, None)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Gives the slot back and wakes whoever gets it."""
        granted = self._queue.leave(ticket)
        if granted:
            self._wake(granted)

    def resize(self, limit: int) -> None:
        """Sets the limit; holders keep their slots."""
        self._wake(self._queue.resize(limit))

    def close(self) -> None:
        """Refuses everybody who waits or comes."""
        self._closed = True
        for future in self._futures.values():
            if not future.done():
                future.set_exception(PipelineClosedError("the storage layer was closed"))

    def _wake(self, granted: list[Ticket]) -> None:
        for ticket in granted:
            future = self._futures[ticket]
            if not future.done():
                future.set_result(None)
