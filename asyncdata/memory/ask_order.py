"""The order in which requests for memory are served, and in which read-ahead is recalled."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from asyncdata.memory.accounts import Key, Kind, Ticket


class AskQueue:
    """Asks that wait, the first to serve in front: nearest the consumer, waited for, early.

    An ask that is not eligible yet is no member; it stays with its account until ``put`` finds it eligible.

    Attributes:
        entries: The asks with their keys, in order; only this class changes it.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[Key, Ticket]] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for _, ticket in self.entries)

    @property
    def first(self) -> Ticket:
        """The next to serve; there has to be one."""
        return self.entries[0][1]

    def put(self, ticket: Ticket) -> None:
        """Puts a waiting ask where it belongs now, or takes it out if it is not eligible."""
        self.drop(ticket)
        if ticket.is_eligible:
            account = ticket.account
            sought = account.kind is Kind.SOURCE and account.waiting
            ticket.key = (account.rank, not sought, ticket.serial)
            insort(self.entries, (ticket.key, ticket), key=_key)

    def drop(self, ticket: Ticket) -> None:
        """Takes an ask out, if it is in."""
        if ticket.key is not None:
            del self.entries[bisect_left(self.entries, ticket.key, key=_key)]
            ticket.key = None


class Recallable:
    """Held tickets that may be recalled, and how many bytes were recalled but are not back yet."""

    __slots__ = ("_tickets", "recalled_bytes")

    def __init__(self) -> None:
        self._tickets: dict[Ticket, None] = {}
        self.recalled_bytes = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def add(self, ticket: Ticket) -> None:
        """From now on the ticket may be recalled."""
        self._tickets[ticket] = None

    def remove(self, ticket: Ticket) -> None:
        """From now on it may not; its number of bytes has to be what it was."""
        del self._tickets[ticket]
        if ticket.recalled:
            ticket.recalled = False
            self.recalled_bytes -= ticket.nbytes

    def recall(self, nbytes: int) -> list[Ticket]:
        """Recalls what is needed last until ``nbytes`` in all are on their way back; returns what is newly recalled."""
        chosen: list[Ticket] = []
        if self.recalled_bytes < nbytes:
            for ticket in sorted(self._tickets, key=_lateness, reverse=True):
                if not ticket.recalled:
                    ticket.recalled = True
                    self.recalled_bytes += ticket.nbytes
                    chosen.append(ticket)
                    if self.recalled_bytes >= nbytes:
                        break
        return chosen


def _key(entry: tuple[Key, Ticket]) -> Key:
    return entry[0]


def _lateness(ticket: Ticket) -> tuple[int, int, int]:
    return ticket.account.rank, ticket.urgency, ticket.serial
