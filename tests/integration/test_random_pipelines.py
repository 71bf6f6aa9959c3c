"""Whole pipelines drawn at random, against an independent account of what must come out, mostly at tight limits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from tests.samples import samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pipeline over files of random records; its repr is what is needed to run it again."""

    seed: int
    compression: str | None
    limit_mib: int
    chunk_bytes: int
    workers: int
    requests: int
    deterministic: bool
    cycle: int
    block: int
    shuffle: int
    mode: str


def draw(seed: int) -> tuple[Case, list[list[bytes]]]:
    """A case and the records of its files."""
    rnd = random.Random(seed)
    files = [[_record(rnd) for _ in range(rnd.randint(0, 60))] for _ in range(rnd.randint(1, 6))]
    case = Case(
        seed=seed,
        compression=rnd.choice([None, None, "GZIP", "ZLIB"]),
        limit_mib=rnd.choice([2, 4, 8, 16, 64]),
        chunk_bytes=rnd.choice([1 << 16, 1 << 16, 1 << 20]),
        workers=rnd.choice([0, 1, 2]),
        requests=rnd.choice([1, 4, 32]),
        deterministic=rnd.random() < 0.6,
        cycle=rnd.randint(1, 4),
        block=rnd.randint(1, 5),
        shuffle=rnd.choice([0, 0, 1, 10, 100]),
        mode=rnd.choice(["raw", "batch", "map", "map and batch", "threads", "inline"]),
    )
    return case, files


def _record(rnd: random.Random) -> bytes:
    sizes = [0, 1, 10, 100, 1000, rnd.randint(0, 5000), rnd.randint(0, 200_000)]
    size = 2_000_000 if rnd.random() < 0.01 else rnd.choice(sizes)
    return bytes([rnd.randrange(256)]) * size


def in_turn(files: Sequence[Sequence[bytes]], cycle: int, block: int) -> list[bytes]:
    """The order of tf.data's interleave, one element at a time."""
    coming = iter(files)
    slots: list[list[bytes] | None] = [None] * cycle
    out: list[bytes] = []
    turn = 0
    while True:
        if slots[turn] is None:
            following = next(coming, None)
            if following is None and all(slot is None for slot in slots):
                return out
            slots[turn] = None if following is None else list(following)
        slot = slots[turn]
        if slot is not None:
            out += slot[:block]
            slots[turn] = slot[block:] if len(slot) >= block else None
        turn = (turn + 1) % cycle


def described(record: bytes) -> tuple[int, bytes]:
    """The map function of every case."""
    return len(record), record[:3]


def pipeline(case: Case, urls: list[str]) -> ad.Dataset:
    """The case as a Dataset."""
    ds = ad.Dataset.from_tensor_slices(urls).interleave(
        lambda url: ad.TFRecordDataset(url, case.compression), cycle_length=case.cycle, block_length=case.block
    )
    if case.shuffle:
        ds = ds.shuffle(case.shuffle, seed=case.seed)
    if case.mode in ("map", "map and batch"):
        ds = ds.map(described, num_parallel_calls=ad.AUTOTUNE)
    elif case.mode == "threads":
        ds = ds.map(described, num_parallel_calls=2, executor="thread")
    elif case.mode == "inline":
        ds = ds.map(described)
    if case.mode in ("batch", "map and batch", "threads"):
        ds = ds.batch(1 + case.seed % 20)
    return ds.with_options(
        ad.Options(
            memory_limit_bytes=case.limit_mib << 20,
            chunk_bytes=case.chunk_bytes,
            num_workers=case.workers,
            max_requests_in_flight=case.requests,
            deterministic=case.deterministic,
        )
    )


def flat(case: Case, elements: list[Any]) -> list[Any]:
    """Elements of batches one by one, numbers as Python's."""
    if case.mode == "batch":
        return [record for batch in elements for record in batch]
    if case.mode in ("map and batch", "threads"):
        return [(int(n), start) for lengths, starts in elements for n, start in zip(lengths, starts, strict=True)]
    if case.mode in ("map", "inline"):
        return [(int(n), start) for n, start in elements]
    return elements


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("seed", sorted({*range(samples(14, 1500)), 543}))  # 543: ends while threads wait for memory
def test_every_record_comes_once_and_in_order_or_the_limit_is_named(seed: int, tmp_path: Path) -> None:
    """All records, in tf.data's order where it is kept, or a MemoryLimitError; never a hang, a loss or a double."""
    case, files = draw(seed)
    urls = [str(tmp_path / f"{index}.tfrecord") for index in range(len(files))]
    for url, records in zip(urls, files, strict=True):
        with ad.TFRecordWriter(url, case.compression) as writer:
            writer.write_many(records)
    try:
        got = flat(case, list(pipeline(case, urls)))
    except ad.MemoryLimitError as error:
        assert "memory_limit_bytes" in str(error), case  # noqa: PT017 -- either outcome is right; both are checked
        assert case.limit_mib < 64, case
        return
    want: list[Any] = in_turn(files, case.cycle, case.block)
    if case.mode not in ("raw", "batch"):
        want = [described(record) for record in want]
    if case.deterministic and not case.shuffle:
        assert got == want, case
    else:
        assert sorted(got) == sorted(want), case


def test_a_record_much_larger_than_a_chunk_is_one_piece(tmp_path: Path) -> None:
    """A record of 50 MB, read in chunks of 1 MiB with neighbours of every kind, arrives whole."""
    large = bytes(range(256)) * 195_313
    records = [b"", b"before", large, b"", b"after" * 30_000]
    url = str(tmp_path / "large.tfrecord")
    with ad.TFRecordWriter(url) as writer:
        writer.write_many(records)
    options = ad.Options(chunk_bytes=1 << 20, memory_limit_bytes=256 << 20)
    for requests in (1, 16):
        ds = ad.TFRecordDataset(url).with_options(options)
        assert list(ds) == records, requests
