"""Every stage obeys the laws of any blocking and of leases; see ``laws``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.advance import Rows
from asyncdata.memory.structure import LEAF, TupleOf
from asyncdata.runtime.reading.manifest import Manifest
from asyncdata.runtime.reading.source_table import LyingFiles
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.order.concatenate import ConcatenateStage
from asyncdata.runtime.stages.order.interleave import InterleaveStage
from asyncdata.runtime.stages.order.prefetch import Depth, PrefetchStage
from asyncdata.runtime.stages.order.shuffle import ShuffleStage
from asyncdata.runtime.stages.rows.inline import AsyncMapStage, InlineMapStage
from asyncdata.runtime.stages.rows.selection import FilterStage, SkipStage, TakeStage
from asyncdata.runtime.stages.sources.arrays import ItemsStage, RangeStage, RepeatedStage, SlicesStage
from asyncdata.runtime.stages.sources.generator import AsyncGeneratorStage, GeneratorStage
from asyncdata.runtime.stages.sources.list_files import ListFilesStage
from asyncdata.runtime.stages.sources.reread import RestartStage
from asyncdata.runtime.state.restored import Pick, TrackedStage
from asyncdata.runtime.state.tracks import Owner, Tracks
from asyncdata.types import Element, ObjectInfo
from tests.runtime.stages.laws import (
    Bench,
    Kinds,
    Make,
    Scripted,
    check_any_blocking,
    check_cancelling,
    check_closing,
    script,
    whole,
)
from tests.runtime.stages.restless import Restless
from tests.samples import samples

pytestmark = pytest.mark.sampled

COUNT = 40


def number(element: Element) -> int:
    """The number in an element of any kind of script."""
    while isinstance(element, tuple):
        element = element[0]
    if isinstance(element, bytes):
        return sum(element)
    return int(element)


def odd(*parts: Any) -> bool:
    return number(parts) % 2 == 1


def doubled(*parts: Any) -> Any:
    return parts, 2 * number(parts)


def failing(*parts: Any) -> Any:
    if number(parts) % 29 == 23:
        raise ValueError("twenty-three")
    return parts


async def doubled_later(*parts: Any) -> Any:
    for _ in range(number(parts) % 4):
        await asyncio.sleep(0)
    return parts, 2 * number(parts)


async def failing_later(*parts: Any) -> Any:
    await asyncio.sleep(0)
    return failing(*parts)


def source(bench: Bench, kind: Kinds, count: int = COUNT) -> Scripted:
    return Scripted(bench, script(count), kind)


def _filter(bench: Bench, kind: Kinds, predicate: Callable[..., Any] = odd) -> Stage:
    return FilterStage(bench.context("filter"), source(bench, kind), predicate)


def _inline(bench: Bench, kind: Kinds, function: Callable[..., Any] = doubled) -> Stage:
    return InlineMapStage(bench.context("map"), source(bench, kind), function)


def _async(bench: Bench, kind: Kinds, function: Any = doubled_later, *, ordered: bool = True) -> Stage:
    return AsyncMapStage(
        bench.context("map", ordered=ordered),
        source(bench, kind),
        function,
        parallelism=Restless(1, 5),
    )


def _shuffle(bench: Bench, kind: Kinds, size: int = 7) -> Stage:
    return ShuffleStage(bench.context("shuffle"), source(bench, kind), size, (1, 2))


def _lying(bench: Bench, kind: Kinds) -> Stage:
    """A shuffle of elements that could be read by themselves, all of one file."""
    upstream = source(bench, kind)
    files = LyingFiles([bench.sources.number(("scripted",), "scripted")])
    return ShuffleStage(bench.context("shuffle"), upstream, 7, (1, 2), Pick(lambda _: upstream, [files], is_sized=True))


def _batch(bench: Bench, upstream: Stage, *, size: int = 4, drop: bool = False) -> Stage:
    return BatchStage(
        bench.context("batch"),
        upstream,
        (size,),
        drop_remainder=drop,
    )


def _repeat(bench: Bench, kind: Kinds, count: int | None = 3) -> Stage:
    def make(epoch: int) -> Stage:
        return Scripted(bench, script(11 if epoch < 5 else 0, first=100 * epoch), kind)

    return ConcatenateStage(bench.context("repeat"), make, count)


def _repeat_few(bench: Bench, _kind: Kinds) -> Stage:
    array = np.arange(6, dtype=np.int64).reshape(3, 2)
    slices = SlicesStage(bench.context("slices"), (array, array[:, 0]), TupleOf((LEAF, LEAF)))
    return RepeatedStage(slices, 50, lambda number: 7 * number)


def _interleave(bench: Bench, kind: Kinds, cycle: int = 3, block: int = 2, *, sloppy: bool = False) -> Stage:
    def make_inner(element: Element, origin: Rows, _used: Rows) -> Stage:
        value = number(element)
        return Scripted(bench, script(value % 6, first=100 * value), kind)

    return InterleaveStage(
        bench.context("interleave", ordered=not sloppy),
        source(bench, "objects", 13),
        make_inner,
        cycle_length=cycle,
        block_length=block,
        ahead=2,
    )


def _yields() -> Iterator[Any]:
    yield from range(5)
    yield (1, 2)
    yield from "abcdef"


async def _yields_later() -> AsyncIterator[Any]:
    for item in _yields():
        if item == 3:
            await asyncio.sleep(0)
        yield item


class _Storage:
    """Lists three files."""

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        await asyncio.sleep(0)
        return [ObjectInfo(url=f"memory://b/{pattern}{i}", size=i) for i in range(3)]


def _list_files(bench: Bench) -> Stage:
    manifest = Manifest(_Storage())  # type: ignore[arg-type]  # only `glob` is used
    return ListFilesStage(bench.context("list_files"), (3, 4), lambda: manifest.matching(("b", "a")))


def _tracked(bench: Bench, stage: Stage) -> Stage:
    track = Tracks().begin(Owner(), 0)
    return TrackedStage(bench.context("tracked"), stage, track, 0, in_order=True)


ANY_KIND: dict[str, Callable[[Bench, Kinds], Stage]] = {
    "source": source,
    "filter": _filter,
    "filter none": lambda bench, kind: _filter(bench, kind, lambda *_: False),
    "filter all": lambda bench, kind: _filter(bench, kind, lambda *_: True),
    "restart": lambda bench, kind: RestartStage(bench.context("file"), lambda: source(bench, kind), lambda: None),
    "take": lambda bench, kind: TakeStage(bench.context("take"), source(bench, kind), 17),
    "take more": lambda bench, kind: TakeStage(bench.context("take"), source(bench, kind), 170),
    "skip": lambda bench, kind: SkipStage(bench.context("skip"), source(bench, kind), 17),
    "skip all": lambda bench, kind: SkipStage(bench.context("skip"), source(bench, kind), 170),
    "shuffle": _shuffle,
    "shuffle of what lies in files": _lying,
    "shuffle one": lambda bench, kind: _shuffle(bench, kind, 1),
    "shuffle all": lambda bench, kind: _shuffle(bench, kind, 100),
    "shuffle of filter": lambda bench, kind: ShuffleStage(bench.context("shuffle"), _filter(bench, kind), 6, (1, 2)),
    "interleave": _interleave,
    "interleave one": lambda bench, kind: _interleave(bench, kind, 1, 1),
    "interleave wide": lambda bench, kind: _interleave(bench, kind, 20, 3),
    "repeat": _repeat,
    "repeat for ever": lambda bench, kind: _repeat(bench, kind, None),
    "repeat few": _repeat_few,
    "repeat not": lambda bench, kind: _repeat(bench, kind, 0),
    "prefetch": lambda bench, kind: PrefetchStage(bench.context("prefetch"), source(bench, kind), 5),
    "prefetch as many as are found": lambda bench, kind: PrefetchStage(
        bench.context("prefetch"), source(bench, kind), Depth(1 << 20, 1 << 20, Restless(1, 4))
    ),
    "prefetch one": lambda bench, kind: PrefetchStage(bench.context("prefetch"), source(bench, kind), 1),
    "inline map": _inline,
    "async map": _async,
    "tracked": lambda bench, kind: _tracked(bench, source(bench, kind)),
    "shuffle of filter of tracked": lambda bench, kind: ShuffleStage(
        bench.context("shuffle"),
        FilterStage(bench.context("filter"), _tracked(bench, source(bench, kind)), odd),
        6,
        (1, 2),
    ),
    "shuffle of interleave": lambda bench, kind: ShuffleStage(
        bench.context("shuffle"), _interleave(bench, kind), 6, (1, 2)
    ),
    "take of prefetch of shuffle": lambda bench, kind: TakeStage(
        bench.context("take"), PrefetchStage(bench.context("prefetch"), _shuffle(bench, kind), 3), 21
    ),
}

BATCHES: dict[str, Callable[[Bench, Kinds], Stage]] = {
    "batch": lambda bench, kind: _batch(bench, source(bench, kind)),
    "batch drop": lambda bench, kind: _batch(bench, source(bench, kind), size=7, drop=True),
    "batch too large": lambda bench, kind: _batch(bench, source(bench, kind), size=50, drop=True),
    "batch of filter": lambda bench, kind: _batch(bench, _filter(bench, kind), size=3),
    "batch of interleave": lambda bench, kind: _batch(bench, _interleave(bench, kind), size=5),
    "batch of shuffle": lambda bench, kind: _batch(bench, _shuffle(bench, kind), size=5),
}

FAILING: dict[str, Callable[[Bench, Kinds], Stage]] = {
    "source": lambda bench, kind: Scripted(bench, script(9), kind, fail=True),
    "filter": lambda bench, kind: _filter(bench, kind, failing),
    "inline map": lambda bench, kind: _inline(bench, kind, failing),
    "async map": lambda bench, kind: _async(bench, kind, failing_later),
    "prefetch": lambda bench, kind: PrefetchStage(bench.context("prefetch"), _filter(bench, kind, failing), 4),
}

SOURCES: dict[str, Make] = {
    "range": lambda bench: RangeStage(bench.context("range"), range(3, 90, 2), "<i4"),
    "slices": lambda bench: SlicesStage(bench.context("s"), (np.arange(60).reshape(20, 3),), None),
    "items": lambda bench: ItemsStage(bench.context("items"), (1, "b", (1, 2), b"c", 3.5)),
    "generator": lambda bench: GeneratorStage(bench.context("g"), _yields, ()),
    "async generator": lambda bench: AsyncGeneratorStage(bench.context("g"), _yields_later, ()),
    "list_files": _list_files,
}

KINDS: tuple[Kinds, ...] = ("array", "objects", "refs", "twice", "nests", "mixed")
ALIKE: tuple[Kinds, ...] = ("array", "objects", "refs", "twice", "nests")

WITH_KIND = [
    *(pytest.param(make, kind, id=f"{name}-{kind}") for name, make in ANY_KIND.items() for kind in KINDS),
    *(pytest.param(make, kind, id=f"{name}-{kind}") for name, make in BATCHES.items() for kind in ALIKE),
    *(pytest.param(make, kind, id=f"failing {name}-{kind}") for name, make in FAILING.items() for kind in KINDS),
]


@pytest.mark.parametrize(("make", "kind"), WITH_KIND)
def test_cutting_the_input_changes_nothing(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Any blocking: elements, provenance, what is used up and states do not depend on how blocks are cut."""
    check_any_blocking(lambda bench: make(bench, kind), seeds=range(samples(4, 300)))


@pytest.mark.parametrize("name", ["source", "filter", "skip", "shuffle", "shuffle of filter", "prefetch", "async map"])
def test_no_source_row_is_forgotten_or_counted_twice(name: str) -> None:
    """Every source row, the dropped ones included, is used up by one element or behind the last one."""
    trace = whole(lambda bench: ANY_KIND[name](bench, "array"))
    assert trace.used_up == sorted(value for what, value in script(COUNT) if what != "mark")


@pytest.mark.parametrize("name", ["batch", "batch drop", "batch too large", "batch of filter"])
def test_batches_use_up_what_they_leave_out(name: str) -> None:
    """A remainder that is dropped has been used up, as what a filter dropped has."""
    trace = whole(lambda bench: BATCHES[name](bench, "array"))
    assert trace.used_up == sorted(value for what, value in script(COUNT) if what != "mark")


@pytest.mark.parametrize("sloppy", [False, True])
def test_interleave_uses_up_what_its_inner_datasets_drop(sloppy: bool) -> None:
    """Source rows of every inner dataset count, also those behind its last element."""
    trace = whole(lambda bench: _interleave(bench, "array", sloppy=sloppy))
    inner = [event for value in range(13) for event in script(value % 6, first=100 * value)]
    assert trace.used_up == sorted(value for what, value in inner if what != "mark")


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_a_source_gives_the_same_whatever_is_asked_for(make: Make) -> None:
    """Any blocking, for stages without input: asking for fewer rows at a time changes nothing."""
    assert check_any_blocking(make, seeds=range(samples(6, 300))).elements


@pytest.mark.parametrize(("make", "kind"), [param for param in WITH_KIND if param.values[1] in ("twice", "nests")])
def test_closing_at_any_step_gives_everything_back(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Leases: after closing half-way, at every step, no slab is held and nothing is charged."""
    for seed in range(samples(1, 20)):
        check_closing(lambda bench: make(bench, kind), seed=seed)


@pytest.mark.parametrize(("make", "kind"), [param for param in WITH_KIND if param.values[1] == "twice"])
def test_cancelling_at_any_step_gives_everything_back(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Leases: after a cancellation at every step of the loop, no slab is held and nothing is charged."""
    for seed in range(samples(1, 20)):
        check_cancelling(lambda bench: make(bench, kind), seed=seed, steps=range(0, 60, samples(4, 1)))
