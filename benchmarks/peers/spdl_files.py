"""SPDL's pipeline on local files, with this library's decoder in threads. ``python spdl_files.py JSON``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder

from benchmarks.peers.reading import cost, end
from benchmarks.peers.same_decoder import blocks, decoder, files
from benchmarks.workloads import numbers_of


def batches(work: dict[str, Any]) -> Iterator[Any]:
    """Decoded batches, by a pipeline that is built for them."""
    records = blocks(files(work), work["batch"])
    builder = PipelineBuilder().add_source(records).pipe(decoder(work["kind"]), concurrency=work["workers"])
    pipeline = builder.add_sink(8).build(num_threads=work["workers"])
    with pipeline.auto_stop():
        yield from pipeline


def main() -> None:
    """Reads everything the given number of times, and prints what each time cost."""
    work = json.loads(sys.argv[1])
    kind = work["kind"]
    end([cost(batches(work), lambda batch: numbers_of(batch, kind).tolist()) for _ in range(work["epochs"])])


if __name__ == "__main__":
    main()
