"""Inside any legal memory limit a pipeline finishes or says what it needs; it never hangs, and never takes more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from benchmarks import memory
from tests.integration.shards import write_shards
from tests.samples import SOAK

MIB = 1 << 20
SHARDS = 6
SIZES = {40: 1000, 5000: 100, 300_000: 8}  # bytes of a record: records of a shard


def widen(x: int) -> Any:
    """32 KiB."""
    return np.full(4096, x, np.int64)


def head(record: bytes) -> Any:
    """A few bytes of a record."""
    return np.frombuffer(record, np.uint8)[:4].copy()


async def length(record: bytes) -> int:
    """Awaited."""
    return len(record)


def listed(paths: list[str]) -> ad.Dataset:
    """The shards' names in some order."""
    return ad.Dataset.list_files(str(Path(paths[0]).parent / "*"), shuffle=True, seed=1)


# Each with the number of elements it yields, of `n` records in all.
PIPELINES: dict[str, tuple[Callable[[list[str]], ad.Dataset], Callable[[int], int]]] = {
    "records": (ad.TFRecordDataset, lambda n: n),
    "interleaved": (
        lambda paths: listed(paths).interleave(ad.TFRecordDataset, cycle_length=4, block_length=2).batch(8),
        lambda n: -(-n // 8),
    ),
    "sloppy": (
        lambda paths: (
            listed(paths).interleave(ad.TFRecordDataset, cycle_length=4, deterministic=False).map(head, 4).batch(8)
        ),
        lambda n: -(-n // 8),
    ),
    "everything": (
        lambda paths: (
            listed(paths)
            .interleave(ad.TFRecordDataset, cycle_length=6)
            .shuffle(30, seed=3)
            .map(head, 4)
            .batch(8)
            .prefetch(2)
        ),
        lambda n: -(-n // 8),
    ),
    "awaited": (lambda paths: ad.TFRecordDataset(paths).map(length, 8).batch(8), lambda n: -(-n // 8)),
    "repeated": (
        lambda paths: ad.TFRecordDataset(paths, num_parallel_reads=3).shuffle(10, seed=1).repeat(2).batch(8),
        lambda n: -(-2 * n // 8),
    ),
    "threads": (
        lambda paths: ad.TFRecordDataset(paths).map(head, ad.AUTOTUNE, executor="thread").prefetch(ad.AUTOTUNE),
        lambda n: n,
    ),
    "wide": (lambda _: ad.Dataset.range(300).map(widen, 4).batch(8), lambda _: 38),
    "wide inline": (lambda _: ad.Dataset.range(300).map(widen).batch(8).prefetch(4), lambda _: 38),
}

_ALL = list(itertools.product([1, 4, 8, 16, 64], SIZES, [64 << 10, 8 << 20], PIPELINES))
CASES = _ALL if SOAK else random.Random(7).sample(_ALL, 24)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """Shards by the size of their records."""
    return {
        size: write_shards(tmp_path_factory.mktemp(f"records-{size}"), SHARDS, count, size)
        for size, count in SIZES.items()
    }


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("limit_mib", "size", "chunk_bytes", "name"), CASES)
def test_a_pipeline_finishes_or_says_what_it_needs(
    limit_mib: int, size: int, chunk_bytes: int, name: str, shards: dict[int, list[str]]
) -> None:
    """Complete, or one MemoryLimitError; what is charged never exceeds the limit, and is nothing at the end."""
    make, expected = PIPELINES[name]
    options = ad.Options(memory_limit_bytes=limit_mib * MIB, chunk_bytes=chunk_bytes, num_workers=1)
    count = 0
    too_small: ad.MemoryLimitError | None = None
    with ad.Runtime(options, pipelines=1) as runtime:
        try:
            for _ in make(shards[size]):
                count += 1
                assert runtime.budgets.used_bytes <= limit_mib * MIB
        except ad.MemoryLimitError as error:
            too_small = error
    if too_small is None:
        assert count == expected(SHARDS * SIZES[size])
    else:
        assert "memory_limit_bytes" in str(too_small)
        assert limit_mib < 16, too_small


def test_a_batch_that_cannot_fit_is_said_to() -> None:
    """One batch larger than the limit names the stage and what it needs."""
    dataset = ad.Dataset.range(1000).map(widen, 2).batch(500).with_options(ad.Options(memory_limit_bytes=4 * MIB))
    with pytest.raises(ad.MemoryLimitError, match="memory_limit_bytes=4194304") as caught:
        list(dataset)
    assert "batch(500)" in str(caught.value)


def test_the_process_tree_stays_inside_the_limit(tmp_path: Path) -> None:
    """Its memory grows by no more than the limit and a tenth of all, from workers ready on."""
    files = memory.write_shards(tmp_path, 250)
    outcome = memory.measure_apart("shuffled", files, 48)
    assert outcome.batches == 63
    assert outcome.peak_bytes <= outcome.allowed_bytes
