"""Laws of gates and guarded threads: opened once, nobody is forgotten, and interrupts break nothing."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from asyncdata.runtime.life.interrupt_safe import Gate, GuardedThread
from tests.patience import LIMIT_S


def _unexpected(error: BaseException) -> None:
    raise AssertionError(error)


def test_an_open_gate_lets_everybody_through() -> None:
    """At once, any number of times."""
    gate = Gate()
    assert not gate.is_open
    gate.open()
    gate.open()
    assert gate.is_open
    assert gate.wait()
    assert gate.wait(0)


def test_a_wait_that_is_over_says_so_and_leaves_no_trace() -> None:
    """The gate is still closed, and keeps nothing of whoever has gone."""
    gate = Gate()
    for timeout_s in (0, 0.001, -1.0):
        assert not gate.wait(timeout_s)
    assert not gate._waiting


def test_nobody_is_forgotten() -> None:
    """Whoever comes while the gate is being opened, by several at a time, gets through."""
    source = random.Random(1)
    for _ in range(100):
        gate = Gate()
        waiting = [threading.Thread(target=gate.wait, args=(source.choice((None, 60.0)),)) for _ in range(4)]
        opening = [threading.Thread(target=gate.open) for _ in range(2)]
        threads = waiting + opening
        source.shuffle(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not gate._waiting


def test_a_signal_that_does_not_end_the_wait_is_seen() -> None:
    """One that another thread receives, as one that comes right before the main thread begins to wait for its lock."""
    gate = Gate()

    def interrupt() -> None:
        while not gate._waiting:
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        _wait_for(thread, gate)
    thread.join()


def _wait_for(thread: threading.Thread, gate: Gate) -> None:
    thread.start()
    gate.wait(LIMIT_S)
    thread.join()


def test_an_interrupted_wait_takes_nothing_with_it() -> None:
    """Ctrl-C ends the wait; whoever opens the gate afterwards is not held up."""
    gate = Gate()
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            _wait_interrupted(gate)
    opener = threading.Thread(target=gate.open)
    opener.start()
    assert gate.wait(LIMIT_S)
    opener.join()


def _wait_interrupted(gate: Gate) -> None:
    timer = threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        gate.wait(LIMIT_S)
    finally:
        timer.join()


def test_a_guarded_thread_runs_once_and_is_joined() -> None:
    """It knows itself, and is gone when it was joined."""
    seen: list[bool] = []
    thread = GuardedThread(lambda: seen.append(thread.is_current()), "test-guarded", _unexpected)
    assert not thread.was_started
    thread.join()  # nothing to wait for
    thread.start()
    assert thread.was_started
    thread.join()
    assert seen == [True]
    assert not thread.is_alive()
    assert not thread.is_current()


def test_a_thread_that_cannot_be_started_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """To whoever waits for its work; joining it does not hang."""
    errors: list[BaseException] = []
    told = Gate()

    def failed(error: BaseException) -> None:
        errors.append(error)
        told.open()

    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("no more threads")

    thread = GuardedThread(lambda: None, "test-guarded", failed)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    thread.start()
    assert told.wait(LIMIT_S)
    thread.join()
    assert [str(error) for error in errors] == ["no more threads"]
