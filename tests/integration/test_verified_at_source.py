"""Payload checksums that no worker task verifies: together, where records are framed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import asyncdata as ad
from asyncdata.errors import CorruptRecordError
from asyncdata.formats.tfrecord import encode_many
from asyncdata.testing import procfs

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


def children() -> set[int]:
    """Processes of this one."""
    return {process.pid for process in procfs.processes() if process.parent == os.getpid() and process.state != "Z"}


def length_and_process(record: bytes) -> tuple[int, int]:
    """A function for workers."""
    return len(record), os.getpid()


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, ad.AUTOTUNE, 1])
@pytest.mark.parametrize("bad", [[], [0], [2999], [1023, 1024], [5, 900, 901, 1500]])
def test_damaged_records_alone_are_left_out(tmp_path: Path, bad: list[int], workers: int) -> None:
    """Of many short records, those that are damaged are left out, shuffled or not, evacuated or not."""
    records = write(tmp_path / "a.tfrecord", bad)
    good = [record for number, record in enumerate(records) if number not in bad]
    for chunk_bytes, limit_bytes in ((16 << 20, 64 << 20), (1 << 16, 2 << 20)):
        options = ad.Options(num_workers=workers, chunk_bytes=chunk_bytes, memory_limit_bytes=limit_bytes)
        with ad.Runtime(options):
            ds = ad.TFRecordDataset(str(tmp_path / "a.tfrecord")).ignore_errors()
            assert list(ds) == good
            assert sorted(ds.shuffle(700, seed=3)) == sorted(good)


@pytest.mark.parametrize("workers", [0, ad.AUTOTUNE, 1])
def test_the_first_damaged_record_is_named(tmp_path: Path, workers: int) -> None:
    """The records in front of a damaged one are given, then an error with its number."""
    records = write(tmp_path / "a.tfrecord", [1500, 1700])
    seen: list[object] = []
    with (
        ad.Runtime(ad.Options(num_workers=workers, memory_limit_bytes=64 << 20)),
        pytest.raises(CorruptRecordError) as caught,
    ):
        seen.extend(ad.TFRecordDataset(str(tmp_path / "a.tfrecord")))
    assert seen == records[:1500]
    assert caught.value.record == 1500


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [ad.AUTOTUNE, 1])
def test_no_process_is_started_to_verify_only(tmp_path: Path, workers: int) -> None:
    """Records that no function in workers reads are verified without them."""
    records = write(tmp_path / "a.tfrecord", [])
    before = children()
    with ad.Runtime(ad.Options(num_workers=workers)):
        raw = ad.TFRecordDataset(str(tmp_path / "a.tfrecord"))
        assert sorted(record for batch in raw.shuffle(50, seed=1).batch(100) for record in batch) == sorted(records)
        assert not children() - before
        # A function that runs in workers is another matter, in the same Runtime.
        lengths = list(raw.map(length_and_process, ad.AUTOTUNE))
        assert [length for length, _ in lengths] == [len(record) for record in records]
        assert {pid for _, pid in lengths} <= children() - before


def test_functions_in_workers_are_given_no_damaged_record(tmp_path: Path) -> None:
    """Behind an inline function and before one in workers alike, a damaged record is left out."""
    records = write(tmp_path / "a.tfrecord", [700])
    good = [len(record) for number, record in enumerate(records) if number != 700]
    raw = ad.TFRecordDataset(str(tmp_path / "a.tfrecord"))
    with ad.Runtime(ad.Options(memory_limit_bytes=64 << 20)):
        assert list(raw.map(len).ignore_errors()) == good
        assert [n for n, _ in raw.map(length_and_process, ad.AUTOTUNE).ignore_errors()] == good
        assert [n for n, _ in raw.filter(bool).map(length_and_process, ad.AUTOTUNE).ignore_errors()] == good
