"""A buffer that lies in files: what is read of it, when, and what comes out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.advance import Advance, State
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, ObjectColumn, RefColumn
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import LEAF, TupleOf
from asyncdata.runtime.reading.source_table import LyingFiles
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.order import draws
from asyncdata.runtime.stages.order.draws import turns
from asyncdata.runtime.stages.order.shuffle import ShuffleStage
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.restored import Pick
from tests.runtime.stages import oracle
from tests.runtime.stages.laws import Bench
from tests.runtime.stages.order.test_shuffle import drawing
from tests.samples import samples

KEY = (5, 6)
KINDS = ("array", "objects", "refs")


def origins(numbers: Iterable[int]) -> Any:
    """Each number is a record of one file, ten bytes long."""
    return np.array([(0, number, 0, 10 * number) for number in numbers], np.int64).reshape(-1, 4)


def wanted(numbers: Iterable[int], version: str | None = None) -> Places:
    """Where these numbers lie."""
    origin = origins(numbers)
    return Places(origin, np.full(len(origin), 10, np.int64), lambda _: version)


class Numbers(Stage):
    """A source of numbers, each of which knows where it lies; says which of them were given."""

    def __init__(self, bench: Bench, numbers: Iterable[int], kind: str, given: list[int]) -> None:
        super().__init__(bench.context("numbers"))
        self._bench = bench
        self._left = list(numbers)
        self._kind = kind
        self._given = given

    async def _pull(self, limit: int) -> Block | None:
        if not self._left:
            return None
        cuts = self._bench.cuts
        if cuts is not None and cuts.random() < 0.3:
            await asyncio.sleep(0)
        count = min(limit, len(self._left), 100 if cuts is None else cuts.randint(1, 4))
        numbers, self._left = self._left[:count], self._left[count:]
        self._given += numbers
        column: Any
        if self._kind == "refs":
            data = np.array(numbers, np.int64)
            slab = await self._bench.budget.take(self._bench.read, data.nbytes)
            self._bench.arena.array[slab.offset : slab.offset + data.nbytes] = data.view(np.uint8)
            rows = np.column_stack((slab.offset + 8 * np.arange(count), np.full(count, 8)))
            column = RefColumn(self._bench.budget.slabs, rows, Leaf("array", "<i8", ()))
            column.hold()
            self._bench.budget.slabs.drop(slab)
        else:
            column = ArrayColumn(np.array(numbers)) if self._kind == "array" else ObjectColumn(list(numbers))
        twice = ArrayColumn(2 * np.array(numbers))
        return Block(TupleOf((LEAF, LEAF)), (column, twice), origins(numbers), Advance(count))


def resumed(
    draw: random.Random, buffer: list[int], rest: list[int], size: int, skip: int | None
) -> tuple[list[int], list[int], list[int]]:
    """A shuffle that goes on with this buffer: what it delivers, what was read of the buffer, as it comes, and when.

    Without a number of outputs to skip, the buffer had no order, and the input fills it up.
    """
    read: list[int] = []
    when: list[int] = []

    def make(bench: Bench) -> Stage:
        kinds = [draw.choice(KINDS) for _ in range(2)] if draw.random() < 0.5 else [draw.choice(KINDS)] * 2

        def pick(places: Places) -> Stage:
            spans = [int(number) for span in places.spans(1) for number in span.records]
            return Numbers(bench, spans, kinds[0], read)

        stage = ShuffleStage(
            bench.context("shuffle"),
            Numbers(bench, rest, kinds[1], []),
            size,
            KEY,
            Pick(pick, [LyingFiles([0])], is_sized=False),
            wanted(buffer) if skip is None else None,
        )
        if skip is not None:
            state = State(None, 0)
            stage.restore({"drawn": 0, "places": wanted(buffer), "next": 0, "row": 0, "input": state, "skip": skip})
        pull = stage.pull

        async def noted(limit: int) -> Block | None:
            block = await pull(limit)
            when.append(len(read))
            return block

        stage.pull = noted  # type: ignore[method-assign]  # it is looked at
        return stage

    cuts = draw if draw.random() < 0.8 else None
    trace = asyncio.run(Bench(cuts).observe(make))
    assert trace.error is None, trace.error
    assert all(twice == 2 * element for element, twice in trace.elements), "columns have come apart"
    return [int(element) for element, _ in trace.elements], read, when


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(100, 5000)))
def test_only_what_is_delivered_is_read(seed: int) -> None:
    """The rest comes as it would have come, and of the buffer no row is read that was delivered before."""
    draw = random.Random(seed)
    size = draw.choice([1, 2, 7, 30, 200])
    count = draw.randint(1, 4 * size)
    skip = draw.choice([0, 0, draw.randint(0, count), draw.randint(0, size)])
    skip = min(skip, count)
    buffer, rest = list(range(count))[:size], list(range(count))[size:]
    expected = oracle.shuffle(range(count), size, drawing(KEY))[skip:]
    elements, read, _ = resumed(draw, buffer, rest, size, skip)
    assert elements == expected
    assert len(read) == len(set(read))
    needed = {element for element in expected if element < size}
    # Where the input ends before the outputs that are left out do, what is drawn then was not foreseen.
    if skip <= len(rest) or count < size:
        assert set(read) == needed
    assert needed <= set(read)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(100, 5000)))
def test_an_element_that_was_repeated_takes_all_its_slots(seed: int) -> None:
    """Whichever of them is needed first, and if the input gives it once more."""
    draw = random.Random(seed)
    size = draw.choice([1, 2, 7, 30, 200])
    count = draw.randint(1, 4 * size)
    skip = draw.choice([0, draw.randint(0, min(size, count))])
    numbers = [draw.randrange(draw.choice([1, size, 2 * size])) for _ in range(count)]
    elements, read, _ = resumed(draw, numbers[:size], numbers[size:], size, skip)
    assert elements == oracle.shuffle(numbers, size, drawing(KEY))[skip:]
    assert set(read) <= set(numbers[:size])
    # Where the input ends before the outputs that are left out do, what is drawn then was not foreseen.
    if count < size or not skip:
        assert len(read) == len(set(read)), "all of them are asked for together"


@given(st.integers(1, 60), st.integers(0, 300), st.booleans(), st.sampled_from([1, 1 << 16]))
def test_turns_are_when_a_slot_is_drawn_first(size: int, least: int, full: bool, few: int) -> None:
    """As if outputs were drawn one by one; of a slot that is not drawn for long, that it is not."""
    with mock.patch.object(draws, "_FEW", few):
        found = turns(KEY, 0, size, full=full, least=least)
    looked = max(4 * size, least)
    inputs = range(size + looked) if full else range(size)
    out = oracle.shuffle(inputs, size, drawing(KEY))
    if full:
        assert found.tolist() == [min(out.index(slot), looked) for slot in range(size)]
    else:
        assert found.tolist() == [out.index(slot) for slot in range(size)]


def test_no_more_is_looked_at_than_is_needed() -> None:
    """However many outputs are left out: a compressed file, in which nothing can begin, may have billions of lines."""
    assert int(turns(KEY, 5, 100, full=True, least=1 << 60).max()) < 10_000


def test_the_first_outputs_do_not_wait_for_the_last_rows() -> None:
    """Rows are read by the turn of their slots, a few ahead of what leaves."""
    draw = random.Random(2)
    size = 5000
    _, read, when = resumed(draw, list(range(size)), list(range(size, 3 * size)), size, 0)
    assert when[0] < size / 4
    assert set(read) <= set(range(size))


@pytest.mark.parametrize("seed", range(samples(100, 3000)))
def test_the_input_fills_up_a_buffer_without_an_order(seed: int) -> None:
    """Whether it can or not: everything comes once, those first that were drawn first from a buffer of all of them."""
    draw = random.Random(seed)
    size = draw.choice([1, 2, 7, 30, 200])
    count = draw.randint(1, size)
    rest = list(range(count, count + draw.choice([0, size - count, draw.randint(0, 3 * size)])))
    elements, read, _ = resumed(draw, list(range(count)), rest, size, None)
    assert elements == oracle.shuffle([*range(count), *rest], size, drawing(KEY))
    assert set(read) == set(range(count))


@pytest.mark.sampled
@pytest.mark.parametrize("inputs", [0, 2000, 30_000])
def test_its_first_outputs_do_not_wait_for_the_last_rows(inputs: int) -> None:
    """Nor where the input ends before the buffer is full: then they are drawn in another order than was thought."""
    _, read, when = resumed(random.Random(2), list(range(5000)), list(range(5000, 5000 + inputs)), 10_000, None)
    assert when[0] < 2500
    assert set(read) == set(range(5000))


def test_rows_that_lie_elsewhere_are_an_error() -> None:
    """A state that was changed names rows that are not there."""
    size = 20

    def make(bench: Bench) -> Stage:
        def pick(places: Places) -> Stage:
            return Numbers(bench, [int(row[1]) + 1 for row in places.origin], "array", [])

        context = bench.context("shuffle")
        stage = ShuffleStage(
            context, Numbers(bench, range(20, 40), "refs", []), size, KEY, Pick(pick, [LyingFiles([0])], is_sized=False)
        )
        stage.restore(
            {"drawn": 0, "places": wanted(range(size)), "next": 20, "row": 20, "input": State(None, 20), "skip": 0}
        )
        return stage

    for seed in range(20):
        trace = asyncio.run(Bench(random.Random(seed)).observe(make))
        assert "elements of the buffer" in str(trace.error)
