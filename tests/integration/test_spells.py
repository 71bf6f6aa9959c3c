"""Spells in which no worker process starts, as when the kernel runs out of memory; afterwards a Runtime works again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import asyncdata as ad


class Interpreter:
    """What workers are started with: a program that may be killed before it becomes a Python interpreter.

    Attributes:
        path: Of the program.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "python"
        self._spell = folder / "spell"
        self._deaths = folder / "deaths"
        self.path.write_text(
            f"#!/bin/sh\n"
            f"if [ -e '{self._spell}' ]; then\n"
            f"    echo >> '{self._deaths}'\n"
            f"    [ $(wc -l < '{self._deaths}') -ge $(cat '{self._spell}') ] && rm '{self._spell}'\n"
            f"    kill -KILL $$\n"
            f"fi\n"
            f"exec '{sys.executable}' \"$@\"\n"
        )
        self.path.chmod(0o700)

    def begin_spell(self, deaths: int = 1_000_000) -> None:
        """From now on whoever starts is killed, so many times at most."""
        self._deaths.unlink(missing_ok=True)
        self._spell.write_text(str(deaths))

    def end_spell(self) -> None:
        """From now on workers start."""
        self._spell.unlink()


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    """The interpreter of workers, for Runtimes made in the test."""
    made = Interpreter(tmp_path)
    monkeypatch.setattr(sys, "executable", str(made.path))
    return made


def double(x: int) -> int:
    return 2 * int(x)


NUMBERS = ad.Dataset.range(50).map(double, num_parallel_calls=4)
DOUBLES = [2 * x for x in range(50)]


def kill_workers(runtime: ad.Runtime) -> None:
    stats = runtime.pool_stats()
    assert stats is not None
    for worker in stats.workers:
        os.kill(worker.pid, signal.SIGKILL)


@pytest.mark.slow
def test_the_epoch_after_a_spell_works(interpreter: Interpreter) -> None:
    """While every starting worker is killed an epoch ends with an error that says so; the next delivers all, once."""
    with ad.Runtime(ad.Options(num_workers=2)) as runtime:
        assert list(NUMBERS) == DOUBLES
        interpreter.begin_spell()
        kill_workers(runtime)
        for _ in range(2):
            with pytest.raises(ad.WorkerDiedError, match=r"process can be started|could not be finished") as caught:
                list(NUMBERS)
            assert "was killed by SIGKILL (often the kernel's out-of-memory killer)" in str(caught.value)
        interpreter.end_spell()
        assert list(NUMBERS) == DOUBLES


@pytest.mark.slow
def test_a_spell_at_the_first_start_is_survived_too(interpreter: Interpreter) -> None:
    """A Runtime whose first workers are all killed works as soon as workers start."""
    interpreter.begin_spell()
    with ad.Runtime(ad.Options(num_workers=2)):
        with pytest.raises(ad.WorkerDiedError, match="SIGKILL"):
            list(NUMBERS)
        interpreter.end_spell()
        assert list(NUMBERS) == DOUBLES


@pytest.mark.slow
def test_a_short_spell_goes_unnoticed(interpreter: Interpreter) -> None:
    """Two that die before they are ready cost time, nothing else."""
    interpreter.begin_spell(deaths=2)
    with ad.Runtime(ad.Options(num_workers=1)) as runtime:
        assert list(NUMBERS) == DOUBLES
        stats = runtime.pool_stats()
        assert stats is not None
        assert stats.deaths == 2


@pytest.mark.slow
def test_workers_that_live_go_on_through_a_spell(interpreter: Interpreter, tmp_path: Path) -> None:
    """Where only replacements die the epoch goes on with the workers that are left."""
    mark = tmp_path / "dead"

    def dies_once(x: int) -> int:
        if x == 10 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * int(x)

    with ad.Runtime(ad.Options(num_workers=2)) as runtime:
        assert list(NUMBERS) == DOUBLES
        interpreter.begin_spell()
        many = ad.Dataset.range(50).map(dies_once, num_parallel_calls=4)
        for _ in range(4):
            assert list(many) == DOUBLES
        stats = runtime.pool_stats()
        assert stats is not None
        assert sum(worker.ready for worker in stats.workers) == 1


@pytest.mark.slow
def test_an_interpreter_that_cannot_be_launched_for_a_while_is_tried_again(interpreter: Interpreter) -> None:
    """What the system refuses (no memory for a process, say) is an error while it is refused, and no longer."""
    interpreter.path.chmod(0o600)
    with ad.Runtime(ad.Options(num_workers=2)):
        with pytest.raises(ad.PipelineError, match="Permission denied"):
            list(NUMBERS)
        interpreter.path.chmod(0o700)
        assert list(NUMBERS) == DOUBLES
