"""`ParquetStage`: its laws over bytes in memory, and against a server what it asks for and what memory it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import asyncdata as ad
from asyncdata.formats.parquet_filters import checked_filters
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.parquet_rows import ParquetStage
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS
from tests.formats.test_parquet import stored
from tests.integration.shards import BUCKET, gs_storage
from tests.runtime.stages.laws import Bench, Make, check_any_blocking, check_cancelling, check_closing, whole
from tests.samples import samples

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


class Stored:
    """An object whose bytes are available, some of them only after the loop has gone round.

    Args:
        bench: Draws which.
        data: All bytes.
    """

    def __init__(self, bench: Bench, data: bytes) -> None:
        self._bench = bench
        self._data = data

    def read(self, slabs: Slabs, slab: Slab, start: int, length: int, *where: Any) -> Arriving:
        """Writes into the slab at once; says so when it is waited for."""
        position = where[1]
        at = slab.offset + start
        slabs.arena.view[at : at + length] = self._data[position : position + length]
        return Arriving(self._bench)

    async def stat(self, url: str) -> ObjectInfo:
        """Its size."""
        return ObjectInfo(url=url, size=len(self._data), version="1")


class Arriving:
    """A read that is done when it is waited for."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def wait(self) -> None:
        """Perhaps goes round the loop."""
        if self._bench.cuts is not None and self._bench.cuts.random() < 0.5:
            await asyncio.sleep(0)

    def cancel(self) -> None:
        """Nothing is on its way."""


def reading(data: bytes, *, columns: tuple[str, ...] | None = None, filters: Any = None, known: bool = True) -> Make:
    """A stage over a file in memory."""

    def make(bench: Bench) -> Stage:
        info = ObjectInfo(url=URL, size=len(data), version="1")
        return ParquetStage(
            bench.context("Parquet"),
            bench.file(URL),
            info if known else None,
            Stored(bench, data),  # type: ignore[arg-type]  # the two methods that a stage asks
            columns=columns,
            filters=checked_filters(filters),
            piece_bytes=1 << 10,
            opened=lambda _: None,
        )

    return make


SMALL = stored(
    pa.table(
        {
            "id": range(40),
            "text": ["ä" * (n % 4) for n in range(40)],
            "maybe": [None if n % 7 == 0 else b"x" * n for n in range(40)],
            "nest": [{"a": n, "b": [n] * (n % 3)} for n in range(40)],
        }
    ),
    row_group_size=9,
)
LAWS = {
    "all": reading(SMALL),
    "unknown size": reading(SMALL, known=False),
    "columns": reading(SMALL, columns=("maybe", "id")),
    "filtered": reading(SMALL, columns=("text",), filters=[("id", "in", [1, 2, 3, 8, 30])]),
    "nothing": reading(SMALL, filters=[("text", "==", "none")]),
    "damaged": reading(SMALL[:60] + b"\xff" * 30 + SMALL[90:]),
    "no file": reading(b"nothing of the kind"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("make", LAWS.values(), ids=LAWS.keys())
def test_laws_of_blocking_and_of_leases(make: Make) -> None:
    """Any blocking, and everything given back after closing and cancelling at any step, errors included."""
    trace = check_any_blocking(make, seeds=range(samples(5, 200)))
    assert (trace.error is None) == (make not in (LAWS["damaged"], LAWS["no file"]))
    check_closing(make)
    check_cancelling(make, steps=range(0, 60, samples(7, 1)))


def test_rows_that_are_left_out_are_counted() -> None:
    """Every row of the row groups that were read has a number, whether it passed or not; marks name the place."""
    trace = whole(LAWS["filtered"])
    assert [origin[1] for origin in trace.origins] == [1, 2, 3, 8, 30]
    assert trace.states[0][0] == {"record": 1, "offset": trace.origins[0][3], "version": "1", "row_group": 0}


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


def test_ranges_that_lie_near_each_other_are_one_request(server: FakeGCS) -> None:
    """A narrow column between two that are wanted is read along: a request for each row group, and one for the end."""
    groups, rows = 6, 6000
    table = pa.table({name: np.arange(groups * rows) for name in "abc"})
    data = stored(table, row_group_size=rows, compression="none", use_dictionary=False)
    server.put(BUCKET, "near.parquet", data)
    server.journal.clear()
    dataset = ad.ParquetDataset(f"gs://{BUCKET}/near.parquet", ["a", "c"])
    assert len(list(dataset.with_options(options(server)))) == groups * rows
    assert sum(bool(entry.range) for entry in server.journal) <= groups + 1


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
