"""Whether everything is gone, on a machine that may be slow just now."""

from __future__ import annotations

import time
from typing import Any

from asyncdata.testing import ProcessSnapshot, check


def wait_until_gone(before: ProcessSnapshot) -> list[Any]:
    """What is left two seconds later; on a machine that is slow now, so much later as it is slower."""
    leaks = _left_after(before, 2.0)
    return leaks and _left_after(before, min(30.0, 2.0 * _slowdown() - 2.0))


def _left_after(before: ProcessSnapshot, limit_s: float) -> list[Any]:
    until_s = time.monotonic() + limit_s
    leaks = check(before)
    while leaks and time.monotonic() < until_s:
        time.sleep(0.01)
        leaks = check(before)
    return leaks


def _slowdown() -> float:
    """How much longer than on a machine of its own this thread takes for something."""
    begin_s, cpu_s = time.monotonic(), time.thread_time()
    while time.thread_time() - cpu_s < 0.05:
        pass
    return (time.monotonic() - begin_s) / 0.05
