"""`Placements`: the steps of a pipeline that run on the stage loop or in workers, and who says where.

Knobs ── every quarter of a second ──▶ Placements ── a `Look` at each step ──▶ planner.placement.Placement
                                           └── reads meters: rows, CPU time of parsers, calls in workers

A step may be at several places at a time: each epoch, and each inner dataset, has a stage of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from asyncdata.observe.cpu_time import CpuTime
from asyncdata.observe.parts import KnobStats
from asyncdata.planner.placement import LOOP, WORKERS, Look, Placement
from asyncdata.runtime.meter import Meter

_STARTING: Final = 0.2
"""So many workers more than in the interval before."""
PLACE: Final = "place"
"""What statistics show in place of what a knob counts."""


class _Placed(NamedTuple):
    """A step.

    Attributes:
        meter: Of the step.
        placement: Decides.
    """

    meter: Meter
    placement: Placement


class _Work(NamedTuple):
    """What a meter showed."""

    rows: int = 0
    calls_s: float = 0.0


class Placements:
    """See the module's text. Stage loop only, but for `stats`.

    Args:
        meters: Of all steps, by place in the plan.
    """

    def __init__(self, meters: Mapping[str, Meter]) -> None:
        self._meters = meters
        self._placed: dict[str, _Placed] = {}
        self._works: dict[Meter, _Work] = {}
        self._ready = 0.0

    def add(self, name: str, meter: Meter, default: int, found: int | None) -> int:
        """One more step; returns where it is to run.

        Args:
            name: Its place in the plan.
            meter: Of the step.
            default: `LOOP` or `WORKERS`.
            found: What an earlier iteration found; None if nothing.
        """
        # Another step at this place may have had a number of calls there.
        place = found if found in (LOOP, WORKERS) else default
        self._placed[name] = _Placed(meter, Placement(place, default))
        return place

    @property
    def is_trying(self) -> bool:
        """Whether a move is being judged."""
        return any(placed.placement.is_trying for placed in self._placed.values())

    def stats(self) -> tuple[KnobStats, ...]:
        """Where steps are to run, and why; from any thread."""
        return tuple(
            KnobStats(
                step=meter.label, counts=PLACE, value=placement.place, default=placement.default, because=placement.why
            )
            for meter, placement in list(self._placed.values())
        )

    def move(self, seconds: float, waiting_s: float, loop: CpuTime, workers_s: float, *, rests: bool) -> dict[str, int]:
        """Lets every step decide; returns those that move now, and where to.

        Args:
            seconds: Since the last call.
            waiting_s: For which the consumer waited.
            loop: What the loop used.
            workers_s: Seconds that workers were there for, summed over them.
            rests: Whether rates change for other reasons.
        """
        moved: dict[str, int] = {}
        if not self._placed:
            return moved
        ready, before = workers_s / max(seconds, 1e-9), self._ready
        self._ready = ready
        # What is measured while workers start says nothing about the time behind that.
        rests = rests or ready > before + _STARTING
        works = self._works
        # Of inner datasets at one place some may have no step there, so that the place has the meter of another one.
        meters = {*self._meters.values(), *(placed.meter for placed in self._placed.values())}
        self._works = {meter: _Work(meter.rows, meter.calls_s) for meter in meters}
        done = {meter: _since(work, works.get(meter, _Work())) for meter, work in self._works.items()}
        busy_s = sum(work.calls_s for meter, work in done.items() if meter.runs == "process")
        for name, (meter, placement) in self._placed.items():
            work = done[meter]
            look = Look(
                seconds=seconds,
                place=LOOP if meter.runs == "loop" else WORKERS,
                rows=work.rows,
                waiting_s=waiting_s,
                loop_s=loop.used_s,
                delayed_s=loop.delayed_s,
                own_s=work.calls_s,
                workers=busy_s / max(workers_s, 1e-9),
            )
            is_turn_of_others = self.is_trying and not placement.is_trying
            if placement.decide(look, rests=rests or is_turn_of_others):
                moved[name] = placement.place
        return moved


def _since(now: _Work, before: _Work) -> _Work:
    return _Work(now.rows - before.rows, now.calls_s - before.calls_s)
