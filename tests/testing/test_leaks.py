"""The leak check itself: each kind is leaked on purpose and must be named, and what is exempt must not be."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import shared_memory
from pathlib import Path

import fsspec.asyn
import pytest

from asyncdata.testing import LeakError, assert_no_leaks, check, procfs, settle, settle_async, snapshot
from tests.patience import turns

SLEEP_FOREVER = [sys.executable, "-S", "-c", "import signal; print(flush=True); signal.pause()"]


@contextmanager
def sleeping_child(arguments: list[str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is known to have started, and is killed and reaped at the end."""
    with subprocess.Popen(arguments or SLEEP_FOREVER, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()


def test_nothing_new_is_no_leak() -> None:
    """A snapshot compared with the same world names nothing."""
    assert check(snapshot()) == []


async def test_a_pending_task_is_named() -> None:
    """A task that is not done is reported by name and coroutine; a finished one is not."""
    before = snapshot()
    task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
    leaks = check(before)
    assert [leak.kind for leak in leaks] == ["task"]
    assert "forgotten" in leaks[0].name
    assert "Event.wait" in leaks[0].name
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert check(before) == []


def test_a_task_of_a_loop_in_another_thread_is_named() -> None:
    """Tasks are found whatever loop and thread they belong to."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    before = snapshot()
    future = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), loop)
    started = threading.Event()
    loop.call_soon_threadsafe(started.set)
    assert started.wait(10)
    assert [leak.kind for leak in check(before)] == ["task"]
    loop.call_soon_threadsafe(future.cancel)
    loop.call_soon_threadsafe(loop.call_soon, loop.stop)
    thread.join()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert check(before) == []


def test_a_task_pending_on_a_closed_loop_is_named() -> None:
    """A loop that is closed over a pending task does not hide it."""
    before = snapshot()
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.Event().wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    leaks = check(before, only=("task",))
    assert len(leaks) == 1
    assert "closed loop" in leaks[0].name
    # Ends the coroutine without its loop, so that nothing warns when the task goes.
    coroutine = task.get_coro()
    assert coroutine is not None
    coroutine.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # the switch asyncio itself uses
    del task, coroutine
    assert settle(before) == []


@pytest.mark.parametrize("daemon", [False, True])
def test_a_living_thread_is_named(daemon: bool) -> None:
    """A thread, daemon or not, is reported by name and by what it runs."""
    before = snapshot()
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="forgotten", daemon=daemon)
    thread.start()
    leaks = check(before)
    assert [leak.kind for leak in leaks] == ["thread"]
    assert "forgotten" in leaks[0].name
    assert ("daemon" in leaks[0].name) is daemon
    release.set()
    thread.join()
    assert check(before) == []


def test_an_idle_executor_thread_of_a_loop_is_named() -> None:
    """The default executor of a loop that was not shut down is a leak, though its threads are called ``asyncio_0``."""
    before = snapshot()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(loop.run_in_executor(None, int))
    assert any(leak.kind == "thread" and "asyncio_0" in leak.name for leak in check(before))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert settle(before) == []


def test_fsspecs_own_loop_and_executor_are_exempt() -> None:
    """The process-wide loop of fsspec may start threads, tasks and descriptors at any time; no test is blamed."""
    before = snapshot()
    loop = fsspec.asyn.get_loop()

    async def use_the_executor() -> None:
        await asyncio.get_running_loop().run_in_executor(None, int)

    pending = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), loop)
    fsspec.asyn.sync(loop, use_the_executor)
    assert check(before) == []
    pending.cancel()


def test_the_first_uvloop_of_a_process_is_nobodys_leak() -> None:
    """What uvloop and fsspec open once per process is there after ``start_process_wide``, and blamed on no block."""
    script = (
        "import asyncio, fsspec.asyn, uvloop\n"
        "from asyncdata.testing import assert_no_leaks, start_process_wide\n"
        "start_process_wide()\n"
        "with assert_no_leaks(settle_s=0.1):\n"
        "    start_process_wide()\n"
        "    uvloop.run(asyncio.sleep(0))\n"
        "    fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.sleep, 0)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=50)


def test_a_living_child_is_named() -> None:
    """A child process is reported with its command line."""
    before = snapshot()
    with sleeping_child():
        leaks = check(before, only=("process",))
        assert len(leaks) == 1
        assert "descendant" in leaks[0].name
        assert "signal.pause" in leaks[0].name
    assert check(before) == []


def test_a_zombie_is_named() -> None:
    """A child that ended and was not waited for is a leak too."""
    before = snapshot()
    child = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", ""], os.environ)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert ["zombie" in leak.name for leak in check(before)] == [True]
    os.waitpid(child, 0)
    assert check(before) == []


def test_a_grandchild_is_named_while_its_parent_lives() -> None:
    """Descendants are found at any depth."""
    before = snapshot()
    script = (
        "import subprocess, sys\n"
        f"with subprocess.Popen({SLEEP_FOREVER!r}, stdout=subprocess.PIPE) as child:\n"
        "    child.stdout.readline()\n"
        "    print(child.pid, flush=True)\n"
        "    sys.stdin.read()\n"
        "    child.kill()\n"
    )
    arguments = [sys.executable, "-S", "-c", script]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        names = [leak.name for leak in check(before, only=("process",))]
        assert len(names) == 2
        assert any(f"descendant {grandchild} " in name for name in names)
    assert check(before) == []


def test_an_orphan_is_named_by_what_it_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose parent has died is found through the environment it inherited, and only with ``started_with``."""
    monkeypatch.setenv("ASYNCDATA_ORPHAN_TEST", str(os.getpid()))
    blind = snapshot()
    before = snapshot(started_with=f"ASYNCDATA_ORPHAN_TEST={os.getpid()}")
    # The kernel fills in what a new process inherited while it starts the program: the orphan has to have begun.
    script = (
        "import subprocess\n"
        f"child = subprocess.Popen({SLEEP_FOREVER!r}, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid)\n"
    )
    parent = subprocess.run([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, check=True)
    orphan = int(parent.stdout)
    try:
        assert any(f"{orphan} " in leak.name and "orphan" in leak.name for leak in check(before))
        assert check(blind, only=("process",)) == []
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert settle(before, settle_s=10) == []


def test_an_open_file_is_named_by_path(tmp_path: Path) -> None:
    """A descriptor is reported by what it points to, also when its number was in use before."""
    first = os.open(tmp_path, os.O_RDONLY)
    before = snapshot()
    os.close(first)
    path = tmp_path / "forgotten"
    second = os.open(path, os.O_CREAT)
    assert second == first
    leaks = check(before)
    assert [leak.kind for leak in leaks] == ["descriptor"]
    assert str(path) in leaks[0].name
    os.close(second)


def test_a_second_descriptor_of_the_same_target_is_named(tmp_path: Path) -> None:
    """Targets are counted: one file opened once more is a leak of one."""
    first = os.open(tmp_path, os.O_RDONLY)
    before = snapshot()
    second = os.dup(first)
    assert len(check(before)) == 1
    os.close(first)
    assert check(before) == []
    os.close(second)


def test_a_socket_is_named_by_its_ends() -> None:
    """A connected socket is reported with both addresses, a listening one with its own."""
    before = snapshot()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        names = [leak.name for leak in check(before)]
        assert len(names) == 2
        assert any(str(client.getsockname()) in name and str(server.getsockname()) in name for name in names)
        assert any("to nobody" in name for name in names)
    assert check(before) == []


def test_looking_at_what_is_no_socket_leaves_nothing(tmp_path: Path) -> None:
    """Its number may have been a socket's a moment ago."""
    with (tmp_path / "file").open("wb") as file:
        before = procfs.descriptors()
        assert procfs.describe_socket(file.fileno()) == ""
        assert procfs.descriptors() == before


def test_an_open_loop_is_named() -> None:
    """An event loop that was not closed holds an epoll descriptor and a socket pair."""
    before = snapshot()
    loop = asyncio.new_event_loop()
    assert {leak.kind for leak in check(before)} == {"descriptor"}
    loop.close()
    assert check(before) == []


def test_a_named_segment_is_named() -> None:
    """A segment in /dev/shm is a leak while this process has it open or mapped."""
    before = snapshot()
    segment = shared_memory.SharedMemory(create=True, size=4096)
    leaks = check(before, only=("shared memory",))
    assert len(leaks) == 2
    assert all(segment.name.lstrip("/") in leak.name for leak in leaks)
    segment.close()
    descriptor = os.open(f"/dev/shm/{segment.name.lstrip('/')}", os.O_RDONLY)
    assert [leak.kind for leak in check(before)] == ["descriptor", "shared memory"]
    os.close(descriptor)
    segment.unlink()
    assert check(before) == []


def test_a_segment_of_a_descendant_is_named() -> None:
    """What a child made and holds is this tree's."""
    before = snapshot()
    script = (
        "import os, signal\n"
        "path = f'/dev/shm/asyncdata-test-{os.getpid()}'\n"
        "os.open(path, os.O_CREAT)\n"
        "print(path, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        path = child.stdout.readline().strip()
        try:
            assert [leak.name for leak in check(before, only=("shared memory",))] == [path]
        finally:
            os.unlink(path)
            child.kill()
    assert check(before) == []


_STRANGER = """
import mmap, os, signal, subprocess, sys, threading

name = f"/dev/shm/asyncdata-stranger-{os.getpid()}"
descriptors = [os.open(f"{name}-open", os.O_CREAT | os.O_RDWR)]
os.close(os.open(f"{name}-closed", os.O_CREAT))
mapped = os.open(f"{name}-mapped", os.O_CREAT | os.O_RDWR)
for file in (mapped, os.memfd_create("stranger")):
    os.ftruncate(file, 4096)
    descriptors.append(mmap.mmap(file, 4096))
    descriptors.append(os.dup(file))
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), flush=True)
signal.sigwait([signal.SIGTERM])
child.kill()
child.wait()
for kind in ("open", "closed", "mapped"):
    os.unlink(f"{name}-{kind}")
"""


async def test_other_programs_are_their_own_affair() -> None:
    """Files in /dev/shm, memfds, processes: whoever makes them meanwhile, outside this tree, is not looked at."""
    # A process whose parent has died is a stranger, unless ``started_with`` claims it.
    starter = (
        "import signal, subprocess, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        f"stranger = subprocess.Popen([sys.executable, '-S', '-c', {_STRANGER!r}], stdout=subprocess.PIPE)\n"
        "print(stranger.stdout.readline().decode().strip(), flush=True)\n"
    )
    before = snapshot()
    async with assert_no_leaks(settle_s=60):
        with assert_no_leaks(settle_s=60):
            done = subprocess.run([sys.executable, "-S", "-c", starter], stdout=subprocess.PIPE, check=True)
    stranger = os.pidfd_open(int(done.stdout))
    try:
        assert len(list(Path("/dev/shm").glob(f"asyncdata-stranger-{int(done.stdout)}-*"))) == 3
        assert check(before, only=("task", "thread", "process", "shared memory")) == []
    finally:
        signal.pidfd_send_signal(stranger, signal.SIGTERM)
        select.select([stranger], [], [])  # it has removed its files
        os.close(stranger)


def test_a_mapping_is_named_after_its_descriptor_is_closed() -> None:
    """Mapped memory outlives its descriptor, and is found all the same."""
    before = snapshot()
    descriptor = os.memfd_create("forgotten")
    os.ftruncate(descriptor, 4096)
    mapping = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
    leaks = check(before, only=("shared memory",))
    assert len(leaks) == 1
    assert "memfd:forgotten" in leaks[0].name
    mapping.close()
    assert settle(before) == []


def test_what_only_garbage_holds_is_no_leak() -> None:
    """A cycle nobody refers to is collected before anything is reported."""

    class Holder:
        def __init__(self) -> None:
            self.itself = self
            self.descriptor = os.open("/dev/null", os.O_RDONLY)

        def __del__(self) -> None:
            os.close(self.descriptor)

    gc.disable()
    try:
        before = snapshot()
        Holder()
        assert len(check(before)) == 1
        assert settle(before) == []
    finally:
        gc.enable()


def test_a_finalizer_may_take_a_moment() -> None:
    """What goes within the settling time is no leak."""
    before = snapshot()
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    threading.Timer(0.05, release.set).start()
    assert settle(before, settle_s=10) == []


async def test_a_task_that_is_about_to_end_is_no_leak() -> None:
    """The running loop works while the check waits."""
    before = snapshot()
    task = asyncio.create_task(turns(20))
    assert await settle_async(before, settle_s=10, only=("task",)) == []
    assert task.done()


def test_the_block_names_what_it_left() -> None:
    """``assert_no_leaks`` raises with every leak in its message, and passes when nothing is left."""
    held: list[int] = []
    with pytest.raises(LeakError, match=r"descriptor: /dev/null") as caught, assert_no_leaks(settle_s=0.05):
        held.append(os.open("/dev/null", os.O_RDONLY))
    assert [leak.kind for leak in caught.value.leaks] == ["descriptor"]
    os.close(held.pop())
    with assert_no_leaks():
        os.close(os.open("/dev/null", os.O_RDONLY))


async def test_the_async_block_names_what_it_left() -> None:
    """``async with assert_no_leaks()`` sees tasks of the running loop and does not count the task it runs in."""
    tasks: list[asyncio.Task[bool]] = []
    with pytest.raises(LeakError, match="task: forgotten"):
        async with assert_no_leaks(settle_s=0.05):
            tasks.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten"))
    tasks[0].cancel()
    with suppress(asyncio.CancelledError):
        await tasks[0]
    async with assert_no_leaks():
        await asyncio.create_task(asyncio.sleep(0))


def test_a_failing_block_keeps_its_own_error() -> None:
    """An exception in the block is not replaced by the leaks its traceback still holds."""
    held: list[int] = []

    def leak_and_fail() -> None:
        held.append(os.open("/dev/null", os.O_RDONLY))
        raise ValueError("the real one")

    with pytest.raises(ValueError, match="the real one"), assert_no_leaks(settle_s=0.05):
        leak_and_fail()
    os.close(held.pop())
