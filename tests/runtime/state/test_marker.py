"""Marks: where they are, what they nest, and that nothing which comes in any order has one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.advance import Advance, Fold
from asyncdata.memory.block import Block
from asyncdata.memory.structure import TupleOf
from asyncdata.runtime.consumer import iterate
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.group.group_by_window import GroupByWindowStage
from asyncdata.runtime.stages.group.materialized import ContentsStage
from asyncdata.runtime.stages.group.windows import WindowStage
from asyncdata.runtime.stages.order.concatenate import ConcatenateStage
from asyncdata.runtime.stages.order.interleave import InterleaveStage
from asyncdata.runtime.stages.order.prefetch import PrefetchStage
from asyncdata.runtime.stages.order.sampling import RandomChoices, SampleStage
from asyncdata.runtime.stages.order.shuffle import ShuffleStage
from asyncdata.runtime.stages.order.zip import ZipStage
from asyncdata.runtime.stages.rows.inline import AsyncMapStage, InlineMapStage
from asyncdata.runtime.stages.rows.numbering import EnumerateStage, ShardStage
from asyncdata.runtime.stages.rows.selection import FilterStage, SkipStage, TakeStage
from asyncdata.runtime.state.marker import Marker
from tests.runtime.stages.laws import Bench, Scripted, script
from tests.samples import samples


class Looking(Stage):
    """Passes blocks on, and notes of those with rows whether they are ordered."""

    def __init__(self, inner: Stage, seen: list[bool]) -> None:
        super().__init__(inner.context, (inner,))
        self._seen = seen

    async def _pull(self, limit: int) -> Block | None:
        block = await self.inputs[0].pull(limit)
        if block is not None and len(block):
            self._seen.append(block.advance.ordered)
        return block


async def _later(*parts: Any) -> int:
    for _ in range(random.Random(str(parts)).randrange(4)):
        await asyncio.sleep(0)
    return 1


def drawn(bench: Bench, draw: random.Random, depth: int, *, joined: bool = False) -> tuple[Stage, bool]:
    """A stage with all that is upstream of it, and whether its rows come in the same order in every run.

    What is joined must show its kind before its rows come, which inner datasets do not.
    """
    if not depth:
        return Scripted(bench, script(draw.randint(20, 60)), "array"), True
    kind = draw.choice(
        ["filter", "take", "skip", "enumerate", "shard", "map", "shuffle", "batch", "prefetch", "window", "group"]
        + 2 * ["async", "interleave", "zip", "sample", "repeat"]
    )
    context = bench.context(kind, path=(draw.random(),))
    if kind == "interleave":
        return _interleaved(bench, draw, depth, joined=joined)
    if kind == "repeat":
        seed = draw.random()
        ordered = drawn(bench, random.Random(seed), depth - 1, joined=joined)[1]
        return ConcatenateStage(
            context, lambda _: drawn(bench, random.Random(seed), depth - 1, joined=joined)[0], 2
        ), ordered
    joined = joined or kind in ("zip", "sample")
    upstream, ordered = drawn(bench, draw, depth - 1, joined=joined)
    if kind in ("zip", "sample"):
        other, other_ordered = drawn(bench, draw, depth - 1, joined=joined)
        if kind == "zip":
            return ZipStage(context, [upstream, other], TupleOf((None, None))), ordered and other_ordered
        selector = RandomChoices(context, (1, 2), [1, 1])
        return SampleStage(context, selector, [upstream, other], stop_on_empty=False), ordered and other_ordered
    if kind == "async":
        sloppy = draw.random() < 0.4
        stage: Stage = AsyncMapStage(bench.context(kind, ordered=not sloppy), upstream, _later, parallelism=3)
        return stage, ordered and not sloppy
    stages: dict[str, Callable[[], Stage]] = {
        "filter": lambda: FilterStage(context, upstream, lambda *_: draw.random() < 2),
        "take": lambda: TakeStage(context, upstream, 30),
        "skip": lambda: SkipStage(context, upstream, 2),
        "enumerate": lambda: EnumerateStage(context, upstream, 3),
        "shard": lambda: ShardStage(context, upstream, 2, 0),
        "map": lambda: InlineMapStage(context, upstream, lambda *_: 1),
        "shuffle": lambda: ShuffleStage(context, upstream, 5, (3, 4)),
        "batch": lambda: BatchStage(
            context, InlineMapStage(context, upstream, lambda *_: 2), (3,), drop_remainder=False
        ),
        "prefetch": lambda: PrefetchStage(context, upstream, 4),
        "window": lambda: WindowStage(
            context, upstream, size=3, shift=3, stride=1, drop_remainder=False, wrap=lambda _: 1
        ),
        "group": lambda: GroupByWindowStage(
            context,
            upstream,
            key=lambda *_: 0,
            window_size=lambda _: 4,
            reduce=lambda _key, contents, _number, _origin: ContentsStage(context, contents),
        ),
    }
    return stages[kind](), ordered


def _interleaved(bench: Bench, draw: random.Random, depth: int, *, joined: bool) -> tuple[Stage, bool]:
    """Of inner datasets that are all of one kind; or sloppy."""
    sloppy, seed = draw.random() < 0.3, draw.random()
    inner_ordered = drawn(bench, random.Random(seed), depth - 1)[1]
    sloppy = sloppy or (joined and not inner_ordered)
    stage = InterleaveStage(
        bench.context("interleave", ordered=not sloppy),
        Scripted(bench, script(5), "objects"),
        lambda _element, _origin, _used: drawn(bench, random.Random(seed), depth - 1)[0],
        cycle_length=2,
        block_length=2,
        ahead=1,
    )
    return stage, inner_ordered and not sloppy


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(120, 3000)))
def test_what_comes_in_any_order_has_no_marks_whatever_is_made_of_it(seed: int) -> None:
    """Kinds, in random plans: one unordered step, and nothing after it is ordered; without one everything is."""
    seen: list[bool] = []
    expected: list[bool] = []

    def make(bench: Bench) -> Stage:
        draw = random.Random(seed)
        stage, ordered = drawn(bench, draw, draw.randint(1, 4))
        expected.append(ordered)
        return Looking(stage, seen)

    trace = asyncio.run(Bench(random.Random(seed)).observe(make))
    assert trace.error is None
    assert set(seen) <= set(expected)
    assert expected[0] or all(mark is None for mark, _ in trace.states)


def test_marks_stand_at_fixed_rows_and_nest_the_state_in_front_of_them() -> None:
    """However the rows come: at row 0, 3, 6 …, with the input's state there."""
    for cuts in ([7], [1] * 7, [2, 5], [3, 0, 3, 1]):
        marker, at = Marker(every=3), 0
        found: dict[int, Any] = {}
        for count in cuts:
            before = marker.rows
            for row, mark in marker.after(Advance(count), count, lambda row, state: (row, state)):
                found[at + row] = mark[1]
                assert before + mark[0] == at + row
            at += count
        assert {row: tuple(state) for row, state in found.items()} == {0: (None, 0), 3: (None, 3), 6: (None, 6)}


def test_marks_of_rows_in_any_order_are_an_error_of_the_stage() -> None:
    """An assertion, because no user can do anything about it; joins and folds remember the kind."""
    some = Advance(1)
    with pytest.raises(AssertionError):
        some.unordered().with_marks(((0, "here"),))
    joined = Advance.concat([some.with_marks(((0, "here"),)), some.unordered()])
    assert (joined.ordered, joined.marks) == (False, ())
    assert not any(
        part.ordered for part in (*joined.split(1), joined.select(np.array([1])), joined.expand(np.ones(2, int)))
    )
    fold = Fold()
    fold.feed(joined)
    fold.feed(some)
    assert not fold.ordered
    assert not len(Marker(every=1).after(joined, 2, lambda *_: "mark"))


@pytest.mark.sampled
@pytest.mark.parametrize("sloppy", ["map", "interleave", "workers"])
def test_steps_that_say_so_are_unordered_in_whole_pipelines(sloppy: str) -> None:
    """``deterministic=False`` of a step, and of the options, reaches the consumer; else there are marks."""

    async def same(x: int) -> int:
        return x

    def plan(deterministic: bool | None) -> ad.Dataset:
        ds = ad.Dataset.range(3000)
        if sloppy == "map":
            ds = ds.map(same, num_parallel_calls=4, deterministic=deterministic)
        elif sloppy == "workers":
            ds = ds.map(int, num_parallel_calls=2, executor="thread", deterministic=deterministic)
        else:
            ds = ds.interleave(ad.Dataset.from_tensors, 3, deterministic=deterministic)
        return ds.filter(lambda _: True).batch(7)

    def kinds(ds: ad.Dataset) -> set[bool]:
        found = set()
        split = iterate._split

        def look(answer: Any) -> Any:
            ended, delivery = split(answer)
            if delivery is not None:
                found.add(delivery.advance.ordered)
            return ended, delivery

        with patch.object(iterate, "_split", look):  # what the edge is going to fold has no door of its own yet
            assert list(ds)
        return found

    options = ad.Options(num_workers=0)
    assert kinds(plan(True).with_options(options)) == {True}
    assert kinds(plan(False).with_options(options)) == {False}
    assert kinds(plan(None).with_options(ad.Options(num_workers=0, deterministic=False))) == {False}


def test_an_advance_without_rows_changes_no_kind() -> None:
    """What comes in front of rows says nothing about their order."""
    rows = Advance(1).unordered()
    assert not Advance.concat([Advance(0), rows]).ordered
