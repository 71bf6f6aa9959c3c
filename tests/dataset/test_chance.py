"""The laws of chance, where TensorFlow's generator is not followed: uniform, weighted, complete, and repeatable."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Final

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.consumer.iterate import PipelineIterator
from asyncdata.runtime.randomness import permutation, stage_key
from tests.patience import LIMIT_S
from tests.samples import samples

D = ad.Dataset

EPOCHS: Final = samples(1800, 60_000)


def check_uniform(found: Sequence[Hashable], outcomes: int) -> None:
    """Pearson's chi-square stays within five standard deviations of its mean: a false alarm in a million runs.

    The seeds are fixed, so it is the same outcome in every run.
    """
    expected = len(found) / outcomes
    counts = Counter(found)
    assert len(counts) <= outcomes
    chi = sum((count - expected) ** 2 for count in counts.values()) / expected
    chi += (outcomes - len(counts)) * expected
    freedom = outcomes - 1
    # Wilson and Hilferty: the cube root is nearly normal.
    normal = ((chi / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert abs(normal) < 5, (chi, freedom)


def orders(ds: ad.Dataset, size: int) -> list[tuple[int, ...]]:
    """The order of every epoch."""
    found = [int(x) for x in ds]
    return [tuple(found[i : i + size]) for i in range(0, len(found), size)]


@pytest.mark.sampled
@pytest.mark.parametrize(("size", "buffer"), [(4, 4), (4, 100), (5, 5)])
def test_a_shuffle_of_everything_is_uniform(size: int, buffer: int) -> None:
    """With a buffer no smaller than the dataset every permutation comes as often as any other."""
    check_uniform(orders(D.range(size).shuffle(buffer, seed=11).repeat(EPOCHS), size), math.factorial(size))


def test_epochs_are_independent() -> None:
    """What one epoch drew says nothing of the next: all pairs of permutations come alike."""
    found = orders(D.range(3).shuffle(3, seed=12).repeat(EPOCHS), 3)
    check_uniform(list(zip(found[::2], found[1::2], strict=True)), 36)
    check_uniform(list(itertools.pairwise(found)), 36)


def test_seeds_are_independent() -> None:
    """Neighbouring seeds, epochs and steps draw as if they had nothing in common."""
    for keys in (
        [stage_key(seed, "draw 0", (0,)) for seed in range(EPOCHS)],
        [stage_key(0, f"draw {step}", (0,)) for step in range(EPOCHS)],
        [stage_key(0, "draw 0", (0, epoch)) for epoch in range(EPOCHS)],
    ):
        check_uniform([tuple(permutation(key, 4).tolist()) for key in keys], 24)


def test_a_small_buffer_moves_elements_as_far_as_it_should() -> None:
    """The first output is uniform over the buffer, and element i comes no earlier than it can."""
    found = orders(D.range(20).shuffle(5, seed=13).repeat(EPOCHS // 2), 20)
    check_uniform([order[0] for order in found], 5)
    for order in found:
        assert sorted(order) == list(range(20))
        assert all(value < place + 5 for place, value in enumerate(order))


def stays(size: int, seed: int | None = None) -> dict[str, ad.Dataset]:
    """Orders that do not change from iteration to iteration."""
    numbers, more = D.range(size), D.range(size, 2 * size)
    return {
        "shuffle": numbers.shuffle(size, seed, reshuffle_each_iteration=False),
        "small buffer": numbers.shuffle(size // 3, seed, reshuffle_each_iteration=False),
        "two shuffles": numbers.shuffle(9, seed, False).map(lambda x: x).shuffle(size, seed, False),
        "samples": D.sample_from_datasets([numbers, more], None, seed, rerandomize_each_iteration=False),
        "samples of shuffles": D.sample_from_datasets(
            [numbers.shuffle(size, seed, False), more], seed=seed, rerandomize_each_iteration=False
        ),
        "zipped": D.zip(more, numbers.shuffle(size, seed, False)).map(lambda _, x: x),
    }


# A loader draws for every dataset in the same way: a run tries two of them.
ISOLATED: Final = tuple(stays(9))[:: samples(4, 1)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "how"),
    [
        *itertools.product(stays(9), ["alone", "a seed for all", "a seed of its own"]),
        *((name, "isolated") for name in ISOLATED),
    ],
)
def test_an_order_that_stays_belongs_to_its_dataset(name: str, how: str) -> None:
    """Every iteration of a handle gives one order, wherever the handle stands and goes; its splits are disjoint."""
    ds = stays(60, 7 if how == "a seed of its own" else None)[name]
    options = ad.Options(seed=3 if how == "a seed for all" else None, isolate=how == "isolated", num_workers=0)
    with contextlib.nullcontext() if how == "alone" else ad.Runtime(options):
        order = [int(x) for x in ds]
        again: dict[str, ad.Dataset | PipelineIterator] = {
            "iterated": ds,
            "of another epoch": ds.iterator(epoch=7),
            "pickled": pickle.loads(cloudpickle.dumps(ds)),
            "split": ds.take(20).concatenate(ds.skip(20)),
            "beside others": D.zip(D.random(), ds, D.range(200).shuffle(5)).map(lambda _r, x, _y: x),
            "by a function": D.range(1).flat_map(lambda _: ds),
        }
        for where, iterable in again.items():
            assert [int(x) for x in iterable] == order, where
        assert [int(x) for x in ds.repeat(2)] == order * 2
        parts = [ds.take(20), ds.skip(20)], [ds.shard(3, i) for i in range(3)]
        for splits in parts:
            assert sorted(int(x) for part in splits for x in part) == sorted(order)
    if how in ("alone", "isolated"):
        with ad.Runtime(ad.Options(num_workers=0)):
            assert [int(x) for x in ds] == order, "in a Runtime"
        assert [int(x) for x in stays(60)[name]] != order, "of a dataset built apart"
    if how == "alone":
        seeded = ad.Options(seed=1)
        assert [int(x) for x in ds.with_options(seeded)] == [int(x) for x in stays(60)[name].with_options(seeded)]


def test_orders_that_stay_are_uniform_and_independent() -> None:
    """Of datasets that are built apart, every order and every pair of orders comes as often as any other."""
    with ad.Runtime(ad.Options(num_workers=0)):
        found = [tuple(map(int, D.range(3).shuffle(3, reshuffle_each_iteration=False))) for _ in range(EPOCHS // 6)]
    for order in set(found):
        # The seeds are the system's: beyond six standard deviations once in a billion runs.
        spread = math.sqrt(len(found) * 5 / 36)
        assert abs(found.count(order) - len(found) / 6) < 6 * spread + 1
    assert len(set(found)) == 6


def test_listings_are_shuffled_uniformly(tmp_path: Path) -> None:
    """list_files with shuffle=True: every order of the files comes as often as any other, anew in each epoch."""
    for name in "abcd":
        (tmp_path / name).write_bytes(b"")
    ds = D.list_files(str(tmp_path / "*"), shuffle=True, seed=14).map(lambda url: "abcd".index(url[-1]))
    check_uniform(orders(ds.repeat(EPOCHS), 4), 24)


def test_sampling_meets_its_weights_and_is_independent() -> None:
    """Datasets are drawn as often as their weights say, whatever was drawn before."""
    weights = (0.1, 0.2, 0.7)
    parts = [D.counter(start=i, step=3) for i in range(3)]
    found = [int(x) % 3 for x in D.sample_from_datasets(parts, weights, seed=15).take(10 * EPOCHS)]
    for following in (found, *([b for a, b in itertools.pairwise(found) if a == i] for i in range(3))):
        share = np.bincount(following, minlength=3) / len(following)
        spread = np.sqrt(np.array(weights) * (1 - np.array(weights)) / len(following))
        assert (np.abs(share - weights) < 5 * spread).all()


@pytest.mark.parametrize("seed", range(samples(12, 1000)))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    """Shuffles, samples, shards and repeats drawn at random together deliver every element as often as they should."""
    rng = np.random.default_rng(seed)
    parts = []
    expected: Counter[int] = Counter()
    for i in range(int(rng.integers(1, 5))):
        count, times = int(rng.integers(0, 300)), int(rng.integers(1, 4))
        part = D.range(1000 * i, 1000 * i + count).shuffle(int(rng.integers(1, 400)), seed=seed).repeat(times)
        if rng.random() < 0.5:
            part = part.shuffle(int(rng.integers(1, 50)))
        parts.append(part)
        expected.update(list(range(1000 * i, 1000 * i + count)) * times)
    ds = D.sample_from_datasets(parts, rng.random(len(parts)) + 0.01)
    if rng.random() < 0.5:
        shards = [ds.with_options(ad.Options(seed=seed)).shard(3, i) for i in range(3)]
        found = [int(x) for shard in shards for x in shard]
    else:
        found = [int(x) for x in ds.shuffle(int(rng.integers(1, 100)))]
    assert Counter(found) == expected


def drawn(x: Any, rng: np.random.Generator) -> tuple[int, int]:
    """An augmentation."""
    return int(x), int(rng.integers(1 << 40))


def everything_random(folder: str, workers: int) -> list[Any]:
    """One pipeline with every kind of draw in it."""
    names = D.list_files(f"{folder}/*", seed=1).map(len)
    numbers = D.range(200).shuffle(50, seed=2).repeat(2).shuffle(7)
    mixed = D.sample_from_datasets([numbers, D.random(seed=3).take(50), names], seed=4)
    kept = mixed.rejection_resample(lambda x: int(x) % 2, [0.3, 0.7], seed=5).map(lambda _, x: x)
    ds = kept.map(drawn, num_parallel_calls=4, rng=True).batch(16).unbatch().shuffle(20)
    return [(int(x), int(y)) for x, y in ds.with_options(ad.Options(seed=6, num_workers=workers))]


PROGRAM = """
import json, sys
from tests.dataset.test_chance import everything_random
print(json.dumps(everything_random(sys.argv[1], int(sys.argv[2]))))
"""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_order_anywhere(tmp_path: Path) -> None:
    """In this process and in others, with any number of workers and any hash seed: the same elements and order."""
    for name in "abcdefgh":
        (tmp_path / (name * (ord(name) - 90))).write_bytes(b"")
    expected = everything_random(str(tmp_path), 0)
    assert len(expected) > 100
    for workers, hash_seed in ((1, "1"), (3, "2")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(workers)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT_S,
        )
        assert [tuple(pair) for pair in json.loads(done.stdout)] == expected


@pytest.mark.parametrize("initial", [[0.9, 0.1], None])
def test_epochs_of_rejection_resample_differ(initial: list[float] | None) -> None:
    """Also of two classes, of which one is kept as it is and the other left out; with a seed they do in every run."""

    def epochs() -> list[list[int]]:
        ds = ad.Dataset.range(60).rejection_resample(lambda x: int(x >= 54), [0.5, 0.5], initial, seed=3)
        return [[int(x) for _, x in ds.iterator(epoch=epoch)] for epoch in range(3)]

    found = epochs()
    assert len({tuple(epoch) for epoch in found}) == 3
    assert epochs() == found
