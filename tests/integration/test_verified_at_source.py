"""Payload checksums without workers: verified together where records are read, and shown as before."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import asyncdata as ad
from asyncdata.errors import CorruptRecordError
from asyncdata.formats.tfrecord import encode_many

RECORDS = 3000


def write(path: Path, bad: list[int]) -> list[bytes]:
    """A file of short records, some of them damaged; returns all as they were."""
    source = random.Random(1)
    records = [source.randbytes(source.randint(0, 90)) + b"!" for _ in range(RECORDS)]
    data = bytearray(encode_many(records))
    at = 0
    for number, record in enumerate(records):
        if number in bad:
            data[at + 12 + len(record) // 2] ^= 4
        at += 16 + len(record)
    path.write_bytes(data)
    return records


@pytest.mark.parametrize("bad", [[], [0], [2999], [1023, 1024], [5, 900, 901, 1500]])
def test_damaged_records_alone_are_left_out(tmp_path: Path, bad: list[int]) -> None:
    """Of many short records, those that are damaged are left out, shuffled or not, evacuated or not."""
    records = write(tmp_path / "a.tfrecord", bad)
    good = [record for number, record in enumerate(records) if number not in bad]
    for chunk_bytes, limit_bytes in ((16 << 20, 64 << 20), (1 << 16, 2 << 20)):
        options = ad.Options(num_workers=0, chunk_bytes=chunk_bytes, memory_limit_bytes=limit_bytes)
        with ad.Runtime(options):
            ds = ad.TFRecordDataset(str(tmp_path / "a.tfrecord")).ignore_errors()
            assert list(ds) == good
            assert sorted(ds.shuffle(700, seed=3)) == sorted(good)


def test_the_first_damaged_record_is_named(tmp_path: Path) -> None:
    """The records in front of a damaged one are given, then an error with its number."""
    records = write(tmp_path / "a.tfrecord", [1500, 1700])
    seen: list[object] = []
    with (
        ad.Runtime(ad.Options(num_workers=0, memory_limit_bytes=64 << 20)),
        pytest.raises(CorruptRecordError) as caught,
    ):
        seen.extend(ad.TFRecordDataset(str(tmp_path / "a.tfrecord")))
    assert seen == records[:1500]
    assert caught.value.record == 1500
