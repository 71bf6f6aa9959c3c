"""Blocking jobs in a few threads, such that a cancelled caller still leaves no job writing behind its back.

`run_apart` is for what writes nowhere, and may hang for ever in a library that knows no limit of time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class ThreadJobs:
    """A small thread pool with one owner.

    ``run`` returns, raises or is cancelled only after its job has ended or will never start: a buffer given to the job
    may be reused at once. Threads start on demand and end in ``aclose``.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_threads, thread_name_prefix=name)
        self._running: set[asyncio.Future[Any]] = set()

    async def run(self, job: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the job in a thread; a cancellation waits until it is over."""
        submitted = self._executor.submit(job, *args, **kwargs)
        future = asyncio.wrap_future(submitted)
        self._running.add(future)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not submitted.cancel():
                await until_done(future)
            raise
        finally:
            self._running.discard(future)

    async def aclose(self) -> None:
        """Waits for running jobs, then for the threads, which are idle by then."""
        if self._running:
            await asyncio.wait(set(self._running))
        self._executor.shutdown(wait=True)


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
