"""The virtual clock: time jumps when nothing is ready, and never otherwise."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.testing import StalledLoopError, VirtualClockLoop, run_virtual


@given(st.lists(st.floats(min_value=0, max_value=1e6), max_size=20))
def test_timers_fire_in_order_and_on_the_dot(delays_s: list[float]) -> None:
    """Every sleep ends exactly when it is due, in the order of the deadlines."""

    async def scenario() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        woken: list[tuple[float, float]] = []

        async def sleep(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            woken.append((delay_s, loop.time()))

        async with asyncio.TaskGroup() as group:
            for delay_s in delays_s:
                group.create_task(sleep(delay_s))
        return woken

    woken = run_virtual(scenario())
    assert [due_s for due_s, _ in woken] == sorted(delays_s)
    # The loop fires what is due within its clock's resolution, which is below a microsecond.
    assert all(now_s == pytest.approx(due_s, abs=1e-6) for due_s, now_s in woken)


def test_a_year_passes_at_once() -> None:
    """Time is not waited for, also beyond the day that the loop allows one wait to take."""

    async def scenario() -> float:
        await asyncio.sleep(365 * 86_400)
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario()) == 365 * 86_400


def test_a_timeout_is_exact() -> None:
    """``asyncio.timeout`` ends at its deadline, not before and not after."""

    async def scenario() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(20):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario()) == 20


def test_time_stands_still_while_something_is_ready() -> None:
    """Work that never waits takes no time, and no timer overtakes it."""

    async def scenario() -> tuple[float, bool]:
        loop = asyncio.get_running_loop()
        fired = asyncio.Event()
        loop.call_later(0.001, fired.set)
        for _ in range(1000):
            await asyncio.sleep(0)
        return loop.time(), fired.is_set()

    assert run_virtual(scenario()) == (0.0, False)


def test_a_thread_never_loses_against_a_timer() -> None:
    """The clock stands still until a function of the executor has returned, however long that takes."""

    async def scenario() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        release = threading.Event()
        releaser = threading.Timer(0.05, release.set)
        releaser.start()
        async with asyncio.timeout(0.001):
            done = await loop.run_in_executor(None, release.wait, 10)
        releaser.join()
        return f"{done}", loop.time()

    assert run_virtual(scenario()) == ("True", 0.0)


def test_sockets_of_one_loop_work() -> None:
    """Bytes between two ends on this loop arrive before any timer does."""

    async def scenario() -> tuple[bytes, float]:
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        _, other = await asyncio.open_connection(sock=there)
        other.write(b"hello")
        other.close()
        async with asyncio.timeout(1):
            data = await reader.read()
        writer.close()
        await asyncio.gather(writer.wait_closed(), other.wait_closed())
        return data, asyncio.get_running_loop().time()

    assert run_virtual(scenario()) == (b"hello", 0.0)


def test_a_deadlock_is_an_error() -> None:
    """When nothing is scheduled and nobody wakes the loop, it says which tasks wait instead of hanging."""

    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    runner = asyncio.Runner(loop_factory=lambda: VirtualClockLoop(stall_s=0.01))
    with runner, pytest.raises(StalledLoopError, match="wait_for_nothing"):
        runner.run(wait_for_nothing())


def test_another_thread_may_wake_it(virtual_loop: asyncio.Runner) -> None:
    """``call_soon_threadsafe`` from a thread the loop knows nothing of is not lost."""

    async def scenario() -> bool:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        thread = threading.Timer(0.05, loop.call_soon_threadsafe, [event.set])
        thread.start()
        await event.wait()
        thread.join()
        return event.is_set()

    assert virtual_loop.run(scenario())
