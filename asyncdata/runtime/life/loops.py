"""Event loops in threads of their own.

A `LoopThread` runs one loop (uvloop) and owns every task on it through one TaskGroup. Closing it waits for all tasks
before the thread ends, and ends what user code left on the loop (tasks, threads of ``asyncio.to_thread``).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from asyncdata.observe.thread_stacks import stack_of, text_of
from asyncdata.runtime.life.interrupt_safe import Gate, GuardedThread

T = TypeVar("T")

_STACK_LIMIT: Final = 50
_LOOP_DESCRIPTORS: Final = 8


class LoopThread:
    """One thread, one event loop, one TaskGroup.

    The loop is made and closed in its own thread, which Ctrl-C cannot interrupt. The thread that starts it may be
    interrupted at any moment and then only has to call `end`.

    Args:
        name: The thread's name.

    Attributes:
        loop: The loop, from `start` on.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, name: str) -> None:
        self.name = name
        self._asked_to_stop = False
        self._has_stopped = False
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None
        self._group: asyncio.TaskGroup | None = None
        self._calls: deque[tuple[Callable[[], object], Callable[[], object]]] = deque()
        self._has_ended = False
        self._started = Gate()
        self._after: list[Callable[[], None]] = []
        # A daemon, so that an unclosed iterator cannot prevent the interpreter from reaching its exit handlers, where
        # the Runtime closes it properly.
        self._thread = GuardedThread(self._run, name, self._fail)

    def start(self) -> None:
        """Starts the thread; returns when the loop runs.

        Raises:
            OSError: There are no descriptors left.
            RuntimeError: There are no threads left.
        """
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._started.open()

    def _run(self) -> None:
        with _standard_descriptors_in_use():
            self._live()

    def _live(self) -> None:
        try:
            _require_descriptors()
            self.loop = uvloop.new_event_loop()
        except BaseException as error:  # noqa: BLE001 -- raised by `start`
            self._fail(error)
            return
        asyncio.set_event_loop(self.loop)
        try:
            main = self.loop.create_task(self._main())
            while not main.done():
                with contextlib.suppress(RuntimeError):  # user code that stops its loop
                    self.loop.run_until_complete(main)
            self.loop.run_until_complete(self._end_foreign_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            with contextlib.suppress(RuntimeError):  # while the interpreter ends no thread starts any more
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
            self._started.open()
            self._has_ended = True
            self._refuse_calls()
            callbacks, self._after = self._after, []
            for callback in callbacks:
                callback()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._started.open()
            if self._asked_to_stop:
                self._stop.set()
            while not self._stop.is_set():
                with contextlib.suppress(asyncio.CancelledError):  # user code that cancels all tasks of its loop
                    await self._stop.wait()
        self._has_stopped = True

    async def _end_foreign_tasks(self) -> None:
        """The tasks that user code started on the loop and did not await."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return self._thread.is_current()

    @property
    def identifier(self) -> int:
        """The thread's identifier; 0 before it runs."""
        return self._thread.ident or 0

    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task; call it on the loop. The coroutine may raise only CancelledError."""
        assert self._group is not None
        return self._group.create_task(coroutine)

    def call(self, function: Callable[[], object], refused: Callable[[], object] = lambda: None) -> None:
        """Calls a function on the loop. Any thread may call this; it takes no lock.

        Args:
            function: Called on the loop.
            refused: Called instead, in the loop's thread or the caller's, if the loop is closed before it gets to the
                function. A loop that is about to end drops functions silently.
        """
        # First enqueue, then check whether the queue is still emptied; the thread does this in the reverse order.
        self._calls.append((function, refused))
        with contextlib.suppress(RuntimeError):  # closed
            self.loop.call_soon_threadsafe(self._make_calls)
        if self._has_ended:
            self._refuse_calls()

    def _make_calls(self) -> None:
        # Runs all of them, because a caller that was interrupted before it woke the loop left one behind.
        while call := self._next_call():
            call[0]()

    def _refuse_calls(self) -> None:
        while call := self._next_call():
            call[1]()

    def _next_call(self) -> tuple[Callable[[], object], Callable[[], object]] | None:
        try:
            return self._calls.popleft()
        except IndexError:
            return None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs a coroutine on the loop, from any other thread. Cancelling the future cancels the coroutine."""
        result: concurrent.futures.Future[T] = concurrent.futures.Future()
        running: list[asyncio.Task[None]] = []

        def start() -> None:
            if result.cancelled():
                coroutine.close()
            elif self._has_stopped:
                refuse()
            else:
                running.append(self.spawn(_settle(coroutine, result)))

        def cancel(future: concurrent.futures.Future[T]) -> None:
            if future.cancelled():
                self.call(lambda: running and running[0].cancel())

        def refuse() -> None:
            coroutine.close()
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # cancelled
                result.set_exception(RuntimeError(f"thread {self.name!r} has ended"))

        result.add_done_callback(cancel)
        self.call(start, refuse)
        return result

    def perform(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a coroutine function on the loop, from a thread that Ctrl-C may interrupt; waits for its end.

        Raises:
            RuntimeError: The loop was stopped before.
        """
        ended = Gate()
        errors: list[BaseException] = []

        async def run() -> None:
            try:
                await function()
            except BaseException as error:  # noqa: BLE001 -- raised below
                errors.append(error)
            finally:
                ended.open()

        def start() -> None:
            if self._asked_to_stop:  # a waiter, if there still is one, must not wait forever
                refuse()
            else:
                self.spawn(run())

        def refuse() -> None:
            errors.append(RuntimeError(f"{self.name} was stopped while it started"))
            ended.open()

        self.call(start, refuse)
        ended.wait()
        if errors:
            raise errors.pop()

    def after_end(self, callback: Callable[[], None]) -> None:
        """Registers a function to call in the thread just before it ends, when its loop is closed."""
        self._after.append(callback)

    def stop(self) -> None:
        """Lets the loop end after its tasks. Any thread may call it, any number of times."""

        def set_stop() -> None:
            if self._stop is not None:
                self._stop.set()

        # A caller that does not see yet that the loop runs has set the flag before the loop checks it.
        self._asked_to_stop = True
        if self._started.is_open and self._failure is None:
            self.call(set_stop)

    def join(self) -> None:
        """Waits for the thread to end, if it was started."""
        self._thread.join()

    def end(self) -> None:
        """Stops the loop and waits for its thread, whether it was started, is starting, or has ended."""
        self.stop()
        self.join()

    def answers(self, timeout_s: float) -> bool:
        """Returns whether the loop makes progress within a time, or is stuck in user code.

        Call it in another thread.
        """
        answered = Gate()
        self.call(answered.open, refused=answered.open)
        return answered.wait(timeout_s)

    def describe_tasks(self, timeout_s: float) -> str:
        """Describes the tasks of the loop and where they wait; empty if it does not answer in time.

        Call it in another thread.
        """
        described: list[str] = []
        done = Gate()

        def describe() -> None:
            described.append(describe_tasks(self.loop, set()))
            done.open()

        self.call(describe, refused=done.open)
        done.wait(timeout_s)
        return "".join(described)

    def stack(self) -> str:
        """Returns the thread's current stack."""
        return text_of(stack_of(self._thread.ident))

    def descriptors(self) -> set[int]:
        """Returns the loop's descriptors and those it watches, for a forked child, which must not touch the loop."""
        poll: int = self.loop._get_backend_id()  # type: ignore[attr-defined]  # noqa: SLF001 -- uvloop's only way
        found = {poll}
        try:
            text = Path(f"/proc/self/fdinfo/{poll}").read_text(encoding="ascii")
        except OSError:
            return found  # no procfs: what the loop watches stays open in the child
        found.update(int(line.split()[1]) for line in text.splitlines() if line.startswith("tfd:"))
        return found


def _require_descriptors() -> None:
    """Raises OSError if there are too few for a loop, because libuv aborts the process if it runs out of them."""
    opened: list[int] = []
    try:
        for _ in range(_LOOP_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 -- any may fail
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextlib.contextmanager
def _standard_descriptors_in_use() -> Generator[None]:
    """Prevents a loop from getting the descriptors 0 to 2 in a process that was started without them.

    libuv aborts the process when it closes one of its own descriptors with such a number.
    """
    opened: list[int] = []
    try:
        for descriptor in range(3):
            try:
                os.fstat(descriptor)
            except OSError:
                opened.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)


async def _settle(coroutine: Coroutine[Any, Any, T], result: concurrent.futures.Future[T]) -> None:
    """Awaits a coroutine and passes its outcome to another thread, which may have stopped waiting."""
    with contextlib.suppress(concurrent.futures.InvalidStateError):
        try:
            value = await coroutine
        except asyncio.CancelledError:
            result.cancel()
            raise
        except BaseException as error:  # noqa: BLE001 -- handed to the caller through the future
            result.set_exception(error)
        else:
            result.set_result(value)


def describe_tasks(loop: asyncio.AbstractEventLoop, without: set[asyncio.Task[Any]]) -> str:
    """Describes the waiting tasks of a loop and where they wait, one paragraph each. Call it on the loop.

    In another thread Python 3.11 may crash: see `asyncdata.observe.thread_stacks`.
    """
    paragraphs: list[str] = []
    for task in asyncio.all_tasks(loop) - without:
        awaited: Any = task.get_coro()
        lines: list[str] = []
        while awaited is not None and len(lines) < _STACK_LIMIT:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
            if frame is not None:
                lines += traceback.format_stack(frame, 1)
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
        paragraphs.append(f"task {task.get_name()!r}:\n{''.join(lines)}")
    return "\n".join(paragraphs)
