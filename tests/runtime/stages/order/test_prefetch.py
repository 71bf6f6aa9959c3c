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
from asyncdata.runtime.stage import BLOCK_ROWS, Stage
from asyncdata.runtime.stages.order.prefetch import Depth, PrefetchStage
from tests.runtime.stages.laws import Bench, Scripted


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
