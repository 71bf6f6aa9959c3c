"""Ends worker processes in which one call of a user function takes too long.

    begin(limit) ──▶ timer ──▶ look at every worker's mark ──▶ due: SIGABRT, on which it writes its stacks, then SIGKILL
                       ▲                   └─▶ not due: look again when it would be
                       └──────────────────────────────────────┘

While no call has a limit, there is no timer. If the loop checks much later than intended, the whole program may have
been stopped, including its workers. In this case no process is ended, and every call gets its full time again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from asyncdata.workers.worker import Worker

_SECOND: Final = 10**9
_STARVED_NS: Final = 1 * _SECOND
_ABORT_NS: Final = 3 * _SECOND
"""How long a process may take to write its stacks."""


class Overtime:
    """See the module; on the pool's loop.

    Args:
        workers: Those that live, as they come and go.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers = workers
        self._limits: Counter[int] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._planned_ns = 0

    def begin(self, limit_s: float | None) -> None:
        """A task begins of whose calls none may take longer."""
        if limit_s is not None:
            limit_ns = to_ns(limit_s)
            self._limits[limit_ns] += 1
            self._look_in(limit_ns)

    def end(self, limit_s: float | None) -> None:
        """It has ended."""
        if limit_s is not None:
            limit_ns = to_ns(limit_s)
            self._limits[limit_ns] -= 1
            if not self._limits[limit_ns]:
                del self._limits[limit_ns]

    def close(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, delay_ns: int) -> None:
        """Looks in so many nanoseconds, unless it does so sooner anyhow."""
        planned_ns = time.monotonic_ns() + delay_ns
        if self._timer is not None:
            if self._planned_ns <= planned_ns:
                return
            self._timer.cancel()
        self._planned_ns = planned_ns
        self._timer = asyncio.get_running_loop().call_later(delay_ns / _SECOND, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._limits:
            return
        now_ns = time.monotonic_ns()
        starved = now_ns - self._planned_ns > _STARVED_NS
        wait_ns = min(self._limits)
        for worker in self._workers:
            action, then_ns = judge(now_ns, worker.due_ns, worker.ended_ns, starved=starved)
            if action == "abort":
                worker.end_overdue(now_ns)
            elif action == "kill":
                worker.process.kill()
            if then_ns:
                wait_ns = min(wait_ns, then_ns)
        self._look_in(wait_ns)


def to_ns(limit_s: float) -> int:
    """Nanoseconds, at least one."""
    return max(1, round(limit_s * _SECOND))


def judge(now_ns: int, due_ns: int, ended_ns: int, *, starved: bool) -> tuple[str, int]:
    """What to do with a worker now, and in how many nanoseconds to look at it again; 0 whenever one likes.

    Args:
        now_ns: The time.
        due_ns: When the call it is in should have ended; 0 if it is in none.
        ended_ns: When it was aborted; 0 if it was not.
        starved: Whether this look comes much too late.
    """
    if ended_ns:
        left_ns = ended_ns + _ABORT_NS - now_ns
        return ("wait", left_ns) if left_ns > 0 else ("kill", 0)
    if not due_ns or (due_ns <= now_ns and starved):
        return "wait", 0
    return ("abort", _ABORT_NS) if due_ns <= now_ns else ("wait", due_ns - now_ns)
