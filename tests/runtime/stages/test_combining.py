"""Stages of several inputs, and those that look at an element's place or past: their laws, and tf.data's order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.advance import State
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import DictOf, TupleOf
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.order.concatenate import ConcatenateStage
from asyncdata.runtime.stages.order.sampling import RandomChoices, SampleStage, VaryingChoices, choose
from asyncdata.runtime.stages.order.zip import ZipStage
from asyncdata.runtime.stages.rows.numbering import AssertCardinalityStage, EnumerateStage, ShardStage
from asyncdata.runtime.stages.rows.scan import RejectionStage, ScanStage, TakeWhileStage
from asyncdata.runtime.stages.rows.selection import TakeStage
from asyncdata.runtime.stages.rows.unique import UniqueStage
from asyncdata.runtime.stages.sources.arrays import CounterStage, ItemsStage, RandomStage, RangeStage
from tests.runtime.stages import oracle
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
from tests.runtime.stages.order.test_repeat import Watched
from tests.runtime.stages.test_laws import KINDS, failing, number
from tests.samples import SOAK, samples

KEY = (5, 6)


def scripted(bench: Bench, kind: Kinds, count: int, first: int = 0) -> Stage:
    return Scripted(bench, script(count, first=first), kind)


def items(bench: Bench, values: Sequence[Any], name: str = "items") -> Stage:
    return ItemsStage(bench.context(name), tuple(values))


def numbers(bench: Bench, start: int, stop: int) -> Stage:
    return RangeStage(bench.context("range", path=(start,)), range(start, stop), "<i8")


def _zip(bench: Bench, kind: Kinds, *counts: int, nest: bool = False) -> Stage:
    stages = [scripted(bench, kind, count, 1000 * i) for i, count in enumerate(counts)]
    structure: Any = TupleOf((None,) * len(counts))
    if nest:
        structure = DictOf(("a", "b"), (None, TupleOf((None,) * (len(counts) - 1))))
    return ZipStage(bench.context("zip"), stages, structure)


def _concatenate(bench: Bench, kind: Kinds, *counts: int) -> Stage:
    def make(i: int) -> Stage:
        return scripted(bench, kind, counts[i], 1000 * i)

    return ConcatenateStage(bench.context("concatenate"), make, len(counts))


def _choose(bench: Bench, kind: Kinds, choices: Sequence[int], *counts: int, stop: bool = False) -> Stage:
    bench.tracked = False
    stages = [scripted(bench, kind, count, 1000 * i) for i, count in enumerate(counts)]
    return SampleStage(bench.context("choose"), items(bench, choices), stages, stop_on_empty=stop)


def _sample(bench: Bench, kind: Kinds, *counts: int, stop: bool = False) -> Stage:
    stages = [scripted(bench, kind, count, 1000 * i) for i, count in enumerate(counts)]
    bench.tracked = False
    selector = RandomChoices(bench.context("sample"), KEY, [i + 1 for i in range(len(counts))])
    return SampleStage(bench.context("sample"), selector, stages, stop_on_empty=stop)


def _varying(bench: Bench, kind: Kinds) -> Stage:
    weights = items(bench, [[1.0, 0.0] if i % 3 else [0.25, 0.75] for i in range(60)], "weights")
    stages = [scripted(bench, kind, count, 1000 * i) for i, count in enumerate((20, 9))]
    return SampleStage(
        bench.context("sample"), VaryingChoices(bench.context("sample"), weights, KEY, 2), stages, stop_on_empty=False
    )


def _take_while(bench: Bench, kind: Kinds, stop: int) -> Stage:
    return TakeWhileStage(bench.context("take_while"), scripted(bench, kind, 40), lambda *parts: number(parts) != stop)


def remembering(state: list[int], element: Any) -> tuple[list[int], Any]:
    """A scan that changes its state in place."""
    state.append(number(element))
    return state, (sum(state), len(state))


def _scan(bench: Bench, kind: Kinds, function: Callable[..., Any] = remembering) -> Stage:
    return ScanStage(bench.context("scan"), scripted(bench, kind, 40), [], function)


def failing_scan(state: Any, element: Any) -> Any:
    return state, failing(element)


def _unique(bench: Bench, kind: Kinds) -> Stage:
    twice = ConcatenateStage(bench.context("concatenate"), lambda i: scripted(bench, kind, (20, 30)[i]), 2)
    return UniqueStage(bench.context("unique"), twice)


def _reject(bench: Bench, kind: Kinds, initial: Sequence[float] | None) -> Stage:
    def function(*parts: Any) -> int:
        return number(parts) % 3

    return RejectionStage(
        bench.context("reject"), scripted(bench, kind, 40), function, (0.6, 0.3, 0.1), initial, KEY, every=False
    )


CHOICES = [0, 2, 1, 1, 0, 0, 2, 0, 1, 2, 0, 0, 0, 0, 1, 1, 2, 2, 0, 1]

ANY_KIND: dict[str, Callable[[Bench, Kinds], Stage]] = {
    "zip": lambda bench, kind: _zip(bench, kind, 30, 21, 25),
    "zip first ends": lambda bench, kind: _zip(bench, kind, 9, 21),
    "zip last ends": lambda bench, kind: _zip(bench, kind, 21, 22, 9, nest=True),
    "zip alike": lambda bench, kind: _zip(bench, kind, 17, 17),
    "zip with nothing": lambda bench, kind: _zip(bench, kind, 17, 0, 17),
    "zip one": lambda bench, kind: _zip(bench, kind, 17),
    "concatenate": lambda bench, kind: _concatenate(bench, kind, 7, 0, 1, 20),
    "concatenate nothing": lambda bench, kind: _concatenate(bench, kind, 0, 0),
    "choose": lambda bench, kind: _choose(bench, kind, CHOICES, 20, 20, 20),
    "choose passes over": lambda bench, kind: _choose(bench, kind, CHOICES, 3, 20, 0),
    "choose stops": lambda bench, kind: _choose(bench, kind, CHOICES, 20, 3, 20, stop=True),
    "choose until all end": lambda bench, kind: _choose(bench, kind, CHOICES * 3, 3, 2, 4),
    "sample": lambda bench, kind: _sample(bench, kind, 20, 9, 0),
    "sample stops": lambda bench, kind: _sample(bench, kind, 20, 9, 30, stop=True),
    "sample by varying weights": _varying,
    "enumerate": lambda bench, kind: EnumerateStage(bench.context("enumerate"), scripted(bench, kind, 40), 5),
    "shard": lambda bench, kind: ShardStage(bench.context("shard"), scripted(bench, kind, 40), 3, 1),
    "shard all": lambda bench, kind: ShardStage(bench.context("shard"), scripted(bench, kind, 40), 1, 0),
    "shard nothing": lambda bench, kind: ShardStage(bench.context("shard"), scripted(bench, kind, 4), 9, 5),
    "take while": lambda bench, kind: _take_while(bench, kind, 17),
    "take while all": lambda bench, kind: _take_while(bench, kind, -1),
    "take while nothing": lambda bench, kind: _take_while(bench, kind, 0),
    "scan": _scan,
    "unique": _unique,
    "reject": lambda bench, kind: _reject(bench, kind, None),
    "reject by given": lambda bench, kind: _reject(bench, kind, (0.2, 0.3, 0.5)),
    "assert cardinality": lambda bench, kind: AssertCardinalityStage(
        bench.context("assert"), scripted(bench, kind, 11), 11
    ),
    "sample of zip": lambda bench, kind: SampleStage(
        bench.context("sample"),
        RandomChoices(bench.context("sample"), KEY, [1, 1]),
        [_zip(bench, kind, 12, 8), _concatenate(bench, kind, 4, 9)],
        stop_on_empty=False,
    ),
}

FAILING: dict[str, Callable[[Bench, Kinds], Stage]] = {
    "zip": lambda bench, kind: ZipStage(
        bench.context("zip"),
        [scripted(bench, kind, 20), Scripted(bench, script(9), kind, fail=True)],
        TupleOf((None, None)),
    ),
    "concatenate": lambda bench, kind: ConcatenateStage(
        bench.context("concatenate"),
        lambda i: Scripted(bench, script((5, 9)[i]), kind, fail=i == 1),
        2,
    ),
    "choose nothing that is there": lambda bench, kind: _choose(bench, kind, [0, 1, 1, 0, 2, 3, 1], 9, 9, 9),
    "choose": lambda bench, kind: SampleStage(
        bench.context("choose"),
        items(bench, CHOICES),
        [scripted(bench, kind, 9), Scripted(bench, script(2), kind, fail=True), scripted(bench, kind, 9)],
        stop_on_empty=False,
    ),
    "weights": lambda bench, kind: SampleStage(
        bench.context("sample"),
        VaryingChoices(bench.context("sample"), items(bench, [[1, 2], [1, 0], [3, 4], [0, 0], [1, 1]]), KEY, 2),
        [scripted(bench, kind, 9), scripted(bench, kind, 9)],
        stop_on_empty=False,
    ),
    "take while": lambda bench, kind: TakeWhileStage(bench.context("take_while"), scripted(bench, kind, 40), failing),
    "scan": lambda bench, kind: _scan(bench, kind, failing_scan),
    "scan that returns nonsense": lambda bench, kind: _scan(bench, kind, lambda *_: None),
    "reject": lambda bench, kind: RejectionStage(
        bench.context("reject"),
        scripted(bench, kind, 40),
        lambda *parts: number(parts) // 9,
        (0.5, 0.5),
        None,
        KEY,
        every=False,
    ),
    "assert fewer": lambda bench, kind: AssertCardinalityStage(bench.context("assert"), scripted(bench, kind, 11), 9),
    "assert more": lambda bench, kind: AssertCardinalityStage(bench.context("assert"), scripted(bench, kind, 11), 12),
    "assert no end": lambda bench, kind: AssertCardinalityStage(bench.context("assert"), scripted(bench, kind, 11), -1),
}

SEEN: tuple[Kinds, ...] = KINDS if SOAK else ("twice", "nests", "array", "mixed")

WITH_KIND = [
    *(pytest.param(make, kind, id=f"{name}-{kind}") for name, make in ANY_KIND.items() for kind in SEEN),
    *(pytest.param(make, kind, id=f"failing {name}-{kind}") for name, make in FAILING.items() for kind in SEEN[:2]),
]

SOURCES: dict[str, Make] = {
    "counter": lambda bench: TakeStage(bench.context("take"), CounterStage(bench.context("counter"), 3, -2, "<i4"), 60),
    "random": lambda bench: TakeStage(bench.context("take"), RandomStage(bench.context("random"), KEY), 60),
}


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "kind"), WITH_KIND)
def test_cutting_the_input_changes_nothing(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Any blocking: elements, provenance, what is used up, states and errors do not depend on how blocks are cut."""
    check_any_blocking(lambda bench: make(bench, kind), seeds=range(samples(2, 300)))


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_a_source_gives_the_same_whatever_is_asked_for(make: Make) -> None:
    """Any blocking, for sources without an end."""
    assert len(check_any_blocking(make, seeds=range(samples(2, 300))).elements) == 60


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "kind"), [param for param in WITH_KIND if param.values[1] == "nests"])
def test_closing_at_any_step_gives_everything_back(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Leases: after closing half-way, at every step, no slab is held and nothing is charged."""
    for seed in range(samples(1, 20)):
        check_closing(lambda bench: make(bench, kind), seed=seed)


@pytest.mark.sampled
@pytest.mark.parametrize(("make", "kind"), [param for param in WITH_KIND if param.values[1] == "twice"])
def test_cancelling_at_any_step_gives_everything_back(make: Callable[[Bench, Kinds], Stage], kind: Kinds) -> None:
    """Leases: after a cancellation at every step of the loop, no slab is held and nothing is charged."""
    for seed in range(samples(1, 20)):
        check_cancelling(lambda bench: make(bench, kind), seed=seed, steps=range(0, 60, samples(6, 1)))


@pytest.mark.parametrize("counts", list(itertools.product(range(4), repeat=3)))
def test_zip_ends_with_the_shortest_and_reads_all_equally_far(counts: tuple[int, ...]) -> None:
    """Elements until the shortest ends; of every longer input one more is used up, and no more."""

    def make(bench: Bench) -> Stage:
        events = [script(count, first=100 * i, drops=False) for i, count in enumerate(counts)]
        stages = [Scripted(bench, each, "array") for each in events]
        return ZipStage(bench.context("zip"), stages, TupleOf((None,) * 3))

    trace = whole(make)
    elements, read = oracle.zip_datasets([range(100 * i, 100 * i + count) for i, count in enumerate(counts)])
    assert trace.elements == [list(element) for element in elements]
    per_source: dict[int, int] = {}
    for value in trace.used_up:
        per_source[value // 100] = per_source.get(value // 100, 0) + 1
    assert sorted(per_source.values()) == sorted(count for count in read if count)


@pytest.mark.parametrize("stop", [False, True])
def test_choices_are_followed(stop: bool) -> None:
    """All sequences of up to five choices among three inputs of 0, 1 and 3 elements."""
    datasets = [range(0), range(100, 101), range(200, 203)]
    for length in range(6):
        for choices in itertools.product(range(3), repeat=length):

            def make(bench: Bench, choices: tuple[int, ...] = choices) -> Stage:
                stages = [numbers(bench, data.start, data.stop) for data in datasets]
                return SampleStage(bench.context("choose"), items(bench, choices), stages, stop_on_empty=stop)

            async def run(make: Make = make) -> Any:
                return await Bench().observe(make)

            if length < samples(4, 6):
                assert asyncio.run(run()).elements == oracle.choose(datasets, choices, stop_on_empty=stop), choices


@pytest.mark.parametrize("num_shards", range(1, 5))
@pytest.mark.parametrize("count", range(6))
def test_shards_are_a_partition(num_shards: int, count: int) -> None:
    """Every element is in one shard, in its order."""
    for index in range(num_shards):

        def make(bench: Bench, index: int = index) -> Stage:
            return ShardStage(bench.context("shard"), numbers(bench, 0, count), num_shards, index)

        trace = whole(make)
        assert trace.elements == oracle.shard(range(count), num_shards, index)


def test_take_while_uses_up_the_element_that_ends_it() -> None:
    """The element that the predicate refuses has been used up; what follows has not."""

    def make(bench: Bench) -> Stage:
        def predicate(value: Any) -> bool:
            return bool(value != 4)

        return TakeWhileStage(bench.context("take_while"), Scripted(bench, script(9, drops=False), "array"), predicate)

    trace = whole(make)
    assert trace.elements == [0, 1, 2, 3]
    assert trace.used_up == [0, 1, 2, 3, 4]


def test_scan_does_not_keep_a_state_that_changes() -> None:
    """Marks hold the state as it was, also when the function changes it in place."""
    trace = whole(lambda bench: ScanStage(bench.context("scan"), numbers(bench, 0, 3000), [], count_up))
    marked = {row: mark["state"] for row, mark in trace.advance.marks}
    assert {row: len(state) for row, state in marked.items()} == {0: 0, 1024: 1024, 2048: 2048}


def count_up(state: list[int], element: Any) -> tuple[list[int], int]:
    state.append(int(element))
    return state, len(state)


UNLIKE: list[Any] = [
    0, 0.0, -0.0, False, "0", b"0", "", b"", (0,), (0, 0), {"a": 0}, {"a": 1}, {"b": 0}, None, float("nan"),
    np.int32(0), np.int64(0), np.float32(0), np.array([0]), np.array([[0]]), np.array([0.0, -0.0]),
    np.array([0.0, 0.0]),
    np.array([np.nan]), np.array([b"a"], object), np.array([], np.int64), "a" * 100, b"a" * 100, "a" * 101,
]  # fmt: skip


def test_unique_tells_unlike_elements_apart() -> None:
    """Leaves of different kind, dtype, shape or content differ; equal ones, nan and signed zeros too, are one."""
    trace = whole(lambda bench: UniqueStage(bench.context("unique"), items(bench, UNLIKE * 2)))
    # -0.0 is 0.0, and so it is in arrays.
    assert len(trace.elements) == len(UNLIKE) - 2
    values = [3, 1, 3, 2, 1, 1, 3]
    assert whole(lambda bench: UniqueStage(bench.context("unique"), items(bench, values))).elements == oracle.unique(
        values
    )


@pytest.mark.parametrize("weights", [(1,), (0, 1), (1, 0), (1, 2, 3), (0, 0, 5, 0), (1e-300, 1e300)])
def test_draws_meet_their_weights(weights: tuple[float, ...]) -> None:
    """What has no weight is never drawn; the others as often as their weights say, within five standard deviations."""

    def make(bench: Bench) -> Stage:
        return TakeStage(bench.context("take"), RandomChoices(bench.context("sample"), KEY, weights), 20_000)

    drawn = np.bincount(whole(make).elements, minlength=len(weights))
    wished = np.array(weights) / sum(weights)
    assert (np.abs(drawn - 20_000 * wished) <= 5 * np.sqrt(20_000 * wished * (1 - wished))).all()


def test_the_ends_of_the_unit_interval_choose_something() -> None:
    """Draws of 0 and just below 1 fall on inputs that have weight."""
    limits = np.cumsum(np.array([[0.0, 0.1, 0.2, 0.7, 0.0]]), axis=1)
    limits /= limits[:, -1:]
    assert choose(limits, np.array([0.0, np.nextafter(1, 0)])).tolist() == [1, 3]
    assert choose(np.repeat(limits, 2, axis=0), np.array([0.0, np.nextafter(1, 0)])).tolist() == [1, 3]


@pytest.mark.parametrize("initial", [None, (0.7, 0.2, 0.1)])
def test_rejection_alone_reaches_the_wished_distribution(initial: tuple[float, ...] | None) -> None:
    """Classes come as often as wished, within five standard deviations; no element is doubled, the order is kept."""
    rng = np.random.default_rng(3)
    classes = rng.choice(3, size=20_000, p=(0.7, 0.2, 0.1))
    target = (0.0, 0.3, 0.7)

    def make(bench: Bench) -> Stage:
        def function(at: int) -> int:
            return int(classes[at])

        return RejectionStage(
            bench.context("reject"), numbers(bench, 0, 20_000), function, target, initial, KEY, every=False
        )

    elements = whole(make).elements
    found = np.array([number for number, _ in elements])
    places = [at for _, at in elements]
    assert places == sorted(set(places))
    assert (classes[places] == found).all()
    share = np.bincount(found, minlength=3) / len(found)
    assert (np.abs(share - target) < 5 * np.sqrt(0.25 / len(found)) + 0.01).all()
    assert len(found) > 20_000 * 0.1 / 0.7 * 0.9


def test_counters_wrap_around_and_random_numbers_are_uniform() -> None:
    """A counter is arithmetic of its dtype; random numbers fill 32 bits evenly."""
    trace = whole(
        lambda bench: TakeStage(bench.context("take"), CounterStage(bench.context("counter"), 250, 3, "|u1"), 5)
    )
    assert trace.elements == [250, 253, 0, 3, 6]
    drawn = np.array(
        whole(
            lambda bench: TakeStage(bench.context("take"), RandomStage(bench.context("random"), KEY), 20_000)
        ).elements
    )
    assert drawn.min() >= 0
    assert drawn.max() < 2**32
    assert abs(drawn.mean() - 2**31) < 5 * 2**32 / np.sqrt(12 * 20_000)


def test_choices_without_an_end_of_sources_that_know_theirs() -> None:
    """Nothing is waited for behind their last elements."""

    def make(bench: Bench) -> Stage:
        zeros = CounterStage(bench.context("counter"), 0, 0, "<i8")
        return SampleStage(bench.context("choose"), zeros, [numbers(bench, 0, 3)], stop_on_empty=False)

    assert whole(make).elements == [0, 1, 2]


async def test_an_input_that_had_ended_before_a_state_is_closed_and_not_prepared() -> None:
    """What it reserves is free for the others, which alone say whether the stage drains."""
    bench = Bench()
    events: list[Any] = []
    stages = [Watched(numbers(bench, 0, count), events, count) for count in (2, 9)]
    stage = SampleStage(
        bench.context("choose"),
        items(bench, [0, 1, 1]),
        stages,
        stop_on_empty=False,
        ended=lambda number: events.append(("ended", number)),
    )
    stage.restore({"inputs": [None, State(None, 0), State(None, 0)]})
    stage.prepare()
    block = await stage.pull(10)
    assert block is not None
    assert block.elements() == [0, 1]
    seen = [event[:2] for event in events]
    assert ("prepare", 2) not in seen
    assert ("pull", 2) not in seen
    assert seen[:4] == [("prepare", 9), ("prepare", 9), ("close", 2), ("ended", 0)]
    assert stage.draining is stages[1].draining
    await bench.put_back(stage)


def test_array_columns_stay_array_columns() -> None:
    """What has no references is not taken apart: blocks of arrays go through zip, enumerate, shard and sampling."""

    async def run() -> None:
        bench = Bench()
        inner = ZipStage(bench.context("zip"), [numbers(bench, 0, 9), numbers(bench, 5, 14)], TupleOf((None, None)))
        sampled = SampleStage(
            bench.context("s"), RandomChoices(bench.context("s"), KEY, [1, 1]), [inner, inner], stop_on_empty=False
        )
        stage = ShardStage(bench.context("shard"), EnumerateStage(bench.context("enumerate"), sampled, 0), 2, 0)
        block = await stage.pull(100)
        assert block is not None
        assert all(isinstance(column, ArrayColumn) for column in block.columns)
        await stage.aclose()
        bench._check()

    asyncio.run(run())
