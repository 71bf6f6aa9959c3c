"""Compiled code reads lists of int64 as the parser without it does, whatever their bytes are."""

from __future__ import annotations

import importlib.util
import random
from typing import Any

import pytest

from asyncdata.errors import AsyncdataError
from asyncdata.formats.example.features import FixedLenFeature, VarLenFeature
from asyncdata.formats.example.parser import parse_example
from tests.samples import samples

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs the extra 'fast'")


def varint(value: int) -> bytes:
    """As few bytes as will do."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    """A field of a number, with its length."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def example(packed: bytes) -> bytes:
    """A tf.train.Example whose feature "a" is a list of int64 of these bytes."""
    feature = field(3, field(1, packed))
    return field(1, field(1, field(1, b"a") + field(2, feature)))


def drawn(draws: random.Random) -> bytes:
    """One number: short, long, longer than need be, negative; now and then too long."""
    kind = draws.randrange(10)
    if kind == 0:
        return bytes(draws.randrange(0x80, 0x100) for _ in range(draws.randrange(8, 13))) + b"\x01"
    plain = varint(draws.getrandbits(draws.randint(1, 64)))
    if kind == 1 and len(plain) < 9:
        return plain[:-1] + bytes([plain[-1] | 0x80]) + b"\x80" * draws.randrange(9 - len(plain)) + b"\0"
    return plain


def outcome(spec: Any, records: list[bytes], *, compiled: bool) -> Any:
    """What comes of them: values, or which error."""
    try:
        values = parse_example({"a": spec}, compiled=compiled)(records)["a"]
    except AsyncdataError as error:
        return type(error), str(error)
    return values.tolist() if hasattr(values, "tolist") else values.to_list()


@pytest.mark.parametrize("seed", range(samples(40, 4000)))
def test_both_ways_agree(seed: int) -> None:
    """Lists of every length, down to one at the very end of the bytes; damaged and cut off ones, too."""
    draws = random.Random(seed)
    count = draws.randrange(9)
    records = []
    for _ in range(draws.randrange(1, 5)):
        packed = b"".join(drawn(draws) if draws.random() < 0.2 else varint(draws.getrandbits(62)) for _ in range(count))
        if draws.random() < 0.1:
            packed = packed[: draws.randrange(len(packed) + 1)]
        records.append(example(packed))
    for spec in (FixedLenFeature([count], int), VarLenFeature(int)):
        assert outcome(spec, records, compiled=True) == outcome(spec, records, compiled=False)
