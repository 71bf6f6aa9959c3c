"""Slabs for granted bytes: a stall is seen when nothing goes on, parts for several pipelines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from asyncdata.errors import MemoryLimitError, PipelineError
from asyncdata.memory.accounts import Kind
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.memory.activity import Outside
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.memory.budgets import Budgets

LIMIT = 16 * GRANULE


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(1024 * GRANULE)
    yield made
    made.close()


async def test_a_hopeless_ask_fails_once_the_loop_is_quiet(arena: Arena) -> None:
    """Nothing will be released: the ask fails, naming who holds the memory, and leaves nothing charged."""
    budget = Budget(arena, LIMIT)
    buffer = budget.open("buffer", rank=1, kind=Kind.ASSEMBLER)
    source = budget.open("source", rank=2, kind=Kind.SOURCE)
    held = [await budget.take(buffer, 4 * GRANULE) for _ in range(4)]
    budget.wait(source)
    with pytest.raises(MemoryLimitError, match="buffer holds"):
        await budget.take(source, GRANULE)
    for slab in held:
        budget.slabs.drop(slab)
    assert budget.ledger.used == 0


async def test_an_ask_is_not_hopeless_while_somebody_is_about_to_go_on(arena: Arena) -> None:
    """A stage that seems to wait, but gives memory back within a few rounds of the loop, saves the ask."""
    budget = Budget(arena, LIMIT)
    buffer = budget.open("buffer", rank=1, kind=Kind.ASSEMBLER)
    source = budget.open("source", rank=2, kind=Kind.SOURCE)
    held = await budget.take(buffer, 16 * GRANULE)
    budget.wait(source)
    asking = asyncio.ensure_future(budget.take(source, GRANULE))
    for _ in range(5):
        await asyncio.sleep(0)
    budget.slabs.drop(held)
    slab = await asking
    budget.slabs.drop(slab)
    assert budget.ledger.used == 0


@pytest.mark.parametrize("busy", ["outside", "consumer", "other pipeline"])
async def test_an_ask_is_not_hopeless_while_something_goes_on(arena: Arena, busy: str) -> None:
    """Reads, calls, awaited user code and the consumer may give memory back; what goes on elsewhere does not count."""
    budget, other = (
        Budget(arena, LIMIT, start=part * 512 * GRANULE, stop=(part + 1) * 512 * GRANULE) for part in (0, 1)
    )
    buffer = budget.open("buffer", rank=1, kind=Kind.ASSEMBLER)
    source = budget.open("source", rank=2, kind=Kind.SOURCE)
    held = await budget.take(buffer, 16 * GRANULE)
    ended = asyncio.Event()

    async def go_on() -> None:
        (other if busy == "other pipeline" else budget).activity.enter()
        with contextlib.nullcontext() if busy == "consumer" else Outside():
            await ended.wait()

    budget.wait(source)
    budget.activity.consume(busy == "consumer")
    going_on = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    asking = asyncio.create_task(budget.take(source, GRANULE))
    for _ in range(300):
        await asyncio.sleep(0)
    assert asking.done() is (busy == "other pipeline")
    ended.set()
    await going_on
    budget.activity.consume(False)
    with pytest.raises(MemoryLimitError, match="buffer holds"):
        await asking
    budget.slabs.drop(held)
    assert budget.ledger.used == 0


async def test_what_is_owed_is_repaid_first(arena: Arena) -> None:
    """A debt is charged at once; then only what a reserve covers is granted, until enough is given back."""
    budget = Budget(arena, LIMIT)
    tasks = budget.open("tasks", rank=1, kind=Kind.FLOW, reserved_bytes=2 * GRANULE)
    buffer = budget.open("buffer", rank=2, kind=Kind.ASSEMBLER)
    held = [await budget.take(buffer, 7 * GRANULE) for _ in range(2)]
    owed = budget.owe(tasks, 5 * GRANULE)
    assert budget.ledger.used == 19 * GRANULE
    assert budget.ledger.free == -3 * GRANULE
    assert budget.take_spare(tasks, GRANULE) is None
    asking = asyncio.create_task(budget.take(buffer, GRANULE))
    await asyncio.sleep(0)
    budget.slabs.drop(owed)
    soonest = await budget.take(tasks, 2 * GRANULE)
    assert not asking.done()
    budget.slabs.drop(held.pop())
    held += [await asking, soonest]
    budget.slabs.drop_each(held)
    assert budget.ledger.used == 0


async def test_what_can_never_be_free_is_not_free_now(arena: Arena) -> None:
    """Beside the reserves of others: whoever can do without a slab gets none, and leaves nothing queued."""
    budget = Budget(arena, LIMIT)
    budget.open("source", rank=2, kind=Kind.SOURCE, reserved_bytes=LIMIT - GRANULE)
    buffer = budget.open("buffer", rank=1, kind=Kind.ASSEMBLER)
    assert budget.take_now(buffer, 2 * GRANULE) is None
    slab = budget.take_now(buffer, GRANULE)
    assert slab is not None
    assert budget.take_now(buffer, GRANULE) is None
    budget.slabs.drop(slab)
    assert budget.ledger.used == 0


async def test_a_new_consumer_is_charged_with_what_consumers_keep_and_with_nothing_else(arena: Arena) -> None:
    """Slabs that were lent are the next consumer's; reads that are still being stopped stay their own."""
    budget = Budget(arena, LIMIT)
    before = budget.open("consumer", rank=0, kind=Kind.ASSEMBLER)
    rows = budget.open("rows", rank=1, kind=Kind.ASSEMBLER)
    source = budget.open("source", rank=2, kind=Kind.SOURCE)
    lent = [await budget.take(before, GRANULE), await budget.take(rows, GRANULE)]
    budget.kept.lend(lent)
    ahead = budget.take_ahead(source, GRANULE, urgency=1, reader=_NeverRecalled())
    assert ahead is not None
    for account in (before, rows, source):
        budget.close(account)
    consumer = budget.open("consumer", rank=0, kind=Kind.ASSEMBLER)
    budget.adopt(consumer)
    assert consumer.used == 2 * GRANULE
    assert budget.kept.nbytes == 2 * GRANULE
    assert [account.name for account in budget.snapshot().accounts] == ["consumer", "source"]
    budget.slabs.drop(ahead)
    budget.kept.take_back(lent)
    budget.slabs.drop_each(lent)
    assert (budget.kept.nbytes, budget.ledger.used) == (0, 0)


class _NeverRecalled:
    """Holds read-ahead that nobody needs elsewhere."""

    def recall(self, slab: Slab) -> None:
        raise AssertionError(f"{slab} was recalled")


async def test_a_full_system_gives_the_grant_back(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where shared memory is exhausted the error passes, and nothing stays charged."""
    budget = Budget(arena, LIMIT)
    account = budget.open("stage", rank=1, kind=Kind.FLOW)

    def full(offset: int, nbytes: int) -> None:
        raise OSError(28, f"no space for {nbytes} bytes at {offset}")

    monkeypatch.setattr(arena, "prepare", full)
    with pytest.raises(OSError, match="no space"):
        await budget.take(account, GRANULE)
    assert budget.ledger.used == 0


async def test_parts_lie_apart_and_are_used_again(arena: Arena) -> None:
    """Every pipeline has its own region and limit; a third one is refused, one that leaves makes room."""
    budgets = Budgets(arena, LIMIT, 2)
    leaving = False

    def stays() -> bool:
        return False

    def leaves() -> bool:
        return leaving

    one, other = await budgets.take(stays), await budgets.take(leaves)
    assert one.limit == other.limit == LIMIT // 2
    slabs = [await b.take(b.open("x", rank=1, kind=Kind.FLOW), GRANULE) for b in (one, other)]
    assert abs(slabs[0].offset - slabs[1].offset) >= arena.nbytes // 2
    with pytest.raises(PipelineError, match="pipelines=3"):
        await budgets.take(stays)
    leaving = True
    third = asyncio.ensure_future(budgets.take(stays))
    await asyncio.sleep(0)
    other.slabs.drop(slabs[1])
    budgets.give(other, leaves)
    assert await third is other
    one.slabs.drop(slabs[0])
    assert (budgets.used_bytes, budgets.slabs_in_use) == (0, 0)


async def test_a_pipeline_that_never_ends_is_not_waited_for_without_end(arena: Arena) -> None:
    """The next pipeline gets an error that says why; a pipeline that its consumer has left does not wait at all."""
    budgets = Budgets(arena, LIMIT, 1, patience_s=0.2)
    await budgets.take(lambda: True)
    with pytest.raises(PipelineError, match=r"1 pipeline is open .*1 of them closed.*does not return"):
        await budgets.take(lambda: False)
    with pytest.raises(PipelineError, match="pipelines=2"):
        await budgets.take(lambda: True)
