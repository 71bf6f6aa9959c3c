"""Rows of a map's input in a recorded order; and an interleave that repeats one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.advance import Rows
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.order.interleave import InterleaveStage
from asyncdata.runtime.stages.order.repeated import RepeatedOrderStage
from asyncdata.runtime.state.choices import Choices, pack
from tests.runtime.stages.laws import Bench, Kinds, Scripted, check_cancelling, check_closing, script, whole
from tests.samples import samples

COUNT = 40
ROWS = sum(what == "row" for what, _ in script(COUNT))


def choices(runs: list[tuple[int, int]]) -> Choices:
    """To be repeated."""
    return Choices(1, None, [pack(np.array(runs, np.int64).reshape(-1, 2))])


def shuffled_runs(rows: int) -> list[tuple[int, int]]:
    """All of so many rows, one to five at a time, in any order."""
    draw = random.Random(1)
    runs, first = [], 0
    while first < rows:
        count = min(draw.randint(1, 5), rows - first)
        runs.append((first, count))
        first += count
    draw.shuffle(runs)
    return runs


def repeated(bench: Bench, kind: Kinds, runs: list[tuple[int, int]]) -> Stage:
    """A map's input."""
    return RepeatedOrderStage(bench.context("map"), Scripted(bench, script(COUNT), kind), choices(runs))


def interleaved(bench: Bench, kind: Kinds, runs: list[tuple[int, int]]) -> Stage:
    """Five datasets of as many rows each, all open at once."""

    def make_inner(element: Any, _origin: Rows, _used: Rows) -> Stage:
        return Scripted(bench, script(COUNT, first=100 * int(element)), kind)

    return InterleaveStage(
        bench.context("interleave", ordered=False),
        Scripted(bench, [("row", value) for value in range(5)], "objects"),
        make_inner,
        cycle_length=5,
        block_length=1,
        ahead=2,
        choices=choices(runs),
    )


def runs_of_datasets() -> list[tuple[int, int]]:
    """The same rows of each dataset in turns of any length."""
    left = dict.fromkeys(range(5), ROWS)
    draw = random.Random(2)
    runs = []
    while left:
        row = draw.choice(list(left))
        count = draw.randint(1, min(7, left[row]))
        runs.append((row, count))
        left[row] -= count
        if not left[row]:
            del left[row]
    return runs


MakeRepeated = Callable[[Bench, Kinds, list[tuple[int, int]]], Stage]

CASES: dict[str, tuple[MakeRepeated, list[tuple[int, int]]]] = {
    "map": (repeated, shuffled_runs(ROWS)),
    "interleave": (interleaved, runs_of_datasets()),
}


def error_of(make: MakeRepeated, runs: list[tuple[int, int]]) -> str | None:
    """How a run ends."""
    return asyncio.run(Bench(random.Random(1)).observe(lambda bench: make(bench, "array", runs))).error


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["array", "refs", "nests"])
@pytest.mark.parametrize("case", CASES)
def test_laws(case: str, kind: Kinds) -> None:
    """However the input is cut, the elements are the same, nothing is used up twice, and everything is given back."""
    make, runs = CASES[case]
    expected = whole(lambda bench: make(bench, kind, runs))
    assert len(expected.elements) == sum(count for _, count in runs)
    for seed in range(samples(6, 300)):
        found = asyncio.run(Bench(random.Random(seed)).observe(lambda bench: make(bench, kind, runs)))
        assert repr(found.elements) == repr(expected.elements)
        assert sorted(found.used_up) == sorted(expected.used_up)
    check_closing(lambda bench: make(bench, kind, runs))
    check_cancelling(lambda bench: make(bench, kind, runs), steps=range(0, 60, samples(8, 1)))


@pytest.mark.parametrize("case", CASES)
def test_a_log_that_does_not_fit(case: str) -> None:
    """Rows that do not exist, or come twice, and rows behind the end are errors, behind what fits."""
    make, runs = CASES[case]
    for wrong, message in (
        ([*runs, (5000, 1)], "does not fit"),
        ([*runs, runs[0]], "does not fit"),
        (runs[:-1], "ends here"),
        ([], "ends here"),
    ):
        assert message in str(error_of(make, wrong))
