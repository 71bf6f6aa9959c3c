"""Which request goes next: two limits and a priority queue, without clock or task.

::

    enter(priority, size) ──▶ granted at once while fewer than `limit` hold a slot and nobody waits
                          └─▶ queued; leave() and resize() return the tickets that now hold a slot, most urgent first

Requests in flight are limited, and so are their bytes: the most urgent waits until its bytes fit, and nobody smaller
passes it. One request alone always goes, however large.

The lowest priority value is the most urgent; equals keep their order of arrival. A ticket that is withdrawn leaves no
trace. ``resize`` is there for a window that follows measurements: shrinking takes nothing away from holders.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Priority: TypeAlias = "int | tuple[int, ...]"
"""Smaller is sooner needed; a plain ``n`` is the same as ``(n,)``."""


_NEVER_QUEUED: Final[tuple[tuple[int, ...], int]] = ((), -1)


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's place.

    Attributes:
        key: The priority as a tuple, then the order of arrival.
        size: Bytes it asks for.
        granted: It holds a slot.
        withdrawn: It gave up waiting; skipped when its turn comes.
    """

    key: tuple[tuple[int, ...], int]
    size: int = 0
    granted: bool = False
    withdrawn: bool = False


@dataclass(slots=True)
class RequestQueue:
    """The pure core; see the module's text.

    Attributes:
        limit: How many may hold a slot.
        most_bytes: How many bytes these may ask for together.
        held: How many do.
        held_bytes: What they ask for.
    """

    limit: int
    most_bytes: int = 1 << 62
    held: int = 0
    held_bytes: int = 0
    _waiting: list[tuple[tuple[tuple[int, ...], int], Ticket]] = field(default_factory=list)
    _arrivals: itertools.count[int] = field(default_factory=itertools.count)
    _withdrawn: int = 0

    @property
    def waiting(self) -> int:
        """How many tickets wait for a slot."""
        return len(self._waiting) - self._withdrawn

    def enter_at_once(self, size: int = 0) -> Ticket | None:
        """Takes a slot, if there is one that nobody waits for."""
        held = self.held
        if self._waiting or held >= self.limit or (held and self.held_bytes + size > self.most_bytes):
            return None
        self.held = held + 1
        self.held_bytes += size
        return Ticket(_NEVER_QUEUED, size, granted=True)

    def enter(self, priority: Priority, size: int = 0) -> Ticket:
        """Takes a slot or a place in the queue."""
        key = (priority if isinstance(priority, tuple) else (priority,), next(self._arrivals))
        ticket = Ticket(key, size)
        if self._fits(size) and not self.waiting:
            self._admit(ticket)
        else:
            heapq.heappush(self._waiting, (key, ticket))
        return ticket

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Gives a granted ticket's slot back; returns the tickets granted by that."""
        if not ticket.granted:
            raise ValueError("only a granted ticket can leave")
        ticket.granted = False
        self.held -= 1
        self.held_bytes -= ticket.size
        return self._grant() if self._waiting else []

    def withdraw(self, ticket: Ticket) -> list[Ticket]:
        """Gives up a place in the queue; returns the tickets that it alone held up.

        A ticket that was granted must ``leave`` instead.
        """
        if ticket.granted or ticket.withdrawn:
            raise ValueError("only a waiting ticket can be withdrawn")
        ticket.withdrawn = True
        self._withdrawn += 1
        return self._grant()

    def resize(self, limit: int) -> list[Ticket]:
        """Sets the limit; returns the tickets granted by that."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self.limit = limit
        return self._grant()

    def _grant(self) -> list[Ticket]:
        granted: list[Ticket] = []
        while self._waiting:
            ticket = self._waiting[0][1]
            if not ticket.withdrawn and not self._fits(ticket.size):
                break
            heapq.heappop(self._waiting)
            if ticket.withdrawn:
                self._withdrawn -= 1
                continue
            self._admit(ticket)
            granted.append(ticket)
        return granted

    def _fits(self, size: int) -> bool:
        return self.held < self.limit and (not self.held or self.held_bytes + size <= self.most_bytes)

    def _admit(self, ticket: Ticket) -> None:
        ticket.granted = True
        self.held += 1
        self.held_bytes += ticket.size
