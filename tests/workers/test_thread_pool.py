"""Laws of the thread pool."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from asyncdata.errors import CloseTimeoutError, PipelineClosedError, SystemResourceError
from asyncdata.workers.failure import UserFunctionError
from asyncdata.workers.thread_pool import ThreadPool
from tests.patience import turns, wait_until


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPool]:
    """A pool of two threads."""
    pool = ThreadPool(2)
    await pool.start()
    yield pool
    await pool.aclose()


class Gate:
    """A function that says that it runs, and returns when it may."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.entered = asyncio.Event()
        self.open = threading.Event()

    def __call__(self, value: int = 0) -> int:
        """Blocks until ``open`` is set."""
        self.loop.call_soon_threadsafe(self.entered.set)
        self.open.wait()
        return value


async def test_calls_return_what_their_function_returns(pool: ThreadPool) -> None:
    """Thousands of calls from many tasks, each with its own result, in the pool's named threads."""
    results = await asyncio.gather(*[pool.run(divmod, i, 7) for i in range(5000)])
    assert results == [divmod(i, 7) for i in range(5000)]
    names = set(await asyncio.gather(*[pool.run(lambda: threading.current_thread().name) for _ in range(50)]))
    assert names <= {"asyncdata-map-0", "asyncdata-map-1"}
    stats = pool.stats()
    assert (stats.tasks, stats.running, stats.waiting, stats.threads) == (5050, 0, 0, 2)


async def test_an_exception_is_raised_as_it_is(pool: ThreadPool) -> None:
    """Same object, with the thread's traceback."""
    error = LookupError("here")

    def fail() -> None:
        raise error

    with pytest.raises(LookupError) as caught:
        await pool.run(fail)
    assert caught.value is error
    assert any(entry.name == "fail" for entry in caught.traceback)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, GeneratorExit])
async def test_an_exception_that_would_mean_something_else_is_wrapped(
    pool: ThreadPool, kind: type[BaseException]
) -> None:
    """sys.exit in a map function ends neither thread nor loop."""

    def fail() -> None:
        raise kind("meant")

    with pytest.raises(UserFunctionError, match=f"{kind.__name__}: meant") as caught:
        await pool.run(fail)
    assert isinstance(caught.value.__cause__, kind)
    assert await pool.run(int, "5") == 5


async def test_a_cancelled_call_that_waits_never_runs(pool: ThreadPool) -> None:
    """No thread has it: run returns at once."""
    gates = [Gate(), Gate()]
    running = [asyncio.create_task(pool.run(gate, i)) for i, gate in enumerate(gates)]
    for gate in gates:
        await gate.entered.wait()
    ran: list[int] = []
    waiting = asyncio.create_task(pool.run(ran.append, 1))
    await asyncio.sleep(0)
    assert pool.stats().waiting == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pool.stats().waiting == 0
    for gate in gates:
        gate.open.set()
    assert await asyncio.gather(*running) == [0, 1]
    await pool.run(int)
    assert ran == []


async def test_a_cancelled_call_that_runs_ends_with_its_function(pool: ThreadPool) -> None:
    """While the function may still use its arguments, run does not return, however often it is cancelled."""
    gate = Gate()
    running = asyncio.create_task(pool.run(gate))
    await gate.entered.wait()
    for _ in range(3):
        running.cancel()
        await turns(20)
        assert not running.done()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_storm_of_cancellations_leaves_the_pool_whole(pool: ThreadPool) -> None:
    """A call either ran or left no trace, whichever came first."""
    ran: list[int] = []
    tasks = [asyncio.create_task(pool.run(ran.append, i)) for i in range(3000)]
    await turns(3)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    done = [i for i, result in enumerate(results) if result is None]
    assert set(done) <= set(ran)
    assert set(range(1, 3000, 2)) <= set(done)
    assert pool.stats().waiting == 0


async def test_closing_waits_for_what_runs_and_refuses_what_waits() -> None:
    """Calls that no thread has taken raise PipelineClosedError; the threads are gone afterwards."""
    pool = ThreadPool(1, name="closing")
    await pool.start()
    gate = Gate()
    running = asyncio.create_task(pool.run(gate, 3))
    await gate.entered.wait()
    waiting = asyncio.create_task(pool.run(int, "1"))
    await asyncio.sleep(0)
    closings = [asyncio.create_task(pool.aclose()) for _ in range(2)]
    with pytest.raises(PipelineClosedError):
        await waiting
    assert not any(closing.done() for closing in closings)
    gate.open.set()
    assert await running == 3
    await asyncio.gather(*closings)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("closing")]
    with pytest.raises(PipelineClosedError):
        await pool.run(int)
    with pytest.raises(PipelineClosedError):
        await pool.start()


async def test_closing_reports_a_stuck_thread_by_name_with_its_stack() -> None:
    """After the time limit the error shows where the thread is; run says that its arguments are still in use."""
    pool = ThreadPool(2, close_timeout_s=0.05, name="stuck")
    await pool.start()
    release = threading.Event()
    entered = threading.Event()

    def the_users_function() -> None:
        entered.set()
        release.wait()

    running = asyncio.create_task(pool.run(the_users_function))
    await asyncio.to_thread(entered.wait)
    with pytest.raises(CloseTimeoutError, match=r"thread 'stuck-[01]'") as caught:
        await pool.aclose()
    assert "in the_users_function" in str(caught.value)
    with pytest.raises(CloseTimeoutError, match="the_users_function"):
        await running
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("stuck")]
    assert len(threads) == 1
    assert threads[0].daemon
    release.set()
    await asyncio.to_thread(threads[0].join)


async def test_cancelling_aclose_skips_the_waiting() -> None:
    """A cancelled aclose reports nobody as missing a limit it did not wait for, and leaves the thread as a daemon."""
    pool = ThreadPool(1, close_timeout_s=1000, name="hurry")
    await pool.start()
    gate = Gate()
    running = asyncio.create_task(pool.run(gate))
    await gate.entered.wait()
    closing = asyncio.create_task(pool.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(CloseTimeoutError):
        await running
    gate.open.set()
    for thread in threading.enumerate():
        if thread.name.startswith("hurry"):
            await asyncio.to_thread(thread.join)


async def test_what_a_call_held_is_released_with_its_result(pool: ThreadPool) -> None:
    """Neither pool nor thread keeps arguments or results of a finished call."""

    class Held:
        pass

    held = Held()
    count = sys.getrefcount(held)
    await pool.run(lambda value: value, held)
    for _ in range(1000):
        # The thread lets go of a call when it takes the next, or waits for it: which thread that is nobody knows.
        await pool.run(int)
        if sys.getrefcount(held) == count:
            break
    assert sys.getrefcount(held) == count


def test_a_thread_that_outlives_its_loop_ends_quietly() -> None:
    """A call that returns after the loop was closed disturbs nobody."""
    release = threading.Event()
    entered = threading.Event()

    def late() -> None:
        entered.set()
        release.wait()

    async def scenario() -> None:
        pool = ThreadPool(1, close_timeout_s=0.01, name="late")
        await pool.start()
        running = asyncio.create_task(pool.run(late))
        await asyncio.to_thread(entered.wait)
        with pytest.raises(CloseTimeoutError):
            await pool.aclose()
        with pytest.raises(CloseTimeoutError):
            await running

    asyncio.run(scenario())
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("late"):
            thread.join()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_many_completions_share_a_wake_up(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """While the loop is busy, finished calls gather, and one callback delivers them all."""

    async def scenario() -> None:
        pool = ThreadPool(2)
        await pool.start()
        delivered = 0
        deliver = pool._deliver

        def counted() -> None:
            nonlocal delivered
            delivered += 1
            deliver()

        pool._deliver = counted  # type: ignore[method-assign]  # counts the callbacks
        calls = [asyncio.ensure_future(pool.run(int, "1")) for _ in range(100)]
        await asyncio.sleep(0)
        wait_until(lambda: len(pool._finished) == 100)  # the loop stands still meanwhile
        assert await asyncio.gather(*calls) == [1] * 100
        assert delivered <= 2
        await pool.aclose()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


async def test_a_pool_that_never_started_can_be_closed_and_cannot_run() -> None:
    """start comes first; closing needs nothing; a pool has at least one thread."""
    pool = ThreadPool(1)
    with pytest.raises(PipelineClosedError, match="not started"):
        await pool.run(int)
    await pool.aclose()
    with pytest.raises(ValueError, match="num_threads"):
        ThreadPool(0)


@pytest.mark.parametrize("started", [0, 1])
async def test_threads_that_cannot_be_started(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls run in those that could; without any, the pool is not started."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == f"asyncdata-map-{started}":
            raise RuntimeError("can't start new thread")
        start(thread)

    pool = ThreadPool(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(SystemResourceError, match="threads cannot be started"):
            await pool.start()
    assert pool.is_started == bool(started)
    if not started:
        with pytest.raises(PipelineClosedError, match="not started"):
            await pool.run(int, "5")
        await pool.start()
    assert await pool.run(int, "5") == 5
    assert pool.stats().threads == (started or 2)
    await pool.aclose()
    assert not pool.identifiers()
