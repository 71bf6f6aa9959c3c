"""Errors for requests that can never be granted: who holds the memory, and which limit is sufficient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Account, Kind, Ticket

_MARGIN: Final = (9, 8)
"""Above what is needed: an eighth."""
_SHARES: Final = 1 / 2
"""Of a limit, what is reserved as shares of it."""
_LEAST_LEFT: Final = 8
"""One part in so many of a limit that is large enough is left beside reserves: what is reserved for a row group, say,
does not grow with the limit."""
_PINNED: Final = 4 / 3
"""What is pinned for rows that are collected, beside their own bytes: slabs are evacuated when a quarter is unused."""


def hopeless(accounts: Sequence[Account], ticket: Ticket, limit: int, parts: int | None = None) -> MemoryLimitError:
    """The error for a hopeless ask: who holds most, and which limit would have let this step pass."""
    asking = ticket.account
    needed = max(asking.reserved, asking.own + ticket.nbytes) + asking.extra
    for account in accounts:
        if asking.kind is Kind.FLOW and account.rank > asking.rank:
            needed += account.used  # what is reserved there would be lent
        elif account is not asking:
            needed += max(account.reserved, account.own) + account.extra
    if parts is not None:
        needed = max(needed, _enough(accounts, asking, ticket.nbytes, limit))
    holders = [account for account in accounts if account.kind is Kind.ASSEMBLER] or accounts
    holder = max(holders, key=_used)
    return MemoryLimitError(
        f"{ticket.nbytes} bytes are needed, and nothing is released before that: {holder.name} holds {holder.used} "
        f"bytes until it gets more input. {limit_in_words(limit, parts)} is too small for this pipeline; this step "
        f"needs at least {needed * (parts or 1)}{_and_what_is_guessed(accounts)}",
        stage=asking.name,
    )


def _and_what_is_guessed(accounts: Sequence[Account]) -> str:
    for account in accounts:
        if account.foresee is not None and account.foresee().is_guess:
            return f", or more: nobody knows how many elements {account.name} will keep"
    return ""


def to_collect(account: Account) -> int:
    """Bytes that a stage is going to hold beyond what it holds or reserves now, as far as its elements tell.

    With the element that it makes of them, for which they are still there.
    """
    if account.foresee is None:
        return 0
    foreseen = account.foresee()
    return max(0, int(foreseen.most * foreseen.mean * _PINNED) - account.firm) + int(foreseen.batch * foreseen.mean)


def limit_in_words(limit: int, parts: int | None) -> str:
    """The option as the user set it, and what a pipeline has of it."""
    if parts is None or parts == 1:
        return f"memory_limit_bytes={limit}"
    return f"memory_limit_bytes={limit * parts} ({limit} for each of {parts} pipelines)"


def _enough(accounts: Sequence[Account], asking: Account, nbytes: int, limit: int) -> int:
    """A limit that is large enough for all that the stages are going to hold, as far as the elements seen tell.

    What is reserved grows with the limit, as far as it is a share of it.
    """
    needs: list[tuple[float, int]] = []
    mean = asking.foresee().mean if asking.foresee is not None else 0.0
    last = asking.rank - (not mean)
    mean = mean or float(nbytes)
    together = 1
    for rank, group in groupby(reversed(accounts), key=_rank):
        made = []
        for account in group:
            need = float(account.own + account.extra + (nbytes if account is asking else 0))
            if account.foresee is not None:
                foreseen = account.foresee()
                each = foreseen.mean or (mean if rank <= last else 0.0)
                need = max(need, foreseen.most * each * _PINNED)
                if foreseen.splits is not None:
                    each, together = (each or mean) / (foreseen.splits or together), 1
                together = foreseen.batch or together
                made.append(each * (foreseen.batch or 1))
                need += made[-1] if foreseen.batch else 0
            elif not rank:
                need = max(need, mean)
            needs.append((need, account.reserved))
        # What is read side by side may be put together, as by `zip`.
        mean = sum(made) or mean
    pace = min(1.0, (limit - limit / _LEAST_LEFT) / max(sum(reserved for _, reserved in needs), 1))
    enough, before = limit, 0
    while enough > before:
        before = enough
        grown = 1 + (before / limit - 1) * pace
        enough = max(before, int(sum(max(need, reserved * grown) for need, reserved in needs)))
    return enough * _MARGIN[0] // _MARGIN[1]


def too_large(
    accounts: Sequence[Account], account: Account, nbytes: int, most: int, limit: int, parts: int | None
) -> MemoryLimitError:
    """The error for an ask of more bytes than will ever be free for its account, which are `most`."""
    enough = nbytes + limit - most
    if parts is not None:
        # The reserves of the others grow with the limit, and are rounded up; what little they leave says nothing.
        left = max(most, limit // _LEAST_LEFT, 1)
        enough = max(enough, nbytes * limit * _MARGIN[0] // (left * _MARGIN[1]))
        enough = max(enough, _enough(accounts, account, nbytes, limit))
    return MemoryLimitError(
        f"{nbytes} bytes are needed in one piece; {limit_in_words(limit, parts)} leaves at most {most} beside what the "
        f"other stages need. A memory_limit_bytes of at least {enough * (parts or 1)} "
        f"is sufficient{_and_what_is_guessed(accounts)}",
        stage=account.name,
    )


def reserves_exceed(
    accounts: Sequence[Account], account: Account, nbytes: int, total: int, limit: int, parts: int | None
) -> MemoryLimitError:
    """The error for reserves that together exceed the limit, with ``nbytes`` for ``account``."""
    enough = total if parts is None else _with_shares(total - limit, limit)
    shares = [(other.reserved, other.name) for other in accounts if other is not account] + [(nbytes, account.name)]
    largest = ", ".join(f"{name} {reserved}" for reserved, name in sorted(shares, reverse=True)[:3])
    return MemoryLimitError(
        f"the stages need {total} bytes to run at all, more than {limit_in_words(limit, parts)}; the largest shares: "
        f"{largest}. A memory_limit_bytes of at least {enough * (parts or 1)} is sufficient",
        stage=account.name,
    )


def _with_shares(missing: int, limit: int) -> int:
    """A limit with so many bytes more, of which shares of it take their part."""
    return limit + int(missing / (1 - _SHARES))


def _rank(account: Account) -> int:
    return account.rank


def _used(account: Account) -> int:
    return account.used
