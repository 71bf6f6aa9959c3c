"""Laws of starting a loader process: what fails leaves nothing, and a process that fails to work says why."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
from collections.abc import Callable, Iterator

import pytest

import asyncdata as ad
from asyncdata.runtime.isolate.loader import Loader
from asyncdata.runtime.isolate.protocol import OPEN, RUN
from asyncdata.testing import check, snapshot
from asyncdata.workers.channel import Channel


@contextlib.contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Only so many more may be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 10, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("spare", range(7))
def test_without_descriptors_nothing_is_left(spare: int) -> None:
    """Whichever of them is the one that is missing."""
    before = snapshot()
    loader = Loader(ad.Options(), 1, gone=lambda: None)
    with few_descriptors(spare), pytest.raises(OSError, match="Too many open files"):
        loader.start()
    assert not check(before, only=("descriptor",))


def test_a_pipeline_without_descriptors_says_what_to_do() -> None:
    """Whichever is missing; the pipelines before and after it run."""
    numbers = ad.Dataset.range(3)
    with ad.Runtime(ad.Options(isolate=True, num_workers=0)):
        assert len(list(numbers)) == 3
        before = snapshot()
        for spare in range(3):
            with few_descriptors(spare), pytest.raises(ad.SystemResourceError, match="ulimit -n"):
                numbers.iterator()
        assert not check(before, only=("descriptor",))
        assert len(list(numbers)) == 3


@pytest.mark.parametrize("step", [OPEN, RUN])
def test_a_pipeline_that_another_thread_did_not_send_says_so(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That thread was interrupted in the middle of it, by Ctrl-C: an error, not an iterator that waits."""
    numbers = ad.Dataset.range(3)
    with ad.Runtime(ad.Options(isolate=True, num_workers=0)) as runtime:
        assert len(list(numbers)) == 3
        assert runtime.loader is not None
        outbox, hand_over = runtime.loader.outbox, Channel.hand_over

        def interrupted(control: Channel, kind: int, *values: int, fd: int) -> bool:
            if kind == step:
                raise KeyboardInterrupt
            return hand_over(control, kind, *values, fd=fd)

        def post(send: Callable[[], bool]) -> None:
            outbox._queue.append(send)
            with contextlib.suppress(KeyboardInterrupt):  # the other thread's
                outbox.flush()

        with monkeypatch.context() as patched:
            patched.setattr(Channel, "hand_over", interrupted)
            patched.setattr(outbox, "post", post)
            with pytest.raises(ad.SystemResourceError, match="the pipeline was not sent"):
                numbers.iterator()
        assert len(list(numbers)) == 3


def test_closing_may_take_for_ever() -> None:
    """No time limit is too long for the system calls that wait."""
    with ad.Runtime(ad.Options(isolate=True, num_workers=0, close_timeout_s=math.inf)):
        iterator = ad.Dataset.range(1000).iterator()
        assert next(iterator) == 0
        iterator.close()


def test_an_interpreter_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error at once, not an iterator that waits."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ad.SystemResourceError, match="/nowhere/python"):
        ad.Dataset.range(3).with_options(ad.Options(isolate=True)).iterator()


def test_an_interpreter_that_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer hears how it ended."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ad.WorkerDiedError, match=r"the loader process \(pid \d+\) exited with code 1"):
        list(ad.Dataset.range(3).with_options(ad.Options(isolate=True)))


def test_a_runtime_that_cannot_start_there_says_why() -> None:
    """Its own error, not only that its process is gone."""
    dataset = ad.Dataset.range(3).with_options(ad.Options(isolate=True, memory_limit_bytes=1 << 62))
    with pytest.raises((OSError, ValueError, OverflowError)) as caught:
        list(dataset)
    assert any("raised in the loader process" in note for note in caught.value.__notes__)
