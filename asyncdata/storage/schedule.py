"""Which request goes next: a limit and a priority queue, without clock or task.

::

    enter(priority) ──▶ granted at once while fewer than `limit` hold a slot and nobody waits
                    └─▶ queued; leave() and resize() return the tickets that now hold a slot, most urgent first

The lowest priority value is the most urgent; equals keep their order of arrival. A ticket that is withdrawn leaves no
trace. ``resize`` is there for a window that follows measurements: shrinking takes nothing away from holders.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import TypeAlias

Priority: TypeAlias = "int | tuple[int, ...]"
"""Smaller is sooner needed; a plain ``n`` is the same as ``(n,)``."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's place.

    Attributes:
        key: The priority as a tuple, then the order of arrival.
        granted: It holds a slot.
        withdrawn: It gave up waiting; skipped when its turn comes.
    """

    key: tuple[tuple[int, ...], int]
    granted: bool = False
    withdrawn: bool = False


@dataclass(slots=True)
class RequestQueue:
    """The pure core; see the module's text.

    Attributes:
        limit: How many may hold a slot.
        held: How many do.
    """

    limit: int
    held: int = 0
    _waiting: list[tuple[tuple[tuple[int, ...], int], Ticket]] = field(default_factory=list)
    _arrivals: itertools.count[int] = field(default_factory=itertools.count)
    _withdrawn: int = 0

    @property
    def waiting(self) -> int:
        """How many tickets wait for a slot."""
        return len(self._waiting) - self._withdrawn

    def enter(self, priority: Priority) -> Ticket:
        """Takes a slot or a place in the queue."""
        key = (priority if isinstance(priority, tuple) else (priority,), next(self._arrivals))
        ticket = Ticket(key)
        if self.held < self.limit and not self.waiting:
            ticket.granted = True
            self.held += 1
        else:
            heapq.heappush(self._waiting, (key, ticket))
        return ticket

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Gives a granted ticket's slot back; returns the tickets granted by that."""
        if not ticket.granted:
            raise ValueError("only a granted ticket can leave")
        ticket.granted = False
        self.held -= 1
        return self._grant()

    def withdraw(self, ticket: Ticket) -> None:
        """Gives up a place in the queue; a ticket that was granted must ``leave`` instead."""
        if ticket.granted or ticket.withdrawn:
            raise ValueError("only a waiting ticket can be withdrawn")
        ticket.withdrawn = True
        self._withdrawn += 1

    def resize(self, limit: int) -> list[Ticket]:
        """Sets the limit; returns the tickets granted by that."""
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self.limit = limit
        return self._grant()

    def _grant(self) -> list[Ticket]:
        granted: list[Ticket] = []
        while self._waiting and (self.held < self.limit or self._waiting[0][1].withdrawn):
            ticket = heapq.heappop(self._waiting)[1]
            if ticket.withdrawn:
                self._withdrawn -= 1
                continue
            ticket.granted = True
            self.held += 1
            granted.append(ticket)
        return granted
