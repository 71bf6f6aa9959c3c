"""A pool of threads on one event loop: user functions that release the GIL, and blocking calls.

    run() ──▶ queue (FIFO) ──▶ asyncdata-map-0 … ──▶ finished (deque) ──one wake-up for many──▶ run() goes on

The counterpart of the worker pool for ``executor="thread"``. Invariants: ``run`` returns or raises only when no thread
is in that call any more (or reports with ``CloseTimeoutError`` that one is); a call that was cancelled before a thread
took it never runs; threads end with ``aclose``, except those stuck in user code, which are reported and left as
daemons.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from asyncdata.errors import CloseTimeoutError, PipelineClosedError, refused
from asyncdata.observe.thread_stacks import stack_of, text_of
from asyncdata.workers.failure import as_raisable
from asyncdata.workers.stats import ThreadPoolStats

T = TypeVar("T")


class _Job:
    """One call. ``claim`` holds one token. The thread or the canceller that pops it decides about the call."""

    __slots__ = ("args", "claim", "done", "error", "fn", "result", "stuck", "waiter")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], waiter: asyncio.Future[None]) -> None:
        self.fn = fn
        self.args = args
        self.waiter = waiter
        self.claim = [None]
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.stuck: str | None = None

    def take(self) -> bool:
        """Claims the call; true for one caller only (popping a list is one step under the GIL, or its lock)."""
        try:
            self.claim.pop()
        except IndexError:
            return False
        return True


class ThreadPool:
    """See the module.

    Args:
        num_threads: Number of threads, at least 1.
        close_timeout_s: How long ``aclose`` waits for calls that are running.
        name: Threads are named ``name-0`` and so on.
    """

    def __init__(self, num_threads: int, *, close_timeout_s: float = 10.0, name: str = "asyncdata-map") -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {num_threads}")
        self._close_timeout_s = close_timeout_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._finished: deque[_Job | None] = deque()  # None: a thread has ended
        self._woken = False
        self._running: dict[int, _Job] = {}
        self._ended = 0
        self._tasks_done = 0
        self._submitted = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._all_ended: asyncio.Future[None] | None = None
        self._closing = False
        self._closed: asyncio.Future[None] | None = None
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"{name}-{i}", daemon=True) for i in range(num_threads)
        ]

    @property
    def is_started(self) -> bool:
        """Whether there is a thread that takes calls, or was."""
        return self._loop is not None

    async def start(self) -> None:
        """Starts the threads; the running loop is the pool's from now on.

        Raises:
            SystemResourceError: The system has no more threads; those that were started take the calls, and end with
                ``aclose``. If there are none, the pool can be started again.
        """
        if self._loop is not None or self._closing:
            raise PipelineClosedError("the thread pool was started or closed before")
        self._loop = asyncio.get_running_loop()
        self._all_ended = self._loop.create_future()
        for number, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError as error:
                if number:
                    del self._threads[number:]
                else:  # nobody would take a call: the next one tries again
                    self._loop = self._all_ended = None
                raise refused("threads cannot be started", error, stage="threads for user functions") from error

    async def run(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Calls ``fn(*args)`` in a thread.

        Raises:
            Exception: What ``fn`` raised; what the pipeline could not carry (``SystemExit``, ``StopIteration`` …) as
                ``UserFunctionError``.
            PipelineClosedError: The pool is not started, or closed.
            CloseTimeoutError: The pool was closed and ``fn`` is still running: what it uses is still in use.
        """
        if self._closing or self._loop is None:
            raise PipelineClosedError(
                "the thread pool is closed" if self._closing else "the thread pool is not started"
            )
        job = _Job(fn, args, self._loop.create_future())
        self._submitted += 1
        self._jobs.put(job)
        cancellation: asyncio.CancelledError | None = None
        while not job.done:
            try:
                await job.waiter
            except asyncio.CancelledError as exc:
                cancellation = cancellation or exc
                if job.done:
                    break
                if job.take():
                    self._submitted -= 1
                    job.fn, job.args = _nothing, ()
                    break
                job.waiter = self._loop.create_future()
        try:
            if job.stuck is not None:
                raise CloseTimeoutError(job.stuck)
            if cancellation is not None:
                raise cancellation
            if job.error is not None:
                raise as_raisable(job.error)
            result: T = job.result
            return result
        finally:
            job.error = None  # its traceback leads back here: do not wait for the garbage collector
            cancellation = None

    def stacks(self) -> dict[str, str]:
        """The stacks of the threads that are in a call now, by their names; from any thread."""
        running = [self._threads[i] for i in list(self._running)]
        return {thread.name: text_of(stack_of(thread.ident)) for thread in running}

    def identifiers(self) -> list[int]:
        """The identifiers of the threads that run. Any thread may ask."""
        return [thread.ident for thread in list(self._threads) if thread.ident is not None and thread.is_alive()]

    def is_current(self) -> bool:
        """Whether the caller runs in one of the threads."""
        return threading.current_thread() in self._threads

    def stats(self) -> ThreadPoolStats:
        """A snapshot."""
        running = len(self._running)
        return ThreadPoolStats(
            tasks=self._tasks_done,
            running=running,
            waiting=max(0, self._submitted - self._tasks_done - running),
            threads=len(self._threads),
        )

    async def aclose(self) -> None:
        """Ends the threads; calls that no thread has taken raise ``PipelineClosedError``.

        Cancelling it skips the time limit. Safe to call again.

        Raises:
            CloseTimeoutError: Some calls are still running after the time limit; the message names their threads and
                shows their stacks. These threads are daemons: they end with their call, or with the program.
        """
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        self._closing = True
        if self._loop is None or self._all_ended is None:
            return
        self._closed = self._loop.create_future()
        begin_s = self._loop.time()
        try:
            self._refuse_waiting()
            for _ in self._threads:
                self._jobs.put(None)
            await asyncio.wait([self._all_ended], timeout=self._close_timeout_s)
        finally:
            self._deliver()
            reports = self._report_stuck(self._loop.time() - begin_s)
            for thread in self._threads:
                if thread.name not in reports:
                    thread.join()
            self._closed.set_result(None)
        if reports:
            raise CloseTimeoutError("\n\n".join(reports.values()))

    def _refuse_waiting(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None and job.take():
                job.error = PipelineClosedError("the thread pool was closed")
                self._settle(job)

    def _report_stuck(self, after_s: float) -> dict[str, str]:
        """Names the threads that are in user code, and lets their callers go."""
        reports: dict[str, str] = {}
        for i, job in list(self._running.items()):
            thread = self._threads[i]
            stack = text_of(stack_of(thread.ident))
            text = (
                f"thread {thread.name!r} is still in user code {after_s:.1f} s after the pool was closed; "
                f"it is left behind as a daemon. Its stack:\n{stack}"
            )
            reports[thread.name] = text
            job.stuck = text
            self._settle(job)
        return reports

    # --- in the threads

    def _work(self, index: int) -> None:
        while (job := self._jobs.get()) is not None:
            self._running[index] = job
            taken = job.take()
            if taken:
                try:
                    job.result = job.fn(*job.args)
                except BaseException as exc:  # noqa: BLE001 -- raised where the call is awaited
                    job.error = exc
                job.fn, job.args = _nothing, ()
                if job.stuck is not None:
                    job.error = None  # nobody waits for it any more, and its traceback leads back here
            del self._running[index]
            if taken:
                self._tell(job)
            del job
        self._tell(None)

    def _tell(self, job: _Job | None) -> None:
        """Hands over a finished call, or None at a thread's end. First append, then look whether to wake the loop."""
        self._finished.append(job)
        if not self._woken and self._loop is not None:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed; nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver)

    # --- on the loop

    def _deliver(self) -> None:
        self._woken = False
        finished = self._finished
        while finished:
            job = finished.popleft()
            if job is None:
                self._ended += 1
                continue
            self._tasks_done += 1
            self._settle(job)
        if self._all_ended is not None and self._ended == len(self._threads) and not self._all_ended.done():
            self._all_ended.set_result(None)

    def _settle(self, job: _Job) -> None:
        job.done = True
        if not job.waiter.done():
            job.waiter.set_result(None)


def _nothing() -> None:
    """Takes the place of a function that is done, so that what it holds can go."""
