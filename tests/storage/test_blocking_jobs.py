from __future__ import annotations

import asyncio
import threading

import pytest

from asyncdata.storage.blocking_jobs import ThreadJobs
from tests.patience import LIMIT_S


async def test_a_cancelled_caller_waits_for_its_job() -> None:
    """A buffer given to a job may be reused as soon as the caller is back, cancelled or not, however often."""
    jobs = ThreadJobs(1, "test-jobs")
    started, go = threading.Event(), threading.Event()
    ended = []

    def job() -> None:
        started.set()
        go.wait(LIMIT_S)
        ended.append(True)

    task = asyncio.create_task(jobs.run(job))
    await asyncio.to_thread(started.wait, 10)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    await jobs.aclose()


async def test_a_job_that_has_not_started_never_starts_after_cancellation() -> None:
    """Cancelling a queued job returns at once and the job is dropped."""
    jobs = ThreadJobs(1, "test-jobs")
    started, go = threading.Event(), threading.Event()
    ran: list[int] = []

    def first() -> None:
        started.set()
        go.wait(LIMIT_S)

    holder = asyncio.create_task(jobs.run(first))
    await asyncio.to_thread(started.wait, 10)
    queued = asyncio.create_task(jobs.run(ran.append, 1))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    go.set()
    await holder
    await jobs.run(int)
    assert ran == []
    await jobs.aclose()


async def test_results_and_errors_come_back() -> None:
    """A job's return value and exception are the caller's, also of a job that fails after a cancellation."""
    jobs = ThreadJobs(2, "test-jobs")
    assert await jobs.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await jobs.run(divmod, 7, 0)
    await jobs.aclose()
