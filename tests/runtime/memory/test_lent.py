"""Batches that outlive their iterators: the ones after it have the rest of the memory, and neither wait nor fail."""

from __future__ import annotations

import random
from typing import Any

import pytest

import asyncdata as ad
from tests.patience import wait_until

_SHARDS, _RECORDS, _BYTES = 8, 24, 40_000


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """TFRecord files of some megabytes."""
    folder = tmp_path_factory.mktemp("shards")
    draws = random.Random(1)
    for shard in range(_SHARDS):
        with ad.TFRecordWriter(folder / f"{shard}.tfrecord") as writer:
            for _ in range(_RECORDS):
                writer.write(draws.randbytes(_BYTES))
    return str(folder / "*.tfrecord")


def _whole(shards: str) -> ad.Dataset:
    ds = ad.Dataset.list_files(shards, shuffle=False)
    return ds.interleave(ad.TFRecordDataset, cycle_length=4)


def _pipelines(shards: str) -> list[ad.Dataset]:
    """Batches whose rows lie where they were read, are copied, or were made by workers."""
    return [
        _whole(shards).batch(8),
        _whole(shards).batch(3).prefetch(2),
        _whole(shards).shuffle(20, seed=1).batch(8),
        _whole(shards).map(len).batch(8),
        _whole(shards).map(bytes, num_parallel_calls=2).batch(8),
    ]


def _content(batch: Any) -> list[bytes]:
    return [bytes(row) for row in batch] if isinstance(batch, ad.BytesArray) else [batch.tobytes()]


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_kept_of_every_epoch_stops_nothing(shards: str, workers: int) -> None:
    """However many they are, every epoch is whole, and the batches that are kept stay what they were."""
    options = ad.Options(memory_limit_bytes=12 << 20, num_workers=workers)
    kept: list[tuple[Any, list[bytes]]] = []
    with ad.Runtime(options, pipelines=1) as runtime:
        for epoch in range(12):
            ds = _pipelines(shards)[epoch % 5]
            rows = 0
            with ds.iterator() as batches:
                for number, batch in enumerate(batches):
                    rows += len(batch)
                    if number in (3, 9):
                        kept.append((batch, _content(batch)))
            assert rows == _SHARDS * _RECORDS
            del batch
            held = runtime.budgets.used_bytes
            assert held <= (12 << 20) * 3 // 8 + (1 << 20), "more than a consumer's share"
        for batch, content in kept:
            assert _content(batch) == content


def test_what_is_let_go_of_is_the_next_iterators(shards: str) -> None:
    """While batches are kept, the next consumer gets copies; once they are gone, views again."""

    def read(runtime: ad.Runtime) -> tuple[list[Any], int]:
        with _whole(shards).batch(8).iterator() as batches:
            return list(batches), batches.stats().copies

    with ad.Runtime(ad.Options(memory_limit_bytes=12 << 20, num_workers=0), pipelines=1) as runtime:
        kept, alone = read(runtime)
        beside = read(runtime)[1]
        assert beside > alone
        kept.clear()
        wait_until(lambda: runtime.budgets.used_bytes == 0)
        assert read(runtime)[1] < beside
