"""Shards of an order that differs from process to process are refused, and all others are let through."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import plan
from asyncdata.feed.ranks import Division, Rank
from asyncdata.plan.node import Node
from asyncdata.planner import shards
from asyncdata.planner.rules import rewrite
from asyncdata.runtime.settings import settings_of

D = ad.Dataset
NUMBERS = D.range(12)
SHUFFLED = NUMBERS.shuffle(12)


STAYING = NUMBERS.shuffle(12, reshuffle_each_iteration=False)


def in_turn(parts: ad.Dataset) -> ad.Dataset:
    """What is kept in one file after the other."""
    return parts.flat_map(lambda part: part)


def draw(x: Any, rng: Any) -> Any:
    """A function with random numbers."""
    return int(rng.integers(10))


def rows(x: Any, rng: Any) -> Any:
    """A random number of rows."""
    return np.full(int(rng.integers(1, 4)), x)


SKIPPING = ad.Options(errors=ad.ErrorPolicy())

UNSTEADY: dict[str, ad.Dataset] = {
    "shuffle": SHUFFLED,
    "list_files": D.list_files("x*"),
    "from_manifest": D.from_manifest("x"),
    "sample_from_datasets": D.sample_from_datasets([NUMBERS, NUMBERS]),
    "rejection_resample": NUMBERS.rejection_resample(lambda x: int(x) % 2, [0.5, 0.5], [0.9, 0.1]),
    "random that chooses": D.choose_from_datasets([NUMBERS, NUMBERS], D.random().map(lambda x: x % 2)),
    "random that filters": D.zip(D.random(), NUMBERS).filter(lambda r, _: r % 2),
    "map with random numbers that filters": NUMBERS.map(draw, rng=True).filter(bool),
    "batch with random numbers that filters": NUMBERS.map(draw, 2, rng=True).batch(2).unbatch().filter(bool),
    "random numbers of rows, one by one": NUMBERS.map(rows, rng=True).unbatch(),
    "random numbers of rows in batches": NUMBERS.map(rows, rng=True).rebatch(1),
    "random failures": NUMBERS.map(draw, rng=True).ignore_errors(),
    "random failures by the options": NUMBERS.map(draw, rng=True).with_options(SKIPPING),
    "cache in memory": SHUFFLED.cache(),
    "filter of a cache in memory": NUMBERS.map(draw, rng=True).cache().filter(bool),
    "in front of other steps": SHUFFLED.map(lambda x: x).batch(2).prefetch(1).repeat(),
    "zip": D.zip(NUMBERS, SHUFFLED),
    "concatenate": NUMBERS.concatenate(SHUFFLED),
    "input of interleave": SHUFFLED.interleave(lambda x: D.range(int(x)), cycle_length=2),
    "files": ad.TFRecordDataset(D.list_files("x*")),
}
"""Orders that a seed makes steady."""

SLOPPY: dict[str, ad.Dataset] = {
    "interleave": NUMBERS.interleave(D.range, cycle_length=2, deterministic=False),
    "parallel_interleave": NUMBERS.parallel_interleave(D.range, cycle_length=2, sloppy=True),
    "map in processes": NUMBERS.map(abs, num_parallel_calls=2, deterministic=False),
    "map in threads": NUMBERS.map(abs, num_parallel_calls=2, deterministic=False, executor="thread"),
    "map and batch": NUMBERS.map(abs, num_parallel_calls=2, deterministic=False).batch(2),
}
"""Orders of arrival, which no seed changes."""

STEADY: dict[str, ad.Dataset] = {
    "range": NUMBERS,
    "shuffle with a seed": NUMBERS.shuffle(5, seed=1),
    "shuffle that stays": NUMBERS.shuffle(5, reshuffle_each_iteration=False),
    "files by name": D.list_files("x*", shuffle=False),
    "files with a seed": D.list_files("x*", seed=1).interleave(ad.TFRecordDataset, cycle_length=4),
    "samples with a seed": D.sample_from_datasets([NUMBERS, NUMBERS], seed=1),
    "samples that stay": D.sample_from_datasets([NUMBERS, NUMBERS], rerandomize_each_iteration=False),
    "random numbers of random numbers": NUMBERS.map(draw, rng=True).batch(2).scan(0, lambda s, x: (s, x)).enumerate(),
    "random numbers beside": D.zip(D.random(), NUMBERS).map(draw, rng=True),
    "one call at a time": NUMBERS.map(abs, num_parallel_calls=1, deterministic=False),
    "one dataset at a time": NUMBERS.interleave(D.range, cycle_length=1, deterministic=False),
    "inline": NUMBERS.map(abs, deterministic=False),
}


def check(ds: ad.Dataset, options: ad.Options | None = None) -> None:
    """What happens when iteration begins."""
    rewrite(ds._node, settings_of(ds._node, options).options)


@pytest.mark.parametrize("ds", UNSTEADY.values(), ids=UNSTEADY)
def test_an_order_without_a_seed_is_refused(ds: ad.Dataset) -> None:
    """Behind any random order; a seed of the options, one shard, or a shard in front of it, is right."""
    for sharded in (ds.shard(2, 0), ds.shard(1, 0).shard(3, 2).map(lambda *x: x), D.zip(NUMBERS, ds.shard(2, 1))):
        with pytest.raises(ad.PipelineError, match=r"shard\(\d, \d\) comes after .* seed"):
            check(sharded)
        check(sharded, ad.Options(seed=1))
    check(ds)
    check(ds.shard(1, 0))
    check(NUMBERS.shard(2, 0).shuffle(5).concatenate(ds))


@pytest.mark.parametrize("ds", SLOPPY.values(), ids=SLOPPY)
def test_an_order_of_arrival_is_refused(ds: ad.Dataset) -> None:
    """Behind sloppy interleaves and unordered maps, with and without a seed."""
    for options in (ad.Options(), ad.Options(seed=1)):
        with pytest.raises(ad.PipelineError, match=r"shard\(2, 0\) comes after .* deterministic=True"):
            check(ds.shard(2, 0), options)
    check(ds)


@pytest.mark.parametrize("ds", STEADY.values(), ids=STEADY)
def test_an_order_that_all_processes_share_is_let_through(ds: ad.Dataset) -> None:
    """Seeded, unshuffled, and orders that stay."""
    check(ds.shard(2, 0))


def test_the_option_deterministic_counts() -> None:
    """It decides for every step that does not say otherwise."""
    sloppy = ad.Options(deterministic=False, num_workers=2, seed=1)
    for ds in (NUMBERS.interleave(D.range).shard(2, 0), NUMBERS.map(abs, 2).shard(2, 0)):
        with pytest.raises(ad.PipelineError, match="deterministic=True"):
            check(ds, sloppy)
        check(ds)
    check(NUMBERS.interleave(D.range, deterministic=True).shard(2, 0), sloppy)
    check(NUMBERS.flat_map(D.range).shard(2, 0), sloppy)
    check(ad.TFRecordDataset("x").filter(bool).shard(2, 0), sloppy)


INNER: dict[str, Callable[[ad.Dataset], ad.Dataset]] = {
    "interleave": lambda ds: ds.interleave(lambda x: D.range(int(x)).shuffle(3), cycle_length=2),
    "flat_map": lambda ds: ds.flat_map(lambda x: D.range(int(x)).flat_map(lambda _: D.range(3).shuffle(3))),
    "window": lambda ds: ds.window(3).flat_map(lambda window: window.shuffle(3)),
    "group_by_window": lambda ds: ds.group_by_window(lambda x: int(x) % 2, lambda _, w: w.shuffle(3), window_size=3),
    "cache": lambda ds: ds.shuffle(3).cache(),
    "an order that stays": lambda ds: ds.flat_map(lambda _: D.range(9).shuffle(9, reshuffle_each_iteration=False)),
    "an order that stays in a window": lambda ds: ds.window(3).flat_map(
        lambda window: window.shuffle(3, reshuffle_each_iteration=False)
    ),
}


@pytest.mark.parametrize("make", INNER.values(), ids=INNER)
def test_what_functions_make_is_looked_at_when_they_make_it(make: Callable[[ad.Dataset], ad.Dataset]) -> None:
    """Inner datasets in front of a shard; and shards inside of them."""
    ds = make(NUMBERS)
    with pytest.raises(ad.PipelineError, match=r"shard\(2, 0\) comes after shuffle"):
        list(ds.shard(2, 0))
    list(ds.shard(2, 0).with_options(ad.Options(seed=1)))
    list(ds)
    with pytest.raises(ad.PipelineError, match=r"shard\(2, 1\) comes after shuffle"):
        list(NUMBERS.flat_map(lambda _: make(NUMBERS).shard(2, 1)))


@pytest.mark.parametrize("isolate", [False, True])
def test_the_error_comes_when_iteration_begins(isolate: bool) -> None:
    """Not when the handle is made: a seed of later options, or of the Runtime, makes it right."""
    ds = SHUFFLED.shard(2, 0)
    options = ad.Options(isolate=isolate, num_workers=0)
    with pytest.raises(ad.PipelineError, match=r"Give shuffle a seed or set Options\(seed=\.\.\.\), or put shard"):
        iter(ds.with_options(options))
    parts = []
    with ad.Runtime(ad.Options(isolate=isolate, num_workers=0, seed=5)):
        parts += [int(x) for i in range(2) for x in SHUFFLED.shard(2, i)]
    assert sorted(parts) == list(range(12))


@pytest.mark.parametrize("kept", ["snapshot", "cache"])
def test_what_is_kept_has_one_order(kept: str, tmp_path: Path) -> None:
    """Shards of a random order that is kept are refused until the elements are there, and right from then on."""
    ds = SHUFFLED.snapshot(tmp_path / "s") if kept == "snapshot" else SHUFFLED.cache(tmp_path / "c")
    with pytest.raises(ad.PipelineError, match="comes after shuffle"):
        list(ds.shard(2, 0))
    order = [int(x) for x in ds]
    assert [[int(x) for x in ds.shard(2, i)] for i in range(2)] == [order[0::2], order[1::2]]


@pytest.mark.parametrize("kept", ["memory", "cache", "snapshot"])
def test_what_is_kept_has_the_same_order_in_whichever_epoch_it_is_complete(kept: str, tmp_path: Path) -> None:
    """A process may have kept the elements of an epoch whose end another one has not reached, or begun later."""

    def part(rank: int) -> ad.Dataset:
        ordered = D.range(40).shuffle(40, seed=1)
        if kept == "snapshot":
            return ordered.snapshot(tmp_path / str(rank)).shard(2, rank)
        return ordered.cache(tmp_path / str(rank) if kept == "cache" else None).shard(2, rank)

    first, second = part(0), part(1)
    list(first.iterator(epoch=0))
    for epoch in (1, 2):
        found = [*first.iterator(epoch=epoch), *second.iterator(epoch=epoch)]
        assert sorted(found) == list(range(40))


def test_a_single_reader_keeps_elements_in_the_order_of_several() -> None:
    """Which may go on with its state, in the middle of a later epoch that it began with."""

    def part(count: int, rank: int) -> ad.Dataset:
        return D.range(40).shuffle(40, seed=1).cache().shard(count, rank)

    with part(1, 0).iterator(epoch=1) as it:
        found = [next(it) for _ in range(5)]
        state = it.state_dict()
    for rank, (own, other) in enumerate(zip(ad.state.split([state], 2), (part(2, 0), part(2, 1)), strict=True)):
        found += other.iterator(state=own)
        assert sorted(other.iterator(epoch=2)) == sorted(part(2, rank).iterator(epoch=2))
    assert sorted(found) == list(range(40))


@pytest.mark.parametrize("settings", [{"shard_func": lambda x: int(x) % 3}, {"reader_func": in_turn}])
def test_a_snapshot_with_another_order_than_its_input_is_not_written_by_shards(settings: Any, tmp_path: Path) -> None:
    """Those that find it complete would read another order; once it is, all of them read one."""
    numbers = D.range(20).snapshot(tmp_path / "kept", **settings)
    with pytest.raises(ad.PipelineError, match=r"shard\(2, 0\) comes after snapshot\(.*kept\), which is not complete"):
        list(numbers.shard(2, 0))
    assert sorted(numbers) == list(range(20))
    assert sorted([*numbers.shard(2, 0), *numbers.shard(2, 1)]) == list(range(20))


@pytest.mark.parametrize("random", [SHUFFLED, NUMBERS.map(abs, 2, deterministic=False, executor="thread")])
def test_a_cache_in_memory_is_kept_for_one_process(random: ad.Dataset) -> None:
    """A shard of it is refused also when it is full: other processes have filled theirs in another order."""
    ds = random.cache()
    for _ in range(2):
        with pytest.raises(ad.PipelineError, match=r"shard\(2, 0\) comes after (shuffle|map)"):
            list(ds.shard(2, 0))
        list(ds)


def test_a_seed_comes_too_late_for_a_full_cache_in_memory() -> None:
    """The order was drawn without it; with it from the beginning the shards fit."""
    ds, seeded = SHUFFLED.cache(), SHUFFLED.cache()
    list(ds)
    options = ad.Options(seed=1)
    with pytest.raises(ad.PipelineError, match="comes after shuffle"):
        list(ds.shard(2, 0).with_options(options))
    parts = [int(x) for i in range(2) for x in seeded.shard(2, i).with_options(options)]
    assert sorted(parts) == list(range(12))


BESIDE: dict[str, Callable[[Path], ad.Dataset]] = {
    "inner dataset": lambda _: NUMBERS.flat_map(lambda _: D.range(3).map(draw, rng=True)),
    "cache in a file": lambda folder: NUMBERS.map(draw, rng=True).cache(folder / "c"),
    "snapshot": lambda folder: NUMBERS.map(draw, rng=True).snapshot(folder / "s"),
    "inner dataset in front of a cache": lambda _: NUMBERS.flat_map(lambda _: D.range(3).map(draw, rng=True)).cache(),
    "cache in an inner dataset": lambda _: NUMBERS.flat_map(lambda _: D.range(3).map(draw, rng=True).cache()),
}


@pytest.mark.parametrize("make", BESIDE.values(), ids=BESIDE)
def test_what_decides_may_lie_behind_a_place_that_is_looked_at_later(
    make: Callable[[Path], ad.Dataset], tmp_path: Path
) -> None:
    """A filter behind random values of an inner dataset, or of a cache that is not filled; values alone do no harm."""
    with pytest.raises(ad.PipelineError, match=r"shard\(2, 0\) comes after map"):
        list(make(tmp_path / "1").filter(bool).shard(2, 0))
    list(make(tmp_path / "2").shard(2, 0))
    list(make(tmp_path / "3").shard(2, 0).filter(bool))
    list(make(tmp_path / "4").filter(bool).shard(2, 0).with_options(ad.Options(seed=1)))


# --- orders that stay in one process -----------------------------------------------------------------------------


STAYS: dict[str, Callable[[Path], ad.Dataset]] = {
    "shuffle": lambda _: STAYING,
    "samples": lambda _: D.sample_from_datasets([NUMBERS, NUMBERS], rerandomize_each_iteration=False),
    "cache in memory": lambda _: STAYING.cache(),
    "cache in a file": lambda folder: STAYING.cache(folder / "c"),
    "snapshot": lambda folder: STAYING.snapshot(folder / "s"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("make", STAYS.values(), ids=STAYS)
def test_an_order_that_stays_is_refused_where_there_are_other_processes(
    make: Callable[[Path], ad.Dataset], isolate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them draws its own; a seed of the options is right."""
    options = ad.Options(isolate=isolate, num_workers=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ad.PipelineError, match=r"shard\(2, 0\) comes after (shuffle|sample_from_datasets).* seed"):
        list(make(tmp_path).shard(2, 0).with_options(options))
    list(make(tmp_path).take(3).with_options(options))
    list(make(tmp_path / "seeded").shard(2, 0).with_options(ad.Options(seed=1)).with_options(options))
    monkeypatch.setenv("WORLD_SIZE", "1")
    list(make(tmp_path / "alone").shard(2, 0).with_options(options))


@pytest.mark.parametrize("make", STAYS.values(), ids=STAYS)
def test_a_feed_knows_of_other_processes(make: Callable[[Path], ad.Dataset], tmp_path: Path) -> None:
    """Whether it places the shard, which is behind `take` here, or the user does."""

    def part(ds: ad.Dataset, world: int, *, shard: bool) -> ad.Dataset:
        return Division(rank=0, world=world, shard=shard, even=None).part(ds, Rank(0, world))

    for number, shard in enumerate([False, True]):
        ds = make(tmp_path / str(number)).take(9)
        ds = ds if shard else ds.shard(2, 0)
        with pytest.raises(ad.PipelineError, match=r"shard\(2, 0\) comes after"):
            list(part(ds, 2, shard=shard))
        list(part(ds, 1, shard=shard))


# --- the steps that there are -------------------------------------------------------------------------------------


DECIDE = {
    *("ChooseFrom", "Filter", "GroupByWindow", "IgnoreErrors", "Interleave", "Rebatch", "RejectionResample"),
    *("SampleFrom", "TakeWhile", "Unbatch", "Unique"),
}
"""Values, numbers of rows or failures say which elements come, and where."""

DO_NOT_DECIDE = {
    *("Contents", "Counter", "FramedFile", "Generator", "Hole", "Items", "ListFiles", "ManifestFile", "ParquetRows"),
    *("Random", "Range", "StoredFile", "TFRecordFile", "TarSamples", "TensorSlices", "WholeFile"),  # have no inputs
    *("AssertCardinality", "Batch", "Cache", "Concatenate", "Enumerate", "EnumeratePicked", "Map", "MapBatch"),
    *("PickedRows", "Prefetch", "RaggedBatch", "Repeat", "Scan", "Shard", "Shuffle", "Skip", "Snapshot", "Take"),
    *("PaddedBatch", "Window", "WithOptions", "Zip"),
}
"""The place of an element does not depend on values; what a snapshot's shards do is one order for all."""

DRAW = {"ListFiles", "ManifestFile", "Map", "MapBatch", "Random", "RejectionResample", "SampleFrom", "Shuffle"}
"""What these draw without a seed is refused; `UNSTEADY` has each of them."""

SLOPPY_STEPS = {"Interleave", "Map", "MapBatch"}
"""May give up the order; `SLOPPY` has each of them."""


def kinds_of_steps() -> dict[str, type[Node]]:
    """All classes of nodes, by name."""
    for module in pkgutil.iter_modules(plan.__path__):
        import_module(f"asyncdata.plan.{module.name}")
    waiting, found = [Node], {}
    while waiting:
        below = waiting.pop().__subclasses__()
        found.update({kind.__name__: kind for kind in below if kind.__module__.startswith("asyncdata.")})
        waiting.extend(below)
    return found


def test_every_step_is_known_to_decide_by_values_or_not() -> None:
    """A new step must be looked at: is the place of an element the same whatever the values are?"""
    assert DECIDE.isdisjoint(DO_NOT_DECIDE)
    assert set(kinds_of_steps()) == DECIDE | DO_NOT_DECIDE
    assert {kind.__name__ for kind in shards._VALUES_DECIDE} == DECIDE


def test_every_step_that_draws_or_has_no_order_is_known() -> None:
    """A new one must be looked at, too: is a shard behind it refused?"""
    kinds = kinds_of_steps().items()
    random = {"seed", "rng", "drawn"}
    fields = {name: {field.name for field in dataclasses.fields(kind)} for name, kind in kinds}
    assert {name for name, kind in kinds if kind.draws or fields[name] & random} == DRAW
    assert {name for name in fields if "deterministic" in fields[name]} == SLOPPY_STEPS
