"""TFRecord shards to measure with: written once, the same for every reader, each record with a number to be checked.

    raw     40,000 bytes: the number in 8 bytes, then noise
    small   tf.train.Examples of 158 bytes on average: five integers (the first is the number) and five floats
    wide    tf.train.Examples of twenty integers (the first is the number) and twenty floats
    tokens  tf.train.Examples with a list of 1 to 512 integers ("tokens") and the number ("label")
    jpeg    tf.train.Examples with a picture of about 44 KB and its number as the label
    blobs   tf.train.Examples of 40 KB: a byte string of noise ("image") and the number ("label")
    tiny    tf.train.Examples of 200 bytes: a byte string of 168 bytes and the number

Shards of `small`, `wide`, `tokens` and `tiny` are copies of one another, because making a million records would take
longer than reading them: their numbers come once per shard.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

import asyncdata as ad
from asyncdata.formats.example.serialize import serialize_example
from benchmarks.conditions import SEED
from benchmarks.pictures import make_example

RAW_BYTES: Final = 40_000
SCALAR_COLUMNS: Final = {"small": 5, "wide": 20}
"""How many integers, and how many floats, a record of these kinds has."""

_TINY_BYTES: Final = 168
_COPIED: Final = ("small", "wide", "tokens", "tiny")
_TOKENS: Final = 512
_NOISE_BYTES: Final = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A set of files.

    Attributes:
        kind: "raw", "small", "wide", "tokens", "jpeg", "blobs" or "tiny".
        shards: Number of files.
        records: Records in each.
    """

    kind: str
    shards: int
    records: int

    @property
    def name(self) -> str:
        """Of the folder, or bucket."""
        return f"{self.kind}-{self.shards}x{self.records}"

    @property
    def numbers(self) -> int:
        """How many numbers there are; each comes `repeats` times."""
        return self.records if self.kind in _COPIED else self.shards * self.records

    @property
    def repeats(self) -> int:
        """How often each number comes."""
        return self.shards if self.kind in _COPIED else 1


def write_shards(root: Path, wanted: Shards) -> Path:
    """Writes a set below `root`, unless it is there already; returns its folder."""
    folder = root / wanted.name
    mark = root / f"{wanted.name}.json"
    text = json.dumps(asdict(wanted) | {"seed": SEED})
    if mark.exists() and mark.read_text() == text:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = [folder / f"shard-{number:05d}.tfrecord" for number in range(wanted.shards)]
    if wanted.kind in _COPIED:
        _write(paths[0], _copied_records(wanted.kind, wanted.records))
        for path in paths[1:]:
            shutil.copyfile(paths[0], path)
    elif wanted.kind == "blobs":
        for shard, path in enumerate(paths):
            _write(path, blobs(shard * wanted.records, wanted.records, RAW_BYTES))
    elif wanted.kind == "raw":
        noise = np.random.default_rng(SEED).bytes(_NOISE_BYTES)
        for shard, path in enumerate(paths):
            _write(path, raw_records(noise, shard * wanted.records, wanted.records))
    else:
        make = functools.partial(make_example, seed=SEED)
        numbers = ad.Dataset.range(wanted.shards * wanted.records)
        for path, batch in zip(paths, numbers.map(make, ad.AUTOTUNE).batch(wanted.records), strict=True):
            _write(path, batch)
    mark.write_text(text)
    return folder


def raw_records(noise: bytes, first: int, count: int) -> Iterator[bytes]:
    """The records of one shard of `raw`."""
    size = RAW_BYTES - 8
    for number in range(first, first + count):
        at = number * 7919 % (len(noise) - size)
        yield number.to_bytes(8, "little") + noise[at : at + size]


def blobs(first: int, count: int, size: int) -> Iterator[bytes]:
    """Examples with a byte string of that size, and a number."""
    noise = np.random.default_rng(SEED).bytes(_NOISE_BYTES)
    for number in range(first, first + count):
        at = number * 7919 % (len(noise) - size)
        yield serialize_example({"image": noise[at : at + size], "label": number})


def scalar_records(count: int, columns: int) -> Sequence[bytes]:
    """Examples with a number of integers, the first of which counts the records, and as many floats."""
    random = np.random.default_rng(SEED)
    integers = random.integers(0, 1 << 24, (count, columns - 1))
    floats = random.random((count, columns), np.float32)
    records = []
    for number in range(count):
        values: dict[str, object] = {"i0": number}
        values |= {f"i{column + 1}": int(value) for column, value in enumerate(integers[number])}
        values |= {f"f{column}": float(value) for column, value in enumerate(floats[number])}
        records.append(serialize_example(values))
    return records


def token_records(count: int) -> Iterator[bytes]:
    """Examples with a list of integers, and a number."""
    random = np.random.default_rng(SEED)
    for number in range(count):
        tokens = random.integers(0, 50_000, random.integers(1, _TOKENS + 1))
        yield serialize_example({"tokens": tokens, "label": number})


def _copied_records(kind: str, count: int) -> Iterator[bytes] | Sequence[bytes]:
    if kind == "tiny":
        return blobs(0, count, _TINY_BYTES)
    return token_records(count) if kind == "tokens" else scalar_records(count, SCALAR_COLUMNS[kind])


def _write(path: Path, records: Iterator[bytes] | Sequence[bytes]) -> None:
    with ad.TFRecordWriter(path) as writer:
        writer.write_many(records)
