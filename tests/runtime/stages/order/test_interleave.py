"""`interleave`: tf.data's order when deterministic, no waiting for the slow when not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import BLOCK_ROWS, Stage
from asyncdata.runtime.stages.order.interleave import InterleaveStage
from asyncdata.runtime.stages.sources.arrays import ItemsStage
from asyncdata.types import Element
from tests.runtime.stages import oracle
from tests.runtime.stages.laws import Bench, Make, Scripted, check_any_blocking, whole
from tests.samples import samples


def items(bench: Bench, values: Sequence[Any]) -> ItemsStage:
    """A source of these elements."""
    return ItemsStage(bench.context("items"), tuple(values))


def interleaved(
    lengths: Sequence[int], cycle: int, block: int, *, sloppy: bool = False, ahead: int = 2
) -> Callable[[Bench], Stage]:
    """Input element i makes a dataset of ``lengths[i]`` elements: 100 i, 100 i + 1 and so on."""

    def make(bench: Bench) -> Stage:
        def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
            return Scripted(bench, [("row", 100 * element + j) for j in range(lengths[element])])

        return InterleaveStage(
            bench.context("interleave", ordered=not sloppy),
            items(bench, range(len(lengths))),
            make_inner,
            cycle_length=cycle,
            block_length=block,
            ahead=ahead,
        )

    return make


def expected(lengths: Sequence[int], cycle: int, block: int) -> list[int]:
    return oracle.interleave(range(len(lengths)), lambda i: [100 * i + j for j in range(lengths[i])], cycle, block)


def test_datasets_that_only_look_as_if_they_read_nothing_are_prepared() -> None:
    """As a file beside a counter, in `zip`, which drains when the counter does."""
    prepared: list[int] = []

    class Draining(Scripted):
        number = 0

        def prepare(self) -> None:
            prepared.append(self.number)

        @property
        def draining(self) -> bool:
            return True

    async def run() -> None:
        bench = Bench()

        def make_inner(element: Element, _origin: Rows, _used: Rows) -> Stage:
            inner = Draining(bench, [("row", int(element))])
            inner.number = int(element)
            return inner

        stage = InterleaveStage(
            bench.context("interleave"), items(bench, range(8)), make_inner, cycle_length=3, block_length=1, ahead=4
        )
        block = await stage.pull(1)
        assert block is not None
        block.release()
        assert set(prepared) >= {1, 2, 3}
        await bench.put_back(stage)

    asyncio.run(run())


def test_the_oracle_knows_the_example_of_tf_data() -> None:
    """The example in tf.data's documentation: range(1, 6), six of each, cycle_length=2, block_length=4."""
    ones_to_fives = [1] * 4 + [2] * 4 + [1] * 2 + [2] * 2 + [3] * 4 + [4] * 4 + [3] * 2 + [4] * 2 + [5] * 6
    assert oracle.interleave(range(1, 6), lambda x: [x] * 6, 2, 4) == ones_to_fives


@pytest.mark.parametrize(
    ("lengths", "cycle", "block", "order"),
    [
        ([2, 2], 2, 1, [0, 100, 1, 101]),
        ([3, 1], 2, 1, [0, 100, 1, 2]),
        ([3, 1, 2], 2, 1, [0, 100, 1, 2, 200, 201]),
        ([0, 2], 2, 1, [100, 101]),
        ([1, 0, 2, 2], 2, 1, [0, 200, 300, 201, 301]),
        ([3, 3], 2, 2, [0, 1, 100, 101, 2, 102]),
        ([3, 3], 1, 2, [0, 1, 2, 100, 101, 102]),
        ([2, 2, 2], 5, 1, [0, 100, 200, 1, 101, 201]),
        ([0, 0, 0], 2, 3, []),
        ([], 4, 1, []),
        ([5, 1, 1, 1], 2, 4, [0, 1, 2, 3, 100, 4, 200, 300]),
    ],
)
def test_orders(lengths: list[int], cycle: int, block: int, order: list[int]) -> None:
    """Orders worked out by hand from tf.data's documentation."""
    assert expected(lengths, cycle, block) == order
    assert whole(interleaved(lengths, cycle, block)).elements == order


@given(
    st.lists(st.integers(0, 7), max_size=12),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(0, 1000)),
)
def test_the_order_is_tf_datas(lengths: list[int], cycle: int, block: int, ahead: int, seed: int | None) -> None:
    """Whatever the lengths, the blocks and how much is opened ahead, the order is the oracle's."""
    cuts = None if seed is None else random.Random(seed)
    trace = asyncio.run(Bench(cuts).observe(interleaved(lengths, cycle, block, ahead=ahead)))
    assert trace.elements == expected(lengths, cycle, block)


@given(st.lists(st.integers(0, 7), max_size=12), st.integers(1, 6), st.integers(1, 5), st.integers(0, 1000))
def test_sloppy_loses_and_doubles_nothing(lengths: list[int], cycle: int, block: int, seed: int) -> None:
    """Any order: every element once, and those of one inner dataset in their order."""
    trace = asyncio.run(Bench(random.Random(seed)).observe(interleaved(lengths, cycle, block, sloppy=True)))
    assert sorted(trace.elements) == sorted(expected(lengths, cycle, block))
    for i, length in enumerate(lengths):
        assert [x for x in trace.elements if x // 100 == i] == [100 * i + j for j in range(length)]


class Gated(Stage):
    """An inner dataset whose elements come when the test lets them."""

    def __init__(self, inner: Stage, gate: asyncio.Event) -> None:
        super().__init__(inner.context, (inner,))
        self._gate = gate

    async def _pull(self, limit: int) -> Block | None:
        await self._gate.wait()
        return await self.inputs[0].pull(limit)


async def _drain(stage: Stage, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        block = await stage.pull(BLOCK_ROWS)
        if block is None:
            break
        found += block.elements()
        block.release()
    return found


def test_sloppy_does_not_wait_for_a_slow_dataset() -> None:
    """While one inner dataset has nothing, everything the others have is delivered; it follows when it comes."""

    def make(bench: Bench) -> Stage:
        gate = asyncio.Event()

        def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
            inner = Scripted(bench, [("row", 100 * element + j) for j in range(4)])
            return Gated(inner, gate) if element == 1 else inner

        stage = InterleaveStage(
            bench.context("interleave", ordered=False),
            items(bench, range(6)),
            make_inner,
            cycle_length=3,
            block_length=2,
            ahead=1,
        )

        async def others_then_all(limit: int) -> Block | None:
            if not gate.is_set():
                seen = await _drain(stage, 20)
                assert sorted(x // 100 for x in seen) == [i for i in (0, 2, 3, 4, 5) for _ in range(4)]
                gate.set()
                assert await _drain(stage, 4) == [100, 101, 102, 103]
            return await pull(limit)

        pull = stage.pull
        stage.pull = others_then_all  # type: ignore[method-assign]  # looks at what passes
        return stage

    assert whole(make).elements == []


class Unready(Stage):
    """An input about which nobody knows what it has available."""

    def __init__(self, upstream: Stage) -> None:
        super().__init__(upstream.context, (upstream,))

    async def _pull(self, limit: int) -> Block | None:
        await asyncio.sleep(0)
        return await self.inputs[0].pull(limit)


@pytest.mark.parametrize("unready", [False, True])
@pytest.mark.parametrize("sloppy", [False, True])
@pytest.mark.parametrize(("cycle", "ahead"), [(1, 1), (4, 4), (3, 5)])
def test_as_many_as_asked_for_are_always_opened_ahead(cycle: int, ahead: int, sloppy: bool, unready: bool) -> None:
    """When a dataset ends the next one was opened long before, wherever in the cycle that is."""
    count, rows = 40, 6

    def make(bench: Bench) -> Stage:
        opened: list[int] = []

        def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
            opened.append(element)
            return Scripted(bench, [("row", 100 * element + j) for j in range(rows)])

        upstream: Stage = items(bench, range(count))
        stage = InterleaveStage(
            bench.context("interleave", ordered=not sloppy),
            Unready(upstream) if unready else upstream,
            make_inner,
            cycle_length=cycle,
            block_length=1,
            ahead=ahead,
        )
        pull = stage.pull
        left = [0] * count

        async def watched(limit: int) -> Block | None:
            block = await pull(limit)
            if block is not None:
                for element in block.elements():
                    left[element // 100] += 1
                for _ in range(10):
                    await asyncio.sleep(0)
                begun = sum(taken > 0 for taken in left)
                assert len(opened) >= min(count, begun + ahead), (begun, opened)
                assert len(opened) <= sum(taken == rows for taken in left) + cycle + ahead
            return block

        stage.pull = watched  # type: ignore[method-assign]  # looks at what passes
        return stage

    trace = whole(make)
    assert trace.error is None
    assert sorted(trace.elements) == [100 * i + j for i in range(count) for j in range(rows)]


def failing_at(bad: int, *, sloppy: bool, in_inner: bool) -> Make:
    """Opening, or reading, the dataset of element `bad` fails; every dataset has three elements."""

    def make(bench: Bench) -> Stage:
        def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
            if element == bad and not in_inner:
                raise ValueError("cannot be opened")
            fail = element == bad and in_inner
            return Scripted(bench, [("row", 100 * element + j) for j in range(3)], "refs", fail=fail)

        return InterleaveStage(
            bench.context("interleave", ordered=not sloppy),
            items(bench, range(9)),
            make_inner,
            cycle_length=2,
            block_length=1,
            ahead=4,
        )

    return make


@pytest.mark.parametrize("in_inner", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 4, 8])
def test_an_error_comes_in_its_turn(bad: int, in_inner: bool) -> None:
    """What is opened ahead fails no earlier than its elements would have been delivered."""
    trace = whole(failing_at(bad, sloppy=False, in_inner=in_inner))
    poison = -1

    def inner(i: int) -> list[int]:
        rows = [100 * i + j for j in range(3)]
        return rows if i != bad else [*rows, poison] if in_inner else [poison]

    order = oracle.interleave(range(9), inner, 2, 1)
    assert [row[1] for row in trace.origins] == order[: order.index(poison)]
    assert trace.error is not None


@pytest.mark.parametrize("in_inner", [False, True])
def test_an_error_of_a_sloppy_dataset_is_raised(in_inner: bool) -> None:
    """Also without order an error ends the stage, and everything is given back."""
    trace = whole(failing_at(4, sloppy=True, in_inner=in_inner))
    assert trace.error is not None
    assert trace.error.startswith("ValueError")


@pytest.mark.sampled
@pytest.mark.parametrize(("cycle", "block"), [(7, 3), (16, 1), (40, 2)])
def test_what_is_at_hand_early_shows_in_no_state(cycle: int, block: int) -> None:
    """Datasets that get their slots, and rows, before their turn: states are as if each had waited for its turn."""
    for seed in range(samples(2, 30)):
        draw = random.Random(seed)
        lengths = [draw.choice([0, 1, 30, draw.randint(1, 120)]) for _ in range(60)]
        trace = check_any_blocking(interleaved(lengths, cycle, block), seeds=range(seed, seed + 2))
        assert trace.elements == expected(lengths, cycle, block)


@pytest.mark.sampled
@pytest.mark.parametrize("cycle", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 7, 40])
async def test_marks_are_not_closer_than_they_are_worth(cycle: int, length: int) -> None:
    """Where inner datasets read nothing; and never farther apart than one dataset, or what is worth a mark, is long."""

    def make(bench: Bench) -> Stage:
        def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
            return items(bench, range(100 * element, 100 * element + length))

        return InterleaveStage(
            bench.context("interleave"),
            items(bench, range(1000 // length)),
            make_inner,
            cycle_length=cycle,
            block_length=1,
            ahead=2,
        )

    trace = await Bench(random.Random(length)).observe(make)
    rows = len(trace.states)
    assert rows == 1000 // length * length
    marks = sorted({row - skip for row, (_, skip) in enumerate(trace.states, 1)})
    distances = np.diff([*marks, rows])
    assert marks[0] == 0
    assert distances[:-1].min() >= 32
    assert distances.max() <= 32 + 2 * cycle * length


class InPieces(Stage):
    """Numbers in blocks of so many, all of which are available."""

    def __init__(self, bench: Bench, numbers: range, piece: int) -> None:
        super().__init__(bench.context("in pieces"))
        self._parts = [items(bench, numbers[at : at + piece]) for at in range(0, len(numbers), piece)]

    async def _pull(self, limit: int) -> Block | None:
        return self.pull_ready(limit)

    def _pull_ready(self, limit: int) -> Block | None:
        while self._parts:
            try:
                self._parts[0].pull(limit).send(None)
            except StopIteration as stop:
                if stop.value is not None:
                    block: Block = stop.value
                    return block
            self._parts.pop(0)
        return None


@pytest.mark.parametrize("sloppy", [False, True])
async def test_what_is_at_hand_leaves_in_long_blocks(sloppy: bool) -> None:
    """Inner datasets whose pieces end at different places do not cut the output there, while more is available."""
    bench = Bench()

    def make(bench: Bench) -> Stage:
        def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
            return InPieces(bench, range(1000 * element, 1000 * element + 900), 30 + element)

        return InterleaveStage(
            bench.context("interleave", ordered=not sloppy),
            items(bench, range(8)),
            make_inner,
            cycle_length=4,
            block_length=1,
            ahead=2,
        )

    lengths = []

    def measured(bench: Bench) -> Stage:
        stage = make(bench)
        emit = stage._emit  # type: ignore[attr-defined]  # stages that rotate

        def watched(limit: int) -> Block | None:
            block: Block | None = emit(limit)
            lengths.append(len(block) if block is not None else 0)
            return block

        stage._emit = watched  # type: ignore[attr-defined]  # see above
        return stage

    trace = await bench.observe(measured)
    assert sorted(trace.elements) == [1000 * i + j for i in range(8) for j in range(900)]
    # Two cycles of four datasets whose rows are available; cut where a piece ends, there would be many more.
    assert len([length for length in lengths if length]) <= 16


@pytest.mark.sampled
@pytest.mark.parametrize("sloppy", [False, True])
async def test_the_first_block_does_not_wait_until_long_runs_of_every_dataset_are_found(sloppy: bool) -> None:
    """No more rows are found for the first block than it has; later ones are not all found for one block.

    Datasets of one size are read in step. Each asks for rows before the one that comes next leaves, and those of all of
    them together would take a while to find, in which nothing leaves.
    """
    bench = Bench()
    cycle, rows = 16, 3 * BLOCK_ROWS
    found = [0]

    class Counted(InPieces):
        """Notes how many rows are found."""

        def _pull_ready(self, limit: int) -> Block | None:
            block = super()._pull_ready(limit)
            found[0] += 0 if block is None else len(block)
            return block

    def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
        return Counted(bench, range(rows * element, rows * (element + 1)), rows)

    class Watched(InterleaveStage):
        """Notes how many rows were found for each block."""

        async def _pull(self, limit: int) -> Block | None:
            block = await super()._pull(limit)
            most.append(found[0])
            found[0] = 0
            return block

    def make(bench: Bench) -> Stage:
        return Watched(
            bench.context("interleave", ordered=not sloppy),
            items(bench, range(cycle)),
            make_inner,
            cycle_length=cycle,
            block_length=1,
            ahead=2,
        )

    most: list[int] = []
    trace = await bench.observe(make)
    assert len(trace.elements) == sum(most) == cycle * rows
    assert most[0] <= BLOCK_ROWS
    assert max(most) <= 5 * BLOCK_ROWS
