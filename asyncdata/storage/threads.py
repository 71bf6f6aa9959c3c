"""Blocking jobs in a few threads, such that a cancelled caller still leaves no job writing behind its back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

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


async def until_done(future: asyncio.Future[T]) -> None:
    """Waits for the end of a job that cannot be interrupted, through any number of further cancellations."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # retrieved: the caller was cancelled and nobody else will look
