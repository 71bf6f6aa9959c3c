"""Ranks: who says what this process is, and that the parts of all ranks are the whole, each element once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.errors import PipelineError
from asyncdata.feed.ranks import Division, Rank, share_of
from asyncdata.options import Environment
from tests.samples import samples


def division(**settings: Any) -> Division:
    """With what a test does not care about."""
    known = {"rank": None, "world": None, "shard": True, "even": "drop"}
    return Division(**{**known, **settings})


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pattern that matches five files of 1 to 9 records."""
    folder: Path = tmp_path_factory.mktemp("shards")
    for number in range(5):
        with ad.TFRecordWriter(f"{folder}/{number}.tfrecord") as writer:
            for record in range(1 + 2 * number):
                writer.write(f"{number}-{record}".encode())
    return f"{folder}/*.tfrecord"


def drawn(chance: random.Random, shards: str) -> ad.Dataset:
    """A dataset of any source whose elements differ, behind any steps that keep each of them once."""
    files = ad.Dataset.list_files(shards, shuffle=chance.random() < 0.5, seed=3)
    paths = sorted(str(path) for path in Path(shards).parent.iterdir())
    sources: list[Callable[[], ad.Dataset]] = [
        lambda: ad.Dataset.range(chance.randrange(40)),
        lambda: ad.Dataset.from_tensor_slices([f"element {i}" for i in range(chance.randrange(1, 30))]),
        lambda: ad.Dataset.from_generator(lambda: range(17), output_signature=ad.ArraySpec((), "i8")),
        lambda: files.interleave(ad.TFRecordDataset, cycle_length=chance.randrange(1, 4)),
        lambda: files.take(3).interleave(ad.TFRecordDataset),
        lambda: files.flat_map(ad.TFRecordDataset),
        lambda: ad.TFRecordDataset(files, num_parallel_reads=2),
        lambda: ad.TFRecordDataset(paths[chance.randrange(5) :]),
        lambda: ad.TFRecordDataset(paths[4]),
        lambda: ad.Dataset.range(9).concatenate(ad.Dataset.range(100, 117)),
        lambda: ad.Dataset.zip(ad.Dataset.range(9), ad.Dataset.range(20)),
    ]
    ds = chance.choice(sources)()
    steps: list[Callable[[ad.Dataset], ad.Dataset]] = [
        lambda ds: ds.shuffle(10, seed=5),
        lambda ds: ds.shuffle(10, seed=6, reshuffle_each_iteration=False),
        lambda ds: ds.map(lambda *parts: parts if len(parts) > 1 else parts[0]),
        lambda ds: ds.filter(lambda *_: True),
        lambda ds: ds.enumerate(),
        lambda ds: ds.take(25).skip(2),
        lambda ds: ds.prefetch(2),
        lambda ds: ds.cache(),
        lambda ds: ds.batch(3).unbatch(),
        lambda ds: ds.with_options(ad.Options(seed=4)),
    ]
    for _ in range(chance.randrange(3)):
        ds = chance.choice(steps)(ds)
    return ds


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(40, 600)))
def test_the_parts_of_all_ranks_are_the_whole(seed: int, shards: str) -> None:
    """Whatever the source and the steps: each element is read by exactly one rank."""
    chance = random.Random(seed)
    ds, world = drawn(chance, shards), chance.randrange(1, 6)
    parts = [division().part(ds, Rank(rank, world)) for rank in range(world)]
    found = [str(element) for part in parts for element in part.iterator(epoch=0)]
    assert sorted(found) == sorted(map(str, ds.iterator(epoch=0)))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (
            lambda files: files.interleave(ad.TFRecordDataset).shuffle(9, seed=1).map(len).batch(2),
            "list_files → shard → interleave → shuffle → map → batch",
        ),
        (lambda files: files.take(4).interleave(ad.TFRecordDataset), "list_files → take → shard → interleave"),
        (lambda _: ad.TFRecordDataset(["a", "b"]).batch(2), "TFRecordDataset → shard → batch"),
        (lambda _: ad.TFRecordDataset("a").batch(2), "TFRecordDataset → shard → batch"),
        (lambda _: ad.Dataset.range(9).cache().batch(2), "range → cache → shard → batch"),
        (lambda _: ad.Dataset.range(2).repeat(), "range → repeat → shard"),
        (lambda _: ad.Dataset.range(9).enumerate().batch(2), "range → enumerate → shard → batch"),
    ],
)
def test_the_part_is_taken_near_the_source(make: Any, shown: str, shards: str) -> None:
    """Where it saves the most reading, and no step above it changes its meaning."""
    part = division().part(make(ad.Dataset.list_files(shards, seed=1)), Rank(1, 3))
    assert steps_of(part) == shown.split(" → ")


def steps_of(ds: ad.Dataset) -> list[str]:
    """The names of its steps."""
    return [step.partition("(")[0] for step in repr(ds).removeprefix("<Dataset ").removesuffix(">").split(" → ")]


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: ad.TFRecordDataset("a").batch(2), "TFRecordDataset → shard → batch"),
        (lambda: ad.TFRecordDataset(["a", "b"]).batch(2), "from_tensors → shard → interleave → batch"),
        (lambda: ad.Dataset.range(9).unbatch().batch(2), "range → unbatch → batch"),
        (lambda: ad.Dataset.range(9).shard(3, 1).batch(2), "range → shard → batch"),
        (lambda: ad.Dataset.range(9).map(abs, 2, deterministic=False).take(4), "range → map → take"),
    ],
)
def test_a_single_process_has_a_part_that_others_can_share(make: Callable[[], ad.Dataset], shown: str) -> None:
    """All elements; a dataset whose states cannot be divided stays as it is."""
    ds = make()
    part = division().part(ds, Rank(0, 1))
    assert steps_of(part) == shown.split(" → ")
    assert (part is ds) == (repr(part) == repr(ds))


def test_ranks_draw_what_the_dataset_draws() -> None:
    """A single process has the order of the dataset, and on any rank an element is given the same random numbers."""
    ds = ad.Dataset.range(20).shuffle(9).map(lambda n, rng: (n, rng.random()), rng=True).shuffle(5).batch(3)
    ds = ds.with_options(ad.Options(seed=3))
    part = division().part(ds, Rank(0, 1))
    assert part is not ds
    for epoch in range(2):
        whole = [(x.tolist(), y.tolist()) for x, y in ds.iterator(epoch=epoch)]
        assert [(x.tolist(), y.tolist()) for x, y in part.iterator(epoch=epoch)] == whole
        found: dict[int, float] = {}
        for rank in range(3):
            for x, y in division().part(ds, Rank(rank, 3)).iterator(epoch=epoch):
                found.update(zip(x.tolist(), y.tolist(), strict=True))
        assert found == {x: y for xs, ys in whole for x, y in zip(xs, ys, strict=True)}


def test_a_dataset_that_is_sharded_is_not_sharded_again() -> None:
    """Each process would read a part of a part; the error says how to keep one of them."""
    ds = ad.Dataset.range(8).shard(2, 1).batch(2)
    with pytest.raises(PipelineError, match=r"own shard\(2, 1\), and by the feed for rank 0 of 2.*shard=False"):
        division().part(ds, Rank(0, 2))
    assert division().part(ds, Rank(0, 1)) is ds  # reads this shard alone
    assert division(shard=False).part(ds, Rank(0, 2)) is ds


def test_the_arguments_say_more_than_the_framework_and_that_more_than_the_environment() -> None:
    """The first that knows the rank is believed."""
    environment = Environment(rank="1", world="4")
    assert division(rank=2, world=3).find((0, 2), environment) == (2, 3)
    assert division().find((0, 2), environment) == (0, 2)
    assert division().find(None, environment) == (1, 4)
    assert division().find(None, Environment()) == (0, 1)
    assert division().find(None, Environment(world="1")) == (0, 1)


@pytest.mark.parametrize(
    ("settings", "environment", "message"),
    [
        ({"rank": 1}, Environment(), "both rank and world"),
        ({"rank": 2, "world": 2}, Environment(), "rank 2 of 2 processes, as the arguments say"),
        ({"rank": -1, "world": 2}, Environment(), "rank must be at least 0"),
        ({}, Environment(rank="3", world="2"), "rank 3 of 2 processes, as the environment"),
        ({}, Environment(rank="zero", world="2"), "RANK='zero' and WORLD_SIZE='2'"),
        ({}, Environment(rank="1"), "RANK='1' and no WORLD_SIZE"),
        ({}, Environment(world="2"), "WORLD_SIZE='2' and no RANK"),
        ({"even": "odd"}, Environment(), "even must be"),
    ],
)
def test_a_rank_that_does_not_exist_is_refused(settings: Any, environment: Environment, message: str) -> None:
    """With the place that it comes from."""
    with pytest.raises(ValueError, match=message):
        division(**settings).find(None, environment)


@pytest.mark.parametrize(
    ("rows_of", "shares"),
    [
        ({0: [(0, 1), (1, 2)], 1: [(2, 3), (3, 4)]}, [(0, 2, 2), (1, 2, 2)]),
        ({0: [(0, 4)], 1: [(0, 4)]}, [(0, 1, 1), (0, 1, 1)]),
        ({0: [(2, 4)], 1: [(0, 2)], 2: [(2, 4)], 3: [(0, 2)]}, [(1, 2, 1), (0, 2, 1), (1, 2, 1), (0, 2, 1)]),
        ({0: [(0, 1), (2, 3)], 1: [(1, 2), (3, 4)]}, [(0, 2, 2), (1, 2, 2)]),
        ({0: [(0, 2), (0, 2)]}, [(0, 1, 1)]),
    ],
)
def test_a_rank_is_a_set_of_rows(rows_of: dict[int, list[tuple[int, int]]], shares: list[tuple[int, int, int]]) -> None:
    """In the order of the rows; replicas share a rank."""
    assert [share_of(process, rows_of) for process in rows_of] == shares


@pytest.mark.parametrize(
    ("rows_of", "message"),
    [
        ({0: [(0, 2)], 1: [(0, 2), (2, 4)]}, "overlap in part"),
        ({0: [(0, 2), (2, 4)], 1: [(4, 8)]}, "overlap in part"),
        ({1: [(0, 2)]}, "no device of this process"),
    ],
)
def test_rows_that_make_no_ranks_are_refused(rows_of: dict[int, list[tuple[int, int]]], message: str) -> None:
    """With what is wrong with them."""
    with pytest.raises(PipelineError, match=message):
        share_of(0, rows_of)
