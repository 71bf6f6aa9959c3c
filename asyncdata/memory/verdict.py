"""When an ask can never be granted, and the words for it.

The verdict rests on what the stages say of themselves (``Ledger.wait``, ``Ledger.rest``): an ask is hopeless when
nobody who could release memory without it is at work. For tasks whose outputs are taken in any order this leaves out
one rescue: a batch that becomes complete later might start a task that needs less.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Account, Kind, Sort, Ticket


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


def hopeless(accounts: Sequence[Account], ticket: Ticket, limit: int) -> MemoryLimitError:
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
        f"bytes until it gets more input. memory_limit_bytes={limit} is too small for this pipeline; this step needs "
        f"at least {needed}",
        stage=asking.name,
    )


def largest_reserves(accounts: Sequence[Account], account: Account, nbytes: int) -> str:
    """The three largest reserves, with ``nbytes`` for ``account``."""
    shares = [(other.reserved, other.name) for other in accounts if other is not account] + [(nbytes, account.name)]
    return ", ".join(f"{name} {reserved}" for reserved, name in sorted(shares, reverse=True)[:3])


def _used(account: Account) -> int:
    return account.used
