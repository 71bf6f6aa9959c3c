"""`prefetch`: how far it works ahead when nobody says."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from asyncdata.memory.advance import NO_ORIGINS, Advance
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF
from asyncdata.observe import stopwatch
from asyncdata.runtime.meter import Meter
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.order.prefetch import Depth, PrefetchStage
from asyncdata.runtime.stages.sources.arrays import ItemsStage
from tests.runtime.stages.laws import Bench, Kinds, Scripted


def block(rows: int, row_bytes: int = 8) -> Block:
    """So many rows of so many bytes."""
    origin = np.zeros((rows, NO_ORIGINS.shape[1]), np.int64)
    return Block(LEAF, (ArrayColumn(np.zeros((rows, row_bytes), np.uint8)),), origin, Advance(rows))


def test_it_begins_with_few() -> None:
    """Nothing is known before the first element."""
    assert Depth(1 << 20, 1 << 21).elements == 2


@pytest.mark.parametrize(
    ("rows", "row_bytes", "seconds", "elements"),
    [
        (8, 8, 0.000_08, BLOCK_ROWS),  # cheap and small: a whole block
        (8, 8, 0.008, 50),  # 50 ms' worth of them
        (8, 8, 8.0, 8),  # dear: few
        (8, 1 << 16, 0.000_08, 16),  # a megabyte of them
        (8, 1 << 18, 0.000_08, 8),  # large: few
        (8, 1 << 19, 0.000_08, 4),  # eight of them would take too much from others
        (8, 1 << 21, 8.0, 2),  # one is taken, the next is made
        (8, 0, 0.0, BLOCK_ROWS),  # costs nothing that could be measured
    ],
)
def test_what_is_cheap_is_made_many_at_a_time(rows: int, row_bytes: int, seconds: float, elements: int) -> None:
    """50 ms' worth of elements, of no more bytes than may wait; at least 8 that have their usual bytes, and 2."""
    depth = Depth(1 << 20, 1 << 21)
    depth.note(block(rows, row_bytes), seconds)
    assert depth.elements == elements


def test_old_measurements_fade() -> None:
    """Elements that become dear are soon made few at a time, and one that was slow is soon forgotten."""
    depth = Depth(1 << 20, 1 << 21)
    for _ in range(20):
        depth.note(block(8), 0.000_08)
    assert depth.elements == BLOCK_ROWS
    for _ in range(30):
        depth.note(block(8), 0.8)
    assert depth.elements == 8
    for _ in range(60):
        depth.note(block(8), 0.000_08)
    assert depth.elements == BLOCK_ROWS


async def test_what_others_do_on_the_loop_is_no_work_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task takes a second of the loop at each turn; the step, which only hands elements on, has worked none."""
    now = [0.0]
    monkeypatch.setattr(stopwatch, "clock", lambda: now[0])
    meter = Meter("prefetch")

    async def others() -> None:
        while True:
            now[0] += 1
            await asyncio.sleep(0)

    def make(bench: Bench) -> Stage:
        upstream = Scripted(bench, [("row", number) for number in range(50)])
        upstream.meter = source
        return PrefetchStage(bench.context("prefetch", meter=meter), upstream, 4)

    source = Meter("source")
    busy = asyncio.create_task(others())
    try:
        trace = await Bench().observe(make)
    finally:
        busy.cancel()
    assert len(trace.elements) == 50
    assert now[0] > 15
    assert meter.asked_s(now[0]) - source.pulls.seconds(now[0]) - meter.others.seconds(now[0]) < 3


class Taking(Stage):
    """Takes elements one by one for some time, then as many as there are; its input has time to work ahead.

    Attributes:
        lengths: Of the blocks that it got.
    """

    def __init__(self, context: StageContext, upstream: Stage, ones: int) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._ones = ones
        self.lengths: list[int] = []

    async def _pull(self, limit: int) -> Block | None:
        for _ in range(10):
            await asyncio.sleep(0)
        taken = await self._upstream.pull(1 if len(self.lengths) < self._ones else limit)
        if taken is not None:
            self.lengths.append(len(taken))
        return taken


@pytest.mark.parametrize("kind", ["array", "objects", "refs", "nests"])
@pytest.mark.parametrize("most", [2, 10, 50])
async def test_a_full_buffer_does_not_make_blocks_of_one(kind: Kinds, most: int) -> None:
    """Elements are taken one by one, and the input replaces each: who then asks for many gets all that wait."""
    stages: list[Taking] = []

    def make(bench: Bench) -> Stage:
        upstream = Scripted(bench, [("row", number) for number in range(6 * most)], kind)
        stage = PrefetchStage(bench.context("prefetch"), upstream, most)
        stages.append(Taking(bench.context("taking"), stage, ones=3 * most))
        return stages[0]

    trace = await Bench().observe(make)
    assert len(trace.elements) == 6 * most
    assert stages[0].lengths == [1] * 3 * most + [most] * 3


async def test_large_elements_are_handed_on_one_by_one() -> None:
    """Together they would be with whoever is behind, beside as many that are made meanwhile."""
    stages: list[Taking] = []

    def make(bench: Bench) -> Stage:
        upstream = ItemsStage(bench.context("large"), tuple(np.zeros(1 << 15, np.int64) for _ in range(8)))
        ones = Taking(bench.context("ones"), upstream, ones=8)
        stages.append(Taking(bench.context("taking"), PrefetchStage(bench.context("prefetch"), ones, 4), ones=0))
        return stages[0]

    assert len((await Bench().observe(make)).elements) == 8
    assert stages[0].lengths == [1] * 8
