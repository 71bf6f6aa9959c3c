"""How tests wait: for events where the code has any, else for a condition that nobody announces; never for time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from asyncdata.testing import VirtualClockLoop

LIMIT_S: Final = 300.0
"""Half of a test's own time limit. It ends what hangs, not what a busy machine delays: what waits here fails with the
better message, and is cleaned up."""

_LOOK_S: Final = 0.005


def wait_until(condition: Callable[[], bool], tell: Callable[[], object] = str) -> None:
    """Returns when a condition holds that no event announces.

    Args:
        condition: Looked at again and again.
        tell: What the error says when the condition does not hold in time.
    """
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s, f"it never came to that; {tell()}"
        time.sleep(_LOOK_S)


async def until(condition: Callable[[], bool]) -> None:
    """The same on a loop, which goes on meanwhile."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + LIMIT_S
    while not condition():
        assert loop.time() < until_s, "it never came to that"
        await asyncio.sleep(_LOOK_S)


async def turns(count: int) -> None:
    """Lets the loop go round, so that whatever is due on it happens."""
    for _ in range(count):
        await asyncio.sleep(0)


async def virtual_time(seconds: float) -> None:
    """Lets virtual time pass, which takes none."""
    assert isinstance(asyncio.get_running_loop(), VirtualClockLoop)
    await asyncio.sleep(seconds)
