from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncdata.errors import PipelineClosedError
from asyncdata.storage.policy.slots import Slot, Slots

priorities = st.integers(0, 5) | st.tuples(st.integers(0, 5), st.integers(0, 5))


class SlotsMachine(RuleBasedStateMachine):
    """Random entering, leaving, withdrawing and resizing, against a sorted list as model."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(2)
        self.held: list[Slot] = []
        self.waiting: list[Slot] = []

    def expect(self, granted: list[Slot]) -> None:
        """The slots granted are the most urgent that waited, in order."""
        room = max(0, self.slots.limit - len(self.held))
        wanted = sorted(self.waiting, key=lambda slot: slot.key)[:room]
        assert granted == wanted
        self.held += granted
        self.waiting = [slot for slot in self.waiting if slot not in granted]

    @rule(priority=priorities)
    def enter(self, priority: int | tuple[int, ...]) -> None:
        """Granted at once exactly when there is room and nobody waits."""
        room = len(self.held) < self.slots.limit and not self.waiting
        slot = self.slots.ask(priority)
        assert slot.granted == room
        (self.held if room else self.waiting).append(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """The slot goes to the most urgent."""
        slot = data.draw(st.sampled_from(self.held))
        self.held.remove(slot)
        self.expect(self.slots.leave(slot))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """A withdrawn slot is never granted."""
        slot = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(slot)
        self.slots.withdraw(slot)

    @rule(limit=st.integers(1, 4))
    def resize(self, limit: int) -> None:
        """A larger limit grants at once; a smaller one takes nothing away."""
        self.expect(self.slots.resize(limit))

    @invariant()
    def counts_agree(self) -> None:
        """Its numbers are the model's, and nobody waits while there is room."""
        assert self.slots.held == len(self.held)
        assert self.slots.waiting == len(self.waiting)
        assert not self.waiting or len(self.held) >= self.slots.limit


TestSlots = SlotsMachine.TestCase


@given(st.lists(priorities, min_size=1, max_size=30))
def test_grants_follow_priority_then_arrival(wanted: list[int | tuple[int, ...]]) -> None:
    """With one slot the order of grants is the stable sort by priority."""
    slots = Slots(1)
    first = slots.ask(0)
    asked = [slots.ask(priority) for priority in wanted]
    order = []
    granted = slots.leave(first)
    while granted:
        (slot,) = granted
        order.append(asked.index(slot))
        granted = slots.leave(slot)
    keys = [priority if isinstance(priority, tuple) else (priority,) for priority in wanted]
    assert order == sorted(range(len(wanted)), key=lambda index: (keys[index], index))


def test_misuse_is_refused() -> None:
    """A slot is left only while it is granted, withdrawn only while it waits; the limit is positive."""
    slots = Slots(1)
    first, second = slots.ask(0), slots.ask(0)
    with pytest.raises(ValueError, match="granted"):
        slots.leave(second)
    with pytest.raises(ValueError, match="waiting"):
        slots.withdraw(first)
    slots.withdraw(second)
    with pytest.raises(ValueError, match="waiting"):
        slots.withdraw(second)
    with pytest.raises(ValueError, match="limit"):
        slots.resize(0)
    assert slots.leave(first) == []


def test_bytes_in_flight_are_limited_and_nobody_smaller_passes() -> None:
    """The most urgent waits until its bytes fit; one request alone always goes."""
    slots = Slots(limit=10, most_bytes=100)
    large = slots.ask(0, 500)
    assert large.granted
    first, second = slots.ask(1, 90), slots.ask(2, 5)
    assert not first.granted
    assert not second.granted
    assert slots.leave(large) == [first, second]
    assert (slots.held, slots.held_bytes) == (2, 95)
    third, fourth = slots.ask(1, 50), slots.ask(2, 1)
    assert not fourth.granted
    assert slots.withdraw(third) == [fourth]
    for slot in (first, second, fourth):
        slots.leave(slot)
    assert (slots.held, slots.held_bytes) == (0, 0)


def test_a_slot_without_a_place_in_the_queue_passes_nobody() -> None:
    """It is given where `enter` would give it at once, and nowhere else."""
    slots = Slots(limit=2, most_bytes=100)
    first = slots.enter_at_once(80)
    assert first is not None
    assert first.granted
    assert slots.enter_at_once(21) is None
    waiting = slots.ask(1, 21)
    assert slots.enter_at_once(1) is None  # it would fit, but somebody waits
    assert slots.leave(first) == [waiting]
    second = slots.enter_at_once(79)
    assert second is not None
    assert slots.enter_at_once(0) is None
    assert (slots.held, slots.held_bytes) == (2, 100)
    slots.leave(second)
    slots.leave(waiting)
    huge = slots.enter_at_once(1000)  # one alone always goes
    assert huge is not None
    with pytest.raises(ValueError, match="granted"):
        slots.leave(second)


async def test_at_most_limit_pass_and_the_most_urgent_first() -> None:
    """Never more than the limit hold a slot; those who wait get it in order of priority."""
    slots = Slots(2)
    inside = 0
    order: list[int] = []
    go = asyncio.Event()

    async def pass_through(priority: int) -> None:
        nonlocal inside
        slot = await slots.enter(priority)
        inside += 1
        assert inside <= 2
        order.append(priority)
        await go.wait()
        inside -= 1
        slots.leave(slot)

    async with asyncio.TaskGroup() as group:
        for priority in (9, 8, 5, 1, 3):
            group.create_task(pass_through(priority))
        await asyncio.sleep(0)  # everybody is in or waits after one turn
        assert slots.waiting == 3
        assert "2 of 2 in flight, 3 waiting" in repr(slots)
        go.set()
    assert order == [9, 8, 1, 3, 5]
    assert (slots.held, slots.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_cancelled_waiters_lose_no_slot(seed: int) -> None:
    """Whatever is cancelled at whatever moment, all slots come back and everybody else gets through."""
    draw = random.Random(seed)
    slots = Slots(3)
    passed = 0

    async def pass_through(priority: int, turns: int) -> None:
        nonlocal passed
        slot = await slots.enter(priority)
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            passed += 1
        finally:
            slots.leave(slot)

    tasks = [asyncio.create_task(pass_through(draw.randrange(5), draw.randrange(4))) for _ in range(40)]
    while not all(task.done() for task in tasks):
        if draw.random() < 0.5:
            draw.choice(tasks).cancel()
        if draw.random() < 0.2:
            slots.resize(draw.randrange(1, 5))
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == outcomes.count(None)
    assert (slots.held, slots.waiting) == (0, 0)


async def test_close_refuses_who_waits_and_who_comes() -> None:
    """After close nobody gets a slot; whoever holds one may still leave."""
    slots = Slots(1)
    slot = await slots.enter(0)
    waiting = asyncio.create_task(slots.enter(0))
    await asyncio.sleep(0)
    assert slots.waiting == 1
    slots.close()
    with pytest.raises(PipelineClosedError):
        await waiting
    with pytest.raises(PipelineClosedError):
        await slots.enter(0)
    slots.leave(slot)
    assert (slots.held, slots.waiting) == (0, 0)


async def test_closed_slots_let_nobody_through_at_once() -> None:
    """Who asks then is refused by `enter`."""
    slots = Slots(2)
    slot = slots.enter_at_once(10)
    assert slot is not None
    assert slots.held == 1
    slots.leave(slot)
    slots.close()
    assert slots.enter_at_once(10) is None
    with pytest.raises(PipelineClosedError):
        await slots.enter(0, 10)
