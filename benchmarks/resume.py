"""What a state costs, and what coming back to it reads: by order, shuffle buffer and position in the epoch.

    python -m benchmarks.resume [--quick]

Examples of 4 KB as batches of 64 from shards that are read in turn, over a store with 20 ms to the first byte. A state
is taken at a part of the epoch, and a new Runtime begins there; beside it another one begins at the beginning, which
with a shuffle fills its buffer first. Requests and bytes are the server's count up to the end of the epoch, and are
compared with the bytes that were left to read. Behind `shard` the order is fixed, and a state also says which elements
were delivered. The server is a process of its own on the same machine, so that times are ratios at best.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncdata as ad
from benchmarks.conditions import conditions
from benchmarks.measure import in_turn
from benchmarks.servers import Server, fake_gcs
from benchmarks.table import markdown, median_cell

BUCKET: Final = "resume"
RECORD_BYTES: Final = 4096
BATCH: Final = 64
HEAD: Final = (
    "order",
    "shuffle",
    "part of the epoch",
    "state ms",
    "state KB",
    "first batch s",
    "at the beginning s",
    "requests",
    "MB read / MB left",
)
_ASKED: Final = 20
"""States are taken so many times; the median counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is varied."""

    shards: int
    records: int
    buffers: tuple[int, ...]
    parts: tuple[float, ...]
    rounds: int


FULL: Final = Sizes(shards=64, records=1000, buffers=(0, 1000, 10_000), parts=(0.1, 0.5, 0.9), rounds=3)
QUICK: Final = Sizes(shards=4, records=200, buffers=(0, 100), parts=(0.5,), rounds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """One measurement.

    Attributes:
        state_s: To take the state.
        state_bytes: As JSON.
        first_s: From the start at the state to the first batch.
        cold_s: From the start at the beginning to the first batch.
        requests: Of objects, until the epoch was over.
        read: Bytes that the server sent for it, as a part of those that were left.
    """

    state_s: float
    state_bytes: int
    first_s: float
    cold_s: float
    requests: int
    read: float


def measure(sizes: Sizes, folder: Path, note: Callable[[str], None]) -> dict[str, list[Resumed]]:
    """Everything that is varied, in turn."""
    note(f"writing {sizes.shards} shards")
    (folder / BUCKET).mkdir()
    for shard in range(sizes.shards):
        with ad.TFRecordWriter(folder / BUCKET / f"shard-{shard:05d}.tfrecord") as writer:
            writer.write_many([b"%08d" % n * (RECORD_BYTES // 8) for n in range(sizes.records)])
    with fake_gcs(folder, {"name": "resume", "latency": {"median_s": 0.02}}, buckets=[BUCKET]) as server:
        runs = {
            json.dumps([order, buffer, part]): functools.partial(_run, sizes, server, order, buffer, part)
            for order, buffer, part in itertools.product(("fixed", "any", "sharded"), sizes.buffers, sizes.parts)
        }
        return in_turn(sizes.rounds, runs, note, 1800.0)


def _run(sizes: Sizes, server: Server, order: str, buffer: int, part: float) -> Resumed:
    files = ad.Dataset.list_files(f"gs://{BUCKET}/shard-*.tfrecord", shuffle=False)
    if order == "sharded":
        files = files.shard(1, 0)
    dataset = files.interleave(ad.TFRecordDataset, 16, num_parallel_calls=16, deterministic=order != "any")
    if buffer:
        dataset = dataset.shuffle(buffer, seed=1)
    dataset = dataset.batch(BATCH)
    options = ad.Options(storage={"gs": {"endpoint_url": server.url, "token": "anon"}}, num_workers=0)
    records = sizes.shards * sizes.records
    batches = int(records * part) // BATCH
    asked: list[float] = []
    state: dict[str, Any] = {}
    with ad.Runtime(options), dataset.iterator() as it:
        for number in range(batches):
            next(it)
            if number >= batches - _ASKED:
                began = time.perf_counter()
                state = it.state_dict()
                asked.append(time.perf_counter() - began)
    text = json.dumps(state)
    cold_s, _ = _first_batch(dataset, options, None)
    server.take_journal()
    first_s, _ = _first_batch(dataset, options, json.loads(text), whole=True)
    entries = [entry for entry in server.take_journal() if entry["range"]]
    left = (records - batches * BATCH) * (RECORD_BYTES + 16)
    return Resumed(
        state_s=statistics.median(asked),
        state_bytes=len(text),
        first_s=first_s,
        cold_s=cold_s,
        requests=len(entries),
        read=sum(entry["sent"] for entry in entries) / left,
    )


def _first_batch(
    dataset: ad.Dataset, options: ad.Options, state: dict[str, Any] | None, *, whole: bool = False
) -> tuple[float, int]:
    """Seconds to the first batch, and the number of batches that were read: all of them, or one."""
    with ad.Runtime(options):
        began = time.perf_counter()
        with dataset.iterator(state=state) as it:
            next(it)
            first_s = time.perf_counter() - began
            return first_s, 1 + (sum(1 for _ in it) if whole else 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.resume",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds; the figures mean nothing")
    options = parser.parse_args(arguments)
    start = conditions()
    with tempfile.TemporaryDirectory(prefix="asyncdata-bench-") as folder:
        results = measure(
            QUICK if options.quick else FULL,
            Path(folder),
            lambda text: print(f"  {text}", file=sys.stderr, flush=True),
        )
    rows = []
    for name, found in results.items():
        order, buffer, part = json.loads(name)
        rows.append(
            [
                order,
                f"{buffer:,}",
                f"{part:.0%}",
                median_cell([each.state_s * 1e3 for each in found]),
                median_cell([each.state_bytes / 1e3 for each in found], 1),
                median_cell([each.first_s for each in found]),
                median_cell([each.cold_s for each in found]),
                median_cell([each.requests for each in found], 0),
                median_cell([each.read for each in found]),
            ]
        )
    print(f"{start}\n\n{markdown(HEAD, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
