"""`shuffle`: the law of tf.data's buffer, drawn by position."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.block import Block
from asyncdata.memory.columns import RefColumn
from asyncdata.runtime.randomness import below
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.order.draws import exchange
from asyncdata.runtime.stages.order.history_columns import with_history
from asyncdata.runtime.stages.order.shuffle import ShuffleStage, from_history
from asyncdata.runtime.stages.sources.arrays import RangeStage
from tests.runtime.stages import oracle
from tests.runtime.stages.laws import Bench, Make, Scripted, check_any_blocking, script, whole


def shuffled(count: int, size: int, key: tuple[int, int] = (5, 6)) -> Make:
    return lambda bench: ShuffleStage(
        bench.context("shuffle"),
        RangeStage(bench.context("range"), range(count), "<i8"),
        size,
        key,
    )


def drawing(key: tuple[int, int]) -> Callable[[int], int]:
    """Draws one number at a time, at the next position."""
    position = iter(range(1 << 60))
    return lambda bound: int(below(key, next(position), np.array([bound], np.int64))[0])


@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 1000), st.integers(0, 100))
def test_the_order_is_that_of_a_buffer(count: int, size: int, seed: int, key: int) -> None:
    """Drawn one by one from a list, the elements come in the same order, however they are cut."""
    trace = asyncio.run(Bench(random.Random(seed)).observe(shuffled(count, size, (key, 1))))
    assert trace.elements == oracle.shuffle(range(count), size, drawing((key, 1)))


@pytest.mark.parametrize("count", [5000])
def test_whole_blocks_are_drawn_as_single_elements_are(count: int) -> None:
    """Blocks of a thousand, in which a place is drawn again and again, give what the list gives."""
    for size in (1, 2, 30, 1000, 4096):
        assert whole(shuffled(count, size)).elements == oracle.shuffle(range(count), size, drawing((5, 6)))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_exchange_is_a_loop_of_swaps(slots: list[int]) -> None:
    """A block of draws resolved at once equals swapping input after input into its slot."""
    buffer = list(range(10))
    out = []
    for j, slot in enumerate(slots):
        out.append(buffer[slot])
        buffer[slot] = 10 + j
    source, written, last = exchange(np.array(slots), 10)
    assert source.tolist() == out
    assert written.tolist() == sorted(set(slots))
    assert [10 + j for j in last.tolist()] == [buffer[slot] for slot in written.tolist()]


def test_every_permutation_is_as_likely() -> None:
    """With a buffer no smaller than the input, all permutations are equally frequent (chi-square, 23 degrees)."""
    rounds = 4800
    seen = Counter(
        tuple(oracle.shuffle(range(4), size, drawing((key, size)))) for key in range(rounds // 2) for size in (4, 9)
    )
    expected = rounds / 24
    statistic = sum((seen[order] - expected) ** 2 / expected for order in permutations(range(4)))
    assert statistic < 49.7  # the 0.999 quantile


def test_first_draws_of_a_long_stream_are_uniform() -> None:
    """Within a small buffer every place is drawn as often as any other, over all positions (chi-square, 15 degrees)."""
    draws = below((3, 4), 0, np.full(64_000, 16, np.int64))
    counts = np.bincount(draws, minlength=16)
    assert ((counts - 4000) ** 2 / 4000).sum() < 37.7  # the 0.999 quantile


def test_keys_make_orders_of_their_own() -> None:
    """Another seed, stage or epoch is another key, and gives another order."""
    orders = {tuple(whole(shuffled(30, 30, key)).elements) for key in [(1, 1), (1, 2), (2, 1), (2, 2)]}
    assert len(orders) == 4


def test_history_survives_the_way_through_columns() -> None:
    """A block taken apart with its history and put together again uses up what it used up before."""

    def make(bench: Bench) -> Stage:
        source = Scripted(bench, script(9), "refs")
        pull = source.pull

        async def there_and_back(limit: int) -> Block | None:
            block = await pull(limit)
            if block is None or not len(block):
                return block
            head, tail = block.advance.split(len(block))
            block.advance = head
            back = from_history(block.structure, with_history(block), head.marks)
            assert (back.advance.used is None) == (head.used is None) == (not bench.tracked)
            if back.advance.used is not None and head.used is not None:
                assert [pairs.tolist() for pairs in back.advance.used.by_row()[0]] == [
                    pairs.tolist() for pairs in head.used.by_row()[0]
                ]
            assert tail.has_news
            return back

        source.pull = there_and_back  # type: ignore[method-assign]  # looks at what passes
        return source

    assert len(whole(make).elements) == 9


def test_thin_slabs_are_reported_while_the_buffer_fills_and_runs() -> None:
    """The evacuator sees the references of the buffer, which it may move: what it moves is delivered all the same."""
    moved = 0

    def make(bench: Bench) -> Stage:
        async def evacuate(columns: list[RefColumn]) -> None:
            nonlocal moved
            for column in columns:
                slabs = bench.budget.slabs
                size = int(column.rows[:, 1].sum()) + 1
                slab = await bench.budget.take(bench.rows, size)
                at = slab.offset
                old = column.rows[:, 0].copy()
                for row, (offset, length) in enumerate(column.rows.tolist()):
                    slabs.arena.array[at : at + length] = slabs.arena.array[offset : offset + length]
                    column.rows[row, 0] = at
                    at += length
                slabs.hold_rows(column.rows[:, 0])
                slabs.drop_rows(old)
                slabs.drop(slab)
                moved += len(old)

        stage = ShuffleStage(bench.context("shuffle"), Scripted(bench, script(3000), "refs"), 1500, (5, 6))
        stage._evacuate = evacuate  # type: ignore[assignment]  # moves whatever it is shown
        return stage

    trace = whole(make)
    assert moved > 1500
    expected: list[Any] = oracle.shuffle([str(i).encode() * (i % 4) for i in range(3000)], 1500, drawing((5, 6)))
    assert trace.elements == expected


class _Moving(Stage):
    """Asks for the rows that may be moved before each pull, as a pipeline does that has no memory left."""

    def __init__(self, shuffle: ShuffleStage) -> None:
        super().__init__(shuffle.context, (shuffle,))
        self._shuffle = shuffle

    async def _pull(self, limit: int) -> Block | None:
        list(self._shuffle.movable())
        return await self._shuffle.pull(limit)


def _shuffle(bench: Bench) -> ShuffleStage:
    return ShuffleStage(bench.context("shuffle"), Scripted(bench, script(1500, drops=False), "array"), 1200, (3, 4))


def test_rows_that_may_be_moved_keep_their_numbers() -> None:
    """Also while the buffer is emptied, which 1,200 of these rows wait for."""
    expected = check_any_blocking(_shuffle, seeds=range(1))
    expected.check_same(check_any_blocking(lambda bench: _Moving(_shuffle(bench)), seeds=range(2)))
