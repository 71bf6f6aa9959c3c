"""`repeat`, `take`, `skip`, `prefetch`: edges, epochs and what is asked for."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.advance import State
from asyncdata.memory.block import Block
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.stage import BLOCK_ROWS, Stage
from asyncdata.runtime.stages.order.concatenate import ConcatenateStage
from asyncdata.runtime.stages.order.prefetch import PrefetchStage
from asyncdata.runtime.stages.order.shuffle import ShuffleStage
from asyncdata.runtime.stages.rows.selection import SkipStage, TakeStage
from asyncdata.runtime.stages.sources.arrays import (
    CountedStage,
    ItemsStage,
    RangeStage,
    RepeatedStage,
    SlicesStage,
)
from tests.runtime.stages import oracle
from tests.runtime.stages.laws import Bench, Make, Scripted, script, whole


class Watched(Stage):
    """A stage that notes what is asked of it, and when it is prepared and closed."""

    def __init__(self, inner: Stage, events: list[Any], name: Any) -> None:
        super().__init__(inner.context, (inner,))
        self._events = events
        self._name = name

    def prepare(self) -> None:
        self._events.append(("prepare", self._name))

    async def _pull(self, limit: int) -> Block | None:
        self._events.append(("pull", self._name, limit))
        return await self.inputs[0].pull(limit)

    async def aclose(self) -> None:
        self._events.append(("close", self._name))
        await super().aclose()


def numbers(bench: Bench, count: int) -> RangeStage:
    return RangeStage(bench.context("range"), range(count), "<i8")


def repeated(count: int | None, length: int, events: list[Any] | None = None) -> Make:
    def make(bench: Bench) -> Stage:
        noted = [] if events is None else events
        return ConcatenateStage(
            bench.context("repeat"), lambda epoch: Watched(numbers(bench, length), noted, epoch), count
        )

    return make


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_so_many_epochs(count: int, length: int) -> None:
    """The input so many times over; no time at all is nothing."""
    assert whole(repeated(count, length)).elements == list(range(length)) * count


def test_for_ever_ends_with_an_empty_input_only() -> None:
    """Repeating nothing for ever is nothing; repeating something does not end."""
    assert whole(repeated(None, 0)).elements == []
    trace = asyncio.run(Bench().observe(repeated(None, 3), pulls=50))
    assert trace.elements == [0, 1, 2] * 50


def test_every_epoch_is_made_once() -> None:
    """Also one that is prepared and whose stage has a length, which is 0 before it is read."""
    made: list[int] = []

    def make(bench: Bench) -> Stage:
        def epoch(number: int) -> Stage:
            made.append(number)
            return ShuffleStage(bench.context("shuffle"), numbers(bench, 3), 2, (1, number))

        return ConcatenateStage(bench.context("repeat"), epoch, 4)

    assert len(whole(make).elements) == 12
    assert len(set(made)) == 4
    assert all(made.count(number) == made.count(0) for number in made)


def test_the_next_epoch_is_prepared_before_this_one_ends() -> None:
    """The next input is made and prepared while the last elements of this one are read; each is closed once."""
    events: list[Any] = []
    whole(repeated(2, 2, events))
    assert [event[:2] for event in events] == [
        ("pull", 0),
        ("prepare", 1),
        ("pull", 0),
        ("close", 0),
        ("pull", 1),
        ("pull", 1),
        ("close", 1),
    ]


def test_shuffling_before_and_after_repeating() -> None:
    """Before: every epoch is whole, in an order of its own. After: epochs mix."""

    def before(bench: Bench) -> Stage:
        return ConcatenateStage(
            bench.context("repeat"), lambda e: ShuffleStage(bench.context("shuffle"), numbers(bench, 20), 20, (9, e)), 3
        )

    def after(bench: Bench) -> Stage:
        repeat = ConcatenateStage(bench.context("repeat"), lambda _: numbers(bench, 20), 3)
        return ShuffleStage(bench.context("shuffle"), repeat, 20, (9, 0))

    found = whole(before).elements
    epochs = [found[i : i + 20] for i in (0, 20, 40)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    mixed = whole(after).elements
    assert sorted(mixed) == sorted(list(range(20)) * 3)
    assert sorted(mixed[:20]) != list(range(20))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 100])
def test_take_and_skip(count: int) -> None:
    """Edges: nothing, less than there is, all of it, more than there is."""
    values = list(range(5))
    assert whole(lambda bench: TakeStage(bench.context("take"), numbers(bench, 5), count)).elements == oracle.take(
        values, count
    )
    assert whole(lambda bench: SkipStage(bench.context("skip"), numbers(bench, 5), count)).elements == oracle.skip(
        values, count
    )


def test_take_asks_for_no_more_than_it_needs() -> None:
    """The input is asked for what is left to take, and never again after that."""
    events: list[Any] = []

    def make(bench: Bench) -> Stage:
        return TakeStage(bench.context("take"), Watched(Scripted(bench, script(9, drops=False)), events, "in"), 4)

    assert len(whole(make).elements) == 4
    assert [limit for what, _, *limit in events if what == "pull"] == [[4]]


def test_skip_leaves_out_large_blocks() -> None:
    """However few elements are wanted at a time; behind them no more are asked for than are wanted."""
    asked: list[Any] = []

    async def run() -> list[int]:
        bench = Bench()
        source = Watched(numbers(bench, 3 * BLOCK_ROWS), asked, "in")
        stage = SkipStage(bench.context("skip"), source, 2 * BLOCK_ROWS + 3)
        found: list[int] = []
        while not found and (block := await stage.pull(5)) is not None:
            found += [int(value) for value in block.elements()]
        await stage.aclose()
        bench._check()
        return found

    assert asyncio.run(run()) == [2 * BLOCK_ROWS + 3, 2 * BLOCK_ROWS + 4]
    assert [limit for what, _, *limit in asked if what == "pull"] == [[BLOCK_ROWS], [BLOCK_ROWS], [5]]


def test_draining_is_known_from_what_is_left() -> None:
    """A stage that needs nothing more from its sources says so, for the next epoch to begin."""

    async def run() -> None:
        bench = Bench()
        source = Scripted(bench, script(5, drops=False))
        stage = TakeStage(bench.context("take"), source, 3)
        assert not stage.draining
        await stage.pull(BLOCK_ROWS)
        assert stage.draining
        assert not source.draining
        await stage.aclose()
        bench._check()

    asyncio.run(run())


def test_prefetch_works_ahead_up_to_its_size() -> None:
    """Without being asked it holds so many elements and no more; being asked makes room."""
    pulled = 0

    class Counting(RangeStage):
        async def _pull(self, limit: int) -> Block | None:
            nonlocal pulled
            block = await super()._pull(min(limit, 2))
            pulled += 0 if block is None else len(block)
            return block

    def make(bench: Bench) -> Stage:
        source = Counting(bench.context("range"), range(40), "<i8")
        stage = PrefetchStage(bench.context("prefetch"), source, 5)
        pull = stage.pull
        seen = 0

        async def look(limit: int) -> Block | None:
            nonlocal seen
            block = await pull(1)
            seen += 0 if block is None else len(block)
            for _ in range(30):
                await asyncio.sleep(0)
            assert pulled == min(seen + 5, 40)
            return block

        stage.pull = look  # type: ignore[method-assign]  # looks at what passes
        return stage

    assert whole(make).elements == list(range(40))


def test_repetitions_of_numbers_and_rows_leave_together() -> None:
    """As many as are asked for in one block; many bytes are not copied for it."""

    async def sizes(length: int, nbytes: int) -> list[int]:
        bench = Bench()
        slices = SlicesStage(bench.context("slices"), (np.zeros((length, nbytes), np.uint8),), LEAF)
        stage = RepeatedStage(slices, 200, lambda number: number)
        found = []
        while (block := await stage.pull(100)) is not None:
            found.append(len(block))
            block.release()
        await bench.put_back(stage)
        assert sum(found) == 200 * length
        return found

    assert asyncio.run(sizes(3, 8)) == [100] * 6
    assert asyncio.run(sizes(1, 40_000)) == [2] * 100
    assert set(asyncio.run(sizes(2, 40_000))) == {2}
    assert max(asyncio.run(sizes(130, 8))) == 100


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("kind", ["range", "slices", "items", "unlike items"])
def test_repetitions_are_those_of_a_stage_each(kind: str, length: int) -> None:
    """Elements and where they come from, in whatever pieces they are asked for."""

    def source(bench: Bench) -> CountedStage:
        if kind == "range":
            return numbers(bench, length)
        if kind == "slices":
            return SlicesStage(bench.context("slices"), (np.arange(3 * length).reshape(length, 3),), LEAF)
        items: list[Any] = [(number, str(number)) for number in range(length)]
        return ItemsStage(bench.context("items"), tuple(["x", *items[1:]] if kind == "unlike items" else items))

    def each(bench: Bench) -> Stage:
        def one(number: int) -> Stage:
            stage = source(bench)
            stage.sub_index = 11 * number
            return stage

        return ConcatenateStage(bench.context("repeat"), one, 7)

    def together(bench: Bench) -> Stage:
        return RepeatedStage(source(bench), 7, lambda number: 11 * number)

    expected = whole(each)
    for seed in range(5):
        found = asyncio.run(Bench(random.Random(seed)).observe(together))
        assert found.elements == expected.elements
        assert found.origins == expected.origins


@pytest.mark.parametrize(
    "mark",
    [
        {"number": 1, "row": 8, "input": State({"at": 3}, 0)},
        {"number": 1, "row": 5, "input": State(None, 3)},
        {"number": 1, "row": 7, "input": State({"at": 2}, 1)},
    ],
)
def test_marks_of_repetitions(mark: Any) -> None:
    """The input's state says how far the repetition is, with a mark of its own or without."""

    def make(bench: Bench) -> Stage:
        stage = RepeatedStage(numbers(bench, 5), 3, lambda number: number)
        stage.restore(mark)
        return stage

    found = whole(make)
    assert found.elements == [3, 4, 0, 1, 2, 3, 4]
    assert [origin[2] for origin in found.origins] == [1, 1, 2, 2, 2, 2, 2]
