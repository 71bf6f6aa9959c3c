"""The records of the ledger: accounts, tickets, and decisions.

Every stage (every child of interleave) has an account with a *rank*, its distance from the consumer, and a *kind* that
says when its bytes are released:

* ``SOURCE``: a reader of one shard. Its bytes are released when the stages below take its rows.
* ``ASSEMBLER``: a shuffle buffer, a batch that is being filled, a window, the consumer with the batches it keeps. Its
  bytes are released only when it gets more input.
* ``FLOW``: tasks in workers, finished batches. Its bytes are released without a grant to anything farther upstream.

A granted ticket *is* the charge for one slab. There are three sorts of held bytes:

* *own*: what the account needs next. Taken from its reserve; only the excess comes from the shared part.
* *extra*: outputs of tasks that are not the next in line. Taken entirely from the shared part, so that the reserve
  stays free for the next task, for which the others wait.
* *ahead*: read-ahead. Taken from the shared part; can be recalled at any time until it is promoted.

These are plain records; ``ledger`` has their laws and makes every change.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from asyncdata.observe.stopwatch import Stopwatch

Key: TypeAlias = tuple[int, bool, int]
"""Place in the queue: rank, not waited for, serial number; the smallest is served first."""


class Kind(Enum):
    """What it takes to get an account's bytes back."""

    SOURCE = "source"
    ASSEMBLER = "assembler"
    FLOW = "flow"


class TicketState(Enum):
    """The life of a ticket: queued, held, given; or queued, failed."""

    QUEUED = "queued"
    HELD = "held"
    GIVEN = "given"
    FAILED = "failed"


class Sort(Enum):
    """What bytes are held for: the next thing needed, a later task's output, read-ahead."""

    OWN = "own"
    EXTRA = "extra"
    AHEAD = "ahead"


class Foreseen(NamedTuple):
    """What a stage that collects elements is going to hold.

    Attributes:
        most: So many elements.
        rows: Those it holds now.
        nbytes: Their bytes.
        batch: So many of them become one element; 0 if they stay what they are.
        is_guess: Whether nobody knows how many there will be.
        splits: It takes elements apart into so many each; 0 if that is not known yet, None if it does not.
    """

    most: int
    rows: int
    nbytes: int
    batch: int = 0
    is_guess: bool = False
    splits: int | None = None

    @property
    def mean(self) -> float:
        """Bytes of an element; 0 as long as there is none."""
        return self.nbytes / self.rows if self.rows else 0.0


class AccountSnapshot(NamedTuple):
    """One account at one moment; all sizes in bytes."""

    name: str
    rank: int
    kind: Kind
    used: int
    ahead: int
    reserved: int
    backed: int
    peak: int
    queued: int


class Account:
    """One stage's share. Read it freely; only the ledger changes it.

    Attributes:
        name: The stage, as ``describe()`` names it.
        rank: Distance from the consumer, whose own account has 0.
        kind: See ``Kind``.
        reserved: Bytes promised to this account alone.
        backed: The part of them that is in force; less while some are lent.
        own: Bytes of what it needs next; assemblers and moved charges have only these.
        extra: Bytes of later tasks' outputs.
        ahead: Bytes of read-ahead.
        peak: Most bytes ever held. Above ``reserved``: it drew on what is shared.
        waiting: A source whose rows are waited for; see ``Ledger.wait``.
        any_order: A source whose rows are taken as they come, together with those of its like.
        closed: It takes no more asks, and vanishes with its last byte.
        queued: Its asks without an answer, in the order they were made. Seldom empty: the limit is the bottleneck.
        foresee: Returns what its stage is going to hold, for the advice in errors; None for most accounts.
        waits: Runs while an ask waits for its answer.
    """

    __slots__ = (
        "ahead",
        "any_order",
        "backed",
        "closed",
        "extra",
        "foresee",
        "kind",
        "name",
        "own",
        "peak",
        "queued",
        "rank",
        "reserved",
        "waiting",
        "waits",
    )

    def __init__(self, name: str, rank: int, kind: Kind, *, any_order: bool) -> None:
        self.name = name
        self.rank = rank
        self.kind = kind
        self.any_order = any_order
        self.waits = Stopwatch()
        self.reserved = 0
        self.backed = 0
        self.own = 0
        self.extra = 0
        self.ahead = 0
        self.peak = 0
        self.waiting = False
        self.closed = False
        self.queued: list[Ticket] = []
        self.foresee: Callable[[], Foreseen] | None = None

    @property
    def used(self) -> int:
        """Bytes held now."""
        return self.own + self.extra + self.ahead

    @property
    def firm(self) -> int:
        """The claim for what it needs next: the reserve in force, or more."""
        return max(self.backed, self.own)

    def snapshot(self) -> AccountSnapshot:
        """Returns its state."""
        return AccountSnapshot(
            self.name,
            self.rank,
            self.kind,
            self.used,
            self.ahead,
            self.reserved,
            self.backed,
            self.peak,
            len(self.queued),
        )

    @property
    def is_awaited(self) -> bool:
        """Rows of this source would be taken if they came."""
        return self.waiting or self.any_order

    def __repr__(self) -> str:
        flags = "".join(
            text
            for flag, text in ((self.waiting, ", waiting"), (self.closed, ", closed"), (self.queued, ", asking"))
            if flag
        )
        return f"<{self.name}: {self.used} used, {self.backed} of {self.reserved} reserved{flags}>"


class Ticket:
    """One ask, and once granted the charge for one slab. Read it freely; only the ledger changes it.

    Attributes:
        account: Who is charged, or asks.
        nbytes: How much.
        urgency: Of read-ahead: larger is needed later.
        owner: Whatever the caller wants to find again in ``Decisions``.
        state: See ``TicketState``.
        sort: See ``Sort``.
        error: Why it failed.
        recalled: The ledger wants this read-ahead back; a promotion in time keeps it.
        serial: Number of the ask; first come, first served among equals.
        key: Its place in the queue; ``None`` if it is answered, or parked until it is eligible.
    """

    __slots__ = (
        "account",
        "error",
        "key",
        "nbytes",
        "owner",
        "recalled",
        "serial",
        "sort",
        "state",
        "urgency",
    )

    def __init__(self, account: Account, nbytes: int, *, urgency: int, owner: Any, serial: int, sort: Sort) -> None:
        self.account = account
        self.nbytes = nbytes
        self.urgency = urgency
        self.owner = owner
        self.state = TicketState.QUEUED
        self.sort = sort
        self.error: Exception | None = None
        self.recalled = False
        self.serial = serial
        self.key: Key | None = None

    @property
    def held(self) -> bool:
        """The bytes are granted and not yet given back."""
        return self.state is TicketState.HELD

    @property
    def cost(self) -> int:
        """What granting the ask takes from what is free; 0 if the account's reserve covers it."""
        if self.sort is not Sort.OWN:
            return self.nbytes
        account = self.account
        return max(account.backed, account.own + self.nbytes) - account.firm

    @property
    def is_eligible(self) -> bool:
        """The bytes may become the account's own: a source exceeds its reserve only while it is waited for."""
        account = self.account
        return account.kind is not Kind.SOURCE or account.waiting or account.own + self.nbytes <= account.reserved

    def __repr__(self) -> str:
        return f"<Ticket of {self.account.name}: {self.nbytes} bytes, {self.sort.value}, {self.state.value}>"


class Decisions(NamedTuple):
    """What the caller has to act upon.

    Attributes:
        granted: Queued tickets that are held now.
        failed: Queued tickets that never will be; each has its ``error``.
        recalled: Read-ahead to drop, and to ``give`` as soon as nothing writes there any more.
        room: Read-ahead was refused earlier and might be granted now.
    """

    granted: list[Ticket]
    failed: list[Ticket]
    recalled: list[Ticket]
    room: bool


class LedgerSnapshot(NamedTuple):
    """All accounts at one moment, the consumer's first; all sizes in bytes."""

    limit: int
    used: int
    peak: int
    free: int
    accounts: tuple[AccountSnapshot, ...]
