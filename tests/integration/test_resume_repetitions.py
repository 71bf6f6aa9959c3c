"""Pipelines that give elements again, at drawn places: from the states of one another, all of them come as in one run.

Elements say what they are made of, and a random number says in which repetition: so nothing can stand in for another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.runtime.state import left_in_files
from tests.integration.resumed_reads import resumed_often
from tests.samples import samples

D = ad.Dataset
Step = Callable[[ad.Dataset], ad.Dataset]

READERS: dict[str, Callable[[Any], ad.Dataset]] = {"txt": ad.TextLineDataset, "tfrecord": ad.TFRecordDataset}


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """One for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=0, num_threads=3)):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of few, no, one and many records."""
    made = tmp_path_factory.mktemp("repetitions")
    draw = random.Random(1)
    for number, count in enumerate([40, 0, 1, 90, 15]):
        rows = [f"{number}:{row}:{'x' * draw.choice([0, 3, 200])}" for row in range(count)]
        (made / f"{number}.txt").write_text("".join(row + "\n" for row in rows))
        with ad.TFRecordWriter(str(made / f"{number}.tfrecord")) as writer:
            writer.write_many([row.encode() for row in rows])
    return made


def longer(element: bytes) -> bytes:
    """A function."""
    return element + b"!"


def some(element: bytes) -> bool:
    """A predicate."""
    return len(element) % 3 != 0


def numbered(number: Any, element: bytes) -> bytes:
    """What `enumerate` said becomes a part of the element."""
    return element + b"#%d" % int(number)


def with_random(element: bytes, rng: Any) -> tuple[bytes, int]:
    """No two elements are given the same number."""
    return element, int(rng.integers(1 << 60))


OF_NAMES: list[Step] = [
    lambda ds: ds.repeat(2),
    lambda ds: ds.repeat(3),
    lambda ds: ds.shuffle(4, seed=2),
    lambda ds: ds.skip(1),
    lambda ds: ds.prefetch(2),
]
INSIDE: list[Step] = [
    lambda ds: ds.map(longer),
    lambda ds: ds.map(longer, 2, executor="thread"),
    lambda ds: ds.filter(some),
    lambda ds: ds.shuffle(9, seed=1),
    lambda ds: ds.repeat(2),
    lambda ds: ds.take(30),
    lambda ds: ds.skip(2),
]
IN_ANY_ORDER: list[Step] = [
    *INSIDE[:3],
    lambda ds: ds.shuffle(3, seed=3),
    lambda ds: ds.shuffle(40, seed=3),
    lambda ds: ds.shuffle(1000, seed=4),
    lambda ds: ds.repeat(2),
    lambda ds: ds.prefetch(5),
]
IN_ORDER: list[Step] = [
    *IN_ANY_ORDER,
    lambda ds: ds.take(60),
    lambda ds: ds.skip(50),
    lambda ds: ds.shard(2, 1),
    lambda ds: ds.batch(3).unbatch(),
    lambda ds: ds.enumerate().map(numbered),
    lambda ds: ds.window(5, 3).flat_map(lambda window: window),
]


def drawn(draw: random.Random, folder: Path, *, ordered: bool) -> ad.Dataset:
    """A pipeline of files."""

    def some_of(steps: list[Step], most: int) -> list[Step]:
        return draw.choices(steps, k=draw.randint(0, most))

    def behind(ds: ad.Dataset, steps: list[Step]) -> ad.Dataset:
        for step in steps:
            ds = step(ds)
        return ds

    kind = draw.choice(sorted(READERS))
    names = D.list_files(f"{folder}/*.{kind}", shuffle=draw.random() < 0.5, seed=3)
    # Behind a map without a fixed order, other elements are chosen in every run.
    inside = some_of(INSIDE if ordered else INSIDE[:5], 2)
    ds = behind(names, some_of(OF_NAMES, 2)).interleave(
        lambda url: behind(READERS[kind](url), inside),
        draw.choice([1, 2, 3, 5]),
        block_length=draw.choice([1, 4]),
        num_parallel_calls=draw.choice([None, 3]),
    )
    ds = behind(ds, some_of(IN_ORDER if ordered else IN_ANY_ORDER, 4))
    return ds.map(with_random, rng=True).with_options(ad.Options(seed=9, deterministic=ordered))


@pytest.mark.sampled
@pytest.mark.parametrize("lies", [False, True], ids=["as it pays", "where they lie"])
@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
def test_lives_give_what_one_run_gives(
    ordered: bool, lies: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same order, if there is one; also where all that can be is read where it lies."""
    if lies:
        monkeypatch.setattr(left_in_files, "_DENSE", 0)
        monkeypatch.setattr(left_in_files, "_REQUEST_BYTES", 0)
    for seed in range(samples(12, 400)):
        draw = random.Random(f"{ordered} {lies} {seed}")
        dataset = drawn(draw, folder, ordered=ordered)
        whole = list(dataset.with_options(ad.Options(deterministic=True)).iterator(epoch=2))
        if len(whole) > 2000:
            continue
        found = resumed_often(dataset, draw, max(3, len(whole) // 5))
        if ordered:
            assert found == whole, seed
        assert Counter(found) == Counter(whole), seed
        assert len(set(found)) == len(found), f"{seed}: two elements have one random number"
