"""What attempts teach, and what they are held to: limits of time, the window, bytes in flight. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from asyncdata.errors import StorageError
from asyncdata.options import HedgeOptions, Options
from asyncdata.storage import FailureCause
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.failures import read_failed
from asyncdata.storage.policy.attempts import Attempts
from asyncdata.testing import run_virtual
from asyncdata.types import ObjectInfo
from tests.patience import virtual_time


async def never(offset: int, buffer: memoryview, attempt: Attempt) -> ObjectInfo | None:
    """No second attempt is made here."""
    raise AssertionError


@pytest.mark.parametrize("cause", [FailureCause.FIRST_BYTE_TIMEOUT, FailureCause.OVERTAKEN])
def test_stalls_teach_no_patience(cause: FailureCause) -> None:
    """One of eight reads is given up after 10 s, the others begin after 50 ms: these alone make the limits."""

    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        attempts = Attempts(Options(), 0)
        for number in range(300):
            slot = await attempts.slots.enter(0, 1000)
            racing = attempts.begin(1000, never, loop.time())
            racing.asked_at = loop.time()
            if number % 8:
                await virtual_time(0.05)
                racing.first_byte_at = loop.time()
                attempts.ended_well(racing, 1000)
            else:
                await virtual_time(10)
                attempts.failed(read_failed("nothing came", cause), racing)
            attempts.end(racing, slot)
        last = attempts.begin(1000, never, loop.time())
        await attempts.aclose()
        assert last.limits is not None
        return last.limits.first_byte_s, last.after_s

    first_byte_s, after_s = run_virtual(scenario())
    assert first_byte_s <= Options().timeouts.floor_s
    assert after_s < 0.5


async def reads(attempts: Attempts, count: int, cause: FailureCause | None = None) -> None:
    """So many reads, as many at a time as may be: each takes 0.1 s however many there are, or is refused."""
    loop = asyncio.get_running_loop()

    async def one() -> None:
        slot = await attempts.slots.enter(0, 1 << 20)
        racing = attempts.begin(1 << 20, never, loop.time())
        racing.asked_at = loop.time()
        await virtual_time(0.02)
        racing.first_byte_at = loop.time()
        if cause is None:
            await virtual_time(0.08)
            attempts.ended_well(racing, 1 << 20)
        else:
            attempts.failed(read_failed("not now", cause), racing)
        attempts.end(racing, slot)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())


@pytest.mark.parametrize("cause", [FailureCause.THROTTLED, FailureCause.SERVER_ERROR])
def test_the_window_follows_what_happens(cause: FailureCause) -> None:
    """It grows while reads take no longer for it, shrinks when the server refuses, and says why."""

    async def scenario() -> None:
        attempts = Attempts(Options(memory_limit_bytes=1 << 40), 0)
        first = attempts.slots.limit
        await reads(attempts, 2000)
        grown = attempts.slots.limit
        assert grown > 2 * first
        said = attempts.stats().window
        assert said is not None
        assert said.reason
        await reads(attempts, 1000, cause)
        assert attempts.slots.limit < grown / 2
        await attempts.aclose()

    run_virtual(scenario())


@pytest.mark.parametrize("options", [Options(max_bytes_in_flight=1 << 20), Options(memory_limit_bytes=1 << 20)])
def test_bytes_in_flight_are_limited(options: Options) -> None:
    """By the option, or else by the memory limit: a read waits until its bytes fit."""

    async def scenario() -> None:
        attempts = Attempts(options, 0)
        slot = await attempts.slots.enter(0, 600 << 10)
        second = asyncio.create_task(attempts.slots.enter(0, 600 << 10))
        await virtual_time(1)
        assert not second.done()
        attempts.end(attempts.begin(600 << 10, never, 1.0), slot)
        await second
        await attempts.aclose()

    run_virtual(scenario())


class Stuck:
    """A wire that does not end at once when it fails."""

    filled = 0

    def has_input(self) -> bool:
        """Nothing comes."""
        return False

    def nudge(self) -> None:
        """There is nothing to look at."""

    def fail(self, error: StorageError) -> None:
        """Not yet."""


def test_what_a_second_attempt_brought_is_given_back_however_late_the_first_ends() -> None:
    """An attempt that was overtaken is not looked at any more, and gets no third one."""

    async def again(offset: int, buffer: memoryview, attempt: Attempt) -> ObjectInfo | None:
        return None

    async def scenario() -> None:
        hedge = HedgeOptions(max_extra=1, least_delay_s=0.2, most_delay_s=0.2)
        attempts = Attempts(Options(hedge=hedge), 4096)
        slot = await attempts.slots.enter(0, 1000)
        racing = attempts.begin(1000, again, asyncio.get_running_loop().time())
        racing.wire, racing.asked_at = Stuck(), asyncio.get_running_loop().time()
        await virtual_time(2)
        stats = attempts.stats()
        assert (stats.hedges, stats.hedges_won, stats.hedge_bytes) == (1, 1, 1000)
        attempts.end(racing, slot)
        assert attempts.stats().hedge_bytes == 0
        await attempts.aclose()

    run_virtual(scenario())
