"""From a bucket to batches: order, completeness and what is asked of the server, in fair weather and foul."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.integration.shards import BUCKET, gs_storage, put_shards, record, records

SHARDS, COUNT, SIZE = 6, 120, 700
EVERYTHING = [item for shard in range(SHARDS) for item in records(shard, COUNT, SIZE)]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGCS]:
    """A bucket with shards."""
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, SHARDS, COUNT, SIZE)
        yield server


def options(server: FakeGCS, **changes: Any) -> ad.Options:
    """Small reads, quick retries."""
    retry = ad.RetryOptions(initial_delay_s=0.001, max_delay_s=0.01)
    settings = {"chunk_bytes": 16 << 10, "memory_limit_bytes": 32 << 20, "num_workers": 1, **changes}
    return ad.Options(storage=gs_storage(server), retry=retry, **settings)


def listed() -> ad.Dataset:
    """The shards in order."""
    return ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False)


def head(payload: bytes) -> Any:
    """Where a record stands."""
    shard, index = payload[: payload.index(b";")].split(b":")
    return np.array([int(shard), int(index)])


def test_interleave_takes_turns(server: FakeGCS) -> None:
    """Cycle and block as in tf.data, whatever arrives first."""
    dataset = listed().interleave(ad.TFRecordDataset, cycle_length=3, block_length=2).with_options(options(server))
    expected = []
    for group in (range(3), range(3, 6)):
        for start in range(0, COUNT, 2):
            expected += [record(shard, index, SIZE) for shard in group for index in (start, start + 1)]
    assert list(dataset) == expected


def test_sloppy_reading_keeps_the_order_within_a_shard(server: FakeGCS) -> None:
    """Everything once, and each shard in its own order."""
    dataset = listed().interleave(ad.TFRecordDataset, cycle_length=4, deterministic=False).map(head, 2)
    found = [tuple(pair.tolist()) for pair in dataset.with_options(options(server))]
    assert Counter(found) == Counter(itertools.product(range(SHARDS), range(COUNT)))
    for shard in range(SHARDS):
        assert [index for at, index in found if at == shard] == list(range(COUNT))


def test_the_usual_training_input(server: FakeGCS) -> None:
    """Listing, interleave, shuffle, map in workers, batch, prefetch, two epochs."""
    dataset = (
        listed()
        .interleave(ad.TFRecordDataset, cycle_length=3)
        .shuffle(100, seed=5)
        .map(head, num_parallel_calls=ad.AUTOTUNE)
        .repeat(2)
        .batch(32, drop_remainder=True)
        .prefetch(ad.AUTOTUNE)
        .with_options(options(server))
    )
    batches = list(dataset)
    assert len(batches) == 2 * len(EVERYTHING) // 32
    pairs = [tuple(pair) for batch in batches for pair in batch.tolist()]
    assert set(pairs) == set(itertools.product(range(SHARDS), range(COUNT)))
    assert pairs[: len(EVERYTHING)] != pairs[len(EVERYTHING) :]


def test_the_emulator_of_the_environment_is_honoured(server: FakeGCS, monkeypatch: pytest.MonkeyPatch) -> None:
    """``STORAGE_EMULATOR_HOST`` is read when a pipeline starts."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    dataset = listed().flat_map(ad.TFRecordDataset).with_options(ad.Options(num_workers=0))
    assert list(dataset) == EVERYTHING


def test_listed_objects_are_read_without_another_look(server: FakeGCS) -> None:
    """The listing told sizes and generations: no metadata request follows."""
    server.journal.clear()
    assert len(list(listed().flat_map(ad.TFRecordDataset).with_options(options(server)))) == len(EVERYTHING)
    asked = Counter(entry.operation for entry in server.journal)
    assert asked["storage.objects.list"] == 1
    media = [entry for entry in server.journal if entry.operation == "storage.objects.get"]
    assert all(entry.range for entry in media)


FAULTS = {
    "busy": Fault(kind="status", status=503),
    "too many requests": Fault(kind="status", status=429),
    "reset at once": Fault(kind="reset"),
    "reset in the body": Fault(kind="reset", after_bytes=3000),
    "cut short": Fault(kind="truncate", after_fraction=(0.1, 0.9)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("fault", list(FAULTS))
def test_foul_weather_changes_nothing(fault: str, server: FakeGCS) -> None:
    """Requests that fail now and then are tried again; elements and order are the same."""
    fair = server.profile
    server.profile = Profile(rules=(Rule(fault=FAULTS[fault], rate=0.2),))
    try:
        before = len(server.journal.faults())
        dataset = listed().interleave(ad.TFRecordDataset, cycle_length=3).map(head, 2).batch(50)
        batches = list(dataset.with_options(options(server)))
        assert len(server.journal.faults()) > before
    finally:
        server.profile = fair
    pairs = [tuple(pair) for batch in batches for pair in batch.tolist()]
    expected = [(shard, index) for group in (range(3), range(3, 6)) for index in range(COUNT) for shard in group]
    assert pairs == expected


def test_weather_that_does_not_pass_is_an_error(server: FakeGCS) -> None:
    """Tried a limited number of times; the error names the object, the stage and the number of attempts."""
    fair = server.profile
    server.profile = Profile(rules=(Rule(fault=FAULTS["busy"], media_only=True),))
    settings = options(server)
    settings = ad.Options(
        storage=settings.storage, retry=ad.RetryOptions(max_attempts=3, initial_delay_s=0.001), num_workers=0
    )
    try:
        with pytest.raises(ad.StorageError) as caught:
            list(listed().flat_map(ad.TFRecordDataset).with_options(settings))
    finally:
        server.profile = fair
    assert caught.value.attempts == 3
    assert caught.value.url == f"gs://{BUCKET}/shard-000.tfrecord"
    assert "shard-000" in (caught.value.stage or "")
