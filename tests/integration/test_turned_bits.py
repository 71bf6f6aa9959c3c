"""Whichever bit of a shard is turned over, no wrong record is given, and the error names the one it is in."""

from __future__ import annotations

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
