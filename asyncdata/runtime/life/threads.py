"""Blocking calls off the loop: in the Runtime's threads, or in a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.runtime.memory.activity import Outside
from asyncdata.workers.thread_pool import ThreadPool

T = TypeVar("T")


class Offload(Protocol):
    """Threads for blocking calls; see `workers.threads.ThreadPool`."""

    async def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Calls ``fn(*args)`` in a thread and returns its result."""


class TimedThreads:
    """The same threads, with the time for which their calls are awaited.

    Args:
        threads: The threads.
        waits: Runs while a call is awaited.
    """

    def __init__(self, threads: Offload, waits: Stopwatch) -> None:
        self._threads = threads
        self._waits = waits

    async def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """See `Offload`."""
        with self._waits:
            return await self._threads.run(fn, *args)


class Threads:
    """A `ThreadPool` that starts with its first call."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    async def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """See `ThreadPool.run`."""
        if not self._pool.is_started:
            await self._pool.start()
        with Outside():
            return await self._pool.run(fn, *args)

    def stacks(self) -> dict[str, str]:
        """Returns the stacks of threads that run user code, by name. Any thread may call it."""
        return self._pool.stacks()

    def identifiers(self) -> list[int]:
        """Returns their identifiers. Any thread may call it."""
        return self._pool.identifiers()

    def is_current(self) -> bool:
        """Returns whether the caller runs in one of them."""
        return self._pool.is_current()

    async def aclose(self) -> None:
        """Ends the threads."""
        await self._pool.aclose()


async def in_thread(function: Callable[[], None]) -> None:
    """Awaits one blocking call in a thread that has ended when this returns. Cancelling does not stop the call."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not ended.done():
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            function()
        except BaseException as caught:  # noqa: BLE001 -- handed over through the future
            error = caught
        with contextlib.suppress(RuntimeError):  # that loop was closed in the meantime
            loop.call_soon_threadsafe(settle, error)

    thread = threading.Thread(target=run, name="asyncdata-close", daemon=True)
    thread.start()
    try:
        with Outside():
            await ended
    except asyncio.CancelledError:
        raise
    except BaseException:
        thread.join()
        raise
    thread.join()  # it has nothing left to do
