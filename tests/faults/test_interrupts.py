"""Ctrl-C at any moment: at any step while a pipeline starts, is read and is closed, nothing hangs or stays.

Python raises KeyboardInterrupt in the main thread between two steps of whatever runs there: at the beginning of a
function, after a call, and where a loop goes back. Here it is raised at chosen ones of these places, in this package
and in what it uses of Python's, and by real signals at random moments.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import functools
import gc
import operator
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.consumer import edge, iterate
from asyncdata.testing import ProcessSnapshot, check, settle, snapshot
from tests.faults.programs import program
from tests.patience import LIMIT_S, wait_until

_ENTRY: Final = -1
_READING: Final = (iterate.__file__, edge.__file__)
_HERE: Final = f"asyncdata{os.sep}runtime{os.sep}"
_Place = tuple[CodeType, int]
"""A function, and the offset of a step in it, or its beginning."""


def _inline(x: int) -> int:
    return x


def _wide(x: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A tenth of a small memory limit: batches that did not come back would soon be missed."""
    return np.full(1 << 14, x)


def _pipeline() -> ad.Dataset:
    options = ad.Options(memory_limit_bytes=8 << 20, num_threads=1, num_workers=0)
    return ad.Dataset.range(20).map(_inline, 1, executor="thread").batch(4).with_options(options)


def _read_and_close() -> None:
    iterator = _pipeline().iterator()
    next(iterator)
    iterator.close()


def _read_to_the_end() -> None:
    for _ in _pipeline():
        pass


def _read_in_a_runtime() -> None:
    with ad.Runtime(ad.Options(memory_limit_bytes=8 << 20, num_threads=1, num_workers=0)):
        list(_pipeline())


@functools.cache
def _heard(code: CodeType) -> frozenset[int]:
    """Offsets of the steps of a function in front of which Python looks for signals."""
    found: set[int] = set()
    before = ""
    for step in dis.get_instructions(code):
        if before.startswith("CALL") or "JUMP_BACKWARD" in step.opname:
            found.add(step.offset)
        if step.opname != "CACHE":
            before = step.opname
    return frozenset(found)


def _interrupt() -> None:
    raise KeyboardInterrupt


class _Tracer:
    """Counts the places where a signal is heard in this thread; at the n-th time of one it calls the handler."""

    def __init__(self, place: _Place | None = None, nth: int = 1, handler: Callable[[], object] = _interrupt) -> None:
        self.seen: Counter[_Place] = Counter()
        self._place = place
        self._nth = nth
        self._handler = handler

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith("<"):
            return None
        self._note((frame.f_code, _ENTRY))
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode" and frame.f_lasti in _heard(frame.f_code):
            self._note((frame.f_code, frame.f_lasti))
        return self._trace

    def _note(self, place: _Place) -> None:
        self.seen[place] += 1
        if place == self._place and self.seen[place] == self._nth:
            self._handler()


def _run(consumer: Callable[[], None], tracer: _Tracer) -> None:
    before, report = sys.gettrace(), sys.unraisablehook
    sys.unraisablehook = lambda _report: None  # in a finalizer Python can only report it, and pytest keeps the report
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces steps if any frame has asked for them by now
    sys.settrace(tracer)
    try:
        consumer()
    finally:
        sys.settrace(before)
        sys.unraisablehook = report


def _may_be_interrupted(place: _Place) -> bool:
    """Whether anybody can still act: between a block and the first step of its `__exit__` there is nobody yet."""
    code, offset = place
    return (code.co_qualname, offset) != ("Runtime.__exit__", _ENTRY)


# A coroutine may be made, and the interrupt come before anybody has it.
@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("consumer", [_read_and_close, _read_to_the_end, _read_in_a_runtime])
def test_an_interrupt_at_any_step_leaves_nothing(
    consumer: Callable[[], None], samples: Callable[[int, int], int]
) -> None:
    """While it starts, waits and closes; whoever is interrupted need not do anything more."""
    for _ in range(2):
        consumer()  # what is imported or made once is there from now on
    tracer = _Tracer()
    _run(consumer, tracer)
    places = [(place, n) for place, count in tracer.seen.items() for n in {1, count} if _may_be_interrupted(place)]
    assert len(places) > 300
    chosen = random.Random(samples(6, 7)).sample(places, min(len(places), samples(10, 10_000)))
    for place, when in chosen:
        before = snapshot()
        with contextlib.suppress(KeyboardInterrupt):
            _run(consumer, _Tracer(place, when))
        gc.collect()
        assert not settle(before, settle_s=LIMIT_S), (place, when)
        assert not check(before), (place, when)


def test_an_interrupt_inside_next_closes_before_it_is_raised(samples: Callable[[int, int], int]) -> None:
    """A traceback that somebody keeps, as notebooks do, keeps nothing running, and no element is skipped silently."""
    with _pipeline().iterator() as iterator:
        tracer = _Tracer()
        _run(functools.partial(_take_three, iterator), tracer)
    # Before the first step of `__next__` no element was taken, and no code runs yet that could close.
    places = [
        (place, n)
        for place, count in tracer.seen.items()
        for n in {1, count}
        if place[0].co_filename in _READING
        and (place[0].co_qualname, place[1]) != ("PipelineIterator.__next__", _ENTRY)
    ]
    assert len(places) > 20
    for place, when in random.Random(samples(8, 9)).sample(places, min(len(places), samples(20, 10_000))):
        before = snapshot()
        iterator = _pipeline().iterator()
        try:
            _run(functools.partial(_take_three, iterator), _Tracer(place, when))
        except KeyboardInterrupt as kept:
            # The traceback may hold views of memory, but nothing that runs.
            wait_until(functools.partial(_is_still, before), functools.partial(str, (place, when)))
            with pytest.raises(ad.PipelineClosedError):
                next(iterator)
            del kept
        iterator.close()


def _take_three(batches: Iterator[Any]) -> None:
    for _ in range(3):
        next(batches)


# A socket may be made, and the handler's error come before anybody has it.
@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("isolate", [False, True])
def test_a_handler_of_signals_may_iterate_and_close(isolate: bool, samples: Callable[[int, int], int]) -> None:
    """In the middle of anything: neither waits for the code that the handler has interrupted, or an error says so."""
    options = ad.Options(isolate=isolate, memory_limit_bytes=8 << 20, num_threads=1, num_workers=0)
    handled: list[object] = []
    with ad.Runtime(options, pipelines=3):
        iterators = [ad.Dataset.range(12).batch(4).iterator()]

        def read() -> None:
            iterators[0] = ad.Dataset.range(12).batch(4).iterator()
            with iterators[0], contextlib.suppress(ad.PipelineClosedError):
                _take_three(iterators[0])

        def iterate() -> None:
            assert len(list(ad.Dataset.range(3))) == 3
            handled.append(iterate)

        def close() -> None:
            iterators[0].close()
            handled.append(close)

        read()
        tracer = _Tracer()
        _run(read, tracer)
        places = [place for place in tracer.seen if _HERE in place[0].co_filename]
        assert len(places) > 50
        for place in random.Random(samples(1, 2)).sample(places, min(len(places), samples(25, 10_000))):
            for handler in (iterate, close):
                with contextlib.suppress(RuntimeError):
                    _run(read, _Tracer(place, handler=handler))
        assert set(handled) == {iterate, close}
        assert [len(batch) for batch in ad.Dataset.range(12).batch(4)] == [4, 4, 4]
    gc.collect()


def _is_still(before: ProcessSnapshot) -> bool:
    return not {leak.kind for leak in check(before)} & {"thread", "task", "process"}


@pytest.mark.parametrize("executor", ["inline", "thread"])
def test_an_interrupt_while_a_batch_goes_is_raised_behind_it(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints and forgets what is raised in a finalizer; the end of a batch is none that could be interrupted."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    calls = None if executor == "inline" else 1
    options = ad.Options(memory_limit_bytes=8 << 20, num_threads=1, num_workers=0)
    dataset = ad.Dataset.range(100).map(_wide, calls, executor=executor).batch(5).with_options(options)
    first: list[int] = []
    with dataset.iterator() as iterator:
        held = [next(iterator)]
        for batch in iterator:
            first.append(int(batch[0, 0]))
            held.append(batch)
            del batch
            with pytest.raises(KeyboardInterrupt):
                # Both are one step for the interpreter: the interrupt is there already when the batches go.
                list(map(operator.call, (_thread.interrupt_main, held.clear)))
    assert first == list(range(5, 100, 5))
    assert not ignored


@pytest.mark.sampled
@pytest.mark.parametrize("executor", ["thread", "process"])
def test_real_signals_at_random_moments(executor: str, samples: Callable[[int, int], int]) -> None:
    """A program that starts and closes pipelines all the time ends at the first one.

    Modules made with Cython discard one that comes while they are imported, so the program has imported everything
    before.
    """
    delays = random.Random(3)
    for _ in range(samples(3, 40)):
        with program(f"""
            list(pipeline("{executor}", 10))
            try:
                say("ready")
                while True:
                    it = pipeline("{executor}").iterator()
                    next(it)
                    it.close()
            except KeyboardInterrupt:
                pass
            raise SystemExit(5)
        """) as running:
            running.expect("ready")
            time.sleep(delays.uniform(0.0, 0.3))
            os.kill(running.popen.pid, signal.SIGINT)
            assert running.end() == (5, "", "")
