"""Which request goes next: two limits and a priority queue.

::

    ask(priority, size) ──▶ granted at once while fewer than `limit` hold a slot and nobody waits
                        └─▶ queued; leave() and resize() grant slots, the most urgent first

Both the requests in flight and their bytes are limited: the most urgent request waits until its bytes fit, and no
smaller one passes it. A single request is always granted, however large. The lowest priority value is the most urgent;
equal ones keep their order of arrival. ``resize`` serves a window that follows measurements: shrinking takes nothing
from holders.

``enter`` is the asynchronous rim: it asks and waits, on one loop. A cancelled ``enter`` leaves no trace: its request is
withdrawn or, if the slot was already granted, the slot is passed on. After ``close`` waiting and new entries raise.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from dataclasses import dataclass
from typing import Final, TypeAlias

from asyncdata.errors import PipelineClosedError

Priority: TypeAlias = "int | tuple[int, ...]"
"""Smaller is sooner needed; a plain ``n`` is the same as ``(n,)``."""

_Key: TypeAlias = tuple[tuple[int, ...], int]
_NEVER_QUEUED: Final[_Key] = ((), -1)


@dataclass(slots=True, eq=False)
class Slot:
    """One request's place.

    Attributes:
        key: The priority as a tuple, then the order of arrival.
        size: Bytes it asks for.
        granted: The request may go.
        withdrawn: It gave up waiting; skipped when its turn comes.
        future: Done when it is granted; where somebody awaits that.
    """

    key: _Key
    size: int = 0
    granted: bool = False
    withdrawn: bool = False
    future: asyncio.Future[None] | None = None


class Slots:
    """See the module's text.

    Args:
        limit: How many may hold a slot.
        most_bytes: How many bytes these may ask for together.

    Attributes:
        limit: How many may hold a slot, as it is now.
        held: How many do: requests in flight.
        held_bytes: What they ask for.
    """

    def __init__(self, limit: int, most_bytes: int = 1 << 62) -> None:
        self.limit = limit
        self.held = 0
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._queue: list[tuple[_Key, Slot]] = []
        self._arrivals = itertools.count()
        self._withdrawn = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<Slots {self.held} of {self.limit} in flight, {self.waiting} waiting>"

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue) - self._withdrawn

    async def enter(self, priority: Priority, size: int = 0) -> Slot:
        """Waits for a slot, which must be given to ``leave``, whatever happens."""
        if self._closed:
            raise _closed()
        slot = self.ask(priority, size)
        if slot.granted:
            return slot
        slot.future = asyncio.get_running_loop().create_future()
        try:
            await slot.future
        except BaseException:
            # The grant may have come in the same turn as the cancellation: then the slot goes to the next one.
            if slot.granted:
                self.leave(slot)
            elif not slot.withdrawn:
                self.withdraw(slot)
            raise
        return slot

    def enter_at_once(self, size: int = 0) -> Slot | None:
        """Takes a slot, if there is one that nobody waits for; else, and when closed, ``enter`` is to be asked."""
        held = self.held
        if self._queue or held >= self.limit or (held and self.held_bytes + size > self._most_bytes) or self._closed:
            return None
        self.held = held + 1
        self.held_bytes += size
        return Slot(_NEVER_QUEUED, size, granted=True)

    def ask(self, priority: Priority, size: int = 0) -> Slot:
        """Takes a slot or a place in the queue."""
        slot = Slot((priority if isinstance(priority, tuple) else (priority,), next(self._arrivals)), size)
        if self._fits(size) and not self.waiting:
            self._admit(slot)
        else:
            heapq.heappush(self._queue, (slot.key, slot))
        return slot

    def leave(self, slot: Slot) -> list[Slot]:
        """Gives a granted slot back; returns those that are granted by that."""
        if not slot.granted:
            raise ValueError("only a granted slot can be left")
        slot.granted = False
        self.held -= 1
        self.held_bytes -= slot.size
        return self._grant() if self._queue else []

    def withdraw(self, slot: Slot) -> list[Slot]:
        """Gives up a place in the queue; returns those that it alone held up. What was granted must ``leave``."""
        if slot.granted or slot.withdrawn:
            raise ValueError("only a waiting slot can be withdrawn")
        slot.withdrawn = True
        self._withdrawn += 1
        return self._grant()

    def resize(self, limit: int) -> list[Slot]:
        """Sets the limit; returns those that are granted by that. Holders keep their slots."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self.limit = limit
        return self._grant()

    def close(self) -> None:
        """Refuses everybody who waits or comes."""
        self._closed = True
        for _, slot in self._queue:
            if slot.future is not None and not slot.future.done():
                slot.future.set_exception(_closed())

    def _grant(self) -> list[Slot]:
        granted: list[Slot] = []
        while self._queue:
            slot = self._queue[0][1]
            if not slot.withdrawn and not self._fits(slot.size):
                break
            heapq.heappop(self._queue)
            if slot.withdrawn:
                self._withdrawn -= 1
                continue
            self._admit(slot)
            if slot.future is not None and not slot.future.done():
                slot.future.set_result(None)
            granted.append(slot)
        return granted

    def _fits(self, size: int) -> bool:
        return self.held < self.limit and (not self.held or self.held_bytes + size <= self._most_bytes)

    def _admit(self, slot: Slot) -> None:
        slot.granted = True
        self.held += 1
        self.held_bytes += slot.size


def _closed() -> PipelineClosedError:
    return PipelineClosedError("the storage layer was closed")
