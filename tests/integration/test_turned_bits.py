"""Whichever bit of a shard is turned over, no wrong record is given, and the error names the one it is in."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.formats.tfrecord import FRAME_BYTES
from tests.integration.shards import shard_bytes


def test_any_bit_turned_over(tmp_path: Path, samples: Callable[[int, int], int]) -> None:
    """Whichever it is: the records before are as they were, and the error names the one it is in."""
    payloads = [b"alpha", b"", b"gamma" * 5, b"d"]
    whole = shard_bytes(payloads)
    begins = [sum(len(payload) + FRAME_BYTES for payload in payloads[:index]) for index in range(len(payloads))]
    path = tmp_path / "bad"
    with ad.Runtime(ad.Options(num_workers=0, memory_limit_bytes=32 << 20)):
        for bit in range(0, 8 * len(whole), samples(7, 1)):
            where = bit // 8
            path.write_bytes(whole[:where] + bytes([whole[where] ^ (1 << bit % 8)]) + whole[where + 1 :])
            found: list[Any] = []
            iterator = ad.TFRecordDataset(str(path)).iterator()
            with pytest.raises((ad.BrokenFrameError, ad.CorruptRecordError)) as caught:
                found.extend(iterator)  # keeps what came before the error
            record = max(index for index, begin in enumerate(begins) if begin <= where)
            assert found == payloads[:record], bit
            assert (caught.value.url, caught.value.record, caught.value.offset) == (str(path), record, begins[record])
            assert caught.value.stage
            assert str(path) in str(caught.value)


MIXES: dict[str, Callable[[ad.Dataset, ad.Dataset], ad.Dataset]] = {
    "concatenated": lambda records, others: records.concatenate(others),
    "shuffled": lambda records, others: records.concatenate(others).shuffle(30, seed=1),
    "sampled": lambda records, others: ad.Dataset.sample_from_datasets([others, records], seed=1),
    "interleaved": lambda records, others: ad.Dataset.range(2).interleave(
        lambda number: others if number else records, cycle_length=2
    ),
    "numbered": lambda records, others: others.concatenate(records.enumerate()).shuffle(30, seed=1),
}
READERS: dict[str, Callable[[ad.Dataset], ad.Dataset]] = {
    "as they are": lambda ds: ds,
    "inline": lambda ds: ds.map(lambda *x: x),
    "in workers": lambda ds: ds.map(lambda *x: x, num_parallel_calls=2),
    "in workers, batched": lambda ds: ds.map(lambda *_: 1, num_parallel_calls=2).batch(4),
}


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 1])
def test_records_are_verified_among_elements_that_need_it_not(tmp_path: Path, workers: int) -> None:
    """Wherever records come together with lines or with bytes in memory: none that is damaged passes for whole."""
    payloads = [b"x" * 50] * 20
    whole = shard_bytes(payloads)
    where = 7 * (50 + FRAME_BYTES) + 20
    path, lines = tmp_path / "bad", tmp_path / "lines"
    path.write_bytes(whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1 :])
    lines.write_text("line\n" * 20)
    sources = [ad.TextLineDataset(str(lines)), ad.Dataset.from_tensor_slices([b"x"] * 20)]
    skipping = ad.Options(errors=ad.ErrorPolicy(max_skipped=1))
    with ad.Runtime(ad.Options(num_workers=workers, memory_limit_bytes=32 << 20)):
        for others, mix, read in itertools.product(sources, MIXES, READERS):
            ds = READERS[read](MIXES[mix](ad.TFRecordDataset(str(path)), others))
            with pytest.raises(ad.CorruptRecordError, match="checksum") as caught:
                list(ds)
            assert (caught.value.url, caught.value.record) == (str(path), 7), (mix, read)
            if read != "in workers, batched":
                found = [
                    element[-1] if isinstance(element, tuple) else element for element in ds.with_options(skipping)
                ]
                assert sum(element == payloads[0] for element in found) == 19, (mix, read)
                assert {type(element) for element in found} == {bytes}, (mix, read)
