"""Laws of watching one child process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from asyncdata.workers.process import Process, describe_exit

WAYS = pytest.mark.parametrize("use_pidfd", [True, False], ids=["pidfd", "thread"])


async def started(code: str, *, use_pidfd: bool) -> tuple[Process, asyncio.Event, list[int]]:
    """A process, an event for its end, and how often that was told."""
    process = Process(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE), use_pidfd=use_pidfd)
    gone = asyncio.Event()
    told: list[int] = []

    def on_gone() -> None:
        told.append(1)
        gone.set()

    process.watch(asyncio.get_running_loop(), on_gone)
    return process, gone, told


def tidy(process: Process) -> None:
    process.close()
    assert process._popen.stdin is not None
    process._popen.stdin.close()


@WAYS
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
    ],
)
async def test_the_end_of_a_process_is_told_once_with_its_status(use_pidfd: bool, code: str, expected: int) -> None:
    """By whichever way it is watched, it is reaped and its exit code is known."""
    process, gone, told = await started(code, use_pidfd=use_pidfd)
    await gone.wait()
    assert process.gone
    assert process.exit_code == expected
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    process.kill()  # nothing: it is gone
    process.abort()
    tidy(process)
    assert told == [1]


@WAYS
async def test_kill_ends_a_process(use_pidfd: bool) -> None:
    """Also one that was just started."""
    process, gone, _ = await started("import sys; sys.stdin.read()", use_pidfd=use_pidfd)
    assert process.exit_code is None
    process.kill()
    await gone.wait()
    assert process.exit_code == -signal.SIGKILL
    tidy(process)


async def test_a_process_that_somebody_else_reaped_is_gone_with_an_unknown_status() -> None:
    """A host program that calls wait() for any child does no harm."""
    process, gone, _ = await started("import sys; sys.stdin.read()", use_pidfd=True)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    await gone.wait()
    assert process.exit_code is None
    tidy(process)


async def test_a_process_nobody_watches_can_be_discarded() -> None:
    """Kill and reap in one call."""
    process = Process(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    process.discard()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    tidy(process)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "SIGKILL (often the kernel's out-of-memory killer)"),
        (-11, "SIGSEGV"),
        (-77, "signal 77"),
        (None, "took its exit status"),
    ],
)
def test_exits_are_described_in_words(code: int | None, text: str) -> None:
    """The words name code or signal."""
    assert text in describe_exit(code)
