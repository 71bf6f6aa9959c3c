"""When an ask can never be granted, and the words for it.

The verdict rests on what the stages say of themselves (``Ledger.wait``, ``Ledger.rest``): an ask is hopeless when
nobody who could release memory without it is at work. For tasks whose outputs are taken in any order this leaves out
one rescue: a batch that becomes complete later might start a task that needs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Account, Kind, Sort, Ticket

_MARGIN: Final = (17, 16)
"""Above what is needed: a sixteenth."""


def is_hopeless(accounts: Sequence[Account], ticket: Ticket) -> bool:
    """Whether nothing will be released without the grant of this ask, the first of the queue; no read-ahead is held.

    Asks for later tasks' outputs never are: they become the next ones. Otherwise, everything at the asking account's
    rank or nearer to the consumer waits, and if it is a source, it is waited for and all other sources whose rows would
    be taken are blocked too.
    """
    asking = ticket.account
    from_source = asking.kind is Kind.SOURCE
    if ticket.sort is not Sort.OWN or (from_source and not asking.waiting):
        return False
    for account in accounts:
        if account.kind is Kind.SOURCE:
            if from_source and account.is_awaited and not any(ask.key for ask in account.queued):
                return False
        elif account.rank > asking.rank or (account is asking and account.kind is Kind.ASSEMBLER):
            continue
        elif account.is_at_work:
            return False
    return True


def hopeless(accounts: Sequence[Account], ticket: Ticket, limit: int, parts: int | None = None) -> MemoryLimitError:
    """The error for a hopeless ask: who holds most, and which limit would have let this step pass."""
    asking = ticket.account
    needed = max(asking.reserved, asking.own + ticket.nbytes) + asking.extra
    for account in accounts:
        if asking.kind is Kind.FLOW and account.rank > asking.rank:
            needed += account.used  # what is reserved there would be lent
        elif account is not asking:
            needed += max(account.reserved, account.own) + account.extra
    holders = [account for account in accounts if account.kind is Kind.ASSEMBLER] or accounts
    holder = max(holders, key=_used)
    return MemoryLimitError(
        f"{ticket.nbytes} bytes are needed and nothing will be released before: {holder.name} holds {holder.used} "
        f"bytes until it gets more input. {limit_in_words(limit, parts)} is too small for this pipeline; this step "
        f"needs at least {needed * (parts or 1)}",
        stage=asking.name,
    )


def limit_in_words(limit: int, parts: int | None) -> str:
    """The option as the user set it, and what a pipeline has of it."""
    if parts is None or parts == 1:
        return f"memory_limit_bytes={limit}"
    return f"memory_limit_bytes={limit * parts} ({limit} for each of {parts} pipelines)"


def too_large(account: Account, nbytes: int, most: int, limit: int, parts: int | None) -> MemoryLimitError:
    """The error for an ask of more bytes than will ever be free for its account, which are `most`."""
    enough = nbytes + limit - most
    if parts is not None:
        # The reserves of the others grow with the limit, and are rounded up.
        enough = max(enough, nbytes * limit * _MARGIN[0] // (max(most, 1) * _MARGIN[1]))
    return MemoryLimitError(
        f"{nbytes} bytes in one piece are needed; {limit_in_words(limit, parts)} leaves at most {most} beside what the "
        f"other stages need. A memory_limit_bytes of at least {enough * (parts or 1)} would do",
        stage=account.name,
    )


def reserves_exceed(
    accounts: Sequence[Account], account: Account, nbytes: int, total: int, limit: int, parts: int | None
) -> MemoryLimitError:
    """The error for reserves that together exceed the limit, with ``nbytes`` for ``account``."""
    shares = [(other.reserved, other.name) for other in accounts if other is not account] + [(nbytes, account.name)]
    largest = ", ".join(f"{name} {reserved}" for reserved, name in sorted(shares, reverse=True)[:3])
    return MemoryLimitError(
        f"the stages need {total} bytes to run at all, more than {limit_in_words(limit, parts)}; the largest shares: "
        f"{largest}. A memory_limit_bytes of at least {total * (parts or 1)} would do",
        stage=account.name,
    )


def _used(account: Account) -> int:
    return account.used
