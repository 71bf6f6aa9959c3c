"""A bounded network to measure on: 40 ms to the first byte, 90 MB/s a stream, 800 MB/s in all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.datasets import Shards
from benchmarks.servers import Server, fake_gcs

TOTAL_BYTES_PER_S: Final = 800e6
LINK: Final = {
    "name": "40 ms, 90 MB/s a stream, 800 MB/s in all",
    "latency": {"kind": "fixed", "median_s": 0.04},
    "stream_bytes_per_s": 90e6,
    "total_bytes_per_s": TOTAL_BYTES_PER_S,
}


@contextlib.contextmanager
def link(root: Path, shards: Shards) -> Iterator[Server]:
    """A server behind the link, which has seen every object before: it computes their checksums only once."""
    with fake_gcs(root, LINK) as server:
        for number in range(shards.shards):
            server.touch(shards.name, f"shard-{number:05d}.tfrecord")
        yield server
