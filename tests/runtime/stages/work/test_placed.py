"""A parser that changes its place at any block: the laws of stages, and the same as where it always stays in one place.

Workers are threads that run what a worker process runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest

from asyncdata.formats.tfrecord import check_payloads
from asyncdata.planner.placement import LOOP, WORKERS
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.rows.parsed import ParserStage
from asyncdata.runtime.stages.work.executors import ThreadExecutor
from asyncdata.runtime.stages.work.placed import PlacedStage
from asyncdata.runtime.stages.work.worker_map import WorkerStage
from asyncdata.runtime.tuning.knob import Knob
from asyncdata.workers.program import Program
from tests.runtime.stages.laws import Bench, Make, check_any_blocking, check_cancelling, check_closing, guard, whole
from tests.runtime.stages.restless import Restless
from tests.runtime.stages.rows.test_parsed import MAKERS, Cutter, source
from tests.samples import samples

SEEDS = range(samples(8, 200))


def placed(place: Callable[[], Knob]) -> Callable[..., Make]:
    """Makes of a parser what `test_parsed` makes, in a place or in turns."""

    def of(parser: Cutter, batch: int, *, skips: bool = False) -> Make:
        program = Program(functions=(parser,), rng=(False,), check=check_payloads, skip=skips)

        def make(bench: Bench) -> Stage:
            context = bench.context("map", guard=guard(bench) if skips else None)
            executor = ThreadExecutor(bench, bench.arena, program)

            def in_workers(gate: Stage) -> Stage:
                in_order = dataclasses.replace(context, ordered=True)
                return WorkerStage(in_order, gate, executor=executor, outcome="rows", parallelism=3, first_rows=5)

            return PlacedStage(
                context,
                source(bench, batch),
                place=place(),
                executor=lambda: executor,
                on_loop=lambda gate: ParserStage(context, gate, parser, parser),
                in_workers=in_workers,
            )

        return make

    return of


RESTLESS = placed(lambda: Restless(LOOP, WORKERS))


@pytest.mark.parametrize("name", MAKERS)
def test_elements_are_those_of_either_place(name: str) -> None:
    """However the input is cut, and wherever each block is worked on: values, provenance, states and errors."""
    found = check_any_blocking(MAKERS[name](RESTLESS), seeds=SEEDS)
    for place in (LOOP, WORKERS):
        found.check_same(whole(MAKERS[name](placed(functools.partial(Knob, place)))))
    assert (found.error is not None) == ("bad" in name and "left out" not in name)


@pytest.mark.sampled
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_held_at_the_end(name: str) -> None:
    """Also where the stage is closed, or cancelled, in the middle of a change."""
    for seed in range(samples(1, 20)):
        check_closing(MAKERS[name](RESTLESS), seed=seed)
        check_cancelling(MAKERS[name](RESTLESS), seed=seed, steps=range(0, 60, samples(6, 1)))
