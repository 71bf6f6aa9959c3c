"""A pipeline reduced to its bytes: what a real one would tell the ledger, in any order that can happen.

Shards of pieces (chunks, and spans for records larger than a chunk) are interleaved, perhaps shuffled, batched, mapped
by tasks that have memory for their output before they begin, and may make more than was foreseen, prefetched and kept
by a consumer for a while. Every step that some real loop, thread or process could do next is an event; a run draws one
of the possible events at a time until all rows are delivered. Nothing here knows the ledger's policy; it knows the
contract of its calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Account, Kind, Sort, Ticket
from asyncdata.memory.ledger import Ledger
from tests.memory.plans import Piecemeal, Plan, Row, Shard, Task


class StarvedError(Exception):
    """The ledger said that the limit is too small."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))


Event = Callable[[], object]
"""Something that can happen next."""

SOURCE, SHUFFLE, BATCH, MAP, PREFETCH, CONSUMER = 5, 4, 3, 2, 1, 0


class Simulation:
    """One run of a plan under a limit."""

    def __init__(self, plan: Plan, limit: int, rng: Random) -> None:
        self.plan = plan
        self.rng = rng
        self.ledger = ledger = Ledger(limit, slack_bytes=plan.slack)
        self.live: dict[Ticket, None] = {}

        def opened(name: str, rank: int, kind: Kind, reserve: int) -> Account:
            return ledger.open(name, rank=rank, kind=kind, reserved_bytes=reserve)

        self.consumer = opened("consumer", CONSUMER, Kind.ASSEMBLER, plan.consumer_reserve)
        self.ready = opened("prefetch", PREFETCH, Kind.FLOW, 0)
        self.batcher = opened("batch", BATCH, Kind.ASSEMBLER, plan.batch_reserve)
        levels = [self.batcher]
        if plan.shuffle:
            self.shuffler = opened("shuffle", SHUFFLE, Kind.ASSEMBLER, plan.shuffle_reserve)
            levels.insert(0, self.shuffler)
        if plan.tasks:
            self.inputs = opened("map inputs", MAP, Kind.FLOW, 0)
            self.outputs = opened("map outputs", MAP, Kind.FLOW, plan.output_reserve)
            levels.append(self.inputs)
        else:
            levels += [self.ready, self.consumer]
        self.levels: list[Account | None] = [None, *levels]
        self.batch_level = levels.index(self.batcher) + 1

        self.unread = deque(enumerate(plan.shards))
        self.slots: list[Shard] = []
        self.turn = self.in_block = 0
        self.interleave_over = False
        self.shuffle_channel: deque[Row] = deque()
        self.buffer: list[Row] = []
        self.shuffle_over = not plan.shuffle
        self.batch_channel: deque[Row] = deque()
        self.filling: list[Row] = []
        self.made = 0
        self.running: list[Task] = []
        self.prefetched: deque[tuple[list[Row], list[Ticket]]] = deque()
        self.batches: deque[tuple[list[Row], list[Ticket]]] = deque()
        self.asks_next = False
        self.over = False
        self.delivered: list[tuple[int, int]] = []
        self.overflows: dict[Ticket, None] = {}
        for _ in range(min(plan.cycle, len(plan.shards))):
            self.open_shard()

    # --- bookkeeping of its own ------------------------------------------------------------------------------------

    def check(self) -> None:
        """The books agree with what is held, and nothing exceeds the limit."""
        ledger = self.ledger
        held: dict[Account, dict[Sort, int]] = {}
        for ticket in self.live:
            if ticket.held:
                sorts = held.setdefault(ticket.account, dict.fromkeys(Sort, 0))
                sorts[ticket.sort] += ticket.nbytes
        total = claims = 0
        for account in ledger._accounts:
            sorts = held.pop(account, dict.fromkeys(Sort, 0))
            assert (account.own, account.extra, account.ahead) == tuple(sorts[sort] for sort in Sort)
            assert 0 <= account.backed <= account.reserved
            total += account.used
            claims += max(account.backed, account.own) + account.extra + account.ahead
        owed = sum(ticket.nbytes for ticket in self.overflows)
        assert not held
        assert ledger.used == total <= min(ledger.peak, ledger.limit + owed)
        assert ledger.free == ledger.limit - claims >= -owed
        assert ledger._lent == sum(account.reserved - account.backed for account in ledger._accounts)
        assert ledger._ahead.recalled_bytes == sum(ticket.nbytes for ticket in ledger._ahead if ticket.recalled)
        keys = [ticket.key or () for ticket in ledger._queue]
        assert keys == sorted(keys)

    def settle_charge(self, piece: Piecemeal) -> None:
        """The charge follows the last row that leaves a level; with the last row of all the bytes are given back."""
        for level, rows in enumerate(piece.rows):
            if rows:
                account = self.levels[level]
                if account is not None and piece.ticket.account is not account:
                    self.ledger.move(piece.ticket, account)
                return
        self.give(piece.ticket)

    def give(self, ticket: Ticket) -> None:
        self.ledger.give(ticket)
        del self.live[ticket]
        self.overflows.pop(ticket, None)

    def shift(self, rows: list[Row], level: int, to: int | None) -> None:
        for row in rows:
            row.piece.rows[level] -= 1
            if to is not None:
                row.piece.rows[to] += 1
        for piece in dict.fromkeys(row.piece for row in rows):
            self.settle_charge(piece)

    # --- sources and interleave ------------------------------------------------------------------------------------

    def open_shard(self) -> None:
        number, pieces = self.unread.popleft()
        account = self.ledger.open(
            f"shard {number}",
            rank=SOURCE,
            kind=Kind.SOURCE,
            reserved_bytes=self.plan.chunk,
            any_order=self.plan.sloppy,
        )
        self.slots.insert(self.turn, Shard(number, pieces, account, tries=3 * len(pieces)))

    def sought(self) -> list[Shard]:
        """The shards whose next row interleave takes."""
        if self.plan.sloppy:
            return self.slots
        return self.slots[self.turn : self.turn + 1]

    def shard_events(self, shard: Shard) -> Iterator[Event]:
        if shard.head is None and shard.ask is None and not shard.ended:
            ahead = shard.ahead.get(shard.at)
            if ahead is None:
                yield lambda: self.ask_piece(shard)
            elif ahead.ticket.is_eligible:
                yield lambda: self.take_ahead(shard)
        if shard.tries and len(shard.ahead) < self.plan.depth:
            missing = [at for at in range(shard.at + 1, len(shard.pieces)) if at not in shard.ahead]
            if missing:
                yield lambda: self.ask_ahead(shard, missing[0])
        if shard.head is not None and not shard.head.arrived:
            yield lambda: self.arrive(shard)
        for at, piece in shard.ahead.items():
            if piece.ticket.recalled:
                yield lambda at=at: self.drop_ahead(shard, at)  # type: ignore[misc]  # bound per loop
            elif not piece.arrived:
                yield lambda piece=piece: setattr(piece, "arrived", True)  # type: ignore[misc]  # bound per loop

    def ask_piece(self, shard: Shard) -> None:
        try:
            ticket = self.ledger.ask(shard.account, shard.pieces[shard.at].nbytes, owner=shard)
        except MemoryLimitError as error:
            raise StarvedError(error) from error
        self.live[ticket] = None
        shard.ask = ticket
        if ticket.held:
            self.got_piece(shard)

    def got_piece(self, shard: Shard) -> None:
        assert shard.ask is not None
        shard.head = Piecemeal(shard.pieces[shard.at], shard.ask, len(self.levels))
        shard.ask = None
        shard.at += 1

    def ask_ahead(self, shard: Shard, at: int) -> None:
        shard.tries -= 1
        ticket = self.ledger.ask_ahead(shard.account, shard.pieces[at].nbytes, urgency=at + 1)
        if ticket is not None:
            self.live[ticket] = None
            shard.ahead[at] = Piecemeal(shard.pieces[at], ticket, len(self.levels))

    def drop_ahead(self, shard: Shard, at: int) -> None:
        self.give(shard.ahead.pop(at).ticket)

    def take_ahead(self, shard: Shard) -> None:
        piece = shard.ahead[shard.at]
        assert self.ledger.promote(piece.ticket)
        del shard.ahead[shard.at]
        shard.head = piece
        shard.at += 1
        if piece.arrived:
            self.arrive(shard)

    def arrive(self, shard: Shard) -> None:
        assert shard.head is not None
        shard.head.arrived = True
        for other in self.sought() if shard in self.sought() else ():
            self.ledger.wait(other.account, False)
        if not shard.head.ready:
            self.give(shard.head.ticket)
            shard.head = None

    def interleave_events(self) -> Iterator[Event]:
        channel = self.shuffle_channel if self.plan.shuffle else self.batch_channel
        if not self.slots:
            if not self.interleave_over:
                yield self.end_interleave
            return
        if len(channel) >= self.plan.channel:
            return
        for shard in self.sought():
            if shard.ended:
                yield lambda shard=shard: self.next_shard(shard)  # type: ignore[misc]  # bound per loop
            elif shard.ready:
                yield lambda shard=shard: self.pull(shard, channel)  # type: ignore[misc]  # bound per loop
        if not any(shard.ended or shard.ready for shard in self.sought()):
            for shard in self.sought():
                if not shard.account.waiting:
                    yield lambda shard=shard: self.ledger.wait(shard.account)  # type: ignore[misc]  # bound per loop

    def next_shard(self, shard: Shard) -> None:
        at = self.slots.index(shard)
        del self.slots[at]
        self.ledger.close(shard.account)
        if self.unread:
            turn, self.turn = self.turn, at
            self.open_shard()
            self.turn = turn
        if at == self.turn:
            self.in_block = 0
        if self.turn >= len(self.slots):
            self.turn = 0

    def pull(self, shard: Shard, channel: deque[Row]) -> None:
        piece = shard.head
        assert piece is not None
        row = Row(shard.number, shard.taken, piece)
        shard.taken += 1
        channel.append(row)
        self.shift([row], 0, 1)
        if not piece.rows[0]:
            shard.head = None
        self.in_block += 1
        if self.in_block >= self.plan.block:
            self.in_block = 0
            self.turn = (self.turn + 1) % len(self.slots)

    def end_interleave(self) -> None:
        self.interleave_over = True

    # --- shuffle and batch -----------------------------------------------------------------------------------------

    def shuffle_events(self) -> Iterator[Event]:
        if not self.plan.shuffle:
            return
        over = self.interleave_over and not self.shuffle_channel
        if self.shuffle_channel and len(self.buffer) < self.plan.shuffle:
            yield lambda: self.buffer.append(self.shuffle_channel.popleft())
        elif self.buffer and (over or len(self.buffer) == self.plan.shuffle):
            if len(self.batch_channel) < self.plan.channel:
                yield self.emit
        elif over and not self.shuffle_over:
            yield self.end_shuffle

    def emit(self) -> None:
        row = self.buffer.pop(self.rng.randrange(len(self.buffer)))
        self.batch_channel.append(row)
        self.shift([row], 1, 2)

    def end_shuffle(self) -> None:
        self.shuffle_over = True

    def batch_events(self) -> Iterator[Event]:
        over = self.interleave_over and self.shuffle_over and not self.batch_channel
        if len(self.filling) == self.plan.batch or (self.filling and over):
            if self.plan.tasks:
                if len(self.running) < self.plan.tasks:
                    yield self.start_task
            elif len(self.prefetched) < self.plan.prefetch:
                yield self.send_rows
        elif self.batch_channel:
            yield lambda: self.filling.append(self.batch_channel.popleft())
        elif over and not self.running and not self.over:
            yield self.end

    def send_rows(self) -> None:
        rows, self.filling = self.filling, []
        self.shift(rows, self.batch_level, self.batch_level + 1)
        self.prefetched.append((rows, []))

    def end(self) -> None:
        self.over = True

    # --- map, prefetch, consumer -----------------------------------------------------------------------------------

    def start_task(self) -> None:
        rows, self.filling = self.filling, []
        outputs = self.plan.outputs
        output, foreseen = (outputs[(self.made + off) % len(outputs)] for off in (0, self.plan.mistaken))
        self.running.append(Task(rows, output, foreseen))
        self.made += 1
        self.shift(rows, self.batch_level, self.batch_level + 1)

    def map_events(self) -> Iterator[Event]:
        if not self.plan.tasks:
            return
        for at, task in enumerate(self.running):
            if task.state == "new":
                if all(other.state not in {"new", "asking"} for other in self.running[:at]):
                    if at == 0:
                        yield lambda task=task: self.ask_output(task)  # type: ignore[misc]  # bound per loop
                    elif task.tries:
                        yield lambda task=task: self.ask_spare(task)  # type: ignore[misc]  # bound per loop
            elif task.state == "computing":
                yield lambda task=task: self.finish(task)  # type: ignore[misc]  # bound per loop
            elif (
                task.state == "done"
                and (not self.plan.ordered or at == 0)
                and len(self.prefetched) < self.plan.prefetch
            ):
                yield lambda task=task: self.deliver(task)  # type: ignore[misc]  # bound per loop

    def ask_output(self, task: Task) -> None:
        try:
            ticket = self.ledger.ask(self.outputs, task.foreseen, owner=task)
        except MemoryLimitError as error:
            raise StarvedError(error) from error
        self.live[ticket] = None
        task.tickets = [ticket]
        task.state = "computing" if ticket.held else "asking"

    def ask_spare(self, task: Task) -> None:
        task.tries -= 1
        ticket = self.ledger.ask_spare(self.outputs, task.foreseen)
        if ticket is not None:
            self.live[ticket] = None
            task.tickets = [ticket]
            task.state = "computing"

    def finish(self, task: Task) -> None:
        if task.output > task.foreseen:
            # What has no room is charged all the same; the next task sees to it that it is repaid.
            try:
                spare = task is not self.running[0]
                overflow = self.ledger.owe(self.outputs, task.output - task.foreseen, spare=spare)
            except MemoryLimitError as error:
                raise StarvedError(error) from error
            self.live[overflow] = self.overflows[overflow] = None
            task.tickets.append(overflow)
        task.state = "done"
        if self.plan.cut and len(task.rows) > 1 and self.rng.random() < 0.3:
            # The results were large enough without the last rows: these are another task's, as urgent as this one.
            rest = Task(task.rows[-1:], task.output, task.foreseen)
            del task.rows[-1]
            self.running.insert(self.running.index(task) + 1, rest)
        self.shift(task.rows, self.batch_level + 1, None)

    def deliver(self, task: Task) -> None:
        self.running.remove(task)
        for ticket in task.tickets:
            self.ledger.move(ticket, self.ready)
        self.prefetched.append((task.rows, task.tickets))
        if self.running:
            for ticket in self.running[0].tickets:
                assert not ticket.held or self.ledger.promote(ticket)

    def consumer_events(self) -> Iterator[Event]:
        if self.asks_next:
            if self.prefetched:
                yield self.receive
            elif self.over:
                yield lambda: setattr(self, "asks_next", False)
            return
        if len(self.batches) <= self.plan.kept and not (self.over and not self.prefetched):
            yield lambda: setattr(self, "asks_next", True)
        if self.batches:
            yield self.let_go

    def receive(self) -> None:
        rows, tickets = self.prefetched.popleft()
        self.asks_next = False
        self.delivered += [(row.shard, row.number) for row in rows]
        self.batches.append((rows, tickets))
        if not tickets:
            self.shift(rows, self.batch_level + 1, self.batch_level + 2)
        for ticket in tickets:
            self.ledger.move(ticket, self.consumer)

    def let_go(self) -> None:
        rows, tickets = self.batches.popleft()
        if not tickets:
            self.shift(rows, self.batch_level + 2, None)
        for ticket in tickets:
            self.give(ticket)

    # --- the run ---------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        events: list[Event] = [self.hear] if self.ledger.has_decisions else []
        for shard in self.slots:
            events += self.shard_events(shard)
        for stage in (
            self.interleave_events,
            self.shuffle_events,
            self.batch_events,
            self.map_events,
            self.consumer_events,
        ):
            events += stage()
        return events

    def hear(self) -> None:
        """Acts on the ledger's decisions, some time after they were taken."""
        for ticket in self.ledger.decisions().granted:
            owner = ticket.owner
            if isinstance(owner, Shard):
                self.got_piece(owner)
            else:
                assert isinstance(owner, Task)
                owner.state = "computing"

    def run(self) -> None:
        """Runs to the end.

        Raises:
            StarvedError: The ledger says it cannot be done; checked to be true of this very moment.
            AssertionError: It stalled, or a law was broken.
        """
        self.run_out()
        assert self.over, f"stalled: {self.ledger!r}"
        for account in list(self.ledger._accounts):
            assert account.used == 0
            self.ledger.close(account)
        assert not self.live
        assert self.ledger.used == 0
        assert self.ledger.free == self.ledger.limit
        assert not self.ledger._ahead
        assert not self.ledger._queue
        assert self.ledger._reserved == 0

    def run_out(self) -> None:
        """Draws events until none is left."""
        while True:
            while events := self.events():
                self.rng.choice(events)()
                self.check()
            if not self.ledger.is_blocked:
                return
            self.ledger.stalled()
            if self.ledger._failed:
                error = self.ledger._failed[0].error
                assert error is not None
                raise StarvedError(error)
            assert self.events(), f"stalled: {self.ledger!r}"
