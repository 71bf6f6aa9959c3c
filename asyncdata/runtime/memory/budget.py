"""Slabs for granted bytes: the async rim of the ledger.

Every slab has the ledger's ticket that pays for it. When the last holder releases the slab, the ticket goes back, and
this module carries out the ledger's decisions: waiting stages wake, read-ahead is returned. If a stage waits for
memory, the loop goes round without a change, and no activity outside of it is in progress, this module tells the ledger
that the pipeline has stalled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from asyncdata.errors import MemoryLimitError, SystemResourceError
from asyncdata.memory.accounts import Account, Kind, LedgerSnapshot, Ticket, TicketState
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.columns import Column
from asyncdata.memory.ledger import Ledger
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.memory.spans import SpanAllocator
from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.runtime.memory.activity import Activity

_QUIET_ROUNDS: Final = 64
"""Rounds of the loop without a change after which nobody is about to go on."""


class ReadAhead(Protocol):
    """A holder of read-ahead bytes."""

    def recall(self, slab: Slab) -> None:
        """Gives this slab back soon; it was read ahead, and is needed elsewhere."""


class Holder(Protocol):
    """A stage that keeps rows while it waits."""

    def movable(self) -> Iterable[Column]:
        """Columns whose rows may be moved now: nobody has noted where they lie, and nobody else shares their arrays."""


class _Waiter:
    """A queued ask and the task that waits for its answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answered: asyncio.Future[None] = loop.create_future()

    async def answered_for(self, account: Account) -> None:
        """Waits for the answer, and adds the time to what the account has waited."""
        with account.waits:
            await self.answered


class LentSlabs:
    """How often each slab was lent to a consumer. Stage loop only.

    A batch may outlive the iterator it came from. The next iterator has to make do with what its consumers leave, so
    slabs that consumers hold of one part of the memory are counted together: of the pipeline that uses the part now,
    and of those before it.

    Attributes:
        account: Of the consumer that there is now.
        counts: By the slab's index.
        nbytes: Bytes of slabs that consumers hold.
    """

    def __init__(self) -> None:
        self.account: Account | None = None
        self.counts: dict[int, int] = {}
        self.nbytes = 0

    def lend(self, slabs: Sequence[Slab]) -> None:
        """Lends each slab once more."""
        counts = self.counts
        for slab in slabs:
            index = slab.index
            if index in counts:
                counts[index] += 1
            else:
                counts[index] = 1
                self.nbytes += slab.nbytes

    def take_back(self, slabs: Sequence[Slab]) -> None:
        """A consumer has let go of what `lend` gave it."""
        counts = self.counts
        for slab in slabs:
            index = slab.index
            left = counts[index] - 1
            if left:
                counts[index] = left
            else:
                del counts[index]
                self.nbytes -= slab.nbytes


class Budget:
    """One limit, one arena. Stage loop only.

    Args:
        arena: Where slabs are cut from.
        limit_bytes: What all slabs together may take.
        start: Where in the arena slabs may lie.
        stop: Behind that; the whole rest of the arena unless given.
        parts: Pipelines among which the user's limit is divided.

    Attributes:
        holders: Stages that collect rows; each enters itself.
        moved: Grows whenever rows of theirs were moved while they waited.
        short: Runs while memory is short for reading ahead, or for later tasks.
        relieve: Called when the pipeline has stalled, before an ask fails: may put what the holders have together.
            Returns whether it is to be called again, in another round of the loop.
    """

    def __init__(
        self, arena: Arena, limit_bytes: int, *, start: int = 0, stop: int | None = None, parts: int = 1
    ) -> None:
        self.limit = limit_bytes
        self.parts = parts
        self.ledger = Ledger(limit_bytes, parts=parts)
        self.activity = Activity(self._look)
        self._looking = False
        space = arena.nbytes if stop is None else stop
        self._allocator = SpanAllocator(space, limit_bytes, GRANULE, start=start)
        self.slabs = Slabs(arena, self._allocator, self._freed)
        self.kept = LentSlabs()
        self.holders: WeakKeyDictionary[Holder, None] = WeakKeyDictionary()
        self.moved = 0
        self.relieve: Callable[[], bool] = _nothing
        self.short = Stopwatch()
        self._readers: dict[Ticket, tuple[ReadAhead, Slab]] = {}
        self._room: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Budget {self.slabs!r} {self.ledger!r}>"

    def open(self, name: str, *, rank: int, kind: Kind, reserved_bytes: int = 0, any_order: bool = False) -> Account:
        """An account; see `Ledger.open`."""
        account = self.ledger.open(name, rank=rank, kind=kind, reserved_bytes=reserved_bytes, any_order=any_order)
        self._act()
        return account

    def reserve(self, account: Account, nbytes: int) -> None:
        """Changes what is reserved for an account."""
        self.ledger.reserve(account, nbytes)
        self._act()

    def secure(self, account: Account, nbytes: int) -> None:
        """Reserves for an account as much as its next task turned out to need, if that fits beside other reserves.

        Or later tasks could take the memory that it waits for, and for whose results they wait themselves.
        """
        nbytes = self.charge(nbytes)
        if nbytes > account.reserved and not account.closed:
            with contextlib.suppress(MemoryLimitError):
                self.reserve(account, nbytes)

    def most(self, account: Account) -> int:
        """The largest charge that can ever be granted to an account."""
        return self.ledger.most(account)

    def begin(self, account: Account) -> None:
        """Says that a sloppy source is one of those that are read now."""
        self.ledger.begin(account)

    def close(self, account: Account) -> None:
        """Ends an account."""
        self.ledger.close(account)
        self._act()

    def wait(self, account: Account, waiting: bool = True) -> None:
        """Says that a source is waited for; see `Ledger.wait`."""
        if account.waiting is not waiting and not account.closed:
            self.ledger.wait(account, waiting)
            self._act()

    @property
    def collected_bytes(self) -> int:
        """What all stages that collect rows hold, and the consumer."""
        return sum(account.used for account in self.snapshot().accounts if account.kind is Kind.ASSEMBLER)

    def charge(self, nbytes: int) -> int:
        """What a slab for so many bytes costs."""
        return self._allocator.span_bytes(nbytes)

    async def take(self, account: Account, nbytes: int) -> Slab:
        """A slab held once by the caller, of at least so many bytes; waits until the ledger grants it.

        Raises:
            MemoryLimitError: It can never be granted.
        """
        return self._cut(nbytes, await self._granted(account, nbytes))

    def take_spare(self, account: Account, nbytes: int) -> Slab | None:
        """A slab for what a later task makes, or None when memory is short now."""
        ticket = self.ledger.ask_spare(account, self.charge(nbytes))
        return None if ticket is None else self._cut(nbytes, ticket)

    def owe(self, account: Account, nbytes: int, *, spare: bool = False) -> Slab:
        """A slab for what a task has made beyond what was foreseen, at once; see `Ledger.owe`.

        Raises:
            MemoryLimitError: So much would never be free.
        """
        ticket = self.ledger.owe(account, self.charge(nbytes), spare=spare)
        self._act()
        return self._cut(nbytes, ticket)

    def _cut(self, nbytes: int, ticket: Ticket) -> Slab:
        """The slab that was granted; where the system has no memory for it, the grant goes back."""
        try:
            return self.slabs.take(nbytes, ticket)
        except OSError as error:
            self.ledger.give(ticket)
            self._act()
            if isinstance(error, SystemResourceError):
                error.complete(stage=ticket.account.name)
            raise

    async def charge_only(self, account: Account, nbytes: int) -> Ticket:
        """Charges bytes that lie elsewhere than in a slab; see `take`, and `give`."""
        ticket = await self._granted(account, nbytes)
        self._leave(ticket.nbytes)
        return ticket

    async def _granted(self, account: Account, nbytes: int) -> Ticket:
        waiter = _Waiter(asyncio.get_running_loop())
        ticket = self.ledger.ask(account, self.charge(nbytes), owner=waiter)
        self._act()
        if ticket.state is TicketState.QUEUED:
            try:
                await waiter.answered_for(account)
            except asyncio.CancelledError:
                if ticket.state in (TicketState.QUEUED, TicketState.HELD):
                    self.ledger.give(ticket)
                    self._act()
                raise
        if ticket.state is TicketState.FAILED:
            assert ticket.error is not None
            raise ticket.error
        return ticket

    def give(self, ticket: Ticket) -> None:
        """Gives back what `charge_only` was granted."""
        self._leave(-ticket.nbytes)
        self.ledger.give(ticket)
        self._act()

    def _leave(self, nbytes: int) -> None:
        """Pages of the arena that nobody uses make room for what lies elsewhere."""
        for offset, size in self._allocator.leave(nbytes):
            self.slabs.arena.punch(offset, size)

    def take_now(self, account: Account, nbytes: int) -> Slab | None:
        """A slab if the bytes are free at this moment, else None."""
        charge = self.charge(nbytes)
        if charge > self.most(account):
            return None
        ticket = self.ledger.ask(account, charge)
        if ticket.state is TicketState.QUEUED:
            self.ledger.give(ticket)
            self._act()
            return None
        self._act()
        return self._cut(nbytes, ticket) if ticket.state is TicketState.HELD else None

    def take_ahead(self, account: Account, nbytes: int, *, urgency: int, reader: ReadAhead) -> Slab | None:
        """A slab to read ahead into, or None when memory is short now; it may be recalled until it is kept."""
        ticket = self.ledger.ask_ahead(account, self.charge(nbytes), urgency=urgency)
        if ticket is None:
            return None
        slab = self._cut(nbytes, ticket)
        self._readers[ticket] = (reader, slab)
        return slab

    def keep(self, slab: Slab) -> None:
        """Read-ahead becomes what its source needs now, and can no longer be recalled."""
        ticket: Ticket = slab.account
        if self.ledger.promote(ticket):
            self._readers.pop(ticket, None)
        self._act()

    def is_kept(self, slab: Slab) -> bool:
        """Whether a slab can no longer be recalled."""
        return slab.account not in self._readers

    def move(self, slab: Slab, account: Account) -> None:
        """Charges a slab to another account from now on."""
        ticket: Ticket = slab.account
        if ticket.account is not account and not account.closed:
            self.ledger.move(ticket, account)
            self._act()

    def adopt(self, account: Account) -> None:
        """Charges a new consumer with what the consumers before it still hold: one share has to do for all of them.

        What else is left of a pipeline before, as reads that are being stopped, is not its own and ends by itself.
        """
        self.kept.account = account
        for slab in self.slabs.by_index(list(self.kept.counts)):
            self.move(slab, account)

    def charge_consumer(self, slabs: Iterable[Slab], account: Account) -> None:
        """Charges the consumer with those slabs that nobody but consumers holds any more.

        The charge follows the last row: what a stage upstream pins as well is that stage's own. So the consumer's
        reserve is there for what only the consumer holds, whatever a buffer has in the same slabs.
        """
        for slab in slabs:
            if self.slabs.holds(slab) == self.kept.counts[slab.index]:
                self.move(slab, account)

    def hurry(self, slab: Slab) -> None:
        """What was taken for a later task is needed next."""
        self.ledger.promote(slab.account)
        self._act()

    def on_room(self, callback: Callable[[], None]) -> None:
        """Calls back, once, when read-ahead that was refused could be tried again."""
        if not self.short.open:
            self.short.begin()
        self._room.append(callback)

    def snapshot(self) -> LedgerSnapshot:
        """Returns the state of all accounts."""
        return self.ledger.snapshot()

    def end(self) -> None:
        """The arena is given up; leases that are still out hold the mapping themselves."""
        self._readers.clear()
        self._room.clear()
        self.relieve = _nothing
        self.slabs.close()

    def _freed(self, slab: Slab) -> None:
        ticket: Ticket = slab.account
        self._readers.pop(ticket, None)
        self.ledger.give(ticket)
        self._act()

    def _act(self) -> None:
        self.activity.changes += 1
        if self.ledger.has_decisions:
            self._carry_out()
        self._look()

    def _look(self) -> None:
        """Finds out whether the pipeline has stalled, if that may be so."""
        if not self._looking and self.ledger.is_blocked and self.activity.is_idle:
            self._looking = True
            self._confirm(self.activity.changes, 0)

    def _confirm(self, changes: int, rounds: int) -> None:
        """Lets the loop go round a few times without a change.

        A stage that has just been given something has not run yet; whoever is ready to run does so within one round of
        the loop, and hands on within as many as there are stages.
        """
        if changes != self.activity.changes:
            changes, rounds = self.activity.changes, 0
        if not self.ledger.is_blocked or not self.activity.is_idle:
            self._looking = False
        elif rounds < _QUIET_ROUNDS:
            asyncio.get_running_loop().call_soon(self._confirm, changes, rounds + 1)
        else:
            ask = self.ledger.first_ask
            unfinished = not self.ledger.is_recalling and self.relieve()
            if unfinished and self.ledger.first_ask is ask:
                asyncio.get_running_loop().call_soon(self._confirm, self.activity.changes, _QUIET_ROUNDS)
                return
            is_stalled = self.ledger.first_ask is ask
            if is_stalled:
                self.ledger.stalled()
            self._looking = False
            if self.ledger.has_decisions:
                self._act()
            elif not is_stalled:
                # What was given back was enough for the first one, who may now wait for the next one without a word.
                self._look()

    def _carry_out(self) -> None:
        while self.ledger.has_decisions:
            decided = self.ledger.decisions()
            for ticket in (*decided.granted, *decided.failed):
                if isinstance(ticket.owner, _Waiter) and not ticket.owner.answered.done():
                    ticket.owner.answered.set_result(None)
            for ticket in decided.recalled:
                found = self._readers.pop(ticket, None)
                if found is not None:
                    reader, slab = found
                    reader.recall(slab)
            if decided.room:
                callbacks, self._room = self._room, []
                if self.short.open:
                    self.short.end()
                for callback in callbacks:
                    callback()


def _nothing() -> bool:
    """Nobody can give anything back."""
    return False
