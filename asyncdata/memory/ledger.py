"""The byte ledger: who may hold how much of one limit, decided so that a pipeline cannot deadlock.

Pure bookkeeping: no clock, no loop, no memory. A caller asks, moves and gives; it then collects ``decisions()`` and
acts on them. Not thread-safe: one thread calls it.

**Accounts.** Every stage (every child of interleave) has an account with a *rank*, its distance from the consumer, and
a *kind* that says what it takes to get its bytes back:

* ``SOURCE``: a reader of one shard. Its bytes leave when the stages below take its rows.
* ``ASSEMBLER``: a shuffle buffer, a batch being filled, a window, the consumer with the batches it keeps. Its bytes
  leave only when it gets more input.
* ``FLOW``: tasks in workers, finished batches. Its bytes leave without a grant to anything farther upstream.

**Bytes.** A granted ticket *is* the charge for one slab. Held bytes are of three sorts:

* *own*: what the account needs next. Drawn from its reserve, and only the excess from what is shared.
* *extra*: outputs of tasks that are not the soonest (``FLOW``, urgency above 0). From what is shared, all of it: the
  reserve stays free for the soonest task, for which the others wait.
* *ahead*: read-ahead. From what is shared; may be recalled at any time, until it is promoted.

With ``backed`` for the part of an account's reserve that is in force, an account claims
``max(backed, own) + extra + ahead``; all claims together never exceed the limit, and what is left is *free*.

**Moves.** The charge follows the rows downstream, and a move never waits: the bytes exist already. If what is free
does not cover it, the account the bytes come from lends its reserve: ``backed`` falls below ``reserved`` and is made
good from what is released later, nearest the consumer first. An account opened while memory is short begins the same
way. A source whose reserve is lent finds its next ask queued: that is the backpressure.

**Order.** What is free serves the queue strictly in order: nearest the consumer first, then sources somebody waits
for, then by urgency, then first come. Nothing is granted past a blocked ask, except what an account's own reserve
covers. Read-ahead is never queued: it is granted while the queue is empty and some slack remains, else refused.

**Waiting.** ``wait(account)`` says of a source that the stage below waits for its rows with empty hands (of sloppy
readers, all may be waited for at once), and of an assembler that it waits for input and its input channel is empty.
Whoever puts something into a channel clears the flag of its reader, before the reader has run. A source may hold more
than its reserve as its own (a record larger than a chunk) only while it is waited for; before, such an ask is parked,
and read-ahead of such a size is not promoted. ``rest(ticket)`` says of flow that the bytes wait for a grant or for
other bytes: input of a task that waits for its output, finished batches that wait for an earlier one.

**Why it cannot deadlock.** Suppose nothing moves any more, and let Q be the first ask of the queue, n bytes for the
account q. Read-ahead has been recalled, so no *ahead* is left. Flow at or below q's rank is gone or rests behind Q
itself. An ask covered by a reserve in force is never in the queue. So Q is blocked only if
``sum over a != q of (max(backed_a, own_a) + extra_a) + max(backed_q, own_q + n)`` exceeds the limit; and as
``backed <= reserved``, then so does the same sum over ``reserved``. Sources contribute their reserves to it, and no
more than that except for the one that is waited for; assemblers contribute what they really need. A limit of

    sum of all reserves + what each assembler needs beyond its reserve + the largest excess over a reserve by one ask
    (+ where the excess is a task's: the outputs that wait behind it)

is therefore always enough. Below it Q may indeed be blocked for good. This is noticed (no *ahead*, no flow at or below
q's rank that does not rest, all assemblers between q and the consumer wait; and if q is a source, it is waited for and
so is no other source that has no blocked ask of its own), and Q fails with ``MemoryLimitError`` naming the assembler
that holds most and the limit that would have let this step pass.

The laws speak of one pipeline. Where several share a limit and one of them is not consumed for a while, its finished
batches stay; so give each a ledger of its own with a part of the limit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any, Final

from asyncdata.errors import MemoryLimitError, PipelineClosedError
from asyncdata.memory.accounts import (
    Account,
    AccountSnapshot,
    Decisions,
    Key,
    Kind,
    LedgerSnapshot,
    Sort,
    State,
    Ticket,
)

_SLACK_SHARE: Final = 8
"""Read-ahead leaves one part in this many of the limit free, so that growth downstream rarely has to recall it."""


class Ledger:
    """Grants bytes out of one limit.

    Args:
        limit_bytes: The limit.
        slack_bytes: What read-ahead leaves free; an eighth of the limit unless given.
    """

    def __init__(self, limit_bytes: int, *, slack_bytes: int | None = None) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes must not be negative: {limit_bytes}")
        self.limit = limit_bytes
        self.used = 0
        self.peak = 0
        self.free = limit_bytes
        self._slack = limit_bytes // _SLACK_SHARE if slack_bytes is None else slack_bytes
        self._accounts: list[Account] = []  # by rank
        self._reserved = 0
        self._lent = 0
        self._queue: list[tuple[Key, Ticket]] = []  # eligible asks, the first to serve in front
        self._ahead: dict[Ticket, None] = {}
        self._recalled_bytes = 0
        self._serial = 0
        self._granted: list[Ticket] = []
        self._failed: list[Ticket] = []
        self._recalls: list[Ticket] = []
        self._refused = False
        self._room = False

    # --- accounts ------------------------------------------------------------------------------------------------

    def open(self, name: str, *, rank: int, kind: Kind, reserved_bytes: int = 0, any_order: bool = False) -> Account:
        """Opens an account.

        Args:
            name: The stage, as ``describe()`` names it.
            rank: Distance from the consumer.
            kind: What it takes to get its bytes back.
            reserved_bytes: Promised to this account alone.
            any_order: Of a source: the stage below takes rows from it and its like in any order (sloppy reading).

        Raises:
            MemoryLimitError: The reserves together exceed the limit.
        """
        account = Account(name, rank, kind, any_order=any_order)
        self.reserve(account, reserved_bytes)
        insort(self._accounts, account, key=_rank)
        self._settle()
        return account

    def reserve(self, account: Account, nbytes: int) -> None:
        """Changes what is reserved for an account; more than is free now comes into force as bytes are released.

        Raises:
            MemoryLimitError: The reserves together exceed the limit.
        """
        if nbytes < 0:
            raise ValueError(f"a reserve must not be negative: {nbytes}")
        if account.closed:
            raise PipelineClosedError("the account is closed", stage=account.name)
        total = self._reserved - account.reserved + nbytes
        if total > self.limit:
            raise MemoryLimitError(
                f"the stages need {total} bytes to run at all, more than memory_limit_bytes={self.limit}; the largest "
                f"shares: {self._largest(account, nbytes)}. A memory_limit_bytes of at least {total} would do",
                stage=account.name,
            )
        self._set_reserve(account, nbytes)
        self._settle()

    def close(self, account: Account) -> None:
        """Ends an account: its asks fail, its reserve is shared; what it still holds stays charged until given."""
        if account.closed:
            return
        self._set_reserve(account, 0)
        account.closed = True
        account.waiting = account.any_order = False
        for ticket in list(account.queued):
            self._fail(
                ticket, PipelineClosedError("the stage was closed while it waited for memory", stage=account.name)
            )
        if not account.used:
            self._forget(account)
        self._settle()

    def wait(self, account: Account, waiting: bool = True) -> None:
        """Says that a source is waited for, or that an assembler waits; see the module's text."""
        if account.waiting is waiting:
            return
        account.waiting = waiting
        if account.kind is Kind.SOURCE:
            for ticket in account.queued:
                self._enqueue(ticket)
        if self._queue:
            self._settle(judge=waiting)  # what wakes one stage may be about to wake others

    # --- bytes ---------------------------------------------------------------------------------------------------

    def ask(self, account: Account, nbytes: int, *, urgency: int = 0, owner: Any = None) -> Ticket:
        """Asks for bytes that the account needs; they are held at once, or queued.

        Args:
            account: Who asks. A source has no more than one ask in the queue.
            nbytes: How much, as it will be charged.
            urgency: 0 for the next thing needed, larger for later ones.
            owner: Kept on the ticket.

        Raises:
            MemoryLimitError: Beside the reserves of the other accounts so much will never be free.
        """
        most = self.limit - self._reserved + account.reserved
        self._check(account, nbytes)
        if nbytes > most:
            raise MemoryLimitError(
                f"{nbytes} bytes in one piece are needed; memory_limit_bytes={self.limit} leaves at most {most} beside "
                f"what the other stages need. A memory_limit_bytes of at least {nbytes + self.limit - most} would do",
                stage=account.name,
            )
        self._serial += 1
        sort = Sort.EXTRA if urgency > 0 and account.kind is Kind.FLOW else Sort.OWN
        ticket = Ticket(account, nbytes, urgency=urgency, owner=owner, serial=self._serial, sort=sort)
        cost = ticket.cost
        if cost == 0 or (cost <= self.free and not self._queue and ticket.is_eligible):
            self._hold(ticket, cost)
        else:
            account.queued.append(ticket)
            self._enqueue(ticket)
            self._settle()
            if ticket.state is State.HELD:
                self._granted.remove(ticket)
        return ticket

    def ask_ahead(self, account: Account, nbytes: int, *, urgency: int = 1, owner: Any = None) -> Ticket | None:
        """Asks for bytes to read ahead into: held at once, or ``None``. They may be recalled."""
        self._check(account, nbytes)
        if self._queue or self.free - nbytes < self._slack:
            self._refused = True
            return None
        self._serial += 1
        ticket = Ticket(account, nbytes, urgency=urgency, owner=owner, serial=self._serial, sort=Sort.AHEAD)
        self._ahead[ticket] = None
        self._hold(ticket, nbytes)
        return ticket

    def promote(self, ticket: Ticket) -> bool:
        """Makes an ask, read-ahead or an extra output the next thing its account needs.

        Returns:
            False if a source would then hold more than its reserve and is not waited for: keep it as read-ahead.
        """
        account, nbytes = ticket.account, ticket.nbytes
        if ticket.state is State.QUEUED:
            ticket.urgency, ticket.sort = 0, Sort.OWN
            self._enqueue(ticket)
        elif ticket.state is not State.HELD:
            raise ValueError(f"{ticket!r} is not there to be promoted")
        elif ticket.sort is not Sort.OWN:
            if not ticket.is_eligible:
                return False
            before = account.firm
            account.own += nbytes
            if ticket.sort is Sort.AHEAD:
                self._drop_ahead(ticket)
            else:
                account.extra -= nbytes
            self.free += nbytes + before - account.firm
            ticket.urgency, ticket.sort = 0, Sort.OWN
        self._lowered(account)
        self._settle()
        return True

    def move(self, ticket: Ticket, account: Account) -> None:
        """Charges the bytes to another account from now on. Never waits, never fails for lack of room."""
        source = ticket.account
        if ticket.state is not State.HELD or ticket.sort is Sort.AHEAD:
            raise ValueError(f"{ticket!r} cannot be moved: only held bytes can, and read-ahead after its promotion")
        if account.closed:
            raise PipelineClosedError("the account is closed", stage=account.name)
        if source is account:
            return
        nbytes = ticket.nbytes
        freed = self._take_off(ticket, nbytes)
        cost = max(account.backed, account.own + nbytes) - account.firm
        loan = cost - freed - (0 if self._queue else self.free)
        if loan > 0:
            source.backed -= loan
            self._lent += loan
            freed += loan
        self.free += freed - cost
        ticket.account, ticket.sort, ticket.resting = account, Sort.OWN, False
        account.own += nbytes
        account.peak = max(account.peak, account.used)
        self._lowered(source)
        if source.closed and not source.used:
            self._forget(source)
        self._settle()

    def shrink(self, ticket: Ticket, nbytes: int) -> None:
        """Gives a part back and keeps ``nbytes`` charged."""
        if ticket.state is not State.HELD or not 0 <= nbytes <= ticket.nbytes:
            raise ValueError(f"{ticket!r} cannot be shrunk to {nbytes} bytes")
        self._release(ticket, ticket.nbytes - nbytes)

    def give(self, ticket: Ticket) -> None:
        """Gives the bytes back, or withdraws a queued ask. A failed ticket needs no giving; it does no harm.

        Raises:
            ValueError: They were given back before.
        """
        if ticket.state is State.HELD:
            ticket.state = State.GIVEN
            self._release(ticket, ticket.nbytes)
        elif ticket.state is State.QUEUED:
            ticket.state = State.GIVEN
            self._dequeue(ticket)
            ticket.account.queued.remove(ticket)
            self._settle()
        elif ticket.state is State.GIVEN:
            raise ValueError(f"{ticket!r} was given back before")

    def rest(self, ticket: Ticket, resting: bool = True) -> None:
        """Says of one slab of flow that it waits for a grant or for other bytes, or no longer does."""
        if ticket.state is not State.HELD:
            raise ValueError(f"{ticket!r} holds nothing")
        if ticket.resting is not resting:
            ticket.resting = resting
            ticket.account.resting += ticket.nbytes if resting else -ticket.nbytes
            if resting and self._queue:
                self._settle()

    # --- answers -------------------------------------------------------------------------------------------------

    @property
    def has_decisions(self) -> bool:
        """There is something in ``decisions()``."""
        return bool(self._granted or self._failed or self._recalls or self._room)

    def decisions(self) -> Decisions:
        """What was decided since the last call, for tickets that were not answered on the spot."""
        decided = Decisions(
            [ticket for ticket in self._granted if ticket.state is State.HELD],
            self._failed,
            [ticket for ticket in self._recalls if ticket.recalled],
            self._room,
        )
        self._granted, self._failed, self._recalls, self._room = [], [], [], False
        return decided

    def snapshot(self) -> LedgerSnapshot:
        """All accounts as they stand."""
        return LedgerSnapshot(
            self.limit,
            self.used,
            self.peak,
            self.free,
            tuple(
                AccountSnapshot(a.name, a.rank, a.kind, a.used, a.ahead, a.reserved, a.backed, a.peak, len(a.queued))
                for a in self._accounts
            ),
        )

    def __repr__(self) -> str:
        lines = "".join(f"\n  {account!r}" for account in self._accounts)
        return f"<Ledger {self.used} of {self.limit} used, {self.free} free, {len(self._queue)} asks blocked{lines}>"

    # --- how -----------------------------------------------------------------------------------------------------

    def _check(self, account: Account, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"nobody asks for {nbytes} bytes")
        if account.closed:
            raise PipelineClosedError("the account is closed", stage=account.name)

    def _set_reserve(self, account: Account, nbytes: int) -> None:
        self._reserved += nbytes - account.reserved
        self._lent -= account.reserved - account.backed
        account.reserved = nbytes
        if account.backed > nbytes:
            self.free += account.firm - max(nbytes, account.own)
            account.backed = nbytes
        self._lent += account.reserved - account.backed

    def _hold(self, ticket: Ticket, cost: int) -> None:
        account, nbytes = ticket.account, ticket.nbytes
        ticket.state = State.HELD
        if ticket.sort is Sort.OWN:
            account.own += nbytes
        elif ticket.sort is Sort.EXTRA:
            account.extra += nbytes
        else:
            account.ahead += nbytes
        self.free -= cost
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        account.peak = max(account.peak, account.used)

    def _take_off(self, ticket: Ticket, nbytes: int) -> int:
        """Takes bytes out of the account's books; returns by how much its claim fell."""
        account = ticket.account
        if ticket.resting:
            account.resting -= nbytes
        if ticket.sort is Sort.OWN:
            before = account.firm
            account.own -= nbytes
            return before - account.firm
        if ticket.sort is Sort.EXTRA:
            account.extra -= nbytes
        else:
            account.ahead -= nbytes
            if ticket.recalled:
                self._recalled_bytes -= nbytes
        return nbytes

    def _release(self, ticket: Ticket, nbytes: int) -> None:
        account = ticket.account
        self.free += self._take_off(ticket, nbytes)
        self.used -= nbytes
        ticket.nbytes -= nbytes
        if ticket.state is State.GIVEN:
            ticket.recalled = False
            self._ahead.pop(ticket, None)
            if account.closed and not account.used:
                self._forget(account)
        self._lowered(account)
        self._settle()

    def _drop_ahead(self, ticket: Ticket) -> None:
        """Read-ahead that is to be kept: takes it out of what can be recalled."""
        ticket.account.ahead -= ticket.nbytes
        del self._ahead[ticket]
        if ticket.recalled:
            ticket.recalled = False
            self._recalled_bytes -= ticket.nbytes

    def _forget(self, account: Account) -> None:
        self._accounts.remove(account)

    def _enqueue(self, ticket: Ticket) -> None:
        """Puts a waiting ask where it belongs now: into the queue, or out of it if it is not eligible."""
        self._dequeue(ticket)
        if ticket.is_eligible:
            account = ticket.account
            sought = account.kind is Kind.SOURCE and account.waiting
            ticket.key = (account.rank, not sought, ticket.urgency, ticket.serial)
            insort(self._queue, (ticket.key, ticket), key=_key)

    def _dequeue(self, ticket: Ticket) -> None:
        if ticket.key is not None:
            del self._queue[bisect_left(self._queue, ticket.key, key=_key)]
            ticket.key = None

    def _grant(self, ticket: Ticket, cost: int) -> None:
        account = ticket.account
        self._dequeue(ticket)
        account.queued.remove(ticket)
        self._hold(ticket, cost)
        self._granted.append(ticket)
        if account.kind is not Kind.SOURCE:
            account.waiting = False  # its stage goes on as soon as it hears of the grant

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        self._dequeue(ticket)
        ticket.account.queued.remove(ticket)
        ticket.state = State.FAILED
        ticket.error = error
        self._failed.append(ticket)

    def _lowered(self, account: Account) -> None:
        """After an account's use fell: its reserve may cover one of its asks, or a parked one may be eligible."""
        for ticket in list(account.queued):
            if ticket.cost == 0:
                self._grant(ticket, 0)
            elif ticket.key is None:
                self._enqueue(ticket)

    def _settle(self, *, judge: bool = True) -> None:
        """Spends what is free: on the queue in its order, then on lent reserves; the rest is room for read-ahead."""
        while self._queue:
            ticket = self._queue[0][1]
            account = ticket.account
            if self._lent and self.free and self._make_good(account.rank + (ticket.sort is Sort.EXTRA)):
                continue  # a reserve that came into force may have answered this very ask
            cost = ticket.cost
            if cost > self.free:
                self._recall(cost - self.free)
                if not judge or self._ahead or not self._is_hopeless(ticket):
                    return
                rescued = self._borrow(account, cost) if account.kind is Kind.FLOW else self._pass_by()
                if not rescued:
                    self._fail(ticket, self._hopeless(ticket))
                    return
                continue
            self._grant(ticket, cost)
        if self._lent and self.free:
            self._make_good()
        if self._refused and self.free > self._slack:
            self._refused = False
            self._room = True

    def _make_good(self, below_rank: int | None = None) -> bool:
        """Puts lent reserves in force again as far as bytes are free, nearest the consumer first.

        Returns:
            Whether anything changed.
        """
        lent = self._lent
        for account in self._accounts:
            if below_rank is not None and account.rank >= below_rank:
                break
            if account.backed < account.reserved:
                firm = account.firm
                backed = min(account.reserved, firm + self.free)
                self.free -= max(backed - firm, 0)
                self._lent -= backed - account.backed
                account.backed = backed
                self._lowered(account)
        return self._lent != lent

    def _recall(self, nbytes: int) -> None:
        """Asks for read-ahead back, what is needed last first, so that ``nbytes`` more become free."""
        missing = nbytes - self._recalled_bytes
        if missing <= 0 or len(self._ahead) == 0:
            return
        for ticket in sorted(self._ahead, key=_lateness, reverse=True):
            if not ticket.recalled:
                ticket.recalled = True
                self._recalled_bytes += ticket.nbytes
                self._recalls.append(ticket)
                missing -= ticket.nbytes
                if missing <= 0:
                    return

    def _is_hopeless(self, ticket: Ticket) -> bool:
        """Nothing will be released without the grant of this very ask."""
        asking = ticket.account
        from_source = asking.kind is Kind.SOURCE
        if ticket.sort is not Sort.OWN or (from_source and not asking.waiting):
            return False
        for account in self._accounts:
            if account.kind is Kind.SOURCE:
                if from_source and account.is_awaited and not any(ask.key for ask in account.queued):
                    return False
            elif account.rank > asking.rank or (account is asking and account.kind is Kind.ASSEMBLER):
                continue
            elif account.used > account.resting and not account.waiting:
                return False
        return True

    def _borrow(self, account: Account, nbytes: int) -> bool:
        """Frees ``nbytes`` from unused reserves farther upstream: flow returns them without them, if all is granted."""
        lenders = [a for a in self._accounts if a.rank > account.rank and a.backed > a.own]
        if self.free + sum(a.backed - a.own for a in lenders) < nbytes:
            return False
        for lender in reversed(lenders):
            loan = min(lender.backed - lender.own, nbytes - self.free)
            lender.backed -= loan
            self._lent += loan
            self.free += loan
        return True

    def _pass_by(self) -> bool:
        """Grants what fits to another source that is waited for: its rows may be as good."""
        for _, ticket in self._queue:
            if ticket.account.kind is Kind.SOURCE and ticket.account.waiting and ticket.cost <= self.free:
                self._grant(ticket, ticket.cost)
                return True
        return False

    def _hopeless(self, ticket: Ticket) -> MemoryLimitError:
        asking = ticket.account
        needed = max(asking.reserved, asking.own + ticket.nbytes) + asking.extra
        for account in self._accounts:
            if asking.kind is Kind.FLOW and account.rank > asking.rank:
                needed += account.used  # what is reserved there would be lent
            elif account is not asking:
                needed += max(account.reserved, account.own) + account.extra
        holders = [a for a in self._accounts if a.kind is Kind.ASSEMBLER] or self._accounts
        holder = max(holders, key=_used)
        return MemoryLimitError(
            f"{ticket.nbytes} bytes are needed and nothing will be released before: {holder.name} holds {holder.used} "
            f"bytes until it gets more input. memory_limit_bytes={self.limit} is too small for this pipeline; "
            f"this step needs at least {needed}",
            stage=asking.name,
        )

    def _largest(self, account: Account, nbytes: int) -> str:
        shares = [(a.reserved, a.name) for a in self._accounts if a is not account] + [(nbytes, account.name)]
        return ", ".join(f"{name} {reserved}" for reserved, name in sorted(shares, reverse=True)[:3])


def _rank(account: Account) -> int:
    return account.rank


def _used(account: Account) -> int:
    return account.used


def _key(entry: tuple[Key, Ticket]) -> Key:
    return entry[0]


def _lateness(ticket: Ticket) -> tuple[int, int, int]:
    return ticket.account.rank, ticket.urgency, ticket.serial
