"""The ledger never exceeds its limit, never stalls a pipeline, and says so truly when the limit is too small."""

from __future__ import annotations

import dataclasses
import os
import re
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncdata.errors import MemoryLimitError, PipelineClosedError
from asyncdata.memory.accounts import Kind, TicketState
from asyncdata.memory.ledger import Ledger
from tests.memory.pipelines import Event, Simulation, StarvedError
from tests.memory.plans import Piece, Plan

SOAK = bool(os.environ.get("ASYNCDATA_SOAK"))


def random_plan(rng: Random, *, rowless: bool = True) -> Plan:
    """A small pipeline of any shape the contract allows."""
    rows = [0, 1, 1, 2, 3] if rowless else [1, 1, 2, 3]
    chunk = rng.choice([1, 4, 10])
    oversize = rng.choice([0.0, 0.0, 0.1, 0.4])

    def piece() -> Piece:
        if rng.random() < oversize:
            return Piece(rng.randint(chunk + 1, 5 * chunk), 1)
        return Piece(rng.randint(1, chunk), rng.choice(rows))

    shards = tuple(tuple(piece() for _ in range(rng.randint(0, 6))) for _ in range(rng.randint(0, 6)))
    tasks = rng.choice([0, 0, 1, 2, 3])
    outputs = tuple(rng.choice([1, 2, 3, 6, 12]) for _ in range(rng.randint(1, 4)))
    kept = rng.randint(0, 2)
    full = rng.random() < 0.5
    return Plan(
        shards=shards,
        chunk=chunk,
        cycle=rng.randint(1, 5),
        block=rng.randint(1, 3),
        sloppy=rng.random() < 0.4,
        shuffle=rng.choice([0, 0, 1, 3, 6]),
        batch=rng.randint(1, 5),
        tasks=tasks,
        ordered=rng.random() < 0.6,
        outputs=outputs,
        prefetch=rng.randint(1, 2),
        kept=kept,
        channel=rng.randint(1, 3),
        depth=rng.randint(0, 3),
        shuffle_reserve=rng.choice([0, 0, 5, 20]),
        batch_reserve=rng.choice([0, 0, 5, 20]),
        output_reserve=max(outputs) if full else rng.randint(0, max(outputs)),
        consumer_reserve=max(outputs) * (kept + 1) if full else rng.choice([0, 5]),
        slack=rng.choice([None, 0, 0, 3]),
        mistaken=rng.choice([0, 0, 1]),
        cut=rng.random() < 0.3,
    )


def expected(plan: Plan) -> list[tuple[int, int]]:
    """Every row once."""
    return [(n, i) for n, shard in enumerate(plan.shards) for i in range(sum(piece.rows for piece in shard))]


class Turned(Simulation):
    """Somebody turns what may change while a pipeline runs: tasks at a time, batches and chunks ahead, what waits."""

    def events(self) -> list[Event]:
        rng = self.rng
        if rng.random() < 0.3:
            self.plan = dataclasses.replace(
                self.plan,
                tasks=rng.randint(1, 8) if self.plan.tasks else 0,
                prefetch=rng.randint(1, 6),
                depth=rng.randint(0, 6),
            )
        return super().events()


def finish(plan: Plan, limit: int, seed: int, kind: type[Simulation] = Simulation) -> Simulation:
    """Runs a plan, and sees all rows delivered, those of one shard in order where nothing reorders them."""
    simulation = kind(plan, limit, Random(seed))
    simulation.run()
    assert sorted(simulation.delivered) == expected(plan)
    if not plan.shuffle and (plan.ordered or not plan.tasks):
        for number in range(len(plan.shards)):
            rows = [index for shard, index in simulation.delivered if shard == number]
            assert rows == sorted(rows)
    return simulation


@given(st.integers(0, 1 << 48))
@example(520386963)  # a later task's result outgrows what was foreseen, and the soonest task still has its reserve
@settings(max_examples=20000 if SOAK else 400, deadline=None, derandomize=not SOAK)
def test_enough_is_enough(seed: int) -> None:
    """At the limit that the plan needs, every run delivers every row: nothing stalls, nothing fails."""
    plan = random_plan(Random(seed))
    finish(plan, plan.enough(), seed)


@given(st.integers(0, 1 << 48))
@settings(max_examples=20000 if SOAK else 150, deadline=None, derandomize=not SOAK)
def test_enough_is_enough_whatever_is_turned(seed: int) -> None:
    """Settings that change at any time, in any direction, stall nothing and need no more memory than the first ones."""
    plan = random_plan(Random(seed))
    finish(plan, plan.enough(), seed, Turned)


@given(st.integers(0, 1 << 48))
@settings(max_examples=20000 if SOAK else 400, deadline=None, derandomize=not SOAK)
def test_too_little_ends_with_a_true_verdict(seed: int) -> None:
    """Below that limit a run ends as well, or fails when nothing else could have happened, naming more as needed."""
    rng = Random(seed)
    plan = random_plan(rng, rowless=False)
    limit = rng.randint(plan.reserves, max(plan.reserves, plan.enough() - 1))
    for _ in range(100):
        try:
            finish(plan, limit, seed)
        except StarvedError as starved:
            assert limit < plan.enough()
            found = re.search(r"at least (\d+)", str(starved))
            assert found is not None
            assert limit < int(found[1]) <= plan.enough()
            limit = int(found[1])
        else:
            return
    pytest.fail("each limit that was named was too small")


def test_a_reserve_is_there_whatever_the_others_hold() -> None:
    """An ask within a reserve is granted at once although nothing is free."""
    ledger = Ledger(10, slack_bytes=0)
    mine = ledger.open("mine", rank=2, kind=Kind.SOURCE, reserved_bytes=4)
    other = ledger.open("other", rank=1, kind=Kind.FLOW)
    assert ledger.ask(other, 6).held
    assert ledger.free == 0
    assert ledger.ask(mine, 4).held
    assert ledger.used == 10


def test_the_nearest_to_the_consumer_is_served_first() -> None:
    """Freed bytes go to the lowest rank, then to the source that is waited for, then in order."""
    ledger = Ledger(10, slack_bytes=0)
    flow = ledger.open("flow", rank=1, kind=Kind.FLOW)
    shards = [ledger.open(f"shard {n}", rank=3, kind=Kind.SOURCE, reserved_bytes=0) for n in range(2)]
    near = ledger.open("near", rank=2, kind=Kind.ASSEMBLER)
    held = [ledger.ask(flow, 1) for _ in range(10)]
    asks = [ledger.ask(account, 1) for account in (*shards, near, flow, flow)]
    ledger.wait(shards[1])
    order = []
    for ticket in held[:4]:
        ledger.give(ticket)
        order += [asks.index(granted) for granted in ledger.decisions().granted]
    assert order == [3, 4, 2, 1]


def test_nothing_passes_a_blocked_ask() -> None:
    """A small ask does not overtake a large one that is nearer to the consumer."""
    ledger = Ledger(10, slack_bytes=0)
    near = ledger.open("near", rank=1, kind=Kind.FLOW)
    far = ledger.open("far", rank=2, kind=Kind.ASSEMBLER)
    first = ledger.ask(near, 6)
    large, small = ledger.ask(near, 8), ledger.ask(far, 1)
    assert ledger.free == 4
    assert (large.state, small.state) == (TicketState.QUEUED, TicketState.QUEUED)
    ledger.give(first)
    assert ledger.decisions().granted == [large, small]


def test_read_ahead_comes_last_and_is_recalled_first() -> None:
    """Read-ahead keeps some slack free, is refused while an ask waits, and is recalled latest need first."""
    ledger = Ledger(16)
    shard = ledger.open("shard", rank=2, kind=Kind.SOURCE, reserved_bytes=2)
    batch = ledger.open("batch", rank=1, kind=Kind.ASSEMBLER)
    near, late = (ledger.ask_ahead(shard, 4, urgency=n) for n in (1, 2))
    assert near is not None
    assert late is not None
    assert ledger.ask_ahead(shard, 5) is None
    ask = ledger.ask(batch, 8)
    assert ledger.decisions().recalled == [late]
    assert ledger.ask_ahead(shard, 1) is None
    assert ledger.promote(late) is False
    ledger.give(late)
    decided = ledger.decisions()
    assert (decided.granted, decided.room) == ([ask], False)
    ledger.give(near)
    assert ledger.decisions().room


def test_promoted_in_time_is_not_recalled() -> None:
    """Read-ahead that becomes the next thing needed stays, and other read-ahead is recalled in its place."""
    ledger = Ledger(12, slack_bytes=0)
    shard = ledger.open("shard", rank=2, kind=Kind.SOURCE, reserved_bytes=4)
    batch = ledger.open("batch", rank=1, kind=Kind.ASSEMBLER)
    ahead = [ledger.ask_ahead(shard, 4, urgency=n) for n in (1, 2)]
    assert ahead[0] is not None
    assert ahead[1] is not None
    ask = ledger.ask(batch, 4)
    assert ledger.decisions().recalled == [ahead[1]]
    assert ledger.promote(ahead[1])
    assert ask.held
    assert not ahead[1].recalled
    assert ledger.decisions().granted == [ask]


def test_a_move_never_waits_and_borrows_the_reserve() -> None:
    """Moved bytes that nothing free covers are lent by where they came from, and made good when bytes are given."""
    ledger = Ledger(10, slack_bytes=0)
    shard = ledger.open("shard", rank=2, kind=Kind.SOURCE, reserved_bytes=4)
    batch = ledger.open("batch", rank=1, kind=Kind.ASSEMBLER)
    flow = ledger.open("flow", rank=0, kind=Kind.FLOW)
    rest = ledger.ask(flow, 6)
    chunk = ledger.ask(shard, 4)
    ledger.move(chunk, batch)
    assert (shard.used, batch.used, shard.backed) == (0, 4, 0)
    ask = ledger.ask(shard, 4)
    assert not ask.held
    ledger.give(rest)
    assert ledger.decisions().granted == [ask]
    assert ledger.free == 2


def test_an_oversize_ask_is_parked_until_it_is_waited_for() -> None:
    """A source exceeds its reserve only while somebody waits for it."""
    ledger = Ledger(20)
    shard = ledger.open("shard", rank=2, kind=Kind.SOURCE, reserved_bytes=4)
    ask = ledger.ask(shard, 10)
    assert not ask.held
    ledger.wait(shard)
    assert ledger.decisions().granted == [ask]


def test_reserves_beyond_the_limit_are_refused() -> None:
    """The error names the stage, the largest shares and the limit that would do."""
    ledger = Ledger(100)
    ledger.open("shuffle", rank=2, kind=Kind.ASSEMBLER, reserved_bytes=60)
    with pytest.raises(MemoryLimitError, match=r"shuffle 60, batch 50.* at least 110 .*stage batch"):
        ledger.open("batch", rank=1, kind=Kind.ASSEMBLER, reserved_bytes=50)
    assert ledger.free == 40
    assert len(ledger.snapshot().accounts) == 1


def test_a_limit_that_is_named_has_room_for_the_shares_that_grow_with_it() -> None:
    """With the limit that was named for a row group, the next error would name another one."""
    ledger = Ledger(100, parts=2)
    ledger.open("consumer", rank=0, kind=Kind.ASSEMBLER, reserved_bytes=100 // 4)
    with pytest.raises(MemoryLimitError, match=r"need 105 bytes .* at least 220") as caught:
        ledger.open("row group", rank=1, kind=Kind.SOURCE, reserved_bytes=80)
    assert "memory_limit_bytes=200 (100 for each of 2 pipelines)" in str(caught.value)
    ledger = Ledger(110, parts=2)
    ledger.open("consumer", rank=0, kind=Kind.ASSEMBLER, reserved_bytes=110 // 4)
    ledger.open("row group", rank=1, kind=Kind.SOURCE, reserved_bytes=80)


def test_what_can_never_fit_is_refused_at_once() -> None:
    """The error names the stage, the bytes and the limit that would do."""
    ledger = Ledger(100)
    ledger.open("batch", rank=1, kind=Kind.ASSEMBLER, reserved_bytes=40)
    shard = ledger.open("shard", rank=2, kind=Kind.SOURCE, reserved_bytes=10)
    with pytest.raises(MemoryLimitError, match=r"^61 bytes .* at most 60 .* at least 101 .*stage shard"):
        ledger.ask(shard, 61)
    ledger.wait(shard)
    assert ledger.ask(shard, 60).held


def test_a_limit_that_is_named_is_finite_where_reserves_take_all_of_it() -> None:
    """What a stage needs whatever the limit is, such as a row group, does not grow with the limit as shares do."""
    ledger = Ledger(100, parts=1)
    ledger.open("row group", rank=2, kind=Kind.SOURCE, reserved_bytes=100)
    batch = ledger.open("batch", rank=1, kind=Kind.ASSEMBLER)
    with pytest.raises(MemoryLimitError, match=r"^20 bytes .* at most 0 .* at least [12]\d\d .*stage batch"):
        ledger.ask(batch, 20)


def test_a_hopeless_ask_fails_and_names_who_holds_the_memory() -> None:
    """When nothing goes on and nothing can be recalled, the first ask fails."""
    ledger = Ledger(10, slack_bytes=0)
    shard = ledger.open("shard", rank=2, kind=Kind.SOURCE, reserved_bytes=4)
    shuffle = ledger.open("shuffle", rank=1, kind=Kind.ASSEMBLER)
    for _ in range(2):
        ledger.move(ledger.ask(shard, 4), shuffle)
    ask = ledger.ask(shard, 4)
    ledger.wait(shard)
    assert ask.state is TicketState.QUEUED, "the shuffle buffer may still let something go"
    ledger.stalled()
    assert ledger.decisions().failed == [ask]
    assert isinstance(ask.error, MemoryLimitError)
    assert re.search(r"shuffle holds 8 .* at least 12 .*stage shard", str(ask.error))


def test_what_closed_accounts_still_hold_gives_no_hope() -> None:
    """A consumer that keeps batches of an iterator that was closed is not about to release them."""
    ledger = Ledger(10, slack_bytes=0)
    earlier = ledger.open("consumer", rank=0, kind=Kind.ASSEMBLER)
    ledger.ask(earlier, 5)
    ledger.close(earlier)
    consumer = ledger.open("consumer", rank=0, kind=Kind.ASSEMBLER)
    shard = ledger.open("shard", rank=1, kind=Kind.SOURCE, reserved_bytes=4)
    ledger.move(ledger.ask(shard, 4), consumer)
    ask = ledger.ask(shard, 4)
    ledger.wait(shard)
    assert ask.state is TicketState.QUEUED, "the consumer may still let something go"
    ledger.stalled()
    assert ledger.decisions().failed == [ask]


def test_tasks_that_outlive_their_stage_give_hope() -> None:
    """A function that still runs for a stage that was closed ends by itself, and its memory comes back."""
    ledger = Ledger(10, slack_bytes=0)
    tasks = ledger.open("map", rank=1, kind=Kind.FLOW)
    running = ledger.ask(tasks, 7)
    ledger.close(tasks)
    shard = ledger.open("shard", rank=2, kind=Kind.SOURCE, reserved_bytes=3)
    ask = ledger.ask(shard, 5)
    ledger.wait(shard)
    assert ask.state is TicketState.QUEUED
    assert not ledger.decisions().failed
    ledger.give(running)
    assert ledger.decisions().granted == [ask]


def test_closing_answers_every_ask_and_keeps_the_books() -> None:
    """Queued asks of a closed account fail; its held bytes stay charged until given, then nothing of it is left."""
    ledger = Ledger(10, slack_bytes=0)
    shard = ledger.open("shard", rank=1, kind=Kind.SOURCE, reserved_bytes=6)
    held, asked = ledger.ask(shard, 6), ledger.ask(shard, 8)
    ledger.close(shard)
    ledger.close(shard)
    assert ledger.decisions().failed == [asked]
    assert isinstance(asked.error, PipelineClosedError)
    assert (ledger.used, ledger.free) == (6, 4)
    with pytest.raises(PipelineClosedError):
        ledger.ask(shard, 1)
    ledger.give(asked)
    ledger.give(held)
    assert (ledger.used, ledger.free, ledger.snapshot().accounts) == (0, 10, ())


def test_misuse_is_loud() -> None:
    """Giving twice, moving what is not held and negative sizes raise."""
    ledger = Ledger(10)
    flow = ledger.open("flow", rank=1, kind=Kind.FLOW)
    ticket = ledger.ask(flow, 4)
    ledger.give(ticket)
    for misuse in (ledger.give, ledger.promote, lambda ticket: ledger.move(ticket, flow)):
        with pytest.raises(ValueError, match="Ticket of flow"):
            misuse(ticket)
    for nothing in (lambda: ledger.ask(flow, -1), lambda: ledger.reserve(flow, -1), lambda: Ledger(-1)):
        with pytest.raises(ValueError, match="-1"):
            nothing()


def test_repr_and_snapshot_show_the_state() -> None:
    """Both show used, reserved and free bytes as they are now."""
    ledger = Ledger(10, slack_bytes=0)
    shard = ledger.open("shard", rank=1, kind=Kind.SOURCE, reserved_bytes=4)
    ticket = ledger.ask(shard, 3)
    assert repr(ledger).startswith("<Ledger 3 of 10 used, 6 free, 0 asks blocked")
    assert "<shard: 3 used, 4 of 4 reserved>" in repr(ledger)
    assert "shard: 3 bytes, own, held" in repr(ticket)
    ledger.give(ticket)
    snapshot = ledger.snapshot()
    assert (snapshot.limit, snapshot.used, snapshot.peak, snapshot.free) == (10, 0, 3, 6)
    assert (snapshot.accounts[0].name, snapshot.accounts[0].peak) == ("shard", 3)
