"""Blocking jobs in a few threads. After a caller was cancelled, no job of it writes any more.

`run_apart` is for jobs that write nowhere and may hang forever in a library without time limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from asyncdata.errors import PipelineClosedError

P = ParamSpec("P")
T = TypeVar("T")


class _Job:
    """One call, on its way into a thread and back to its loop."""

    __slots__ = ("_call", "_claims", "_loop", "ended", "error", "result", "waiter")

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self._claims = [self]
        self.waiter: asyncio.Future[None] = loop.create_future()
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    def claim(self) -> bool:
        """True for the first who asks: a thread that begins, or a caller who was cancelled before."""
        try:
            self._claims.pop()  # one step, whichever thread takes it
        except IndexError:
            return False
        return True

    def run(self) -> None:
        """In a thread."""
        if not self.claim():
            return
        try:
            self.result = self._call()
        except BaseException as caught:  # noqa: BLE001 -- raised where it is awaited
            self.error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended, and everybody who waited
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.ended = True
        if not self.waiter.done():
            self.waiter.set_result(None)

    async def stopped(self) -> None:
        """Returns when it will not run any more, through any number of further cancellations."""
        if self.claim():
            return
        while not self.ended:
            self.waiter = self._loop.create_future()
            with contextlib.suppress(asyncio.CancelledError):
                await self.waiter


class ThreadJobs:
    """A small thread pool with one owner, for one event loop.

    ``run`` returns, raises or is cancelled only after its job has ended or will never start: a buffer given to the job
    may be reused at once. Threads start on demand and end in ``aclose``. A job costs two hand-overs and little else.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._calls = 0
        self._none_left: asyncio.Event | None = None
        self._closed = False

    async def run(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the job in a thread; a cancellation waits until it is over."""
        if self._closed:
            raise PipelineClosedError("the storage layer was closed")
        mine = _Job(functools.partial(job, *args, **kwargs), asyncio.get_running_loop())
        self._calls += 1
        try:
            if self._calls > len(self._threads) and len(self._threads) < self._max_threads:
                self._add_thread()
            self._queue.put(mine)
            try:
                await mine.waiter
            except asyncio.CancelledError:
                await mine.stopped()
                raise
        finally:
            self._calls -= 1
            if not self._calls and self._none_left is not None:
                self._none_left.set()
        error, mine.error = mine.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback leads back to this frame
        return cast("T", mine.result)

    async def aclose(self) -> None:
        """Waits for running jobs, then for the threads, which are idle by then."""
        self._closed = True
        if self._calls:
            self._none_left = asyncio.Event()
            await self._none_left.wait()
        for _ in self._threads:
            self._queue.put(None)
        while self._threads:
            self._threads.pop().join()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
            return  # those that there are will do
        self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run()
            del job


async def run_apart(job: Callable[[], T], name: str) -> T:
    """Runs a job in a thread of its own; a cancelled caller leaves it to itself, and so does the interpreter's exit.

    Args:
        job: Writes nowhere that anybody else uses.
        name: Of the thread.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = job()
        except BaseException as caught:  # noqa: BLE001 -- raised where it is awaited
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended, and everybody who waited
            loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    result, error = await done
    thread.join()  # it has nothing left to do
    if error is not None:
        raise error
    return cast("T", result)


async def until_done(future: asyncio.Future[T]) -> None:
    """Waits for the end of a job that cannot be interrupted, through any number of further cancellations."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # retrieved: the caller was cancelled and nobody else will look
