"""The byte ledger: decides who may hold how much of one limit, such that a pipeline cannot deadlock.

Pure bookkeeping: no clock, no loop, no memory. A caller asks, moves and gives; it then collects ``decisions()`` and
acts on them. Not thread-safe: one thread calls it.

``accounts`` explains accounts, kinds and the three sorts of bytes (own, extra, ahead). ``backed`` is the part of an
account's reserve that is in force. An account claims ``max(backed, own) + extra + ahead``; the part of the limit that
no account claims is *free*.

**Moves.** The charge follows the rows downstream, and a move never waits, because the bytes already exist. If the free
bytes do not cover it, the account that the bytes come from lends its reserve: ``backed`` falls below ``reserved``, and
bytes that are released later restore it, nearest the consumer first. An account that is opened while memory is short
begins in the same way. If a source's reserve is lent, its next ask is queued: this is the backpressure.

**Order.** Free bytes serve the queue strictly in order: nearest the consumer first, then sources that a stage waits
for, then first come. Nothing is granted past a blocked ask, except what an account's own reserve covers. Lent reserves
nearer to the consumer than an ask are restored before it. Read-ahead is never queued: it is granted while the queue is
empty and some slack remains, and refused otherwise. Outputs of tasks that are not next in line are granted in the same
way, and only if enough remains for what assemblers are still going to collect and to make of it, as far as they know.

**Sources.** With ``wait`` a source says that the stage below has no rows and waits for it. Only while a stage waits for
it may a source hold more than its reserve as its own (a record larger than a chunk). Before that, such an ask is
parked, and read-ahead of such a size is not promoted. Sources that are read sloppily are opened with ``any_order``: any
row is welcome.

**Debt.** A task's output that is larger than foreseen already exists: ``owe`` charges it, whatever is free. ``free`` is
then negative, and only asks that a reserve covers are granted until released bytes have repaid the debt. What a task
owes that is not next in line does not count against the reserve of the one that is. Where that reserve has repaid it
all the same, the soonest ask is granted when nothing else moves.

**Why it cannot deadlock.** Suppose that nothing moves any more, and let Q be the first ask of the queue, n bytes for
the account q. Read-ahead has been recalled, so no *ahead* is left. An ask that a reserve in force covers is never in
the queue. So Q is blocked only if ``max(backed_q, own_q + n) + sum over a != q of max(backed_a, own_a) + extra_a``
exceeds the limit; and because ``backed <= reserved``, so does the same sum over ``reserved``. Sources contribute only
their reserves to this sum, except the one that a stage waits for. Assemblers contribute what they really need. Flow
nearer to the consumer than q has gone, because it needs nothing from q, and so have the tasks of q before this one:
each gets its memory before it begins, and tasks begin in the order in which they are needed. A limit of

    sum of all reserves + what each assembler needs beyond its reserve + the largest excess of one ask over a reserve

is therefore always enough, if the reserves cover every output of a task and every batch the consumer keeps. If they do
not, a task's ask may be Q, and everything that waits with it is added: inputs and outputs of the tasks that run at a
time.

Below such a limit Q may be blocked for good. The ledger cannot know this. The code that runs the stages sees that none
of them makes progress, and that nothing they wait for is in progress. It packs what assemblers hold, because they need
what their rows take and not what the rows happen to pin, and calls ``stalled``. Then, as last resorts, flow borrows the
unused part of the reserves farther upstream (it returns without them), and if several sources are waited for, another
one is served; otherwise Q fails with ``MemoryLimitError``.

The laws apply to one pipeline. If several share a limit and one of them is not consumed for a while, its finished
batches stay; so give each a ledger of its own with a part of the limit.
"""

from __future__ import annotations

from bisect import insort
from typing import Any, Final

from asyncdata.errors import PipelineClosedError
from asyncdata.memory.accounts import Account, Decisions, Kind, LedgerSnapshot, Sort, Ticket, TicketState
from asyncdata.memory.ask_order import AskQueue, Recallable
from asyncdata.memory.verdict import hopeless, reserves_exceed, to_collect, too_large

_SLACK_SHARE: Final = 8
"""Read-ahead leaves one part in this many of the limit free, so that growth downstream rarely has to recall it."""


class Ledger:
    """Grants bytes out of one limit.

    Args:
        limit_bytes: The limit.
        slack_bytes: What read-ahead leaves free; an eighth of the limit unless given.
        parts: Pipelines among which a user's limit is divided, with which reserves grow; None where there is no user.
    """

    def __init__(self, limit_bytes: int, *, slack_bytes: int | None = None, parts: int | None = None) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes must not be negative: {limit_bytes}")
        self.limit = limit_bytes
        self.parts = parts
        self.used = 0
        self.peak = 0
        self.free = limit_bytes
        self._slack = limit_bytes // _SLACK_SHARE if slack_bytes is None else slack_bytes
        self._accounts: list[Account] = []  # by rank
        self._reserved = 0
        self._lent = 0
        self._queue = AskQueue()
        self._ahead = Recallable()
        self._serial = 0
        self._granted: list[Ticket] = []
        self._failed: list[Ticket] = []
        self._recalls: list[Ticket] = []
        self._owed: list[Ticket] = []  # of spare tasks, at most one of each task
        self._refused = False
        self._room = False
        self.has_decisions = False
        """There may be something in ``decisions()``."""

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

    def begin(self, account: Account) -> None:
        """Says that a sloppy source is one of those that are read now: its rows would be taken if they came."""
        account.any_order = True

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
            raise reserves_exceed(self._accounts, account, nbytes, total, self.limit, self.parts)
        self._set_reserve(account, nbytes)
        self._settle()

    def most(self, account: Account) -> int:
        """What the account can have if nothing else than the reserves of the others is held."""
        return self.limit - self._reserved + account.reserved

    def close(self, account: Account) -> None:
        """Ends an account: its asks fail, its reserve is shared; what it still holds stays charged until given."""
        if account.closed:
            return
        self._set_reserve(account, 0)
        account.closed = True
        account.waiting = account.any_order = False
        account.foresee = None
        for ticket in list(account.queued):
            self._fail(
                ticket, PipelineClosedError("the stage was closed while it waited for memory", stage=account.name)
            )
        if not account.used:
            self._forget(account)
        self._settle()

    def wait(self, account: Account, waiting: bool = True) -> None:
        """Says that a source is waited for, or no longer is; see the module's text."""
        if account.waiting is waiting:
            return
        account.waiting = waiting
        for ticket in account.queued:
            self._queue.put(ticket)
        if self._queue.entries:
            self._settle()

    # --- bytes ---------------------------------------------------------------------------------------------------

    def ask(self, account: Account, nbytes: int, *, owner: Any = None) -> Ticket:
        """Asks for bytes that the account needs; they are held at once, or queued.

        Args:
            account: Who asks. A source has no more than one ask in the queue.
            nbytes: How much, as it will be charged.
            owner: Kept on the ticket.

        Raises:
            MemoryLimitError: Beside the reserves of the other accounts so much will never be free.
        """
        ticket = self._ticket(account, nbytes, owner)
        cost = ticket.cost
        if cost == 0 or (cost <= self.free and not self._queue.entries and ticket.is_eligible):
            self._hold(ticket, cost)
        else:
            account.queued.append(ticket)
            self._queue.put(ticket)
            self._settle()
            if ticket.state is TicketState.HELD:
                self._granted.remove(ticket)
        return ticket

    def owe(self, account: Account, nbytes: int, *, spare: bool = False) -> Ticket:
        """Charges bytes that exist already, or will in a moment; held at once, whatever is free.

        Args:
            account: Who owes them.
            nbytes: How much.
            spare: They belong to a task that is not the soonest, which must not use up the reserve of the soonest.

        Raises:
            MemoryLimitError: Beside the reserves of the other accounts so much would never be free.
        """
        ticket = self._ticket(account, nbytes, None, sort=Sort.EXTRA if spare else Sort.OWN)
        self._hold(ticket, nbytes if spare else ticket.cost)
        if spare:
            self._owed = [owed for owed in self._owed if _is_spare(owed)] + [ticket]
        if self.free < 0:
            self._recalls += self._ahead.recall(-self.free)
            self.has_decisions = True
        return ticket

    def ask_spare(self, account: Account, nbytes: int) -> Ticket | None:
        """Asks for the output of a task that is not the soonest: held at once, or ``None``."""
        self._check(account, nbytes)
        spare = self.free - nbytes - self._slack
        if self._queue.entries or spare < 0 or spare < sum(to_collect(account) for account in self._accounts):
            self._refused = True
            return None
        ticket = self._ticket(account, nbytes, None, sort=Sort.EXTRA)
        self._hold(ticket, nbytes)
        return ticket

    def _ticket(self, account: Account, nbytes: int, owner: Any, *, sort: Sort = Sort.OWN) -> Ticket:
        most = self.most(account)
        self._check(account, nbytes)
        if nbytes > most:
            raise too_large(self._accounts, account, nbytes, most, self.limit, self.parts)
        self._serial += 1
        return Ticket(account, nbytes, urgency=0, owner=owner, serial=self._serial, sort=sort)

    def ask_ahead(self, account: Account, nbytes: int, *, urgency: int = 1, owner: Any = None) -> Ticket | None:
        """Asks for bytes to read ahead into: held at once, or ``None``. They may be recalled."""
        self._check(account, nbytes)
        if self._queue.entries or self.free - nbytes < self._slack:
            self._refused = True
            return None
        self._serial += 1
        ticket = Ticket(account, nbytes, urgency=urgency, owner=owner, serial=self._serial, sort=Sort.AHEAD)
        self._ahead.add(ticket)
        self._hold(ticket, nbytes)
        return ticket

    def promote(self, ticket: Ticket) -> bool:
        """Makes read-ahead, or an extra output, what its account needs next.

        Returns:
            False if a source would then hold more than its reserve and is not waited for: keep it as read-ahead.
        """
        account, nbytes = ticket.account, ticket.nbytes
        if ticket.state is not TicketState.HELD:
            raise ValueError(f"{ticket!r} is not there to be promoted")
        if ticket.sort is not Sort.OWN:
            if not ticket.is_eligible:
                return False
            before = account.firm
            account.own += nbytes
            if ticket.sort is Sort.AHEAD:
                account.ahead -= nbytes
                self._ahead.remove(ticket)
            else:
                account.extra -= nbytes
            self.free += nbytes + before - account.firm
            ticket.sort = Sort.OWN
        self._lowered(account)
        self._settle()
        return True

    def move(self, ticket: Ticket, account: Account) -> None:
        """Charges the bytes to another account from now on. Never waits, never fails for lack of room."""
        source = ticket.account
        if ticket.state is not TicketState.HELD or ticket.sort is Sort.AHEAD:
            raise ValueError(f"{ticket!r} cannot be moved: only held bytes can, and read-ahead after its promotion")
        if account.closed:
            raise PipelineClosedError("the account is closed", stage=account.name)
        if source is account:
            return
        nbytes = ticket.nbytes
        freed = self._take_off(ticket, nbytes)
        cost = max(account.backed, account.own + nbytes) - max(account.backed, account.own)
        loan = cost - freed - (0 if self._queue.entries else max(self.free, 0))
        if loan > 0:
            source.backed -= loan
            self._lent += loan
            freed += loan
        self.free += freed - cost
        ticket.account, ticket.sort = account, Sort.OWN
        account.own += nbytes
        account.peak = max(account.peak, account.used)
        self._lowered(source)
        if source.closed and not source.used:
            self._forget(source)
        self._settle()

    def give(self, ticket: Ticket) -> None:
        """Gives the bytes back, or withdraws a queued ask. A failed ticket needs no giving; it does no harm.

        Raises:
            ValueError: They were given back before.
        """
        if ticket.state is TicketState.HELD:
            ticket.state = TicketState.GIVEN
            self._release(ticket, ticket.nbytes)
        elif ticket.state is TicketState.QUEUED:
            ticket.state = TicketState.GIVEN
            self._leave(ticket)
            self._settle()
        elif ticket.state is TicketState.GIVEN:
            raise ValueError(f"{ticket!r} was given back before")

    # --- answers -------------------------------------------------------------------------------------------------

    def decisions(self) -> Decisions:
        """What was decided since the last call, for tickets that were not answered on the spot."""
        decided = Decisions(
            [ticket for ticket in self._granted if ticket.state is TicketState.HELD],
            self._failed,
            [ticket for ticket in self._recalls if ticket.recalled],
            self._room,
        )
        self._granted, self._failed, self._recalls, self._room = [], [], [], False
        self.has_decisions = False
        return decided

    def snapshot(self) -> LedgerSnapshot:
        """Returns the state of all accounts. Any thread may ask."""
        accounts = [account.snapshot() for account in list(self._accounts)]
        return LedgerSnapshot(self.limit, self.used, self.peak, self.free, tuple(accounts))

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
        ticket.state = TicketState.HELD
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
        if ticket.sort is Sort.OWN:
            account.own = (own := account.own) - nbytes
            return max(own, account.backed) - max(account.own, account.backed)
        if ticket.sort is Sort.EXTRA:
            account.extra -= nbytes
        else:
            account.ahead -= nbytes
            if ticket.recalled:
                self._ahead.recalled_bytes -= nbytes
        return nbytes

    def _release(self, ticket: Ticket, nbytes: int) -> None:
        account = ticket.account
        if ticket.state is TicketState.GIVEN and ticket.sort is Sort.AHEAD:
            self._ahead.remove(ticket)
        self.free += self._take_off(ticket, nbytes)
        self.used -= nbytes
        ticket.nbytes -= nbytes
        if account.closed and not account.used:
            self._forget(account)
        self._lowered(account)
        self._settle()

    def _forget(self, account: Account) -> None:
        if account in self._accounts:
            self._accounts.remove(account)

    def _leave(self, ticket: Ticket) -> None:
        """An ask is answered."""
        self._queue.drop(ticket)
        ticket.account.queued.remove(ticket)

    def _grant(self, ticket: Ticket, cost: int) -> None:
        self._leave(ticket)
        self._hold(ticket, cost)
        self._granted.append(ticket)
        self.has_decisions = True

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        self._leave(ticket)
        ticket.state = TicketState.FAILED
        ticket.error = error
        self._failed.append(ticket)
        self.has_decisions = True

    def _lowered(self, account: Account) -> None:
        """After an account's use fell: its reserve may cover one of its asks, or a parked one may be eligible."""
        for ticket in list(account.queued):
            if ticket.cost == 0:
                self._grant(ticket, 0)
            elif ticket.key is None:
                self._queue.put(ticket)

    @property
    def is_blocked(self) -> bool:
        """Whether somebody waits for bytes."""
        return bool(self._queue.entries)

    @property
    def first_ask(self) -> Ticket | None:
        """Who is served next; None if nobody waits."""
        return self._queue.first if self._queue.entries else None

    @property
    def is_recalling(self) -> bool:
        """Whether there is read-ahead, which comes back by itself when it is needed elsewhere."""
        return len(self._ahead) > 0

    def stalled(self) -> None:
        """Nothing will be released by itself any more: the first ask is granted by the last resorts, or fails."""
        self._settle()
        if not self._queue.entries or self._ahead:
            return  # read-ahead that was recalled comes back by itself
        ticket = self._queue.first
        account, cost = ticket.account, ticket.cost
        if account.kind is Kind.FLOW and self._borrow(account, cost):
            self._settle()
        elif account.own + ticket.nbytes <= account.reserved and cost <= self.free + self._debt:
            self._grant(ticket, cost)
        elif account.kind is Kind.FLOW or not self._pass_by():
            self._fail(ticket, hopeless(self._accounts, ticket, self.limit, self.parts))
            self._settle()

    def _settle(self) -> None:
        """Spends what is free: on the queue in its order, then on lent reserves; the rest is room for read-ahead."""
        while self._queue.entries:
            ticket = self._queue.first
            if self._lent and self.free > 0 and self._make_good(ticket.account.rank):
                continue  # a reserve that came into force may have answered this very ask
            cost = ticket.cost
            if cost > self.free:
                self._recalls += self._ahead.recall(cost - self.free)
                self.has_decisions = True
                return
            self._grant(ticket, cost)
        if self._lent and self.free > 0:
            self._make_good()
        if self._refused and self.free > self._slack:
            self._refused = False
            self._room = self.has_decisions = True

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

    @property
    def _debt(self) -> int:
        """What tasks that are not the soonest have made beyond what was granted to them."""
        return sum(ticket.nbytes for ticket in self._owed if _is_spare(ticket))

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
        for ticket in self._queue:
            if ticket.account.is_awaited and ticket.account.kind is Kind.SOURCE and ticket.cost <= self.free:
                self._grant(ticket, ticket.cost)
                return True
        return False


def _rank(account: Account) -> int:
    return account.rank


def _is_spare(ticket: Ticket) -> bool:
    return ticket.state is TicketState.HELD and ticket.sort is Sort.EXTRA
