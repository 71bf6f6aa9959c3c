"""`ParquetStage` against a server: what is asked for, and what it gives in small memory and in any blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import asyncdata as ad
from fake_gcs import FakeGCS
from tests.formats.test_parquet import stored
from tests.integration.shards import BUCKET, gs_storage

ROWS = 4000
BLOB = 2000
URL = f"gs://{BUCKET}/rows.parquet"
PAYLOADS = [bytes([n % 251]) * (n % BLOB) for n in range(ROWS)]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGCS]:
    """A bucket with a file of eight row groups, most of which is a column that nobody may want."""
    table = pa.table(
        {"id": np.arange(ROWS), "blob": PAYLOADS, "name": [f"row {n}" for n in range(ROWS)], "x": np.arange(ROWS) / 2}
    )
    data = stored(table, row_group_size=ROWS // 8, compression="none", use_dictionary=False)
    with FakeGCS(buckets=[BUCKET]) as server:
        server.put(BUCKET, "rows.parquet", data)
        yield server


def options(server: FakeGCS, **changes: Any) -> ad.Options:
    """Without workers."""
    return ad.Options(storage=gs_storage(server), **{"num_workers": 0, "memory_limit_bytes": 32 << 20, **changes})


def sent(server: FakeGCS) -> int:
    """Bytes of the object that the server gave out."""
    return sum(entry.sent for entry in server.journal if entry.operation == "storage.objects.get")


def test_only_what_is_wanted_is_read(server: FakeGCS) -> None:
    """Footer, wanted columns and wanted row groups: a small part of the file."""
    size = sum(map(len, PAYLOADS))
    server.journal.clear()
    found = list(ad.ParquetDataset(URL, ["name"], [("id", ">=", 3900)]).with_options(options(server)))
    assert found == [{"name": f"row {n}"} for n in range(3900, ROWS)]
    assert sent(server) < size / 10


@pytest.mark.parametrize("limit", [8 << 20, 64 << 20])
def test_all_of_it_in_little_memory(server: FakeGCS, limit: int) -> None:
    """Row groups come one after the other; what was delivered is given back."""
    dataset = ad.ParquetDataset(URL, ["id", "blob"]).with_options(options(server, memory_limit_bytes=limit))
    count = 0
    for row in dataset:
        assert row["blob"] == PAYLOADS[count]
        assert row["id"] == count
        count += 1
    assert count == ROWS


def test_a_row_group_beyond_the_limit_says_so(server: FakeGCS) -> None:
    """The error names the file and what would do."""
    dataset = ad.ParquetDataset(URL).with_options(options(server, memory_limit_bytes=1 << 20))
    with pytest.raises(ad.MemoryLimitError, match=r"rows\.parquet"):
        list(dataset)


def test_rows_shuffled_batched_and_read_in_turn(server: FakeGCS) -> None:
    """Texts and byte strings are references like those of any other source: they shuffle, batch and interleave."""
    files = ad.Dataset.from_tensor_slices([URL, URL])
    dataset = ad.ParquetDataset(files, ["id", "name", "blob"], num_parallel_reads=2).shuffle(500, seed=1).batch(64)
    seen = []
    for batch in dataset.with_options(options(server)):
        ids = batch["id"].tolist()
        assert list(batch["name"]) == [f"row {n}" for n in ids]
        assert list(batch["blob"]) == [PAYLOADS[n] for n in ids]
        seen += ids
    assert sorted(seen) == sorted([*range(ROWS)] * 2)


def test_leaving_early_gives_everything_back(server: FakeGCS) -> None:
    """Reads ahead and a row group half decoded are given up; the leak check sees to it that nothing is left."""
    with ad.Runtime(options(server)) as runtime:
        for stop in (0, 1, 700):
            with ad.ParquetDataset(URL, ["id"]).iterator() as rows:
                for _ in range(stop):
                    next(rows)
        assert list(ad.ParquetDataset(URL, ["id"]).take(1)) == [{"id": 0}]
        assert repr(runtime)


def test_provenance_of_filtered_rows(server: FakeGCS) -> None:
    """A row keeps its number in the file; `rng` is keyed by it, whatever was left out in front of it."""

    def draw(row: dict[str, Any], rng: np.random.Generator) -> tuple[int, float]:
        return int(row["id"]), rng.random()

    def drawn(dataset: ad.Dataset) -> dict[int, float]:
        return dict(dataset.map(draw, rng=True).with_options(options(server, seed=5)))

    everything = drawn(ad.ParquetDataset(URL, ["id"]))
    some = drawn(ad.ParquetDataset(URL, ["id"], [("x", ">", 1500.0)]))
    assert len(some) == ROWS - 3001
    assert some.items() <= everything.items()
