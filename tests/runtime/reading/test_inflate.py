"""Compressed files: the next part is decompressed while one is used, and nothing of it is left behind."""

from __future__ import annotations

import gzip
import random
import sys
import threading
from pathlib import Path

import pytest

import asyncdata as ad
from asyncdata.formats.compression import Decompressor
from asyncdata.testing import assert_no_leaks
from tests.samples import samples

RECORD = 1 << 12
CHUNK = 1 << 18
DATA = random.Random(2).randbytes(RECORD * 150).hex().encode()
"""Four chunks and a bit; one chunk of stored bytes makes almost two of these."""


def files(folder: Path, count: int = 2) -> ad.Dataset:
    """So many files, whose records are read in turn."""
    for number in range(count):
        (folder / f"{number}.gz").write_bytes(gzip.compress(DATA, 1))
    ds = ad.Dataset.list_files(f"{folder}/*.gz", shuffle=False)
    ds = ds.interleave(lambda name: ad.FixedLengthRecordDataset(name, RECORD, compression_type="GZIP"), count)
    return ds.with_options(ad.Options(chunk_bytes=CHUNK, num_workers=0, num_threads=4, isolate=False))


def expected(count: int = 2) -> list[bytes]:
    """Their records."""
    return [DATA[at : at + RECORD] for at in range(0, len(DATA), RECORD) for _ in range(count)]


def test_files_that_are_read_in_turn_are_decompressed_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first part of each, which nobody could begin with earlier."""
    together = threading.Barrier(2, timeout=60)
    met: set[Decompressor] = set()
    read_into = Decompressor.read_into

    def meet(decoder: Decompressor, buffer: memoryview) -> int:
        if decoder.bytes_out >= CHUNK and decoder not in met:
            met.add(decoder)
            together.wait()
        return read_into(decoder, buffer)

    monkeypatch.setattr(Decompressor, "read_into", meet)
    assert list(files(tmp_path)) == expected()
    assert len(met) == 2


@pytest.mark.sampled
@pytest.mark.parametrize("limit", [4 << 20, 64 << 20])
def test_left_at_any_moment(tmp_path: Path, limit: int) -> None:
    """Also while threads decompress ahead; with little memory, nothing is ahead, and all the same comes."""
    ds = files(tmp_path, 3)
    options = ad.Options(chunk_bytes=CHUNK, memory_limit_bytes=limit, num_workers=0, num_threads=4, isolate=False)
    with assert_no_leaks(), ad.Runtime(options, pipelines=1):
        assert list(ds) == expected(3)
        draw = random.Random(limit)
        for _ in range(samples(20, 1000)):
            with ds.iterator() as elements:
                for _, record in zip(range(draw.randrange(1, 600)), elements, strict=False):
                    assert len(record) == RECORD


def test_a_resume_deep_inside_a_file_passes_over_what_lies_before(tmp_path: Path) -> None:
    """However many chunks that are: more than calls may be nested."""
    count, chunk = sys.getrecursionlimit(), 1 << 16
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes(chunk * count) + b"\1" * RECORD, 1))
    ds = ad.FixedLengthRecordDataset(path, RECORD, compression_type="GZIP").skip(chunk * count // RECORD - 1)
    ds = ds.with_options(ad.Options(chunk_bytes=chunk, num_workers=0, isolate=False))
    with ds.iterator() as elements:
        assert next(elements) == bytes(RECORD)
        state = elements.state_dict()
    with ds.iterator() as elements:
        elements.load_state_dict(state)
        assert list(elements) == [b"\1" * RECORD]
