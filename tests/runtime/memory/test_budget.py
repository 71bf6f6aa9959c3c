"""Slabs for granted bytes: verdicts that wait until the loop is quiet, parts for several pipelines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from asyncdata.errors import MemoryLimitError, PipelineError
from asyncdata.memory.accounts import Kind
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.slabs import Slab
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
    budget.wait(buffer)
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
    budget.wait(buffer)
    budget.wait(source)
    asking = asyncio.ensure_future(budget.take(source, GRANULE))
    for _ in range(5):
        await asyncio.sleep(0)
    budget.slabs.drop(held)
    slab = await asking
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
