from __future__ import annotations

import asyncio
import random

import pytest

from asyncdata.errors import PipelineClosedError
from asyncdata.storage.gate import Gate


async def test_at_most_limit_pass_and_the_most_urgent_first() -> None:
    """Never more than the limit hold a slot; those who wait get it in order of priority."""
    gate = Gate(2)
    inside = 0
    order: list[int] = []
    go = asyncio.Event()

    async def pass_through(priority: int) -> None:
        nonlocal inside
        ticket = await gate.enter(priority)
        inside += 1
        assert inside <= 2
        order.append(priority)
        await go.wait()
        inside -= 1
        gate.leave(ticket)

    async with asyncio.TaskGroup() as group:
        for priority in (9, 8, 5, 1, 3):
            group.create_task(pass_through(priority))
        await asyncio.sleep(0)  # everybody is in or waits after one turn
        assert gate.waiting == 3
        assert "2 of 2 in flight, 3 waiting" in repr(gate)
        go.set()
    assert order == [9, 8, 1, 3, 5]
    assert (gate.held, gate.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_cancelled_waiters_lose_no_slot(seed: int) -> None:
    """Whatever is cancelled at whatever moment, all slots come back and everybody else gets through."""
    draw = random.Random(seed)
    gate = Gate(3)
    passed = 0

    async def pass_through(priority: int, turns: int) -> None:
        nonlocal passed
        ticket = await gate.enter(priority)
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            passed += 1
        finally:
            gate.leave(ticket)

    tasks = [asyncio.create_task(pass_through(draw.randrange(5), draw.randrange(4))) for _ in range(40)]
    while not all(task.done() for task in tasks):
        if draw.random() < 0.5:
            draw.choice(tasks).cancel()
        if draw.random() < 0.2:
            gate.resize(draw.randrange(1, 5))
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == outcomes.count(None)
    assert (gate.held, gate.waiting) == (0, 0)


async def test_close_refuses_who_waits_and_who_comes() -> None:
    """After close nobody gets a slot; whoever holds one may still leave."""
    gate = Gate(1)
    ticket = await gate.enter(0)
    waiting = asyncio.create_task(gate.enter(0))
    await asyncio.sleep(0)
    assert gate.waiting == 1
    gate.close()
    with pytest.raises(PipelineClosedError):
        await waiting
    with pytest.raises(PipelineClosedError):
        await gate.enter(0)
    gate.leave(ticket)
    assert (gate.held, gate.waiting) == (0, 0)


async def test_a_closed_gate_lets_nobody_through_at_once() -> None:
    """Who asks then is refused by `enter`."""
    gate = Gate(2)
    ticket = gate.enter_at_once(10)
    assert ticket is not None
    assert gate.held == 1
    gate.leave(ticket)
    gate.close()
    assert gate.enter_at_once(10) is None
    with pytest.raises(PipelineClosedError):
        await gate.enter(0, 10)
