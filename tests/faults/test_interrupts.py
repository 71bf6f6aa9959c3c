"""Ctrl-C at any moment: between any two lines while a pipeline starts, is read and is closed, nothing hangs or stays.

Python raises KeyboardInterrupt in the main thread between two steps of whatever runs there. Here it is raised at chosen
lines of this package, and by real signals at random moments.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import asyncdata as ad
from asyncdata.testing import check, settle, snapshot
from tests.faults.programs import Program, program

_RUNTIME: Final = str(Path(ad.__file__).parent / "runtime") + os.sep
_Line = tuple[str, int]


def _inline(x: int) -> int:
    return x


def _pipeline() -> ad.Dataset:
    options = ad.Options(memory_limit_bytes=8 << 20, num_threads=1, num_workers=0)
    return ad.Dataset.range(20).map(_inline, 1, executor="thread").batch(4).with_options(options)


def _read_and_close() -> None:
    iterator = _pipeline().iterator()
    next(iterator)
    iterator.close()


def _read_in_a_runtime() -> None:
    with ad.Runtime(ad.Options(memory_limit_bytes=8 << 20, num_threads=1, num_workers=0)):
        list(_pipeline())


class _Tracer:
    """Counts the lines of the runtime that run in this thread; raises at the n-th time of one."""

    def __init__(self, line: _Line | None = None, nth: int = 1) -> None:
        self.seen: Counter[_Line] = Counter()
        self._line = line
        self._nth = nth

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._trace if frame.f_code.co_filename.startswith(_RUNTIME) else None

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        line = frame.f_code.co_filename, frame.f_lineno
        if event == "line":
            self.seen[line] += 1
            if line == self._line and self.seen[line] == self._nth:
                raise KeyboardInterrupt
        return self._trace


def _run(consumer: Callable[[], None], tracer: _Tracer) -> None:
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        consumer()
    finally:
        sys.settrace(before)


def _may_be_interrupted(line: _Line) -> bool:
    """Whether a signal may be heard there, and somebody holds what was made.

    Entering and leaving a lock is one step each, but two events of a tracer. And between the start of a pipeline and
    the birth of its finalizer there is one line.
    """
    text = linecache.getline(*line).strip()
    return not text.startswith(("with self._lock", "with self._condition", "try:", "self._finalizer = "))


# A coroutine may be made, and the interrupt come before anybody has it.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("consumer", [_read_and_close, _read_in_a_runtime])
def test_an_interrupt_at_any_line_leaves_nothing(
    consumer: Callable[[], None], samples: Callable[[int, int], int]
) -> None:
    """While it starts, waits and closes; whoever is interrupted need not do anything more."""
    consumer()  # what is imported or made once is there from now on
    tracer = _Tracer()
    _run(consumer, tracer)
    places = [(line, n) for line, count in tracer.seen.items() for n in {1, count} if _may_be_interrupted(line)]
    assert len(places) > 200
    chosen = random.Random(samples(6, 7)).sample(places, min(len(places), samples(25, 10_000)))
    for line, when in chosen:
        before = snapshot()
        with contextlib.suppress(KeyboardInterrupt):
            _run(consumer, _Tracer(line, when))
        gc.collect()
        assert not settle(before, settle_s=20), (line, when)
        assert not check(before), (line, when)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_real_signals_at_random_moments(executor: str, samples: Callable[[int, int], int]) -> None:
    """A program that starts and closes pipelines all the time ends."""
    delays = random.Random(3)
    for _ in range(samples(3, 60)):
        with program(f"""
            say("ready")
            try:
                while True:
                    it = pipeline("{executor}").iterator()
                    next(it)
                    it.close()
            except KeyboardInterrupt:
                raise SystemExit(5)
        """) as running:
            running.expect("ready")
            time.sleep(delays.uniform(0.0, 0.3))
            code, out, err = _interrupt(running)
            assert (code, out) == (5, "")
            # Raised inside a finalizer, Python can only print it.
            assert err == "" or "Exception ignored" in err


def _interrupt(running: Program) -> tuple[int, str, str]:
    for _ in range(3):
        os.kill(running.popen.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return running.end(30)
    raise AssertionError("the program does not hear Ctrl-C")
