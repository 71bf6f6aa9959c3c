"""An event loop whose clock is virtual: when nothing is ready, time jumps to the next timer.

A test of timeouts, backoff or hedging runs in no time and gives the same order of events on every machine::

    async def scenario():
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - before

    assert run_virtual(scenario()) == 3600.0

What always holds: ``loop.time()`` moves only while the loop has nothing ready, and lands exactly on the next timer.
Time stands still while a function of ``run_in_executor`` is running, so that a thread never loses a race against a
timer. Sockets whose other end is on this loop too are ready at once and work; a peer in another thread or process
lives in real time, which this loop does not wait for: use a real loop there.

A loop without timers, executor functions or sockets of its own can only be woken by another thread. After ``stall_s``
real seconds of that it raises ``StalledLoopError`` instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, TypeVarTuple

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class StalledLoopError(RuntimeError):
    """Every task waits, and nothing is scheduled that could wake one."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """See the module's text.

    Args:
        start_s: What the clock shows at first, in seconds.
        stall_s: How long, in real seconds, to wait for another thread when nothing else can happen.
    """

    def __init__(self, *, start_s: float = 0.0, stall_s: float = 5.0) -> None:
        self._now_s = start_s
        self._executor_calls = 0
        super().__init__(_JumpingSelector(self))
        self._stall_s = stall_s
        # Due is what is due within the resolution. The real clock's nanosecond vanishes in the rounding of a time of
        # some months, and a timer that is due would never fire.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._now_s

    def run_in_executor(
        self, executor: Any, func: Callable[[*_Arguments], _Result], *args: *_Arguments
    ) -> asyncio.Future[_Result]:
        """As usual; the clock stands still until ``func`` has returned."""
        future: asyncio.Future[_Result] = super().run_in_executor(executor, func, *args)
        self._executor_calls += 1
        future.add_done_callback(self._executor_call_ended)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """As usual; the threads end in real time, so the time limit that newer Pythons set here does not run."""
        self._executor_calls += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._executor_calls -= 1

    def _executor_call_ended(self, _future: asyncio.Future[Any]) -> None:
        self._executor_calls -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Looks at the real descriptors without waiting, and moves the loop's clock instead."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if loop._executor_calls:  # noqa: SLF001 -- two halves of one thing
            return super().select(None)
        if timeout is not None:
            loop._now_s = _next_timer_s(loop, fallback_s=loop._now_s + timeout)  # noqa: SLF001 -- likewise
            return []
        # The loop's own wake-up pipe is always registered; a further descriptor may be anybody's.
        if len(_registered(self)) > 1:
            return super().select(None)
        ready = super().select(loop._stall_s)  # noqa: SLF001 -- likewise
        if not ready:
            waiting = "\n".join(f"  {task!r}" for task in asyncio.all_tasks(loop))
            raise StalledLoopError(f"nothing is scheduled, and nothing can wake:\n{waiting}")
        return ready


def run_virtual(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine to its end on a fresh ``VirtualClockLoop``, as ``asyncio.run`` does on a real one.

    Example:
        >>> async def wait_an_hour():
        ...     await asyncio.sleep(3600)
        ...     return asyncio.get_running_loop().time()
        >>> run_virtual(wait_an_hour())
        3600.0
    """
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)


def _next_timer_s(loop: asyncio.AbstractEventLoop, *, fallback_s: float) -> float:
    """When the next timer is due; ``now + timeout`` would miss it by a rounding error, and the loop caps it."""
    scheduled: list[asyncio.TimerHandle] = getattr(loop, "_scheduled", [])
    return scheduled[0].when() if scheduled else fallback_s


def _registered(selector: selectors.BaseSelector) -> Mapping[Any, selectors.SelectorKey]:
    return selector.get_map() or {}
