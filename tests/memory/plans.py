"""What simulated pipelines are made of, and how much memory each needs at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from asyncdata.memory.accounts import Account, Ticket


class Piece(NamedTuple):
    """A slab's worth of one shard: its bytes, and how many records end in it."""

    nbytes: int
    rows: int


@dataclass(frozen=True)
class Plan:
    """One pipeline, and how much memory its stages reserve."""

    shards: tuple[tuple[Piece, ...], ...]
    chunk: int
    cycle: int = 1
    block: int = 1
    sloppy: bool = False
    shuffle: int = 0
    batch: int = 1
    tasks: int = 0
    ordered: bool = True
    outputs: tuple[int, ...] = (1,)
    prefetch: int = 1
    kept: int = 1
    channel: int = 1
    depth: int = 2
    shuffle_reserve: int = 0
    batch_reserve: int = 0
    output_reserve: int = 0
    consumer_reserve: int = 0
    slack: int | None = None
    mistaken: int = 0
    cut: bool = False

    def pinned(self, rows: int) -> int:
        """The most bytes that so many rows can keep alive: each a piece of its own, the largest ones."""
        sizes = sorted((piece.nbytes for shard in self.shards for piece in shard if piece.rows), reverse=True)
        return sum(sizes[:rows])

    @property
    def reserves(self) -> int:
        """All reserves that are held at the same time."""
        stages = self.batch_reserve + self.consumer_reserve
        stages += self.shuffle_reserve if self.shuffle else 0
        stages += self.output_reserve if self.tasks else 0
        return self.chunk * min(self.cycle, len(self.shards)) + stages

    def enough(self) -> int:
        """A limit that is enough whatever happens, computed from the plan alone."""

        def beyond(need: int, reserve: int) -> int:
            return max(0, need - reserve)

        largest = max((piece.nbytes for shard in self.shards for piece in shard), default=0)
        excess = beyond(largest, self.chunk)
        limit = self.reserves + beyond(self.pinned(self.batch + self.channel), self.batch_reserve)
        if self.shuffle:
            limit += beyond(self.pinned(self.shuffle + self.channel), self.shuffle_reserve)
        if not self.tasks:
            return limit + excess + beyond(self.pinned(self.batch * (self.kept + 1)), self.consumer_reserve)
        output = max(self.outputs)
        kept = output * (self.kept + 1)
        limit += beyond(kept, self.consumer_reserve)
        if output > self.output_reserve or kept > self.consumer_reserve:
            limit += self.tasks * output + self.pinned(self.batch * self.tasks)
            excess *= min(self.cycle, len(self.shards)) if self.sloppy else 1
        return limit + excess


class Piecemeal:
    """A piece in memory, and how many of its rows each level holds; the level farthest upstream is charged."""

    def __init__(self, piece: Piece, ticket: Ticket, levels: int) -> None:
        self.ticket = ticket
        self.rows = [piece.rows] + [0] * (levels - 1)
        self.arrived = False

    @property
    def ready(self) -> int:
        """Rows that can be taken."""
        return self.rows[0] if self.arrived else 0


@dataclass(eq=False)
class Shard:
    """A shard being read."""

    number: int
    pieces: tuple[Piece, ...]
    account: Account
    tries: int
    at: int = 0
    head: Piecemeal | None = None
    ask: Ticket | None = None
    ahead: dict[int, Piecemeal] = field(default_factory=dict)
    taken: int = 0

    @property
    def ended(self) -> bool:
        return self.at == len(self.pieces) and self.head is None

    @property
    def ready(self) -> int:
        return self.head.ready if self.head else 0


class Row(NamedTuple):
    shard: int
    number: int
    piece: Piecemeal


@dataclass(eq=False)
class Task:
    """A batch in a worker."""

    rows: list[Row]
    output: int
    foreseen: int
    tries: int = 3
    state: str = "new"  # then asking, computing, done
    tickets: list[Ticket] = field(default_factory=list)
