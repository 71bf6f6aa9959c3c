"""Laws of a loop in a thread of its own: tasks end with it, calls reach it or say that it is gone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest
import uvloop

from asyncdata.runtime.life import loops
from asyncdata.runtime.life.loops import LoopThread
from tests.patience import LIMIT_S


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """One that runs."""
    thread = LoopThread("test-loop")
    thread.start()
    yield thread
    thread.stop()
    thread.join()


async def double(x: int) -> int:
    """Some work."""
    await asyncio.sleep(0)
    return 2 * x


async def fail() -> None:
    """Some failure."""
    await asyncio.sleep(0)
    raise ValueError("on the loop")


def test_submit_returns_results_and_errors(thread: LoopThread) -> None:
    """From any other thread."""
    assert thread.submit(double(4)).result() == 8
    with pytest.raises(ValueError, match="on the loop"):
        thread.submit(fail()).result()
    assert thread.submit(double(5)).result() == 10


def test_submit_survives_what_would_end_a_loop(thread: LoopThread) -> None:
    """SystemExit and KeyboardInterrupt are results like others."""

    async def leave(kind: type[BaseException]) -> None:
        raise kind

    for kind in (SystemExit, KeyboardInterrupt):
        with pytest.raises(kind):
            thread.submit(leave(kind)).result()
    assert thread.submit(double(1)).result() == 2


def test_cancelling_the_future_cancels_the_coroutine(thread: LoopThread) -> None:
    """Whether it has begun or not."""
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = thread.submit(wait())
    begun.wait()
    assert future.cancel()
    assert ended.wait(LIMIT_S)
    early = thread.submit(wait())
    early.cancel()
    assert thread.submit(double(1)).result() == 2


def test_stopping_waits_for_tasks(thread: LoopThread) -> None:
    """What was spawned is finished, not dropped."""
    gate: list[asyncio.Event] = []
    results: list[int] = []

    async def work() -> None:
        gate.append(asyncio.Event())
        started.set()
        await gate[0].wait()
        results.append(1)

    started = threading.Event()
    thread.call(lambda: thread.spawn(work()))
    started.wait()
    thread.stop()
    assert thread.is_alive()
    thread.call(gate[0].set)
    thread.join()
    assert results == [1]
    assert not thread.is_alive()


def test_a_loop_that_has_ended_says_so() -> None:
    """Calls are refused; stopping again and joining again are nothing."""
    thread = LoopThread("test-loop")
    order: list[str] = []
    thread.after_end(lambda: order.append("first"))
    thread.after_end(lambda: order.append("second"))
    thread.start()
    thread.stop()
    thread.join()
    assert order == ["first", "second"]
    thread.call(lambda: order.append("called"), refused=lambda: order.append("refused"))
    assert order == ["first", "second", "refused"]
    with pytest.raises(RuntimeError, match="has ended"):
        thread.submit(double(1)).result(10.0)
    thread.stop()
    thread.join()
    assert thread.answers(0.1)


def test_a_call_to_a_loop_that_is_about_to_end_is_made_or_refused() -> None:
    """A loop takes calls after its last turn and never makes them; whoever waits for one would wait for ever."""
    thread = LoopThread("test-loop")
    thread.start()
    outcomes: list[str] = []
    late: list[concurrent.futures.Future[int]] = []

    class Late:
        """The loop, and somebody who calls it between its last turn and its end."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop

        def __getattr__(self, name: str) -> object:
            return getattr(self._loop, name)

        def close(self) -> None:
            thread.call(lambda: outcomes.append("called"), refused=lambda: outcomes.append("refused"))
            late.append(thread.submit(double(1)))
            self._loop.close()

    thread.loop = cast("asyncio.AbstractEventLoop", Late(thread.loop))
    thread.end()
    assert outcomes == ["refused"]
    with pytest.raises(RuntimeError, match="has ended"):
        late[0].result(10.0)


def test_a_thread_that_was_never_started_has_nothing_to_close() -> None:
    """There is no loop yet; whoever was interrupted before the start may end it all the same."""
    thread = LoopThread("test-loop")
    thread.end()
    assert not hasattr(thread, "loop")


def test_a_thread_that_is_told_to_end_while_it_starts_ends() -> None:
    """Whether its loop runs already or not."""
    thread = LoopThread("test-loop")
    thread.stop()
    thread.start()
    thread.join()
    assert thread.loop.is_closed()
    thread.end()


def test_a_loop_that_cannot_be_made_is_an_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors may have run out; the thread has ended then."""

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(uvloop, "new_event_loop", refuse)
    thread = LoopThread("test-loop")
    with pytest.raises(OSError, match="Too many"):
        thread.start()
    thread.end()
    assert not thread.is_alive()


def test_what_user_code_left_behind_ends_with_the_loop() -> None:
    """Tasks nobody waits for, async generators half read, and threads of ``to_thread``."""
    thread = LoopThread("test-loop")
    thread.start()
    seen: list[str] = []

    async def forgotten() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("task")

    async def generator() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            seen.append("generator")

    async def leave() -> None:
        kept.append(asyncio.ensure_future(forgotten()))
        iterator = generator()
        kept.append(iterator)
        await anext(iterator)
        await asyncio.to_thread(seen.append, "thread")

    kept: list[object] = []
    before = set(threading.enumerate())
    thread.submit(leave()).result()
    thread.stop()
    thread.join()
    assert sorted(seen) == ["generator", "task", "thread"]
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("asyncio_")]


def test_a_stuck_loop_does_not_answer_and_shows_its_stack(thread: LoopThread) -> None:
    """Where it is stuck can be read from outside."""
    gate, inside = threading.Event(), threading.Event()

    def stuck_here() -> None:
        inside.set()
        gate.wait()

    assert thread.answers(10)
    thread.call(stuck_here)
    inside.wait()
    assert not thread.answers(0.02)
    assert "stuck_here" in thread.stack()
    gate.set()
    assert thread.answers(10)


def test_only_its_own_thread_is_current(thread: LoopThread) -> None:
    """Also after another thread got the identifier of one that has ended."""

    async def inside() -> bool:
        return thread.is_current()

    assert thread.submit(inside()).result()
    assert not thread.is_current()
    thread.stop()
    thread.join()
    later: list[bool] = []
    for _ in range(10):
        other = threading.Thread(target=lambda: later.append(thread.is_current()))
        other.start()
        other.join()
    assert later == [False] * 10


def test_tasks_are_described_down_to_where_they_wait(thread: LoopThread) -> None:
    """Through every await, not only the outermost frame."""

    async def innermost() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await innermost()

    begun: concurrent.futures.Future[None] = concurrent.futures.Future()

    async def start() -> None:
        tasks.append(asyncio.ensure_future(outer()))
        await asyncio.sleep(0)
        begun.set_result(None)

    tasks: list[asyncio.Task[None]] = []
    thread.submit(start()).result()
    begun.result()
    text = thread.describe_tasks(LIMIT_S)
    assert "in outer" in text
    assert "in innermost" in text


def test_tasks_are_described_where_they_run(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nowhere else, because it is dangerous to look at what goes on meanwhile; after its end there are none."""
    monkeypatch.setattr(loops, "describe_tasks", lambda _loop, _without: threading.current_thread().name)
    assert thread.describe_tasks(LIMIT_S) == thread.name
    thread.end()
    assert thread.describe_tasks(LIMIT_S) == ""


def test_descriptors_of_a_loop_are_its_own_and_what_it_watches(thread: LoopThread) -> None:
    """What a forked child must drop: the poll descriptor, the wake-up, and watched sockets."""
    left, right = socket.socketpair()
    with left, right:
        thread.call(lambda: thread.loop.add_reader(left.fileno(), lambda: None))
        assert thread.answers(10)
        assert thread.answers(10)
        found = thread.descriptors()
        assert left.fileno() in found
        assert right.fileno() not in found
        assert len(found) >= 2
        thread.call(lambda: thread.loop.remove_reader(left.fileno()))
        assert thread.answers(10)
