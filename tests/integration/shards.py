"""What the end-to-end tests read: small TFRecord shards, on disk, in fsspec's memory, in a bucket."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import asyncdata as ad
from asyncdata.record.tfrecord_writer import TFRecordWriter
from fake_gcs import FakeGCS

BUCKET = "data"
_PATTERN = bytes(range(251))


def record(shard: int, index: int, size: int = 0) -> bytes:
    """A record that tells where it stands; padded to `size` with bytes that depend on its place."""
    head = b"%d:%d;" % (shard, index)
    start = (shard * 31 + index * 7) % 251
    return (head + (_PATTERN * (size // len(_PATTERN) + 2))[start:])[: max(size, len(head))]


def records(shard: int, count: int, size: int = 0) -> list[bytes]:
    """All records of one shard."""
    return [record(shard, index, size) for index in range(count)]


def shard_bytes(payloads: Iterable[bytes], compression: str | None = None) -> bytes:
    """A TFRecord file as bytes."""
    file = io.BytesIO()
    with TFRecordWriter(file, compression) as writer:
        writer.write_many(payloads)
    return file.getvalue()


def write_shards(folder: Path, shards: int, count: int, size: int = 0) -> list[str]:
    """Local shards; their paths in order."""
    paths = [str(folder / f"shard-{shard:03d}.tfrecord") for shard in range(shards)]
    for shard, path in enumerate(paths):
        Path(path).write_bytes(shard_bytes(records(shard, count, size)))
    return paths


def write_numbers(folder: Path, counts: Sequence[int]) -> list[str]:
    """Local files of so many records each, which contain 0, 1, 2, … as text; their paths in order."""
    paths, first = [], 0
    for number, count in enumerate(counts):
        paths.append(str(folder / f"{number:02d}"))
        Path(paths[-1]).write_bytes(shard_bytes(b"%d" % n for n in range(first, first + count)))
        first += count
    return paths


def put_shards(server: FakeGCS, shards: int, count: int, size: int = 0) -> list[str]:
    """Shards in a bucket; their URLs in order."""
    names = [f"shard-{shard:03d}.tfrecord" for shard in range(shards)]
    for shard, name in enumerate(names):
        server.put(BUCKET, name, shard_bytes(records(shard, count, size)))
    return [f"gs://{BUCKET}/{name}" for name in names]


def gs_storage(server: FakeGCS) -> dict[str, dict[str, str]]:
    """`Options.storage` for a server."""
    return {"gs": {"endpoint_url": server.url, "token": "anon"}}


def everything(dataset: ad.Dataset) -> list[object]:
    """All elements."""
    return list(dataset)


def flat(batches: Sequence[Iterable[object]]) -> list[object]:
    """Elements of all batches."""
    return [item for batch in batches for item in batch]
