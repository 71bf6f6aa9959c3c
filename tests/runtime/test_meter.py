"""Meters divide the time of a step among what it did, and the parts add up to the window."""

from __future__ import annotations

import pytest

from asyncdata.observe import stopwatch
from asyncdata.runtime import meter as meters
from asyncdata.runtime.meter import Meter, step_stats


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until it is told otherwise."""
    moment = [1000.0]
    for module in (stopwatch, meters):
        monkeypatch.setattr(module, "clock", lambda: moment[0])
    return moment


def test_a_pull_is_work_or_waiting_for_the_input(now: list[float]) -> None:
    """Ten seconds: two nobody asks, one of work, three in the input's pull, four for memory, also while they last."""
    last, source = Meter("batch"), Meter("read")
    for each in (last, source):
        each.alive.begin()
    now[0] += 2
    with last.pulls:
        now[0] += 1
        with source.pulls, source.storage:
            now[0] += 3
        with last.memory:
            now[0] += 4
            batch, read = step_stats({"plan": last, "plan.0": source}, 10.0)
    assert (batch.working_s, batch.input_s, batch.memory_s, batch.consumer_s) == (1, 3, 4, 2)
    assert (read.input_s, read.consumer_s, read.awaited_s) == (3, 7, 3)
    assert (batch.inputs, read.inputs) == ((1,), ())


def test_a_step_that_works_ahead_is_asked_while_it_has_room(now: list[float]) -> None:
    """Whoever pulls it does not count: its own task does."""
    ahead = Meter("map")
    ahead.alive.begin()
    with ahead.works_ahead():
        with ahead.calls:
            now[0] += 6
        with ahead.full:
            now[0] += 3
        now[0] += 1
    (step,) = step_stats({"plan": ahead}, 10.0)
    assert (step.working_s, step.workers_s, step.consumer_s, step.ahead) == (1, 6, 3, True)


def test_while_others_have_the_loop_a_step_waits_for_its_input(now: list[float]) -> None:
    """Two seconds of work, three that it left to others; a source is not asked meanwhile."""
    last, source = Meter("batch"), Meter("read")
    for each in (last, source):
        each.alive.begin()
    with last.pulls:
        now[0] += 2
        with last.others:
            now[0] += 3
    with source.pulls:
        now[0] += 1
        with source.others:
            now[0] += 3
    batch, read = step_stats({"plan": last, "plan.0": source}, 10.0)
    # The source was pulled for four seconds, of which it worked one.
    assert (batch.working_s + batch.input_s, batch.consumer_s) == (5, 5)
    assert (read.working_s, read.input_s, read.consumer_s) == (1, 0, 9)


def test_copies_are_told_as_means(now: list[float]) -> None:
    """Four files of which each is pulled a quarter of the time."""
    files = Meter("file")
    for _ in range(4):
        files.alive.begin()
    for _ in range(4):
        with files.pulls, files.storage:
            now[0] += 2.5
    (step,) = step_stats({"plan": files}, 10.0)
    assert (step.copies, step.input_s, step.consumer_s, step.awaited_s) == (4, 2.5, 7.5, 10)


def test_a_step_that_its_input_does_as_well_is_told_once(now: list[float]) -> None:
    """Two places with one meter; the step behind them reads the one."""
    last, both = Meter("take"), Meter("range")
    last.alive.begin()
    both.alive.begin()
    now[0] += 1
    found = step_stats({"plan": last, "plan.0": both, "plan.0.0": both, "plan.0.0.0": Meter("x")}, 1.0)
    assert [step.name for step in found] == ["take", "range", "x"]
    assert [step.inputs for step in found] == [(1,), (2,), ()]


def test_parts_never_exceed_the_window(now: list[float]) -> None:
    """Whatever overlaps: waits of several tasks at a time."""
    crowded = Meter("interleave")
    crowded.alive.begin()
    with crowded.pulls, crowded.memory, crowded.memory, crowded.calls, crowded.storage:
        now[0] += 10
    (step,) = step_stats({"plan": crowded}, 10.0)
    assert step.asked_s + step.consumer_s == pytest.approx(10)
    assert min(step.working_s, step.input_s, step.memory_s, step.workers_s, step.consumer_s) >= 0
