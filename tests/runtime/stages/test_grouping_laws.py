"""The laws of stages, for those that group elements or take groups apart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Kind
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import BYTES
from asyncdata.memory.structure import LEAF
from asyncdata.memory.wire import ALIGN
from asyncdata.runtime.memory.evacuate import move_rows, spaces
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.group.group_by_window import GroupByWindowStage
from asyncdata.runtime.stages.group.materialized import ContentsStage, Materialized
from asyncdata.runtime.stages.group.padding import Padding
from asyncdata.runtime.stages.group.raggedness import Ragging
from asyncdata.runtime.stages.group.uneven import UnevenBatchStage
from asyncdata.runtime.stages.group.windows import WindowStage
from asyncdata.runtime.stages.order.interleave import InterleaveStage
from asyncdata.runtime.stages.rows.selection import FilterStage, TakeStage
from asyncdata.runtime.stages.rows.unbatch import UnbatchStage
from asyncdata.types import Element
from tests.patience import LIMIT_S
from tests.runtime.stages.laws import (
    LIMIT_BYTES,
    Bench,
    Kinds,
    Scripted,
    check_any_blocking,
    check_cancelling,
    check_closing,
    script,
    whole,
)
from tests.samples import samples

COUNT = 41


def source(bench: Bench, kind: Kinds, count: int = COUNT) -> Stage:
    return Scripted(bench, script(count), kind)


def number(element: Element) -> int:
    """The number that a scripted source made the element of, or one like it."""
    while isinstance(element, tuple):
        element = element[0]
    return len(element) if isinstance(element, bytes | str) else int(element)


def _batch(bench: Bench, upstream: Stage, size: int = 4) -> Stage:
    return BatchStage(
        bench.context("batch"),
        upstream,
        (size,),
        drop_remainder=False,
    )


def _uneven(bench: Bench, upstream: Stage, lay: Any, *, size: int = 4, drop: bool = False) -> Stage:
    return UnevenBatchStage(bench.context("uneven"), upstream, size, lay, drop_remainder=drop)


def _padded(bench: Bench, kind: Kinds, **options: Any) -> Stage:
    return _uneven(bench, source(bench, kind), Padding(None, None), **options)


def _ragged(bench: Bench, kind: Kinds, **options: Any) -> Stage:
    return _uneven(bench, source(bench, kind), Ragging("<i8", None), **options)


def _unbatch(bench: Bench, kind: Kinds, size: int = 4) -> Stage:
    bench.tracked = False
    return UnbatchStage(bench.context("unbatch"), _batch(bench, source(bench, kind), size))


def _rebatch(bench: Bench, kind: Kinds, sizes: tuple[int, ...] = (3, 1, 5), *, drop: bool = False) -> Stage:
    return BatchStage(bench.context("rebatch"), _unbatch(bench, kind), sizes, drop_remainder=drop)


def _window(
    bench: Bench, kind: Kinds, size: int = 3, shift: int = 3, stride: int = 1, *, drop: bool = False, wrap: Any = list
) -> Stage:
    bench.tracked = False
    return WindowStage(
        bench.context("window"),
        source(bench, kind),
        size=size,
        shift=shift,
        stride=stride,
        drop_remainder=drop,
        wrap=wrap,
    )


def _flat_window(bench: Bench, kind: Kinds) -> Stage:
    def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
        while isinstance(element, tuple):
            element = element[0]
        return _batch(bench, ContentsStage(bench.context("window"), element), 2)

    return InterleaveStage(
        bench.context("flat_map"),
        _window(bench, kind, 5, 2, wrap=lambda contents: contents),
        make_inner,
        cycle_length=1,
        block_length=1,
        ahead=1,
    )


def _grouped(
    bench: Bench,
    kind: Kinds,
    reduce: Callable[[Bench, int, Materialized], Stage] | None = None,
    key: Callable[[Element], int] | None = None,
    size: int = 3,
) -> Stage:
    bench.tracked = False

    def inner(value: int, contents: Materialized, window: int, origin: Rows) -> Stage:
        if reduce is not None:
            return reduce(bench, value, contents)
        return ContentsStage(bench.context("window"), contents)

    def key_of(*element: Any) -> int:
        return number(element[0]) % 4 if key is None else key(element[0])

    return GroupByWindowStage(
        bench.context("group_by_window"),
        source(bench, kind),
        key=key_of,
        window_size=lambda value: size + value % 2,
        reduce=inner,
    )


def _reduce_batch(bench: Bench, key: int, contents: Materialized) -> Stage:
    return _batch(bench, ContentsStage(bench.context("window"), contents), 2)


def _reduce_first(bench: Bench, key: int, contents: Materialized) -> Stage:
    return TakeStage(bench.context("take"), ContentsStage(bench.context("window"), contents), key)


def _reduce_twice(bench: Bench, key: int, contents: Materialized) -> Stage:
    def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
        return ContentsStage(bench.context("window"), contents)

    outer = Scripted(bench, script(2, drops=False), "objects")
    return InterleaveStage(bench.context("twice"), outer, make_inner, cycle_length=2, block_length=1, ahead=1)


def _failing(element: Element) -> int:
    if number(element) == 3:
        raise ValueError("three")
    return 0


ANY_KIND: dict[str, Callable[[Bench, Kinds], Stage]] = {
    "window": _window,
    "window overlapping": lambda bench, kind: _window(bench, kind, 4, 1),
    "window overlapping drop": lambda bench, kind: _window(bench, kind, 4, 3, drop=True),
    "window apart": lambda bench, kind: _window(bench, kind, 2, 5),
    "window stride": lambda bench, kind: _window(bench, kind, 3, 2, 3),
    "window stride apart": lambda bench, kind: _window(bench, kind, 3, 9, 2, drop=True),
    "window too large": lambda bench, kind: _window(bench, kind, 50, 7, drop=True),
    "window one": lambda bench, kind: _window(bench, kind, 50, 50),
    "group": _grouped,
    "group take": lambda bench, kind: _grouped(bench, kind, _reduce_first),
    "group twice": lambda bench, kind: _grouped(bench, kind, _reduce_twice),
    "group one": lambda bench, kind: _grouped(bench, kind, size=1),
    "group all": lambda bench, kind: _grouped(bench, kind, size=100),
    "group failing": lambda bench, kind: _grouped(bench, kind, key=_failing),
}

ALIKE: dict[str, Callable[[Bench, Kinds], Stage]] = {
    "unbatch": _unbatch,
    "unbatch one": lambda bench, kind: _unbatch(bench, kind, 1),
    "unbatch all": lambda bench, kind: _unbatch(bench, kind, 100),
    "rebatch": _rebatch,
    "rebatch drop": lambda bench, kind: _rebatch(bench, kind, (7, 3), drop=True),
    "padded": _padded,
    "padded drop": lambda bench, kind: _padded(bench, kind, size=7, drop=True),
    "ragged": _ragged,
    "ragged large": lambda bench, kind: _ragged(bench, kind, size=30),
    "group batch": lambda bench, kind: _grouped(bench, kind, _reduce_batch),
    "flat window": _flat_window,
}

KINDS: tuple[Kinds, ...] = ("array", "refs", "nests", "mixed")

WITH_KIND = [
    *(pytest.param(make, kind, id=f"{name}-{kind}") for name, make in ANY_KIND.items() for kind in KINDS),
    *(pytest.param(make, kind, id=f"{name}-{kind}") for name, make in ALIKE.items() for kind in KINDS[:-1]),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "kind"), WITH_KIND)
def test_cutting_the_input_changes_nothing(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Any blocking: elements, provenance, what is used up and states do not depend on how blocks are cut."""
    check_any_blocking(lambda bench: make(bench, kind), seeds=range(samples(3, 300)))


@pytest.mark.parametrize("name", ["padded", "padded drop", "ragged", "ragged large"])
def test_no_source_row_is_forgotten_or_counted_twice(name: str) -> None:
    """Every source row, the dropped ones included, is used up by one element or behind the last one."""
    trace = whole(lambda bench: ALIKE[name](bench, "array"))
    assert trace.used_up == sorted(value for what, value in script(COUNT) if what != "mark")


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "kind"), [param for param in WITH_KIND if param.values[1] == "nests"])
def test_closing_at_any_step_gives_everything_back(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Leases: after closing half-way, at every step, no slab is held and nothing is charged."""
    for seed in range(samples(1, 20)):
        check_closing(lambda bench: make(bench, kind), seed=seed)


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "kind"), [param for param in WITH_KIND if param.values[1] == "refs"])
def test_cancelling_at_any_step_gives_everything_back(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Leases: after a cancellation at every step of the loop, no slab is held and nothing is charged."""
    for seed in range(samples(1, 20)):
        check_cancelling(lambda bench: make(bench, kind), seed=seed, steps=range(0, 60, samples(6, 1)))


def test_an_unbatched_row_keeps_its_slab_until_it_goes() -> None:
    """Rows of a batch that are large enough to be references hold the batch's slab, and nothing else does."""

    def make(bench: Bench) -> Stage:
        bench.tracked = False
        wide = [np.arange(100) + value for value in range(6)]

        class Wide(Scripted):
            async def _pull(self, limit: int) -> Block | None:
                block = await super()._pull(limit)
                if block is not None and len(block):
                    items = [wide[number(block.element(row))] for row in range(len(block))]
                    block.columns = (type(block.columns[0])(items),)  # type: ignore[arg-type,call-arg]  # objects
                return block

        return FilterStage(
            bench.context("filter"),
            UnbatchStage(bench.context("unbatch"), _batch(bench, Wide(bench, script(6, drops=False), "objects"), 3)),
            lambda row: row[0] % 2 == 0,
        )

    trace = check_any_blocking(make, seeds=range(samples(3, 100)))
    assert [element[1][0] for element in trace.elements] == [0, 2, 4]


# --- memory ------------------------------------------------------------------------------------------------------


def _batched(bench: Bench, kind: Kinds) -> Stage:
    return _batch(bench, source(bench, kind))


COLLECTING: dict[str, Callable[[Bench, Kinds], Stage]] = {
    "batch": _batched,
    "padded": _padded,
    "ragged": _ragged,
    "rebatch": lambda bench, kind: BatchStage(
        bench.context("rebatch"), source(bench, kind), (3, 1, 5), drop_remainder=False
    ),
    "window": _window,
    "window overlapping": lambda bench, kind: _window(bench, kind, 4, 1),
    "group": _grouped,
}


async def test_rows_of_a_group_that_are_read_twice_move_one_by_one() -> None:
    """Memory: each reader's rows say by themselves where they lie, and hold the slab by themselves."""
    bench = Bench()
    slabs = bench.budget.slabs
    slab = await bench.budget.take(bench.rows, 2 * ALIGN)
    slabs.arena.view[slab.offset : slab.offset + 2 * ALIGN] = b"a" * ALIGN + b"b" * ALIGN
    group = RefColumn(slabs, np.array([[slab.offset, ALIGN], [slab.offset + ALIGN, ALIGN]]), BYTES)
    contents = Materialized(LEAF, (group,), np.zeros((2, 2), np.int64), attached=True)
    first, second = (contents.read(0, 2, slabs) for _ in range(2))
    target = await bench.budget.take(bench.rows, 2 * ALIGN)
    column = first.columns[0]
    assert isinstance(column, RefColumn)
    move_rows(column, np.arange(2), spaces(column), target.offset)
    assert [block.element(1) for block in (first, second)] == [b"b" * ALIGN] * 2
    assert slabs.holds(slab) == slabs.holds(target) == 3
    for block in (first, second):
        block.release()
    slabs.drop_each([slab, target])
    await bench.put_back(None)


@pytest.mark.parametrize("name", COLLECTING)
async def test_rows_that_wait_are_no_work_under_way(name: str) -> None:
    """Memory: what is collected gives nothing back while nobody asks; an ask that needs it fails, it does not wait."""
    bench = Bench()
    stage = COLLECTING[name](bench, "refs")
    other = bench.budget.open("another input", rank=9, kind=Kind.FLOW)
    shuffle = bench.budget.open("shuffle", rank=8, kind=Kind.ASSEMBLER)
    kept = await bench.budget.take(shuffle, 32 << 20)
    for waiting in (shuffle, bench.read):
        bench.budget.wait(waiting)
    try:
        block = await stage.pull(1)
        assert block is not None
        block.release()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(MemoryLimitError, match="shuffle holds"):
                await bench.budget.take(other, 40 << 20)
    finally:
        bench.budget.slabs.drop(kept)
        bench.budget.close(shuffle)
        bench.budget.close(other)
        await bench.put_back(stage)


@pytest.mark.parametrize("name", ["batch", "padded", "ragged", "rebatch"])
async def test_rows_that_wait_for_their_batch_are_no_work_under_way(name: str) -> None:
    """Memory: a batch for which there will never be room is an error of its stage, it does not wait."""
    bench = Bench()
    bench.budget.close(bench.rows)
    bench.rows = bench.budget.open("rows", rank=bench.tasks.rank, kind=Kind.ASSEMBLER)
    stage = COLLECTING[name](bench, "array")
    consumer = bench.budget.open("consumer", rank=0, kind=Kind.ASSEMBLER)
    bench.budget.reserve(bench.tasks, 0)
    kept = await bench.budget.take(consumer, LIMIT_BYTES)
    bench.budget.wait(consumer)
    try:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(MemoryLimitError, match="consumer holds"):
                await stage.pull(1)
    finally:
        bench.budget.slabs.drop(kept)
        bench.budget.close(consumer)
        await bench.put_back(stage)
