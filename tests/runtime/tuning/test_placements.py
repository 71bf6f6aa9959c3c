"""`Placements`: what steps are shown of what their pipeline does."""

from __future__ import annotations

import pytest

from asyncdata.observe.cpu_time import CpuTime
from asyncdata.planner.placement import LOOP, WORKERS
from asyncdata.runtime.meter import Meter
from asyncdata.runtime.tuning.placements import Placements

EVERY_S = 0.25


@pytest.mark.parametrize("ready", [0, 2])
def test_no_trial_is_judged_by_what_came_while_workers_started(ready: int) -> None:
    """Rates rise by themselves then: a step that moved meanwhile would stay where it brings nothing.

    The loop is busy with the step, which workers do at the same rate. Whatever rates were before the workers of another
    step had started, it is on the loop in the end.
    """
    step = Meter("a reader")
    placements = Placements({"step": step})
    place = placements.add("step", step, LOOP, None)
    was = {place}
    for turn in range(16):
        starting = turn < 4 and not ready
        step.runs = "loop" if place == LOOP else "process"
        step.rows += 100 if starting else 1000
        step.calls_s += EVERY_S / 2
        workers_s = EVERY_S * (turn / 2 if starting else 2)
        moved = placements.move(EVERY_S, EVERY_S / 2, CpuTime(EVERY_S, 0.0), workers_s, rests=False)
        place = moved.get("step", place)
        was.add(place)
    assert was == {LOOP, WORKERS}
    assert place == LOOP


def test_what_another_kind_of_step_found_is_no_place() -> None:
    """As a number of calls, of an earlier pipeline of the same elements."""
    step = Meter("a reader")
    assert Placements({"step": step}).add("step", step, LOOP, 32) == LOOP


def test_a_step_whose_place_has_the_meter_of_another_one_is_measured() -> None:
    """Of two inner datasets one may have a step there that has no stage of its own."""
    step, other = Meter("a reader"), Meter("its input")
    meters = {"step": step}
    placements = Placements(meters)
    placements.add("step", step, LOOP, None)
    meters["step"] = other
    assert placements.move(EVERY_S, EVERY_S / 2, CpuTime(EVERY_S, 0.0), 0.0, rests=False) == {}
