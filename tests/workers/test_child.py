"""Laws of a worker process seen from outside: what it is given, what it loads, that it never outlives its parent.

Parents are scripts of their own here, so that they can be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import pytest

from asyncdata.workers import messages
from asyncdata.workers.channel import Channel
from asyncdata.workers.child import WorkerLoops
from asyncdata.workers.whereabouts import Mark
from tests.patience import LIMIT_S
from tests.workers import handlers
from tests.workers.conftest import MakeKit

ROOT = Path(__file__).parent.parent.parent

PARENT = """
import asyncio, os, sys
import cloudpickle
from asyncdata.workers.pool import WorkerPool
from tests.workers import handlers
from tests.workers.conftest import Meeting

async def main(program, payload=b"idle", **options):
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 4096)
    pool = WorkerPool(arena_fd=fd, arena_bytes=4096, num_workers=2,
                      handler="tests.workers.handlers:call_program", **options)
    await pool.start()
    await pool.ready()
    meeting = Meeting()
    number = pool.register(cloudpickle.dumps(program))
    task = asyncio.ensure_future(pool.run(number, payload, grant=meeting))
    if program in (handlers.same, double, handlers.say):
        reply = await task
    else:
        reply = b"blocked"
        await meeting.arrivals.get()
    print(reply.decode(), *[worker.pid for worker in pool.stats().workers], flush=True)
    return pool, task

def double(arena, payload, need):
    return payload * FACTOR

FACTOR = 2
"""


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def pidfds_of(line: str) -> list[int]:
    return [os.pidfd_open(int(word)) for word in line.split()[1:]]


@pytest.fixture
def watched() -> Iterator[list[int]]:
    """Descriptors of processes, closed at the end; the processes are killed if they live on."""
    descriptors: list[int] = []
    yield descriptors
    for fd in descriptors:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


def has_ended(pidfd: int) -> bool:
    """Waits, generously, for a process to end; whose child it is does not matter."""
    return bool(select.select([pidfd], [], [], LIMIT_S)[0])


def start_parent(script: str, *arguments: str) -> subprocess.Popen[str]:
    parent = subprocess.Popen(
        [sys.executable, "-", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    assert parent.stdin is not None
    parent.stdin.write(PARENT + textwrap.dedent(script))
    parent.stdin.close()
    return parent


def first_line(parent: subprocess.Popen[str]) -> str:
    """What the parent said once its workers were where the test wants them."""
    assert parent.stdout is not None
    line = parent.stdout.readline()
    if not line:
        _, error = parent.communicate()
        raise AssertionError(error)
    return line


def end(parent: subprocess.Popen[str]) -> str:
    """Waits for the parent and returns its stderr."""
    assert parent.stdout is not None
    assert parent.stderr is not None
    parent.wait(LIMIT_S)
    error = parent.stderr.read()
    parent.stdout.close()
    parent.stderr.close()
    return error


@pytest.mark.sampled
@pytest.mark.parametrize("program", ["same", "meet_and_block", "meet_and_hold_the_gil", "meet_and_fill"])
@pytest.mark.parametrize("stream", [False, True], ids=["seqpacket", "stream"])
def test_no_worker_outlives_a_parent_that_is_killed(watched: list[int], program: str, stream: bool) -> None:
    """After SIGKILL of the parent all workers end, idle or inside a task, even one that holds the GIL."""
    parent = start_parent(f"""
        async def forever():
            kept = await main(handlers.{program}, stream={stream})
            await asyncio.Event().wait()
        asyncio.run(forever())
    """)
    watched += pidfds_of(first_line(parent))
    parent.kill()
    end(parent)
    assert len(watched) == 2
    assert all(has_ended(pidfd) for pidfd in watched)


def test_no_worker_outlives_a_parent_that_exits_without_closing(watched: list[int]) -> None:
    """sys.exit in the middle of everything takes the workers along, without a word on stderr."""
    parent = start_parent("""
        async def leave():
            kept = await main(handlers.meet_and_block)
            os._exit(0)
        asyncio.run(leave())
    """)
    watched += pidfds_of(first_line(parent))
    assert end(parent) == ""
    assert all(has_ended(pidfd) for pidfd in watched)


def test_no_worker_outlives_a_parent_whose_fork_lives_on(watched: list[int]) -> None:
    """A process the parent forked holds copies of all its sockets; the workers end all the same."""
    parent = start_parent("""
        import signal
        async def forever():
            kept = await main(handlers.meet_and_block)
            copy = os.fork()
            if copy == 0:
                signal.pause()
            print("copy", copy, flush=True)
            await asyncio.Event().wait()
        asyncio.run(forever())
    """)
    watched += pidfds_of(first_line(parent))
    (copy,) = pidfds_of(first_line(parent))
    try:
        parent.kill()
        parent.wait()
        assert all(has_ended(pidfd) for pidfd in watched)
    finally:
        signal.pidfd_send_signal(copy, signal.SIGKILL)
        has_ended(copy)
        os.close(copy)
    end(parent)


def test_ctrl_c_is_the_parents_business(watched: list[int]) -> None:
    """SIGINT to the process group interrupts the parent; the workers go on, silently, until it closes them."""
    parent = start_parent("""
        async def scenario():
            kept = await main(handlers.same)
            pool, _ = kept
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                number = pool.register(cloudpickle.dumps(handlers.same))
                print((await pool.run(number, b"alive", grant=None)).decode(), pool.stats().deaths, flush=True)
                await pool.aclose()
                raise
        try:
            asyncio.run(scenario())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    watched += pidfds_of(first_line(parent))
    os.killpg(parent.pid, signal.SIGINT)
    assert first_line(parent) == "alive 0\n"
    assert first_line(parent) == "interrupted\n"
    assert end(parent) == ""
    assert all(has_ended(pidfd) for pidfd in watched)


def test_ctrl_c_while_workers_start_kills_none_of_them() -> None:
    """SIGINT finds a new process deaf from its first moment on."""
    parent = start_parent("""
        import signal
        async def scenario():
            fd = os.memfd_create("arena")
            os.ftruncate(fd, 4096)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
            pool = WorkerPool(arena_fd=fd, arena_bytes=4096, num_workers=4,
                              handler="tests.workers.handlers:call_program")
            starting = asyncio.ensure_future(pool.start())
            readying = None
            while not (readying and readying.done()):
                os.killpg(0, signal.SIGINT)
                await asyncio.to_thread(int)
                if starting.done() and readying is None:
                    readying = asyncio.ensure_future(pool.ready())
            await readying
            print(pool.stats().deaths, flush=True)
            await pool.aclose()
        asyncio.run(scenario())
    """)
    assert first_line(parent) == "0\n"
    assert end(parent) == ""


def test_a_script_without_an_import_guard_works_also_from_stdin() -> None:
    """Functions and globals of ``__main__`` travel by value; nothing of the script runs again in the workers."""
    parent = start_parent("""
        print("top level", flush=True)
        async def scenario():
            pool, _ = await main(double, b"ab")
            await pool.aclose()
        asyncio.run(scenario())
    """)
    assert first_line(parent) == "top level\n"
    assert first_line(parent).split()[0] == "abab"
    assert end(parent) == ""


def test_an_exception_class_of_the_script_comes_back_as_itself() -> None:
    """``except MyError`` works for a class of ``__main__``."""
    parent = start_parent("""
        class MyError(Exception):
            def __init__(self, a, b):
                super().__init__(a)
                self.b = b

        def fail(arena, payload, need):
            raise MyError(1, 2)

        async def scenario():
            pool, _ = await main(handlers.same)
            try:
                await pool.run(pool.register(cloudpickle.dumps(fail)), b"", grant=None)
            except MyError as exc:
                print(exc.args, exc.b, flush=True)
            await pool.aclose()
        asyncio.run(scenario())
    """)
    first_line(parent)
    assert first_line(parent) == "(1,) 2\n"
    assert end(parent) == ""


def test_what_user_code_prints_goes_to_the_parents_stderr() -> None:
    """stdout of the parent stays its own."""
    parent = start_parent("""
        async def scenario():
            pool, _ = await main(handlers.say, b"hello")
            await pool.aclose()
        asyncio.run(scenario())
    """)
    assert len(first_line(parent).split()) == 2
    assert sorted(end(parent).splitlines()) == ["complained: hello", "printed: hello"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_parent_that_leaves_while_a_task_waits_for_room_ends_the_loop(stream: bool) -> None:
    """An iterator may be closed at any moment: this is no error of the worker, which has nothing to say about it."""
    parent, theirs = Channel.pair(stream=stream)
    asked: list[int] = []

    def handler(arena: memoryview, program: Any, payload: bytes, need: Any, mark: Any) -> bytes:
        asked.append(1)
        parent._sock.shutdown(socket.SHUT_WR)
        need(10)
        return b"unreachable"

    theirs.setblocking(True)
    channel = Channel(theirs, stream=stream)
    with contextlib.closing(channel), contextlib.closing(parent):
        loops = WorkerLoops(tasks=channel, control=channel, arena=memoryview(b""), handler=handler, mark=Mark(-1))
        parent.send(messages.PROGRAM, 1, body=cloudpickle.dumps(None))
        parent.send(messages.TASK, 1, 1)
        loops.run()
    assert asked == [1]


def test_what_comes_together_with_an_answer_is_not_lost() -> None:
    """A stream may give several messages at once."""
    parent, theirs = Channel.pair(stream=True)
    asked: list[int] = []

    def handler(arena: memoryview, program: Any, payload: bytes, need: Any, mark: Any) -> bytes:
        asked.append(1)
        if len(asked) == 1:
            parent.send(messages.GRANT, 1, 0, 64)
            parent.send(messages.TASK, 2, 1)
            assert need(10) == (0, 64)
        else:
            parent._sock.shutdown(socket.SHUT_WR)
        return b""

    channel = Channel(theirs, stream=True)
    with contextlib.closing(channel), contextlib.closing(parent):
        loops = WorkerLoops(tasks=channel, control=channel, arena=memoryview(b""), handler=handler, mark=Mark(-1))
        parent.send(messages.PROGRAM, 1, body=cloudpickle.dumps(None))
        parent.send(messages.TASK, 1, 1)
        loops.run()
    assert asked == [1, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_workers_end_blocks_whatever_the_default_is(stream: bool) -> None:
    """Many programs set a default timeout for other sockets."""
    socket.setdefaulttimeout(5)
    try:
        parent, theirs = Channel.pair(stream=stream)
    finally:
        socket.setdefaulttimeout(None)
    with contextlib.closing(parent), contextlib.closing(theirs):
        assert os.get_blocking(theirs.fileno())


@pytest.fixture
async def described(make_kit: MakeKit) -> Any:
    """What a worker process says about itself."""
    kit = await make_kit(num_workers=1)
    return json.loads(await kit.run(handlers.describe_process))


async def test_a_worker_loads_no_network_stack_and_no_event_loop(make_kit: MakeKit) -> None:
    """A worker starts fast because it imports little."""
    kit = await make_kit(num_workers=1, handler="tests.workers.bare_handler:execute")
    modules = set((await kit.run(None)).decode().split())
    unwanted = {"aiohttp", "uvloop", "fsspec", "gcsfs", "numpy", "cloudpickle", "asyncio", "multiprocessing", "ssl"}
    assert not unwanted & modules
    assert "asyncdata.workers.child" in modules
    assert "asyncdata.workers.pool" not in modules


async def test_a_worker_is_set_up_like_its_parent(described: dict[str, Any]) -> None:
    """Same sys.path, arguments and directory; no ``__main__`` of the parent; nothing to read on stdin."""
    assert described["path"] == [entry or str(Path.cwd()) for entry in sys.path]
    assert described["argv"] == sys.argv
    assert described["cwd"] == str(Path.cwd())
    assert described["main_file"] is None
    assert described["stdin"] == ""
    assert described["comm"].startswith("asyncdata-w")
    assert described["optimize"] == sys.flags.optimize
    assert described["warnoptions"] == sys.warnoptions


async def test_a_worker_ignores_sigint_and_blocks_no_signal(described: dict[str, Any]) -> None:
    """Ctrl-C is the parent's business; no other signal is touched."""
    assert described["sigint_ignored"]
    assert described["blocked"] == []


async def test_a_worker_has_only_the_descriptors_it_needs(described: dict[str, Any]) -> None:
    """Standard streams, two sockets, the crash file, the mapped arena; and the listing itself."""
    # Some builds of libffi keep a descriptor of their own file.
    descriptors = [target for target in described["descriptors"] if "libffi" not in target]
    assert len(descriptors) == 8, descriptors


async def test_numeric_libraries_get_one_thread_unless_the_user_said_otherwise(
    make_kit: MakeKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are the parallelism; the user's variables win. OpenCV has its own."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENCV_FOR_THREADS_NUM", raising=False)
    kit = await make_kit(num_workers=1)
    assert json.loads(await kit.run(handlers.describe_process))["omp"] == "1"
    assert await kit.run(handlers.opencv_threads) == b"1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OPENCV_FOR_THREADS_NUM", "3")
    kit = await make_kit(num_workers=1)
    assert json.loads(await kit.run(handlers.describe_process))["omp"] == "3"
    assert await kit.run(handlers.opencv_threads) == b"3"
