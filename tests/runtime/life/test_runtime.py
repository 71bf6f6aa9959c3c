"""Laws of the Runtime's own life; what pipelines see of it is tested in tests/integration/test_runtime.py."""

from __future__ import annotations

import asyncio
import threading

import pytest

import asyncdata as ad
from asyncdata.runtime.life.runtime import Runtime, active_runtime
from asyncdata.runtime.life.threads import in_thread
from tests.patience import LIMIT_S


def test_closing_begins_without_a_lock_and_once() -> None:
    """From any number of threads, while somebody holds the lock."""
    runtime = Runtime()
    runtime.start()
    with runtime._lock:
        threads = [threading.Thread(target=runtime.begin_close) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in threads)
    runtime.close()
    runtime.close()


def test_a_pipeline_that_comes_too_late_is_refused() -> None:
    """Whether closing has begun or is over: somebody is told, and the coroutine does not wait for ever."""
    refused: list[int] = []

    async def never() -> None:
        raise AssertionError

    runtime = Runtime()
    runtime.start()
    gate, inside = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        gate.wait()

    runtime.post(hold)
    inside.wait()
    runtime.begin_close()
    runtime.run(never, lambda: refused.append(1))
    gate.set()
    runtime.close()
    runtime.run(never, lambda: refused.append(2))
    runtime.post(lambda: refused.append(3))
    assert refused == [1, 2]


def test_threads_may_close_at_the_same_time() -> None:
    """All of them return when it is gone."""
    runtime = Runtime()
    runtime.start()
    threads = [threading.Thread(target=runtime.close) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not runtime.is_usable()


def test_the_active_runtime_is_one_that_can_be_used() -> None:
    """A closed one, or the one whose loop the caller stands on, is passed over."""
    assert active_runtime() is None
    with Runtime() as runtime:
        assert active_runtime() is runtime

        async def inside() -> Runtime | None:
            return active_runtime()

        assert runtime.submit(inside()).result() is None
        runtime.close()
        assert active_runtime() is None
    assert active_runtime() is None


async def test_a_cancelled_aclose_goes_on() -> None:
    """Whoever gave up waiting has closed it all the same."""
    runtime = Runtime()
    runtime.start()
    closing = asyncio.ensure_future(runtime.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await runtime.aclose()
    assert not runtime.is_usable()


async def test_a_blocking_call_in_a_thread_that_is_gone_afterwards() -> None:
    """Its error is raised where it is awaited."""
    before = set(threading.enumerate())

    def fail() -> None:
        raise ad.CloseTimeoutError("stuck")

    with pytest.raises(ad.CloseTimeoutError):
        await in_thread(fail)
    await in_thread(lambda: None)
    assert set(threading.enumerate()) <= before


def test_closed_before_it_was_started_is_closed() -> None:
    """Entering it says so."""
    runtime = Runtime()
    runtime.close()
    with pytest.raises(ad.PipelineClosedError, match="make a new one"), runtime:
        pass
    runtime.close()
