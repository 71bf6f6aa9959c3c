"""Laws of iterators that need a look inside: the finalizer takes no lock, errors are not hidden by closing."""

from __future__ import annotations

import threading

import pytest

import asyncdata as ad
from asyncdata.runtime.iterate import options_of
from asyncdata.runtime.runtime import Runtime


def test_the_finalizer_waits_for_nobody() -> None:
    """It may run inside any code, also while that code holds every lock there is."""
    iterator = ad.Dataset.range(100).batch(3).iterator()
    next(iterator)
    running = iterator._running
    assert running is not None
    done = threading.Event()

    def collect() -> None:
        running.signal()
        done.set()

    with running.edge._condition, running.runtime._lock, iterator._lock:
        thread = threading.Thread(target=collect)
        thread.start()
        assert done.wait(10)
    thread.join()
    iterator.close()


def test_the_error_of_the_pipeline_is_told_before_that_of_closing() -> None:
    """A thread that is stuck when another function fails becomes a note on the failure."""
    release, entered = threading.Event(), threading.Event()

    def stuck_or_failing(x: int) -> int:
        if x == 0:
            entered.set()
            release.wait()
        if x == 63:
            entered.wait()
            raise ValueError("user code")
        return x

    # The first and the last element are not in one task, so that one of two threads never returns.
    dataset = ad.Dataset.range(64).map(stuck_or_failing, 2, executor="thread", deterministic=False)
    options = ad.Options(close_timeout_s=0.2, num_threads=2)
    try:
        with pytest.raises(ValueError, match="user code") as caught:
            list(dataset.with_options(options))
    finally:
        release.set()
    del caught


def test_a_stuck_thread_does_not_hide_the_error_of_the_body() -> None:
    """What the with block raised stays what is raised; the report is a note on it."""
    release, entered = threading.Event(), threading.Event()

    def stuck(x: int) -> int:
        entered.set()
        release.wait()
        return x

    def fail(iterator: ad.PipelineIterator) -> None:
        with iterator:
            entered.wait()
            raise KeyError("body")

    options = ad.Options(close_timeout_s=0.2, num_threads=1)
    iterator = ad.Dataset.range(2).map(stuck, 1, executor="thread").with_options(options).iterator()
    try:
        with pytest.raises(KeyError, match="body") as caught:
            fail(iterator)
        assert any("asyncdata-map-0" in note for note in caught.value.__notes__)
    finally:
        release.set()


def test_the_outermost_options_win() -> None:
    """The plan's own, else the Runtime's, else the defaults."""
    inner, outer = ad.Options(num_workers=3), ad.Options(num_workers=4)
    dataset = ad.Dataset.range(2).with_options(inner).batch(2).with_options(outer)
    runtime = Runtime(ad.Options(num_workers=5))
    assert options_of(dataset._node, runtime) is outer
    assert options_of(ad.Dataset.range(2)._node, runtime) is runtime.options
    assert options_of(ad.Dataset.range(2)._node, None) == ad.Options()
    runtime.close()
