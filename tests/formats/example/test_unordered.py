from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.features import Feature, FixedLenFeature, VarLenFeature, want
from asyncdata.formats.example.parser import parse_example
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.example.stepping import SPARE_BYTES
from asyncdata.formats.example.unordered import UnorderedReader

SPEC: dict[str, Feature] = {
    "i": FixedLenFeature([], int),
    "image/object/bbox/xmin": FixedLenFeature([], float),
    "image/object/bbox/xmax": FixedLenFeature([], float, -1.0),
    "s": FixedLenFeature([], bytes),
    "v": VarLenFeature(int),
}


def shuffled(index: int, **more: Any) -> bytes:
    """A record whose keys come in an order of their own, with keys that nobody wants."""
    features = {
        "i": 1 << index % 64 if index % 64 < 63 else -1,
        "image/object/bbox/xmin": index / 2,
        "s": b"x" * index,
        "v": list(range(index % 5)),
        "image/object/bbox": 1.5,
        "image/object/bbox/xmid": 2.5,
        **more,
    }
    if index % 3:
        features["image/object/bbox/xmax"] = float(index)
    order = list(features)
    random.Random(index).shuffle(order)
    return serialize_example({key: features[key] for key in order})


def joined(records: list[bytes]) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]]:
    """The records in one buffer with room behind."""
    sizes = np.array([len(record) for record in records])
    rows = np.stack((np.cumsum(sizes) - sizes, sizes), axis=1)
    return np.frombuffer(b"".join(records) + bytes(SPARE_BYTES), np.uint8), rows


def test_records_in_any_order_are_read_together() -> None:
    """None is left over, and each value is its record's; keys that are longer or shorter by a bit are other keys."""
    records = [shuffled(index) for index in range(200)]
    reader = UnorderedReader([want(name, feature) for name, feature in SPEC.items()])
    group, good = reader.parse(*joined(records))
    assert good.all()
    assert group.indices.tolist() == list(range(200))
    parse = parse_example(SPEC)
    batch = parse(records)
    for index, record in enumerate(records):
        alone = parse(record)
        for name in SPEC:
            assert np.array_equal(batch[name][index], alone[name]), (index, name)
    assert batch["i"][63] == -1
    assert batch["image/object/bbox/xmax"][3] == -1.0


def test_unusual_records_are_left_over_and_no_others() -> None:
    """A key twice, a value that is missing, an entry turned round, damage: exactly these go the slow way."""
    records = [shuffled(index) for index in range(40)]
    records[3] += serialize_example({"i": 5})
    records[7] = serialize_example({"i": 5})
    records[11] = records[11][:-1]
    records[15] = b""
    records[19] = shuffled(19, i=0.5)
    reader = UnorderedReader([want(name, feature) for name, feature in SPEC.items()])
    group, good = reader.parse(*joined(records))
    assert np.flatnonzero(~good).tolist() == [3, 7, 11, 15, 19]
    assert len(group.indices) == 35


def test_damage_is_never_read_over() -> None:
    """One byte of one record is changed: the batch fails if that record does, and gives its values if not."""
    parse = parse_example(SPEC)
    records = [shuffled(index) for index in range(12)]
    for place in range(len(records[5])):
        for flip in (0x01, 0x08, 0x80):
            damaged = bytearray(records[5])
            damaged[place] ^= flip
            batch = [*records[:5], bytes(damaged), *records[6:]]
            try:
                alone = parse(bytes(damaged))
            except CorruptRecordError:
                with pytest.raises(CorruptRecordError, match="record 5 of the 12"):
                    parse(batch)
                continue
            found = parse(batch)
            for name in SPEC:
                value, expected = np.asarray(found[name][5]), np.asarray(alone[name])
                assert value.tobytes() == expected.tobytes(), f"byte {place}, {flip:#x}, {name}"


def test_many_tiny_entries_do_not_make_many_steps() -> None:
    """A record that is nothing but empty entries is left over, and is an error."""
    records = [shuffled(index) for index in range(20)]
    records[4] = b"\x0a\xb8\x17" + b"\x0a\x00" * 1500
    reader = UnorderedReader([want(name, feature) for name, feature in SPEC.items()])
    _, good = reader.parse(*joined(records))
    assert np.flatnonzero(~good).tolist() == [4]


def test_the_outer_length_may_have_any_width() -> None:
    """Records of every size around one, two and three bytes of length are read; one whose length is wrong is not."""
    spec: dict[str, Feature] = {"s": FixedLenFeature([], bytes)}
    reader = UnorderedReader([want(name, feature) for name, feature in spec.items()])
    sizes = [*range(100, 140), *range(16_370, 16_390)]
    records: list[bytes] = []
    for some in (sizes[:40], sizes[40:52], sizes):
        records = [serialize_example({"s": b"x" * size}) for size in some]
        assert reader.parse(*joined(records))[1].all()
        for change in (-1, 1):
            # The record begins or ends elsewhere than its length says.
            changed = [record[:-1] if change < 0 else record + b"\0" for record in records]
            assert not reader.parse(*joined(changed))[1].any()
    odd = b"\x0a\x80" + bytes(128)
    assert reader.parse(*joined([records[0], odd]))[1].tolist() == [True, False]


def test_a_spec_may_have_thousands_of_keys() -> None:
    """Keys that no small table keeps apart are found all the same."""
    names = [f"feature_{number}" for number in range(6000)]
    spec: dict[str, Feature] = {name: FixedLenFeature([], int, -1) for name in names}
    parse = parse_example(spec, compiled=False)
    orders = [names[start::599] for start in range(12)]
    batch = parse([serialize_example({name: int(name[8:]) for name in order}) for order in orders])
    for name in (*names[:50], *names[-50:]):
        number = int(name[8:])
        assert batch[name].tolist() == [number if name in order else -1 for order in orders]
