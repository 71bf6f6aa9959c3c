"""Small programs that are interrupted, killed or simply end, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from asyncdata.testing import procfs
from tests.patience import LIMIT_S, wait_until

_PRELUDE = """
import asyncio, os, signal, sys, threading, time, warnings
import numpy as np
import asyncdata as ad

# From 3.12 on Python warns of a fork where there are threads; whoever forks here wants to see just that.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

# Python drops an interrupt that strikes while an object with weak references is freed: it comes again.
def interrupt_again(report):
    if report.exc_type is KeyboardInterrupt and report.object.__module__ in {"_weakrefset", "weakref"}:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
    else:
        sys.__unraisablehook__(report)

signal.signal(signal.SIGALRM, signal.default_int_handler)
sys.unraisablehook = interrupt_again

def widen(x):
    return np.full(50, x)

async def widen_async(x):
    await asyncio.sleep(0)
    return np.full(50, x)

def pipeline(executor, count=100_000):
    ds = ad.Dataset.range(count)
    if executor == "async":
        return ds.map(widen_async, 4).batch(8)
    return ds.map(widen, None if executor == "inline" else 2, executor=executor).batch(8)

def say(word):
    print(word, flush=True)
"""


@dataclass
class Program:
    """One that runs in a session of its own.

    Attributes:
        popen: The process.
    """

    popen: subprocess.Popen[str]

    def expect(self, word: str) -> None:
        """Waits until the program says a word, alone on a line."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline().strip()
        if line != word:
            self.popen.kill()
            raise AssertionError(f"expected {word!r}, got {line!r}; {self.popen.communicate()}")

    def end(self, timeout_s: float = LIMIT_S) -> tuple[int, str, str]:
        """Exit code and what was written after what was expected."""
        try:
            out, err = self.popen.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.popen.send_signal(signal.SIGABRT)  # faulthandler tells where all its threads are
            out, err = self.popen.communicate()
            raise AssertionError(f"no end within {timeout_s} s; wrote {out[-1000:]!r}\n{err[-8000:]}") from None
        return self.popen.returncode, out, err


def family(pid: int) -> list[int]:
    """The living members of a program's session."""
    found = []
    for process in procfs.processes():
        try:
            if os.getsid(process.pid) == pid and process.state != "Z":
                found.append(process.pid)
        except ProcessLookupError:
            continue
    return found


@contextmanager
def program(source: str) -> Iterator[Program]:
    """Runs a program; afterwards nobody of its session may be left for longer than moments."""
    popen = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", _PRELUDE + textwrap.dedent(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield Program(popen)
        wait_until(lambda: not family(popen.pid), lambda: f"left behind: {family(popen.pid)}")
    finally:
        for pid in family(popen.pid):
            os.kill(pid, 9)
        popen.communicate()


def run(source: str) -> tuple[int, str, str]:
    """Runs a program to its end: exit code, output, errors."""
    with program(source) as running:
        return running.end()
