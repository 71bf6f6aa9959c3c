"""The sequencer: turns come in the order of their numbers, and a broken sequence hangs nobody."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.testing import BrokenSequenceError, Sequencer, run_virtual
from tests.patience import virtual_time


@given(st.permutations(range(6)))
def test_turns_come_in_order_whoever_asks_first(asked: list[int]) -> None:
    """The order of the blocks is that of their numbers, not that in which the tasks were started."""

    async def scenario() -> list[int]:
        turn = Sequencer()
        order: list[int] = []

        async def step(number: int) -> None:
            async with turn(number):
                order.append(number)
                await virtual_time(1)
                order.append(number)

        async with asyncio.TaskGroup() as group:
            for number in asked:
                group.create_task(step(number))
        return order

    assert run_virtual(scenario()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


async def test_a_turn_is_taken_once() -> None:
    """Using a number twice is a mistake in the test and says so."""
    turn = Sequencer()
    async with turn(0):
        pass
    with pytest.raises(ValueError, match="turn 0 was taken"):
        async with turn(0):
            pass


async def test_a_failed_turn_wakes_those_who_wait_for_later_ones() -> None:
    """Later turns fail with the first error as their cause; the failing block keeps its own error."""
    turn = Sequencer()

    async def later() -> None:
        async with turn(1):
            pass

    async def fail() -> None:
        async with turn(0):
            raise RuntimeError("the real one")

    waiting = asyncio.create_task(later())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="the real one"):
        await fail()
    with pytest.raises(BrokenSequenceError) as caught:
        await waiting
    assert "the real one" in str(caught.value.__cause__)


async def test_a_cancelled_turn_breaks_the_sequence() -> None:
    """A turn cancelled while it waits never comes; neither do those after it."""
    turn = Sequencer()

    async def take(number: int) -> None:
        async with turn(number):
            pass

    first, second = asyncio.create_task(take(1)), asyncio.create_task(take(2))
    await asyncio.sleep(0)
    first.cancel()
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, BrokenSequenceError]
