"""Payload checksums of a run of records, verified together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from asyncdata.formats import crc_run
from asyncdata.formats.tfrecord import encode_many, frame
from tests.samples import samples

SHAPES = {
    "empty": [0] * 300,
    "one": [5],
    "two": [0, 9],
    "short": [7 * i % 40 for i in range(500)],
    "mixed": [i * i % 3001 for i in range(200)],
    "long": [70_001, 3, 2_500_000, 0, 1],
}


def run(sizes: list[int], seed: int = 1) -> tuple[bytearray, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    """Records of these sizes behind a few other bytes, and where their payloads lie."""
    source = random.Random(seed)
    data = bytearray(b"???" + encode_many([source.randbytes(size) for size in sizes]) + b"??")
    return data, frame(memoryview(data), 3, len(data) - 2).rows


@pytest.mark.parametrize("name", SHAPES)
def test_a_run_holds_unless_a_bit_of_it_is_wrong(name: str) -> None:
    """Sound records hold; one bit wrong in any payload, in any stored payload checksum, never does."""
    data, rows = run(SHAPES[name])
    view = memoryview(data)
    assert len(rows) == len(SHAPES[name])
    assert crc_run.holds(view, rows)
    source = random.Random(2)
    for _ in range(samples(60, 2000)):
        offset, length = rows[source.randrange(len(rows))].tolist()
        at = offset + source.randrange(length + 4)
        bit = 1 << source.randrange(8)
        data[at] ^= bit
        assert not crc_run.holds(view, rows), at
        data[at] ^= bit
    assert crc_run.holds(view, rows)


def test_any_part_of_a_run_holds() -> None:
    """Any records one behind the other hold, and with a damaged one among them do not."""
    data, rows = run(SHAPES["short"])
    view = memoryview(data)
    data[int(rows[250, 0])] ^= 16
    source = random.Random(3)
    for _ in range(100):
        begin = source.randrange(len(rows))
        end = source.randint(begin + 1, len(rows))
        assert crc_run.holds(view, rows[begin:end]) is not (begin <= 250 < end)
