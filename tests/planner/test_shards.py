"""Shards of an order that differs from process to process are refused, and all others are let through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.planner.rules import rewrite

D = ad.Dataset
NUMBERS = D.range(12)
SHUFFLED = NUMBERS.shuffle(12)


def draw(x: Any, rng: Any) -> Any:
    """A function with random numbers."""
    return int(rng.integers(10))


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
    "random numbers beside": D.zip(D.random(), NUMBERS).map(draw, rng=True),
    "one call at a time": NUMBERS.map(abs, num_parallel_calls=1, deterministic=False),
    "one dataset at a time": NUMBERS.interleave(D.range, cycle_length=1, deterministic=False),
    "inline": NUMBERS.map(abs, deterministic=False),
}


def check(ds: ad.Dataset, options: ad.Options | None = None) -> None:
    """What happens when iteration begins."""
    rewrite(ds._node, ad.Options() if options is None else options)


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
