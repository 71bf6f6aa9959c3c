"""Laws of ending workers that are too long in one call; first the decision, then real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.workers.call import OverdueError
from asyncdata.workers.overtime import judge, to_ns
from asyncdata.workers.transfer import dump_program
from tests.workers import handlers
from tests.workers.conftest import Kit, MakeKit, Meeting

NS = st.integers(1, 10**12)


@given(now=NS, due=st.one_of(st.just(0), NS), starved=st.booleans())
def test_a_call_is_ended_when_it_is_due_and_looked_at_again_when_it_will_be(now: int, due: int, starved: bool) -> None:
    """Never before it is due, never while in no call, never where the whole program may have been stopped."""
    action, then_ns = judge(now, due, 0, starved=starved)
    if due and due <= now and not starved:
        assert action == "abort"
    else:
        assert action == "wait"
        assert then_ns == max(0, due - now)


@given(now=NS, due=NS, ended=NS, starved=st.booleans())
def test_a_process_that_does_not_write_its_stacks_in_time_is_killed(
    now: int, due: int, ended: int, starved: bool
) -> None:
    """Three seconds after it was aborted, whatever else is."""
    action, then_ns = judge(now, due, ended, starved=starved)
    if now - ended >= 3 * 10**9:
        assert (action, then_ns) == ("kill", 0)
    else:
        assert action == "wait"
        assert now + then_ns == ended + 3 * 10**9


def test_the_shortest_limit_is_more_than_nothing() -> None:
    """A limit that rounds to no nanosecond is not none."""
    assert (to_ns(1e-12), to_ns(0.5)) == (1, 500_000_000)


async def make_limited(make_kit: MakeKit, **options: Any) -> Kit:
    kit: Kit = await make_kit(handler="tests.workers.handlers:call_marked", **options)
    return kit


def limited(kit: Kit, program: Any, limit_s: float, payload: bytes = b"", grant: Any = None) -> asyncio.Task[bytes]:
    """Runs a program whose calls have a limit, of which the worker hears by the payload."""
    number = kit.pool.register(dump_program(program), limit_s=limit_s)
    body = b"%d:" % to_ns(limit_s) + payload
    return asyncio.get_running_loop().create_task(
        kit.pool.run(number, body, grant=Meeting() if grant is None else grant)
    )


@pytest.mark.sampled
@pytest.mark.parametrize("program", [handlers.meet_and_block, handlers.meet_and_hold_the_gil, handlers.meet_and_fill])
async def test_a_call_that_does_not_return_in_time_costs_its_process(make_kit: MakeKit, program: Any) -> None:
    """The error has row and stack, whatever the function is in; what waited behind it is done, and nobody is blamed."""
    kit = await make_limited(make_kit, num_workers=1, depth=3, retries=0)
    (victim,) = kit.pids()
    hung = limited(kit, program, 0.2)
    behind = [limited(kit, handlers.same, 1000.0, b"%d" % i) for i in range(4)]
    with pytest.raises(OverdueError) as caught:
        await hung
    assert caught.value.hang.row == 42
    assert caught.value.limit_s == 0.2
    assert f"in {program.__name__}" in caught.value.hang.stacks
    with pytest.raises(ProcessLookupError):
        os.kill(victim, 0)
    assert await asyncio.gather(*behind) == [b"0", b"1", b"2", b"3"]
    assert "task_timeout_s" in kit.pool.stats().last_death


async def test_a_call_without_a_limit_is_left_alone(make_kit: MakeKit) -> None:
    """Beside one that is ended, another program's call goes on."""
    kit = await make_limited(make_kit, num_workers=2)
    held = Meeting(held=True)
    free = kit.task(handlers.write_at, b"12345", grant=held)
    await held.arrivals.get()
    with pytest.raises(OverdueError):
        await limited(kit, handlers.meet_and_block, 0.2)
    held.gate.set()
    assert await free == b"0"


@pytest.mark.slow
async def test_a_process_that_ignores_the_signal_is_killed(make_kit: MakeKit) -> None:
    """It leaves no stack, but its row is known."""
    kit = await make_limited(make_kit, num_workers=1)
    with pytest.raises(OverdueError) as caught:
        await limited(kit, handlers.ignore_abort_and_block, 0.2)
    assert caught.value.hang == (42, "")


async def test_a_function_that_returned_at_the_last_moment_is_not_to_blame(make_kit: MakeKit) -> None:
    """Its process is gone with the signal that came too late; the task runs again and keeps all its tries."""
    kit = await make_limited(make_kit, num_workers=1, retries=0)
    held = Meeting(held=True)
    task = limited(kit, handlers.meet_and_wait, 1000.0, grant=held)
    await held.arrivals.get()
    (worker,) = kit.pool._workers
    worker.ended_ns = 1  # as if an earlier call had been due then: the one that it is in now is not
    os.kill(worker.pid, signal.SIGABRT)
    held.gate.set()
    assert await task == b""
    assert kit.pool.stats().deaths == 1
