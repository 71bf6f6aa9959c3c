"""Event loops in threads of their own.

A `LoopThread` runs one loop (uvloop where it is installed) and owns every task on it through one TaskGroup: tasks are
spawned into it, and closing it cancels and awaits them all before the thread ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class LoopThread:
    """One thread, one event loop, one TaskGroup.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._group: asyncio.TaskGroup | None = None
        self._started = threading.Event()
        self._after: list[Callable[[], None]] = []
        # A daemon, so that an iterator which nobody closed cannot keep the interpreter from reaching its exit
        # handlers; there the Runtime closes it properly.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread; returns when the loop runs."""
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
            self._started.set()
            callbacks, self._after = self._after, []
            for callback in callbacks:
                callback()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._started.set()
            await self._stop.wait()

    @property
    def ident(self) -> int | None:
        """The thread's identifier."""
        return self._thread.ident

    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._thread.ident

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task on the loop, from the loop. The coroutine must not raise anything but CancelledError."""
        assert self._group is not None
        return self._group.create_task(coroutine)

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function on the loop, from any thread; raises RuntimeError once the loop is closed."""
        self.loop.call_soon_threadsafe(function)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs a coroutine on the loop, from any other thread."""
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        async def run() -> None:
            try:
                value = await coroutine
            except asyncio.CancelledError:
                result.set_exception(concurrent.futures.CancelledError())
                raise
            except BaseException as error:  # noqa: BLE001 -- handed to the caller through the future
                result.set_exception(error)
            else:
                result.set_result(value)

        def start() -> None:
            if result.set_running_or_notify_cancel():
                self.spawn(run())
            else:
                coroutine.close()

        try:
            self.loop.call_soon_threadsafe(start)
        except RuntimeError:
            coroutine.close()
            raise
        return result

    def after_end(self, callback: Callable[[], None]) -> None:
        """Registers something to do in the thread when its loop is closed, just before it ends."""
        self._after.append(callback)

    def stop(self) -> None:
        """Lets the loop end once its tasks have; from any thread, any number of times."""

        def set_stop() -> None:
            if self._stop is not None:
                self._stop.set()

        try:
            self.loop.call_soon_threadsafe(set_stop)
        except RuntimeError:
            pass  # closed already

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread to end; False when it has not ended in time."""
        if self._thread.ident is None:
            self.loop.close()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
