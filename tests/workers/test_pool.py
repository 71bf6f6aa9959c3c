"""Laws of the worker pool in fair weather."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import uvloop

from asyncdata.errors import FunctionTransferError, PipelineClosedError, PipelineError, WorkerDiedError
from asyncdata.testing import check, snapshot
from asyncdata.workers.messages import MAX_INLINE_BYTES
from asyncdata.workers.pool import WorkerPool
from asyncdata.workers.transfer import dump_program
from tests.patience import LIMIT_S, until
from tests.samples import samples
from tests.workers import handlers
from tests.workers.conftest import MakeKit, Meeting

TRANSPORTS = pytest.mark.parametrize("stream", [False, True], ids=["seqpacket", "stream"])


@pytest.mark.sampled
@TRANSPORTS
async def test_every_task_gets_its_own_reply(make_kit: MakeKit, stream: bool) -> None:
    """Ten thousand tasks, many at a time: each reply belongs to its payload, and the workers share them."""
    kit = await make_kit(stream=stream)
    count, clients = 10_000, 50

    async def client(first: int) -> None:
        for i in range(first, count, clients):
            assert await kit.run(handlers.same, str(i).encode()) == str(i).encode()

    async with asyncio.TaskGroup() as group:
        for first in range(clients):
            group.create_task(client(first))
    stats = kit.pool.stats()
    assert (stats.tasks, stats.in_flight, stats.waiting, stats.deaths) == (count, 0, 0, 0)
    assert all(worker.tasks > 0 for worker in stats.workers)
    assert sum(worker.tasks for worker in stats.workers) == count
    assert stats.busy_s > 0


@pytest.mark.sampled
@TRANSPORTS
@pytest.mark.parametrize("size", [0, 1, MAX_INLINE_BYTES - 1, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1, 3_000_000])
async def test_payloads_and_replies_of_any_size_arrive_whole(make_kit: MakeKit, stream: bool, size: int) -> None:
    """Bodies are delivered byte for byte, whichever way they travel."""
    kit = await make_kit(num_workers=1, stream=stream)
    payload = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert await kit.run(handlers.twice, payload) == payload * 2
    assert await kit.run(handlers.same, b"after") == b"after"


async def test_large_bodies_of_many_tasks_stay_apart(make_kit: MakeKit) -> None:
    """Descriptors of bodies under way at the same time are not mixed up."""
    kit = await make_kit(stream=True, depth=8)
    payloads = [bytes([i]) * (5000 + i) for i in range(64)]
    assert await asyncio.gather(*[kit.run(handlers.same, payload) for payload in payloads]) == payloads


async def test_a_program_may_be_large_and_reaches_each_worker_once(make_kit: MakeKit) -> None:
    """A program of megabytes works; a worker keeps it until it is unregistered."""
    kit = await make_kit()
    ballast = b"b" * 5_000_000

    def program(arena: memoryview, payload: bytes, need: Any) -> bytes:
        globals().setdefault("loads", []).append(1)
        return bytes([len(ballast) % 256, len(globals()["loads"])])

    number = kit.pool.register(dump_program(program))
    replies = [await kit.pool.run(number, b"", grant=Meeting()) for _ in range(4)]
    assert [reply[0] for reply in replies] == [len(ballast) % 256] * 4
    kit.pool.unregister(number)
    kit.pool.unregister(number)
    with pytest.raises(KeyError):
        await kit.pool.run(number, b"", grant=Meeting())
    assert await kit.run(handlers.same, b"on") == b"on"


async def test_a_program_that_cannot_be_loaded_is_a_clear_error_every_time(make_kit: MakeKit) -> None:
    """The error names what is missing, is a FunctionTransferError, and the worker goes on with other programs."""
    kit = await make_kit(num_workers=1)
    number = kit.pool.register(b"cno_such_module_anywhere\nfunction\n.")
    for _ in range(2):
        with pytest.raises(FunctionTransferError, match="no_such_module_anywhere"):
            await kit.pool.run(number, b"", grant=Meeting())
    assert await kit.run(handlers.same, b"on") == b"on"
    assert kit.pool.stats().deaths == 0


async def test_what_a_worker_writes_is_seen_at_the_granted_place(make_kit: MakeKit) -> None:
    """The arena is one memory; a grant's offset means the same on both sides."""
    kit = await make_kit()

    async def grant(nbytes: int, _slot: int) -> tuple[int, int]:
        await asyncio.sleep(0)
        return 777, nbytes

    assert await kit.run(handlers.write_at, b"written by the worker", grant=grant) == b"777"
    assert bytes(kit.arena[777 : 777 + 21]) == b"written by the worker"


@TRANSPORTS
async def test_a_task_may_ask_many_times_while_others_run_and_wait(make_kit: MakeKit, stream: bool) -> None:
    """Questions and answers of several tasks, with more tasks queued behind them, never cross."""
    kit = await make_kit(stream=stream, depth=3)
    meeting = Meeting()
    replies = await asyncio.gather(
        *[kit.run(handlers.write_payload, bytes([i]) * 20, grant=meeting) for i in range(30)]
    )
    places = [json.loads(reply) for reply in replies]
    assert sorted(itertools.chain.from_iterable(places)) == list(range(600))
    for i, offsets in enumerate(places):
        assert {kit.arena[offset] for offset in offsets} == {i}


async def test_what_grant_raises_is_what_run_raises(make_kit: MakeKit) -> None:
    """A refused grant ends the task with the parent's own exception, and the worker lives on."""
    kit = await make_kit(num_workers=1)

    class RefusedError(Exception):
        pass

    async def refuse(nbytes: int, _slot: int) -> tuple[int, int]:
        raise RefusedError(nbytes)

    with pytest.raises(RefusedError, match="64"):
        await kit.run(handlers.meet_and_fill, grant=refuse)
    assert await kit.run(handlers.keep_on_after_refusal, grant=refuse) == b"GrantDeniedError"
    assert kit.pool.stats().deaths == 0


@pytest.mark.sampled
@pytest.mark.parametrize("granted", [(0, 9), (-1, 10), (1 << 20, 10), ((1 << 20) - 9, 10)])
async def test_a_grant_outside_the_arena_or_too_small_never_reaches_the_worker(
    make_kit: MakeKit, granted: tuple[int, int]
) -> None:
    """A wrong offset would corrupt somebody's memory; it is an error instead."""
    kit = await make_kit(num_workers=1)

    async def grant(nbytes: int, _slot: int) -> tuple[int, int]:
        return granted

    with pytest.raises(ValueError, match="granted"):
        await kit.run(handlers.write_at, b"0123456789", grant=grant)


async def test_tasks_beyond_depth_wait_in_the_parent(make_kit: MakeKit, tmp_path: Path) -> None:
    """A worker holds at most ``depth`` tasks; the others are counted as waiting and follow in order."""
    kit = await make_kit(num_workers=1, depth=2)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    meeting = Meeting()
    first = kit.task(handlers.meet_and_read_fifo, os.fsencode(fifo), grant=meeting)
    await meeting.arrivals.get()
    order: list[int] = []

    async def follow(i: int) -> None:
        await kit.run(handlers.same)
        order.append(i)

    followers = [asyncio.create_task(follow(i)) for i in range(5)]
    await asyncio.sleep(0)
    stats = kit.pool.stats()
    assert (stats.in_flight, stats.waiting) == (2, 4)
    await asyncio.to_thread(fifo.write_bytes, b"go")
    assert await first == b"go"
    await asyncio.gather(*followers)
    assert order == list(range(5))


async def test_the_least_loaded_worker_gets_the_task(make_kit: MakeKit) -> None:
    """While one worker is busy, short tasks go to the other."""
    kit = await make_kit(num_workers=2, depth=4)
    meeting = Meeting()
    busy = kit.task(handlers.meet_and_block, grant=meeting)
    await meeting.arrivals.get()
    pids = {int(await kit.run(handlers.my_pid)) for _ in range(20)}
    assert len(pids) == 1
    busy.cancel()
    os.kill(next(iter(set(kit.pids()) - pids)), signal.SIGKILL)
    with pytest.raises(asyncio.CancelledError):
        await busy


async def test_workers_start_when_there_are_calls_for_them(make_kit: MakeKit) -> None:
    """One at first; as many as calls at a time, but not more than there may be."""
    kit = await make_kit(num_workers=3, first=1)
    assert len(kit.pids()) == 1
    for _ in range(3):
        assert await kit.run(handlers.same, b"x") == b"x"
    assert len(kit.pids()) == 1
    meeting = Meeting(held=True)
    tasks = [kit.task(handlers.meet_and_wait, grant=meeting) for _ in range(5)]
    for _ in range(3):
        await meeting.arrivals.get()
    assert len(kit.pids()) == 3
    assert kit.pool.load().short_s > 0
    meeting.gate.set()
    await asyncio.gather(*tasks)


async def test_workers_beyond_the_limit_end_when_they_are_idle(make_kit: MakeKit) -> None:
    """None is taken a call; their end is no death; what they used is not forgotten; and they come back."""
    kit = await make_kit(num_workers=3)
    meeting = Meeting(held=True)
    tasks = [kit.task(handlers.meet_and_wait, grant=meeting) for _ in range(3)]
    for _ in range(3):
        await meeting.arrivals.get()
    kit.pool.limit(1)
    assert len(kit.pids()) == 3
    meeting.gate.set()
    await asyncio.gather(*tasks)
    assert await asyncio.gather(*[kit.run(handlers.same, b"%d" % i) for i in range(50)]) == [
        b"%d" % i for i in range(50)
    ]
    await until(lambda: len(kit.pids()) == 1)
    stats = kit.pool.stats()
    assert (stats.deaths, stats.tasks) == (0, 53)
    assert len(stats.left) == 2
    kit.pool.limit(3)
    tasks = [kit.task(handlers.meet_and_wait, grant=meeting) for _ in range(3)]
    await asyncio.gather(*tasks)
    await until(lambda: len(kit.pids()) == 3)


async def test_workers_beyond_the_limit_end_also_where_calls_always_wait(make_kit: MakeKit) -> None:
    """They get none of these calls; one that is wanted again before it is idle goes on."""
    kit = await make_kit(num_workers=3)
    await kit.pool.ready()
    ended = asyncio.Event()

    async def client() -> None:
        while not ended.is_set():
            await kit.run(handlers.same)

    async with asyncio.TaskGroup() as clients:
        for _ in range(30):
            clients.create_task(client())
        await until(lambda: kit.pool.stats().waiting > 0)
        pids = kit.pids()
        kit.pool.limit(1)
        kit.pool.limit(3)
        assert kit.pids() == pids
        kit.pool.limit(1)
        await until(lambda: len(kit.pids()) == 1)
        kit.pool.limit(2)
        await until(lambda: len(kit.pids()) == 2)
        ended.set()
    stats = kit.pool.stats()
    assert stats.deaths == 0
    assert len(stats.left) == 2


async def test_limits_at_random_moments_lose_no_call(make_kit: MakeKit) -> None:
    """Replies belong to their payloads, whoever comes and goes."""
    kit = await make_kit(num_workers=3, first=1)
    rng = random.Random(1)

    async def client(first: int) -> None:
        for i in range(first, samples(300, 3000), 6):
            if rng.random() < 0.1:
                kit.pool.limit(rng.randint(1, 3))
            assert await kit.run(handlers.same, str(i).encode()) == str(i).encode()

    await asyncio.gather(*map(client, range(6)))
    assert kit.pool.stats().deaths == 0


async def test_a_stuck_task_holds_up_none_but_itself(make_kit: MakeKit) -> None:
    """What was queued behind it in its worker is done by another one, before the stuck task ends."""
    kit = await make_kit(2)
    held = Meeting(held=True)
    stuck = kit.task(handlers.meet_and_wait, grant=held)
    await held.arrivals.get()
    async with asyncio.timeout(LIMIT_S):
        for _ in range(3):
            done = await asyncio.gather(*(kit.run(handlers.my_pid) for _ in range(7)))
            assert len(set(done)) == 1
    assert not stuck.done()
    held.gate.set()
    await stuck
    assert len(set(await asyncio.gather(*(kit.run(handlers.my_pid) for _ in range(20))))) == 2


async def test_a_full_socket_holds_messages_back_and_loses_none(make_kit: MakeKit) -> None:
    """With a worker that does not read, messages are kept in order and sent when it reads again."""
    for stream in (False, True):
        kit = await make_kit(num_workers=1, depth=600, stream=stream)
        await kit.run(handlers.same)
        stopped = kit.pause()
        payloads = [i.to_bytes(4, "little") + bytes(4000) for i in range(600)]
        # Every tenth goes by descriptor.
        payloads[::10] = [payload + bytes(100) for payload in payloads[::10]]
        tasks = [kit.task(handlers.same, payload) for payload in payloads]
        await asyncio.sleep(0)
        (worker,) = kit.pool._workers
        assert worker._writing
        os.kill(stopped, signal.SIGCONT)
        assert await asyncio.gather(*tasks) == payloads
        assert not worker._writing


async def test_a_pool_works_in_a_thread_with_uvloop() -> None:
    """The pool needs neither the main thread nor a certain loop."""
    result: list[bytes] = []

    async def scenario() -> None:
        fd = os.memfd_create("arena")
        os.ftruncate(fd, 4096)
        pool = WorkerPool(
            arena_fd=fd, arena_bytes=4096, num_workers=2, handler="tests.workers.handlers:call_program", retries=0
        )
        await pool.start()
        await pool.ready()
        program = pool.register(dump_program(handlers.same))
        result.extend(await asyncio.gather(*[pool.run(program, b"%d" % i, grant=Meeting()) for i in range(100)]))
        killer = pool.register(dump_program(handlers.kill_me))
        with pytest.raises(WorkerDiedError):
            await pool.run(killer, b"9", grant=Meeting())
        await pool.aclose()
        os.close(fd)

    def host() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scenario())

    thread = threading.Thread(target=host)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert result == [b"%d" % i for i in range(100)]


async def test_a_process_forked_by_user_code_does_not_answer(make_kit: MakeKit) -> None:
    """Where a copy of the worker comes out of the handler, only the original replies."""
    kit = await make_kit(num_workers=1)
    assert await kit.run(handlers.fork_and_return) == b"the original"
    assert await kit.run(handlers.same, b"on") == b"on"


# --- starting and closing


async def test_start_fails_clearly_without_an_interpreter(make_kit: MakeKit) -> None:
    """The error names the interpreter; nothing is left."""
    with pytest.raises(PipelineError, match="/nowhere/python"):
        await make_kit(executable="/nowhere/python")
    with pytest.raises(PipelineError, match=r"sys\.executable is empty"):
        await make_kit(executable="")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("handler", "text"),
    [
        ("tests.workers.no_such_module:f", "No module named 'tests.workers.no_such_module'"),
        ("tests.workers.handlers:no_such_function", "no_such_function"),
    ],
)
async def test_a_handler_that_cannot_be_imported_is_a_clear_error(make_kit: MakeKit, handler: str, text: str) -> None:
    """ready() says what could not be imported; so does every call of run."""
    with pytest.raises(PipelineError, match="cannot start") as caught:
        await make_kit(handler=handler)
    assert text in str(caught.value)


async def test_workers_that_die_while_starting_are_an_error(make_kit: MakeKit) -> None:
    """An interpreter that ends at once is tried a few times before those who wait are told."""
    with pytest.raises(WorkerDiedError, match="exited with code 1"):
        await make_kit(executable="/bin/false", num_workers=1)


async def test_starts_that_failed_are_tried_again_whoever_asks_meanwhile(make_kit: MakeKit, tmp_path: Path) -> None:
    """The next start comes when it is due, however often the limit changes before."""
    broken = tmp_path / "broken"
    executable = tmp_path / "python"
    executable.write_text(f'#!/bin/sh\n[ -e {broken} ] && exit 3\nexec {sys.executable} "$@"\n')
    executable.chmod(0o755)
    kit = await make_kit(num_workers=1, executable=str(executable))
    broken.touch()
    os.kill(kit.pids()[0], signal.SIGKILL)
    with pytest.raises(PipelineError, match="in a row have failed"):
        await kit.run(handlers.same)
    broken.unlink()
    while not kit.pids():
        kit.pool.limit(1)
        await asyncio.sleep(0)
    assert await kit.run(handlers.same, b"x") == b"x"


async def test_an_arena_that_cannot_be_mapped_is_a_clear_error(tmp_path: Path) -> None:
    """A worker that cannot map the arena says so."""
    with (tmp_path / "short").open("wb+") as file:
        file.write(bytes(4096))
        file.flush()
        pool = WorkerPool(
            arena_fd=file.fileno(), arena_bytes=1 << 20, num_workers=1, handler="tests.workers.handlers:echo"
        )
        await pool.start()
        with pytest.raises(PipelineError, match="mmap length is greater than file size"):
            await pool.ready()
        with pytest.raises(PipelineError, match="mmap length"):
            await pool.run(pool.register(b"N."), b"", grant=Meeting())
        await pool.aclose()


async def test_closing_twice_and_at_the_same_time_is_one_closing(make_kit: MakeKit) -> None:
    """Every aclose returns when all is gone; run says that the pool is closed."""
    kit = await make_kit()
    pids = kit.pids()
    await asyncio.gather(kit.pool.aclose(), kit.pool.aclose())
    await kit.pool.aclose()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert kit.pool.stats().workers == ()
    with pytest.raises(PipelineClosedError):
        await kit.run(handlers.same)
    with pytest.raises(PipelineClosedError):
        await kit.pool.ready()


async def test_a_pool_that_never_started_can_be_closed_and_cannot_run() -> None:
    """start comes first; closing needs nothing."""
    pool = WorkerPool(arena_fd=0, arena_bytes=1, num_workers=1)
    number = pool.register(b"x" * 100_000)
    with pytest.raises(PipelineError, match="not started"):
        await pool.run(number, b"", grant=Meeting())
    await pool.aclose()
    with pytest.raises(PipelineClosedError):
        await pool.start()


@pytest.mark.parametrize("turns", range(0, 12, 3))
async def test_closing_during_start_leaves_nothing(turns: int) -> None:
    """Whatever start has done so far is undone; start itself says that the pool was closed."""
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    pool = WorkerPool(arena_fd=fd, arena_bytes=4096, num_workers=3, handler="tests.workers.handlers:echo")
    starting = asyncio.create_task(pool.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    await pool.aclose()
    if turns:
        with contextlib.suppress(PipelineClosedError):
            await starting
    else:
        with pytest.raises(PipelineClosedError):
            await starting
    os.close(fd)


async def test_cancelling_start_leaves_nothing_after_aclose() -> None:
    """A cancelled start is an ordinary reason to close."""
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    pool = WorkerPool(arena_fd=fd, arena_bytes=4096, num_workers=3, handler="tests.workers.handlers:echo")
    starting = asyncio.create_task(pool.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await pool.aclose()
    os.close(fd)


async def test_pools_can_be_opened_and_closed_again_and_again(make_kit: MakeKit) -> None:
    """No descriptor stays open from one pool to the next."""
    kit = await make_kit()
    await kit.pool.aclose()
    before = snapshot()
    for _ in range(samples(3, 30)):
        fd = os.memfd_create("arena")
        os.ftruncate(fd, 4096)
        pool = WorkerPool(arena_fd=fd, arena_bytes=4096, num_workers=2, handler="tests.workers.handlers:echo")
        await pool.start()
        await pool.ready()
        number = pool.register(dump_program(None))
        assert await pool.run(number, b"x" * 9999, grant=Meeting()) == b"x" * 9999
        await pool.aclose()
        os.close(fd)
    assert not check(before, only=("descriptor",))


async def test_starting_workers_does_not_hold_the_loop(make_kit: MakeKit) -> None:
    """Processes are started by a thread: the loop turns many times meanwhile."""
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    pool = WorkerPool(arena_fd=fd, arena_bytes=4096, num_workers=4, handler="tests.workers.handlers:echo")
    starting = asyncio.create_task(pool.start())
    turns = 0
    while not starting.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20
    await pool.aclose()
    os.close(fd)


def test_pools_refuse_impossible_sizes() -> None:
    """At least one worker, at least one task in it."""
    with pytest.raises(ValueError, match="num_workers"):
        WorkerPool(arena_fd=0, arena_bytes=1, num_workers=0)
    with pytest.raises(ValueError, match="depth"):
        WorkerPool(arena_fd=0, arena_bytes=1, num_workers=1, depth=0)


async def test_tasks_may_be_given_before_the_workers_are_ready() -> None:
    """They wait in the parent until a worker is there."""
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    pool = WorkerPool(arena_fd=fd, arena_bytes=4096, num_workers=2, handler="tests.workers.handlers:echo")
    await pool.start()
    number = pool.register(dump_program(None))
    replies = await asyncio.gather(*[pool.run(number, b"%d" % i, grant=Meeting()) for i in range(20)])
    assert replies == [b"%d" % i for i in range(20)]
    await pool.aclose()
    os.close(fd)


async def test_a_replacement_imports_what_the_first_workers_did_after_a_chdir(
    make_kit: MakeKit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """sys.path is taken, made absolute, when the pool is made."""
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    monkeypatch.setattr("sys.path", ["", *[entry for entry in sys.path if entry not in {"", str(Path.cwd())}]])
    kit = await make_kit(num_workers=1)
    monkeypatch.chdir(tmp_path)
    os.kill(kit.pids()[0], signal.SIGKILL)
    assert await kit.run(handlers.same, b"on") == b"on"
