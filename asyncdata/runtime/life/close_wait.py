"""Waits for an end that comes unless user code prevents it, and then reports that code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from asyncdata.errors import CloseTimeoutError
from asyncdata.runtime.life.interrupt_safe import Gate
from asyncdata.runtime.life.loops import LoopThread
from asyncdata.runtime.life.threads import Threads

KILL_S: Final = 15.0
"""The longest time that killing a worker process takes, beyond the time limit of closing."""


def wait_for_end(
    ended: Gate,
    what: str,
    stage: LoopThread,
    threads: Threads | None,
    limit_s: float,
    give_up: Callable[[], None],
) -> None:
    """Returns when a gate is open.

    Workers, threads and reads have time limits of their own, so all is well as long as the stage loop answers.

    Args:
        ended: The gate.
        what: The thing that ends, for messages.
        stage: The loop that ends it.
        threads: The threads of user functions, unless they are reported elsewhere.
        limit_s: How long user code may take.
        give_up: Called before the error is raised.

    Raises:
        CloseTimeoutError: User code is stuck; the message contains its stack.
    """
    begin_s = time.monotonic()
    while not ended.is_open:
        if not stage.answers(limit_s):
            give_up()
            raise CloseTimeoutError(
                f"thread {stage.name!r} is still in user code {limit_s:.1f} s after {what} was closed; it is "
                f"left behind as a daemon. Its stack:\n{stage.stack()}"
            )
        if ended.wait(limit_s):
            return
        after_s = time.monotonic() - begin_s
        stuck = {} if threads is None else threads.stacks()
        if stuck:
            names = ", ".join(repr(name) for name in stuck)
            raise CloseTimeoutError(
                f"thread {names} is still in user code {after_s:.1f} s after {what} was closed; it ends with its "
                "call. Its stack:\n" + "\n".join(stuck.values())
            )
        if after_s > limit_s + KILL_S:
            give_up()
            raise CloseTimeoutError(
                f"{what} has not ended {after_s:.1f} s after it was closed; still running:\n"
                + stage.describe_tasks(limit_s)
            )
