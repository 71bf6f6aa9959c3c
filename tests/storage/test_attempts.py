"""What attempts teach: those that were given up tell only that they would have taken longer."""

from __future__ import annotations

import asyncio

import pytest

from asyncdata.options import Options
from asyncdata.storage import FailureCause
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.attempts import Attempts
from asyncdata.storage.failures import read_failed
from asyncdata.testing import run_virtual
from asyncdata.types import ObjectInfo


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
            ticket = await attempts.enter(0, 1000)
            racing = attempts.begin(1000, never)
            racing.asked_at = loop.time()
            if number % 8:
                await asyncio.sleep(0.05)
                racing.first_byte_at = loop.time()
                attempts.ended_well(racing, 1000)
            else:
                await asyncio.sleep(10)
                attempts.failed(read_failed("nothing came", cause), racing)
            attempts.end(racing, ticket)
        last = attempts.begin(1000, never)
        await attempts.aclose()
        assert last.limits is not None
        return last.limits.first_byte_s, last.after_s

    first_byte_s, after_s = run_virtual(scenario())
    assert first_byte_s <= Options().timeouts.floor_s
    assert after_s < 0.5
