"""SPDL's pipeline over obstore: fetch whole shards, split, batch. ``python spdl_obstore.py JSON``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder

from benchmarks.peers.obstore_clients import list_shards, open_store, split
from benchmarks.peers.reading import element_of, frames, numbers_of, report
from benchmarks.peers.same_decoder import decoder
from benchmarks.workloads import numbers_of as decoded_numbers

_AT_A_TIME = 32


def batches(work: dict[str, Any]) -> Iterator[list[Any]]:
    """Batches of records, shards in order of completion."""
    bucket, prefix = split(work["pattern"])
    store = open_store(work["endpoint"], bucket)
    names = list_shards(store, prefix)

    async def fetch(name: str) -> Any:
        return await (await store.get_async(name)).bytes_async()

    def records(body: Any) -> list[Any]:
        return [element_of(record, work["kind"]) for record in frames(body)]

    builder = PipelineBuilder().add_source(names).pipe(fetch, concurrency=_AT_A_TIME)
    if work["kind"] == "jpeg":
        builder = builder.pipe(lambda body: list(frames(body))).disaggregate().aggregate(work["batch"])
        builder = builder.pipe(decoder("jpeg"), concurrency=2)
    else:
        builder = builder.pipe(records, concurrency=2).disaggregate().aggregate(work["batch"])
    pipeline = builder.add_sink(8).build(num_threads=2)
    with pipeline.auto_stop():
        yield from pipeline


if __name__ == "__main__":
    work = json.loads(sys.argv[1])
    pictures = work["kind"] == "jpeg"
    report(batches(work), (lambda batch: decoded_numbers(batch, "jpeg").tolist()) if pictures else numbers_of)
