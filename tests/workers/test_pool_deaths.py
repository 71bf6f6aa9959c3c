"""Laws of the worker pool when workers die, tasks are cancelled, and code does not come back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncdata.errors import CloseTimeoutError, PipelineClosedError, SystemResourceError, WorkerDiedError
from asyncdata.testing import procfs
from tests.patience import turns, until
from tests.samples import samples
from tests.workers import handlers
from tests.workers.conftest import Kit, MakeKit, Meeting

PIDFD = pytest.mark.parametrize("pidfd", [True, False], ids=["pidfd", "thread"])


async def until_replaced(kit: Kit, deaths: int) -> None:
    """Waits until the pool has noticed so many deaths and is complete again."""
    await until(lambda: kit.pool.stats().deaths >= deaths)
    await kit.pool.ready()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(procfs.descriptors()) + 2, limits[1]))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def make_fifo(directory: Path) -> Path:
    fifo = directory / "fifo"
    os.mkfifo(fifo)
    return fifo


# --- deaths


@pytest.mark.sampled
@PIDFD
async def test_an_idle_worker_that_is_killed_is_replaced(make_kit: MakeKit, pidfd: bool) -> None:
    """The pool is complete again, counts the death and says how it came."""
    kit = await make_kit(pidfd=pidfd)
    victim = kit.pids()[0]
    os.kill(victim, signal.SIGKILL)
    await until_replaced(kit, 1)
    assert victim not in kit.pids()
    assert len(kit.pids()) == 2
    assert "SIGKILL" in kit.pool.stats().last_death
    assert await kit.run(handlers.same, b"on") == b"on"


@PIDFD
async def test_a_task_whose_worker_dies_runs_again_from_the_start(
    make_kit: MakeKit, pidfd: bool, tmp_path: Path
) -> None:
    """The second attempt asks for grants of its own."""
    kit = await make_kit(pidfd=pidfd)
    granted: list[int] = []

    async def grant(nbytes: int, _slot: int) -> tuple[int, int]:
        granted.append(1000 * (1 + len(granted)))
        return granted[-1], nbytes

    reply = await kit.run(handlers.kill_me_once, os.fsencode(tmp_path / "mark"), grant=grant)
    assert reply == b"2000"
    assert granted == [1000, 2000]
    assert bytes(kit.arena[1000:1004]) == b"dead"
    assert bytes(kit.arena[2000:2004]) == b"live"
    assert kit.pool.stats().deaths == 1


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("program", "payload", "text"),
    [
        (handlers.kill_me, b"%d" % signal.SIGKILL, "killed by SIGKILL"),
        (handlers.kill_me, b"%d" % signal.SIGTERM, "killed by SIGTERM"),
        (handlers.exit_now, b"3", "exited with code 3"),
        (handlers.exit_now, b"0", "exited with code 0"),
        # It may notice first that nobody is there any more.
        (handlers.close_everything, b"", "killed by SIGKILL|exited with code 0"),
    ],
)
@pytest.mark.parametrize("retries", [0, 1])
async def test_a_task_that_kills_its_workers_fails_in_the_end(
    make_kit: MakeKit, program: Any, payload: bytes, text: str, retries: int
) -> None:
    """After ``1 + retries`` workers the error says how they ended, and the pool goes on."""
    kit = await make_kit(num_workers=1, retries=retries)
    with pytest.raises(WorkerDiedError, match=text) as caught:
        await kit.run(program, payload)
    assert caught.value.attempts == 1 + retries
    assert kit.pool.stats().deaths == 1 + retries
    assert await kit.run(handlers.same, b"on") == b"on"


async def test_a_crash_in_native_code_shows_the_python_stack(make_kit: MakeKit) -> None:
    """A segmentation fault names the line of user code that led to it."""
    kit = await make_kit(num_workers=1, retries=0)
    with pytest.raises(WorkerDiedError, match="SIGSEGV") as caught:
        await kit.run(handlers.crash)
    assert "handlers.py" in str(caught.value)
    assert "in crash" in str(caught.value)


async def test_tasks_that_only_waited_in_a_dead_worker_are_not_blamed(make_kit: MakeKit) -> None:
    """A task behind one that kills its worker moves on, without using up its own tries."""
    kit = await make_kit(num_workers=1, depth=4, retries=0)
    killer = kit.task(handlers.kill_me, b"9")
    innocent = [kit.task(handlers.same, b"%d" % i) for i in range(3)]
    with pytest.raises(WorkerDiedError):
        await killer
    assert await asyncio.gather(*innocent) == [b"0", b"1", b"2"]


async def test_a_worker_killed_while_it_waits_for_a_grant_is_replaced(make_kit: MakeKit) -> None:
    """The grant that comes too late is not sent; the task runs again and asks again."""
    kit = await make_kit(num_workers=1)
    meeting = Meeting(held=True)
    task = kit.task(handlers.write_at, b"12345", grant=meeting)
    await meeting.arrivals.get()
    os.kill(kit.pids()[0], signal.SIGKILL)
    await until_replaced(kit, 1)
    meeting.gate.set()
    assert await task == b"5"
    assert meeting.asked == [5, 5]


@pytest.mark.sampled
@pytest.mark.parametrize("stream", [False, True], ids=["seqpacket", "stream"])
async def test_a_worker_killed_while_messages_are_held_back_loses_no_task(make_kit: MakeKit, stream: bool) -> None:
    """Messages that could not be sent yet are sent to another worker."""
    kit = await make_kit(num_workers=1, depth=500, stream=stream)
    victim = kit.pause()
    payloads = [i.to_bytes(4, "little") * (1024 if i % 7 else 990) for i in range(500)]
    tasks = [kit.task(handlers.same, payload) for payload in payloads]
    await asyncio.sleep(0)
    os.kill(victim, signal.SIGKILL)
    assert await asyncio.gather(*tasks) == payloads


async def test_a_reply_sent_before_death_counts(make_kit: MakeKit) -> None:
    """What a worker finished is not done again, though its death is noticed before its reply is read."""
    kit = await make_kit(num_workers=1, retries=0)
    (worker,) = kit.pool._workers
    asyncio.get_running_loop().remove_reader(worker._tasks.fileno())
    task = kit.task(handlers.same, b"in time")
    await asyncio.sleep(0)
    select.select([worker._tasks.fileno()], [], [])
    os.kill(worker.pid, signal.SIGKILL)
    assert await task == b"in time"
    await until_replaced(kit, 1)


async def test_a_descendant_that_holds_the_descriptors_hides_no_death(make_kit: MakeKit, tmp_path: Path) -> None:
    """A worker is dead when its process is, though a copy of its sockets stays open elsewhere."""
    kit = await make_kit(num_workers=1, retries=0)
    fifo = make_fifo(tmp_path)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        await kit.run(handlers.leave_a_descendant, os.fsencode(fifo))
    assert await kit.run(handlers.same, b"on") == b"on"
    await asyncio.to_thread(fifo.write_bytes, b"end")


async def test_a_long_reply_without_descriptors_is_an_error_of_the_task(make_kit: MakeKit) -> None:
    """A worker that has no descriptor left for a long reply says so, or dies; nothing hangs."""
    kit = await make_kit(num_workers=1)
    with pytest.raises(OSError, match="Too many open files"):
        await kit.run(handlers.fill_descriptor_table)


@pytest.mark.parametrize("stream", [False, True], ids=["seqpacket", "stream"])
async def test_a_pool_without_descriptors_ends_no_worker(make_kit: MakeKit, stream: bool) -> None:
    """What it cannot receive is an error of that call; the worker has done its part, and does the next one."""
    kit = await make_kit(num_workers=1, stream=stream)
    pids = kit.pids()
    assert await kit.run(handlers.twice, b"x") == b"xx"
    with no_descriptors(), pytest.raises(SystemResourceError, match=r"cannot be received.*ulimit -n"):
        await kit.run(handlers.twice, bytes(3000))
    assert await kit.run(handlers.twice, bytes(3000)) == bytes(6000)
    assert (kit.pids(), kit.pool.stats().deaths) == (pids, 0)


async def test_a_host_program_that_reaps_all_children_does_no_harm(make_kit: MakeKit) -> None:
    """Where SIGCHLD is ignored the exit status is unknown; the death is seen all the same."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        kit = await make_kit(num_workers=1, retries=0)
        with pytest.raises(WorkerDiedError, match="ended"):
            await kit.run(handlers.kill_me, b"9")
        assert await kit.run(handlers.same, b"on") == b"on"
        await kit.pool.aclose()
    finally:
        signal.signal(signal.SIGCHLD, previous)


async def test_every_task_is_answered_while_workers_are_killed_at_random_moments(make_kit: MakeKit) -> None:
    """Killing workers all the time delays tasks and loses none."""
    kit = await make_kit(num_workers=2, retries=1000)
    count = samples(2_000, 50_000)
    done = 0
    kills = 0

    async def client(first: int) -> None:
        nonlocal done, kills
        for i in range(first, count, 8):
            payload = b"%d" % i
            if i % 5 == 0:
                assert await kit.run(handlers.write_at, payload)
            else:
                assert await kit.run(handlers.same, payload) == payload
            done += 1
            if done % (count // 20) == 0:
                for pid in kit.pids()[:1]:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1

    await asyncio.gather(*[client(first) for first in range(8)])
    assert done == count
    assert kills >= 5


# --- cancellation


async def test_a_cancelled_task_that_no_worker_has_ends_at_once(make_kit: MakeKit) -> None:
    """It is taken out of the queue; the others keep their order."""
    kit = await make_kit(num_workers=1, depth=1)
    meeting = Meeting(held=True)
    running = kit.task(handlers.write_at, b"x", grant=meeting)
    await meeting.arrivals.get()
    waiting = kit.task(handlers.same, b"waiting")
    last = kit.task(handlers.same, b"last")
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert kit.pool.stats().waiting == 1
    meeting.gate.set()
    assert await running == b"0"
    assert await last == b"last"
    assert kit.pool.stats().tasks == 2


async def test_a_cancelled_task_behind_a_running_one_is_withdrawn(make_kit: MakeKit, tmp_path: Path) -> None:
    """A task that its worker has but has not begun never runs, and run need not wait for the one in front."""
    kit = await make_kit(num_workers=1, depth=2)
    fifo = make_fifo(tmp_path)
    meeting = Meeting()
    running = kit.task(handlers.meet_and_read_fifo, os.fsencode(fifo), grant=meeting)
    await meeting.arrivals.get()
    mark = tmp_path / "mark"
    queued = kit.task(handlers.touch, os.fsencode(mark))
    await asyncio.sleep(0)
    assert kit.pool.stats().in_flight == 2
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    assert not running.done()
    assert kit.pool.stats().in_flight == 1
    await asyncio.to_thread(fifo.write_bytes, b"go")
    assert await running == b"go"
    assert await kit.run(handlers.same, b"on") == b"on"
    assert not mark.exists()


async def test_a_cancelled_running_task_ends_only_with_its_reply(make_kit: MakeKit, tmp_path: Path) -> None:
    """While the worker may still use the memory, run does not return, however often it is cancelled."""
    kit = await make_kit(num_workers=1)
    fifo = make_fifo(tmp_path)
    meeting = Meeting()
    running = kit.task(handlers.meet_and_read_fifo, os.fsencode(fifo), grant=meeting)
    await meeting.arrivals.get()
    for _ in range(3):
        running.cancel()
        await turns(20)
        assert not running.done()
    await asyncio.to_thread(fifo.write_bytes, b"go")
    with pytest.raises(asyncio.CancelledError):
        await running
    assert kit.pool.stats().deaths == 0


@pytest.mark.sampled
@pytest.mark.parametrize("program", [handlers.meet_and_fill, handlers.meet_and_hold_the_gil])
async def test_a_cancelled_task_that_does_not_end_costs_its_process(
    make_kit: MakeKit, program: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """After the time limit the process is killed and reaped, its stack is logged, and nobody writes any more."""
    kit = await make_kit(num_workers=1, close_timeout_s=0.1)
    meeting = Meeting()
    running = kit.task(program, grant=meeting)
    await meeting.arrivals.get()
    victim = kit.pids()[0]
    with caplog.at_level(logging.WARNING):
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with pytest.raises(ProcessLookupError):
        os.kill(victim, 0)
    assert f"in {program.__name__}" in caplog.text
    kit.arena[0:64] = bytes(64)
    assert await kit.run(handlers.same, b"on") == b"on"
    assert bytes(kit.arena[0:64]) == bytes(64)


async def test_a_task_cancelled_while_its_grant_is_awaited_frees_the_worker(make_kit: MakeKit) -> None:
    """The worker is told that nothing will be granted; it dies for it not."""
    kit = await make_kit(num_workers=1)
    meeting = Meeting(held=True)
    task = kit.task(handlers.write_at, b"x", grant=meeting)
    await meeting.arrivals.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await kit.run(handlers.same, b"on") == b"on"
    assert kit.pool.stats().deaths == 0


async def test_a_task_that_asks_after_it_was_cancelled_is_refused(make_kit: MakeKit) -> None:
    """Between cancelling and the end, grant is not called again."""
    kit = await make_kit(num_workers=1)
    meeting = Meeting()
    stopped = kit.pause()
    task = kit.task(handlers.write_at, b"x", grant=meeting)
    await asyncio.sleep(0)
    (worker,) = kit.pool._workers
    worker.withdraw = lambda _: None  # as if the task had begun just before
    task.cancel()
    await asyncio.sleep(0)
    os.kill(stopped, signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert meeting.asked == []
    assert kit.pool.stats().deaths == 0


async def test_a_storm_of_cancellations_leaves_the_pool_whole(make_kit: MakeKit) -> None:
    """Thousands of tasks cancelled in every state; afterwards the pool is idle and works."""
    kit = await make_kit(num_workers=2, depth=3)
    for stride in (1, 2, 3):
        tasks = [kit.task(handlers.same if i % 2 else handlers.write_at, b"%d" % i) for i in range(1000)]
        for turn in range(stride):
            await turns(20 * turn)
        for task in tasks[::stride]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for i, result in enumerate(results):
            assert isinstance(result, bytes) or (i % stride == 0 and isinstance(result, asyncio.CancelledError))
    stats = kit.pool.stats()
    assert (stats.in_flight, stats.waiting, stats.deaths) == (0, 0, 0)
    assert await kit.run(handlers.same, b"on") == b"on"


async def test_a_task_cancelled_as_its_worker_dies_does_not_run_again(make_kit: MakeKit) -> None:
    """Cancelled is cancelled: no second attempt."""
    kit = await make_kit(num_workers=1)
    meeting = Meeting()
    task = kit.task(handlers.meet_and_block, grant=meeting)
    await meeting.arrivals.get()
    task.cancel()
    os.kill(kit.pids()[0], signal.SIGKILL)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert meeting.asked == [1]


# --- closing


async def test_closing_lets_the_running_task_end_and_stops_the_others(make_kit: MakeKit, tmp_path: Path) -> None:
    """The task that runs may finish and keeps its reply; what waits for a worker never begins and raises."""
    kit = await make_kit(num_workers=1, depth=2)
    fifo = make_fifo(tmp_path)
    mark = tmp_path / "mark"
    meeting = Meeting()
    running = kit.task(handlers.meet_and_read_fifo, os.fsencode(fifo), grant=meeting)
    await meeting.arrivals.get()
    behind = [kit.task(handlers.touch, os.fsencode(mark)) for _ in range(4)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(kit.pool.aclose())
    await turns(20)
    assert not closing.done()
    await asyncio.to_thread(fifo.write_bytes, b"go")
    await closing
    assert await running == b"go"
    outcomes = await asyncio.gather(*behind, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, PipelineClosedError)]
    # One lies at the worker, where another thread hears of the end: on a busy machine that may be too late.
    assert len(refused) >= 3, outcomes
    assert mark.exists() == (len(refused) == 3)
    assert kit.pool.stats().deaths == 0


async def test_closing_ends_a_task_that_waits_for_a_grant(make_kit: MakeKit) -> None:
    """Its worker ends at once; run raises when the grant comes back."""
    kit = await make_kit(num_workers=1)
    meeting = Meeting(held=True)
    task = kit.task(handlers.write_at, b"x", grant=meeting)
    await meeting.arrivals.get()
    await kit.pool.aclose()
    meeting.gate.set()
    with pytest.raises(PipelineClosedError):
        await task


@pytest.mark.sampled
@PIDFD
@pytest.mark.parametrize("program", [handlers.meet_and_block, handlers.meet_and_hold_the_gil])
async def test_closing_reports_code_that_does_not_come_back(make_kit: MakeKit, program: Any, pidfd: bool) -> None:
    """After the time limit the processes are gone, and the error names pid, function and line."""
    kit = await make_kit(num_workers=2, close_timeout_s=0.1, pidfd=pidfd)
    meeting = Meeting()
    task = kit.task(program, grant=meeting)
    await meeting.arrivals.get()
    pids = kit.pids()
    busy = next(worker.pid for worker in kit.pool.stats().workers if worker.in_flight)
    with pytest.raises(CloseTimeoutError, match=f"pid {busy}") as caught:
        await kit.pool.aclose()
    assert f"in {program.__name__}" in str(caught.value)
    assert len([pid for pid in pids if f"pid {pid}" in str(caught.value)]) == 1
    with pytest.raises(PipelineClosedError):
        await task
    await kit.pool.aclose()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_closing_ends_a_stopped_worker(make_kit: MakeKit) -> None:
    """A process that cannot even take SIGABRT is killed."""
    kit = await make_kit(num_workers=1, close_timeout_s=0.05)
    kit.pause()
    with pytest.raises(CloseTimeoutError):
        await kit.pool.aclose()


async def test_cancelling_aclose_skips_the_waiting_not_the_cleaning(make_kit: MakeKit) -> None:
    """A cancelled aclose kills at once, reaps, and only then raises CancelledError."""
    kit = await make_kit(num_workers=2, close_timeout_s=1000)
    meeting = Meeting()
    task = kit.task(handlers.meet_and_block, grant=meeting)
    await meeting.arrivals.get()
    pids = kit.pids()
    closing = asyncio.create_task(kit.pool.aclose())
    await turns(20)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(PipelineClosedError):
        await task
