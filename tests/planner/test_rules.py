"""Rewrites keep the elements; where functions run and checksums are verified."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.arguments import is_async
from asyncdata.options import AUTOTUNE, Options
from asyncdata.plan.node import Node, walk
from asyncdata.plan.sources import Range, TFRecordFile
from asyncdata.plan.transformations import (
    Batch,
    Map,
    MapBatch,
    Shuffle,
    Take,
    WithOptions,
)
from asyncdata.planner.rules import RULES, rewrite, tasks_verify

RECORDS = TFRecordFile(url="memory://b/o", compression=None)
PARSE = ad.parse_example({"id": ad.FixedLenFeature((), int)})
PARSE_MUCH = ad.parse_example({f"n{n}": ad.FixedLenFeature((), int) for n in range(17)})
PARSE_LISTS = ad.parse_example({"ids": ad.VarLenFeature(int)})
NUMBERS = Range(start=0, stop=9, step=1, dtype="<i8")


def one(x: Any) -> Any:
    return x


async def one_later(x: Any) -> Any:
    return x


class Later:
    """An object that is called like a coroutine function."""

    async def __call__(self, x: Any) -> Any:
        return x


def mapped(node: Node, function: Callable[..., Any] = one, **changes: Any) -> Map:
    fields: dict[str, Any] = {
        "parallelism": None,
        "deterministic": None,
        "executor": None,
        "rng": False,
        "zero_copy": False,
        "setup": None,
    }
    return Map(input=node, function=function, **(fields | changes))


def kinds(node: Node) -> list[str]:
    """The nodes from the consumer to the source, by their classes."""
    return [type(found).__name__ for found in walk(node)]


@pytest.mark.parametrize(
    ("function", "parallelism", "executor", "workers", "placed", "calls"),
    [
        (one, None, None, None, "inline", None),
        (one, None, None, 0, "inline", None),
        (one, 4, None, None, "process", 4),
        (one, AUTOTUNE, None, None, "process", AUTOTUNE),
        (one, 4, None, 0, "thread", 4),
        (one, 4, "thread", None, "thread", 4),
        (one, None, "thread", None, "thread", AUTOTUNE),
        (one, None, "process", None, "process", AUTOTUNE),
        (one, None, "process", 0, "thread", AUTOTUNE),
        (one, 4, "inline", None, "inline", 4),
        (PARSE, AUTOTUNE, None, None, "either", AUTOTUNE),
        (PARSE, AUTOTUNE, None, 0, "either", AUTOTUNE),
        (PARSE, None, None, None, "inline", None),
        (PARSE, 4, None, None, "process", 4),
        (PARSE_MUCH, AUTOTUNE, None, None, "either", AUTOTUNE),
        (PARSE_LISTS, AUTOTUNE, None, None, "process", AUTOTUNE),
        (PARSE, AUTOTUNE, "process", None, "process", AUTOTUNE),
        (PARSE, AUTOTUNE, "thread", None, "thread", AUTOTUNE),
        (ad.decode_image(), AUTOTUNE, None, None, "process", AUTOTUNE),
        (one_later, None, None, None, "async", 1),
        (one_later, 7, None, None, "async", 7),
        (one_later, AUTOTUNE, None, 0, "async", AUTOTUNE),
        (Later(), None, None, None, "async", 1),
        (functools.partial(one_later), None, None, None, "async", 1),
    ],
)
def test_where_functions_run(
    function: Callable[..., Any],
    parallelism: int | None,
    executor: str | None,
    workers: int | None,
    placed: str,
    calls: int | None,
) -> None:
    """Inline unless parallel, then in processes, or threads when there are none; async functions are awaited.

    Where AUTOTUNE is asked for, parsers whose batches are their records side by side may change their place; others go
    to workers, because one batch of theirs may keep the loop for long.
    """
    options = Options() if workers is None else Options(num_workers=workers)
    node = rewrite(mapped(NUMBERS, function, parallelism=parallelism, executor=executor), options)
    assert isinstance(node, Map)
    assert (node.executor, node.parallelism) == (placed, calls)
    assert is_async(function) == (placed == "async")


FILE = ad.TFRecordDataset("a")
FILES = ad.TFRecordDataset(["a", "b"])
NAMES = ad.Dataset.from_tensor_slices(["a", "b"])


DROPPING: list[Callable[[ad.Dataset], ad.Dataset]] = [
    lambda ds: ds.skip(1),
    lambda ds: ds.take(1),
    lambda ds: ds.shard(2, 0),
    lambda ds: ds.filter(bool),
    lambda ds: ds.unique(),
    lambda ds: ds.take_while(bool),
    lambda ds: ds.enumerate(),
    lambda ds: ds.batch(2),
    lambda ds: ds.cache(),
    lambda ds: ds.ignore_errors(),
    lambda ds: ds.map(len),
    lambda ds: ds.map(len, num_parallel_calls=2),
    lambda ds: ad.Dataset.zip((ds, ds)),
    lambda ds: ad.Dataset.sample_from_datasets([ds, ds]),
]


class Mapped(ad.TFRecordDataset):
    """A subclass may do more than read files."""


@pytest.mark.parametrize(
    ("ds", "expected"),
    [
        (FILE, True),
        (FILES, True),
        (NAMES.interleave(ad.TFRecordDataset, cycle_length=3, deterministic=False), True),
        (ad.TFRecordDataset(NAMES).with_options(ad.Options(seed=1)).shuffle(9).repeat(2).prefetch(1), True),
        (FILE.concatenate(FILES).shuffle(5), True),
        (NAMES.interleave(Mapped), False),
        (NAMES.interleave(lambda name: ad.TFRecordDataset(name)), False),  # noqa: PLW0108 -- a function of the user's
        (NAMES.interleave(ad.TextLineDataset), False),
        (ad.TextLineDataset(NAMES), False),
        (ad.Dataset.range(3), False),
        (FILE.concatenate(NAMES), False),
        *((between(FILES), False) for between in DROPPING),
    ],
)
def test_where_checksums_are_verified(ds: ad.Dataset, expected: bool) -> None:
    """In the worker tasks that every record of some files comes to, and nothing else does; at the files otherwise."""
    assert tasks_verify(rewrite(ds._node, Options())) is expected


def test_maps_and_batch_become_one_step() -> None:
    """Maps in workers and the batch behind them are one task, with the functions in their order."""
    two = mapped(mapped(NUMBERS, abs, parallelism=2, zero_copy=True), one, parallelism=2, rng=True)
    node = rewrite(Batch(input=two, size=3, drop_remainder=True), Options())
    assert isinstance(node, MapBatch)
    assert node.functions == (abs, one)
    assert node.rng == (False, True)
    assert (node.size, node.drop_remainder, node.executor, node.parallelism) == (3, True, "process", 2)
    assert node.zero_copy
    assert isinstance(node.input, Range)


@pytest.mark.parametrize(
    "changes", [{"executor": "inline"}, {"parallelism": 3}, {"executor": "thread"}, {"deterministic": False}]
)
def test_unlike_maps_stay_apart(changes: dict[str, Any]) -> None:
    """Maps with settings of their own are not drawn into the batch."""
    first = mapped(NUMBERS, abs, **({"parallelism": 2} | changes))
    plan = Batch(input=mapped(first, one, parallelism=2), size=3, drop_remainder=False)
    assert kinds(rewrite(plan, Options())) == ["MapBatch", "Map", "Range"]


@pytest.mark.parametrize("count", range(1, 6))
def test_any_number_of_maps_and_batch_become_one_step(count: int) -> None:
    """All functions in their order, as far as the settings agree; what lies in front stays a step."""
    functions = tuple(functools.partial(pow, exp=number) for number in range(count))
    plan: Node = mapped(NUMBERS, abs, parallelism=3)
    for number, function in enumerate(functions):
        plan = mapped(plan, function, parallelism=2, rng=number % 2 == 0)
    node = rewrite(Batch(input=plan, size=3, drop_remainder=False), Options())
    assert kinds(node) == ["MapBatch", "Map", "Range"]
    assert isinstance(node, MapBatch)
    assert node.functions == functions
    assert node.rng == tuple(number % 2 == 0 for number in range(count))
    assert node.depth == plan.depth + 1


@pytest.mark.parametrize("places", [*itertools.product((False, True), repeat=4)])
def test_options_among_maps_do_not_part_them(places: tuple[bool, ...]) -> None:
    """They hold for the whole pipeline, or for its sources: with or without them the maps are one task."""
    plan: Node = NUMBERS
    said = []
    for number, place in enumerate(places):
        if place:
            said.append(Options(storage={"gs": {"project": str(number)}}))
            plan = WithOptions(input=plan, options=said[-1])
        if number < 3:
            plan = mapped(plan, functools.partial(pow, exp=number), parallelism=2, rng=True)
    node = rewrite(Batch(input=plan, size=3, drop_remainder=False), Options())
    assert kinds(node) == ["MapBatch", *["WithOptions"] * len(said), "Range"]
    assert isinstance(node, MapBatch)
    assert [function.keywords["exp"] for function in node.functions if isinstance(function, functools.partial)] == [
        0,
        1,
        2,
    ]
    assert node.depth == plan.depth + 1
    assert [found.options for found in walk(node) if isinstance(found, WithOptions)] == said[::-1]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("p", ["MapBatch"]),
        ("pu", ["MapBatch", "Map"]),
        ("puu", ["MapBatch", "Map"]),
        ("upu", ["MapBatch"]),
        ("ppuu", ["MapBatch", "Map"]),
        ("uvu", ["MapBatch", "Map"]),
        ("vuu", ["MapBatch"]),
        ("vpu", ["MapBatch"]),
    ],
)
def test_functions_of_blocks_and_of_views_stay_apart(steps: str, expected: list[str]) -> None:
    """A leading parser is called for many records at once; memoryviews are those of a slab."""
    plan: Node = RECORDS
    parse = ad.parse_example({"x": ad.FixedLenFeature((), int)})
    for step in steps:
        plan = mapped(plan, parse if step == "p" else one, parallelism=2, zero_copy=step == "v")
    assert kinds(rewrite(Batch(input=plan, size=3, drop_remainder=False), Options())) == [*expected, "TFRecordFile"]


def test_a_plan_without_work_for_the_planner_stays_itself() -> None:
    """What no rule concerns is not copied, and rewriting twice changes nothing more."""
    plan = Take(input=NUMBERS, count=2)
    assert rewrite(plan, Options()) is plan
    again = rewrite(Batch(input=RECORDS, size=2, drop_remainder=False), Options())
    assert kinds(rewrite(again, Options())) == kinds(again)
    assert len(RULES) == len(set(RULES))


def test_what_is_not_rewritten_has_nothing_to_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are taken for finished at one look are those that no rule changes."""
    monkeypatch.setattr("asyncdata.planner.rules._REWRITTEN", (Range,))  # all of these
    for steps in itertools.product(STEPS.values(), repeat=2):
        plan = steps[1](steps[0](ad.Dataset.range(9)))._node
        assert rewrite(plan, Options()) is plan or any(isinstance(each, Map) for each in walk(plan))


def test_depth_survives_the_planner() -> None:
    """Random draws are keyed by a node's depth: no rewrite moves what it keeps."""
    shuffle = Shuffle(input=mapped(RECORDS), buffer_size=3, seed=1, reshuffle=True)
    plan = Batch(input=mapped(shuffle, parallelism=2), size=3, drop_remainder=False)
    for options in (Options(), Options(check_crc=False), Options(num_workers=0)):
        node = rewrite(plan, options)
        found = next(n for n in walk(node) if isinstance(n, Shuffle))
        assert found.depth == shuffle.depth == 3
        assert node.depth == plan.depth


STEPS: dict[str, Callable[[ad.Dataset], ad.Dataset]] = {
    "map": lambda ds: ds.map(_tripled),
    "thread map": lambda ds: ds.map(_tripled, 2, executor="thread"),
    "async map": lambda ds: ds.map(_tripled_later, 3),
    "filter": lambda ds: ds.filter(_is_even),
    "batch": lambda ds: ds.batch(3).flat_map(_each),
    "map batch": lambda ds: ds.map(_tripled, 2, executor="thread").batch(4, drop_remainder=True).flat_map(_each),
    "repeat": lambda ds: ds.repeat(2),
    "take": lambda ds: ds.take(11),
    "prefetch": lambda ds: ds.prefetch(2),
}


def _tripled(x: Any) -> int:
    return 3 * int(x)


async def _tripled_later(x: Any) -> int:
    return 3 * int(x)


def _is_even(x: Any) -> bool:
    return int(x) % 2 == 0


def _each(batch: Any) -> ad.Dataset:
    return ad.Dataset.from_tensor_slices(batch)


def _plain(name: str, values: list[int]) -> list[int]:
    match name:
        case "map" | "thread map" | "async map":
            return [3 * value for value in values]
        case "filter":
            return [value for value in values if value % 2 == 0]
        case "map batch":
            return [3 * value for value in values][: len(values) // 4 * 4]
        case "repeat":
            return values * 2
        case "take":
            return values[:11]
        case _:
            return values


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=3), st.integers(0, 12))
def test_rewritten_plans_give_the_elements_of_the_plain_ones(steps: list[str], count: int) -> None:
    """Whatever is fused, placed or checked: elements and order are those of the steps taken singly."""
    ds, expected = ad.Dataset.range(count), list(range(count))
    for step in steps:
        ds, expected = STEPS[step](ds), _plain(step, expected)
    with ad.Runtime(Options(num_workers=0, memory_limit_bytes=64 << 20)):
        assert [int(x) for x in ds] == expected


def test_plans_can_be_pickled() -> None:
    """A dataset is a value: it goes through a pickle and gives the same elements."""
    ds = ad.Dataset.range(6).map(_tripled).filter(_is_even).batch(2)
    again = pickle.loads(pickle.dumps(ds))
    assert [batch.tolist() for batch in again] == [[0, 6], [12]]
