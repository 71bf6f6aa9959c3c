"""One call of ``WorkerPool.run``: its task, its progress, and the mailbox for its events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from asyncdata.workers.known_programs import Registered
    from asyncdata.workers.worker import Worker

# Events of a call, beside the kinds of messages REPLY, FAILED, NEED and WITHDRAWN.
DIED: Final = 100
"""The worker is gone; the value is a ``Death``."""
STOPPED: Final = 101
"""The call was not sent and will not be; the value is the exception to raise."""


class Hang(NamedTuple):
    """Where a worker was that was ended because a user function did not return in time.

    Attributes:
        row: Of the task.
        stacks: What the process wrote.
    """

    row: int
    stacks: str


class Death(NamedTuple):
    """How a worker ended, for the calls it held.

    Attributes:
        text: Names the worker and says how it ended.
        blamed: Whether this call may have killed it, as the one that it was running.
        hang: Where the call did not go on, if the worker was ended for that.
    """

    text: str
    blamed: bool
    hang: Hang | None = None


class OverdueError(Exception):
    """A user function did not return in time, and its process was ended.

    Attributes:
        hang: Where.
        limit_s: How long one call may take.
    """

    def __init__(self, hang: Hang, limit_s: float) -> None:
        super().__init__(f"row {hang.row} took longer than {limit_s:g} s")
        self.hang = hang
        self.limit_s = limit_s


class Call:
    """One call of ``WorkerPool.run``: a mailbox of one event, and the state of the call.

    ``event`` holds the latest event until ``run`` takes it; ``waiter`` is the future ``run`` sleeps on meanwhile.
    """

    __slots__ = (
        "abandoned",
        "attempts",
        "deadline",
        "event",
        "payload",
        "program",
        "refusal",
        "ticket",
        "waiter",
        "withdrawn",
        "worker",
    )

    def __init__(self, program: Registered, payload: bytes) -> None:
        self.program = program
        self.payload = payload
        self.event: tuple[int, Any] | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.worker: Worker | None = None
        self.ticket = 0
        self.attempts = 0
        self.withdrawn = False
        self.abandoned: asyncio.CancelledError | None = None
        self.refusal: Exception | None = None
        self.deadline: asyncio.TimerHandle | None = None

    def post(self, kind: int, value: Any) -> None:
        """Leaves an event and wakes ``run``."""
        self.event = (kind, value)
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
