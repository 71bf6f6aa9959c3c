"""Laws of iterators that need a look inside: the finalizer takes no lock, errors are not hidden by closing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

import asyncdata as ad
from asyncdata.options import merged
from asyncdata.runtime.consumer.edge import Edge
from asyncdata.runtime.isolate.intake import Intake
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.settings import settings_of
from tests.patience import LIMIT_S


def test_the_finalizer_waits_for_nobody() -> None:
    """It may run inside any code, also while that code holds every lock there is."""
    iterator = ad.Dataset.range(100).batch(3).iterator()
    next(iterator)
    running = iterator._running
    assert running is not None
    assert isinstance(running.edge, Edge)
    done = threading.Event()

    def collect() -> None:
        running.signal()
        done.set()

    with running.runtime._lock, iterator._lock:
        thread = threading.Thread(target=collect)
        thread.start()
        assert done.wait(LIMIT_S)
    thread.join()
    iterator.close()


@pytest.mark.parametrize("isolate", [False, True])
def test_a_handler_of_signals_may_ask_for_stats(isolate: bool) -> None:
    """In the middle of whatever the same thread does: no lock that it holds is in the way."""
    with ad.Dataset.range(100).batch(3).with_options(ad.Options(isolate=isolate)).iterator() as iterator:
        next(iterator)
        running = iterator._running
        assert running is not None
        locks = [iterator._lock, running.runtime._lock]
        if isolate:
            assert isinstance(running.edge, Intake)
            assert running.runtime.loader is not None
            locks += [running.edge._lock, running.runtime.loader._inquiry._lock]
        with contextlib.ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            assert iterator.stats().elements == 1


@pytest.mark.parametrize("close", [ad.PipelineIterator.close, ad.PipelineIterator.abandon])
def test_closed_in_the_middle_of_next_is_no_end(
    close: Callable[[ad.PipelineIterator], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of signals may do so: a loop must not take the epoch for complete."""
    with ad.Dataset.range(100).batch(3).iterator() as iterator:
        next(iterator)
        assert iterator._running is not None
        edge = iterator._running.edge
        pop = edge.pop

        def closed_meanwhile() -> object:
            close(iterator)
            edge.close()
            return pop()

        monkeypatch.setattr(edge, "pop", closed_meanwhile)
        with pytest.raises(ad.PipelineClosedError, match="the iterator was closed"):
            next(iterator)


def test_the_error_of_the_pipeline_is_told_before_that_of_closing() -> None:
    """A function that does not end when another one fails becomes a note on the failure."""
    gates: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def stubborn_or_failing(x: int) -> int:
        if x:
            raise ValueError("user code")
        gate = asyncio.Event()
        gates.append((asyncio.get_running_loop(), gate))
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        return x

    dataset = ad.Dataset.range(2).map(stubborn_or_failing, 2, deterministic=False)
    try:
        with pytest.raises(ValueError, match="user code") as caught:
            list(dataset.with_options(ad.Options(close_timeout_s=0.2)))
        assert any("stubborn_or_failing" in note for note in caught.value.__notes__)
    finally:
        for loop, gate in gates:
            loop.call_soon_threadsafe(gate.set)


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
    """The plan's own, else the Runtime's, else the defaults; but what the Runtime holds is the Runtime's own."""
    inner, outer = ad.Options(chunk_bytes=1 << 20), ad.Options(chunk_bytes=1 << 21, num_workers=4)
    dataset = ad.Dataset.range(2).with_options(inner).batch(2).with_options(outer)
    runtime = Runtime(ad.Options(num_workers=5))
    assert settings_of(dataset._node, None).options == merged(outer, inner)
    assert settings_of(dataset._node, runtime.options).options.chunk_bytes == 1 << 21
    assert settings_of(dataset._node, runtime.options).options.num_workers == 5
    assert settings_of(ad.Dataset.range(2)._node, runtime.options).options == runtime.options
    assert settings_of(ad.Dataset.range(2)._node, None).options == ad.Options()
    runtime.close()


def test_a_late_reader_does_not_undo_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that asked in the middle, and gets its answer after the end, changes nothing any more."""
    asked, ended = threading.Event(), threading.Event()
    with ad.Dataset.counter().iterator() as iterator:
        next(iterator)
        running = iterator._running
        assert running is not None
        stats = running.stats

        def late() -> ad.PipelineStats:
            now = stats()
            if threading.current_thread() is reader:
                asked.set()
                ended.wait(LIMIT_S)
            return now

        monkeypatch.setattr(running, "stats", late)
        reader = threading.Thread(target=iterator.stats)
        reader.start()
        assert asked.wait(LIMIT_S)
    at_the_end = iterator.stats().window_s
    ended.set()
    reader.join(LIMIT_S)
    assert iterator.stats().window_s == at_the_end
