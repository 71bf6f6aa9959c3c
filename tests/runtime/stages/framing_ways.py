"""Where the tests of framed files have them framed: on the loop, by a stand-in for a worker, or now here, now there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator

from asyncdata.formats.framing import Framer
from asyncdata.formats.framing_task import FramingTask
from asyncdata.observe.parts import Runs
from asyncdata.planner.placement import LOOP, WORKERS
from asyncdata.runtime.stages.sources.framed_away import FramedAway
from asyncdata.runtime.tuning.knob import Knob
from asyncdata.workers.pool import Grant
from asyncdata.workers.program import OtherProgram, execute
from tests.runtime.stages.laws import Bench

WAYS = ["on the loop", "by workers", "moving"]
_way = [WAYS[0]]


@contextlib.contextmanager
def framing(way: str) -> Iterator[None]:
    """Stages that are made meanwhile frame there, see `WAYS`."""
    _way[0] = way
    yield
    _way[0] = WAYS[0]


def away(bench: Bench, framer: Framer) -> FramedAway | None:
    """What a stage is given."""
    if _way[0] == WAYS[0]:
        return None
    task = FramingTask(framer)
    place = Knob(WORKERS) if _way[0] == WAYS[1] else _Restless()
    return FramedAway(task, bench.context("framing").meter, lambda: place, lambda: _Worker(bench, task))


class _Restless(Knob):
    """Turns at almost every look."""

    def __init__(self) -> None:
        self._draw = random.Random(1)
        super().__init__(LOOP)

    @property
    def value(self) -> int:
        return self._draw.choice([LOOP, WORKERS])

    @value.setter
    def value(self, value: int) -> None:
        pass


class _Worker:
    """Does tasks after some turns of the loop; it sees the same memory, and nothing else."""

    runs: Runs = "process"
    ready = True

    def __init__(self, bench: Bench, task: OtherProgram) -> None:
        self._bench = bench
        self._task = task
        self._turns = itertools.cycle((0, 1, 3))

    async def run(self, payload: bytes, grant: Grant) -> bytes:
        del grant
        for _ in range(next(self._turns)):
            await asyncio.sleep(0)
        return execute(self._bench.arena.view, self._task, payload, _nothing)


def _nothing(nbytes: int, slot: int) -> tuple[int, int]:
    raise AssertionError(f"framing needs {nbytes} bytes for {slot}")
