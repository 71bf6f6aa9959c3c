from __future__ import annotations

import importlib.util
import random
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example import columns
from asyncdata.formats.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
    want,
)
from asyncdata.formats.example.parser import ExampleParser, parse_example
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.example.stepping import SPARE_BYTES
from asyncdata.memory.bytesarray import BytesArray
from tests.samples import samples

WAYS = [False, True] if importlib.util.find_spec("numba") is not None else [False]
"""Read in numpy, and by compiled code where there is a compiler."""
VarLen = VarLenFeature | RaggedFeature | FixedLenSequenceFeature

KEYS = ("a", "b", "key", "k" * 20, "z" * 96, "")


class Drawer:
    """Draws specs, and records that mostly fit them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.spec: dict[str, Feature] = {
            key: self.feature() for key in self.random.sample(KEYS, self.random.randint(1, 4))
        }
        self.kinds = {key: self.random.choice(("int64", "float32", "bytes")) for key in KEYS}
        self.kinds |= {key: feature.dtype for key, feature in self.spec.items()}
        self.layouts = [
            self.random.sample(KEYS, self.random.randint(0, 5)) for _ in range(self.random.choice((1, 2, 3, 40)))
        ]

    def feature(self) -> Feature:
        """A feature of any class."""
        kind = self.random.choice(("int64", "float32", "bytes"))
        shape: list[int] = self.random.choice([[], [], [], [1], [2], [3]])
        choice = self.random.random()
        if choice < 0.2:
            return VarLenFeature(kind)
        if choice < 0.3:
            return RaggedFeature(kind)
        if choice < 0.4:
            return FixedLenSequenceFeature(self.random.choice([[], [2]]), kind, True)
        value = {"int64": 7, "float32": 0.5, "bytes": "d"}[kind]
        default = [value] * int(np.prod(shape)) if shape else value
        return FixedLenFeature(shape, kind, default if self.random.random() < 0.7 else None)

    def values(self, key: str) -> Any:
        """Values for a key, nearly always as many as its feature wants."""
        feature, draw = self.spec.get(key), self.random
        count = draw.choice((0, 1, 2, 4, draw.randint(0, 40)))
        if isinstance(feature, FixedLenFeature):
            count = want(key, feature).count
        count += draw.random() < 0.02
        kind = self.kinds[key]
        if kind == "bytes":
            return [draw.randbytes(draw.choice((0, 1, 5, 150))) for _ in range(count)] or None
        if kind == "float32":
            return np.array([draw.random() for _ in range(count)], np.float32)
        return np.array([self.integer() for _ in range(count)], np.int64)

    def integer(self) -> int:
        """An int64 of any width, the bounds of each width often."""
        draw = self.random
        edge = 1 << draw.randint(0, 63)
        return int(draw.choice((0, -1, edge - 1, -edge, draw.randrange(edge))))

    def record(self) -> bytes:
        """A record of one of the layouts; a few are damaged."""
        record = bytearray(serialize_example({key: self.values(key) for key in self.random.choice(self.layouts)}))
        if record and self.random.random() < 0.03:
            record[self.random.randrange(len(record))] ^= 1 << self.random.randrange(8)
        return bytes(record)


def equal(left: Any, right: Any) -> bool:
    """Same type, dtype, shape and bits."""
    if isinstance(left, bytes) or isinstance(right, bytes):
        return type(left) is type(right) and left == right
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return bool(left.tolist() == right.tolist() if left.dtype == object else left.tobytes() == right.tobytes())


def scattered(records: list[bytes], source: random.Random) -> tuple[memoryview, np.ndarray[Any, np.dtype[np.int64]]]:
    """The records in one buffer, with other bytes in front, between and behind."""
    buffer = bytearray(source.randbytes(source.randint(0, 50)))
    rows = []
    for record in records:
        rows.append((len(buffer), len(record)))
        buffer += record + source.randbytes(source.randint(0, 20))
    buffer += source.randbytes(source.choice((0, 100, 300, 1000)))
    return memoryview(buffer), np.array(rows, np.int64).reshape(-1, 2)


def one_by_one(parse: ExampleParser, records: list[bytes]) -> list[dict[str, Any] | None]:
    """What each record gives alone; None for an error."""
    found: list[dict[str, Any] | None] = []
    for record in records:
        try:
            found.append(parse(record))
        except CorruptRecordError:
            found.append(None)
    return found


def fits(value: Any, expected: Any, feature: Feature) -> bool:
    """Whether a batch has for a record what the record gives alone; sequences are padded."""
    if isinstance(feature, FixedLenSequenceFeature):
        padding = np.asarray(value[len(expected) :])
        return equal(value[: len(expected)], expected) and all(not item for item in padding.ravel().tolist())
    return equal(value, expected)


@pytest.mark.parametrize("compiled", WAYS)
def test_batches_give_what_the_records_give_alone(compiled: bool) -> None:
    """Stepped together or not, in any buffer, values are the same bit for bit; a batch fails if a record of it does."""
    for seed in range(samples(300, 20_000)):
        drawer = Drawer(seed)
        records = [drawer.record() for _ in range(drawer.random.choice((8, 9, 30, 60)))]
        parse = parse_example(drawer.spec, compiled=compiled)
        alone = one_by_one(parse, records)
        view, rows = scattered(records, drawer.random)
        if None in alone:
            with pytest.raises(CorruptRecordError):
                parse.batched(records)
            with pytest.raises(CorruptRecordError):
                parse.rows(view, rows)
        keep = [index for index, values in enumerate(alone) if values is not None]
        placed = BytesArray(np.frombuffer(view, np.uint8), rows[keep])
        for batch in (parse.batched([records[index] for index in keep]), parse.batched(placed)):
            for name, column in batch.items():
                assert len(column) == len(keep)
                for index, value in zip(keep, column, strict=True):
                    expected = alone[index]
                    assert expected is not None
                    same = fits(value, expected[name], drawer.spec[name])
                    assert same, f"seed {seed}, record {index}, feature {name!r}"
        check_stacked(parse, view, rows[keep], [found for found in alone if found is not None])


def check_stacked(parse: ExampleParser, view: memoryview, rows: Any, alone: list[dict[str, Any]]) -> None:
    """Single records are stacked if they are alike, and refused if not."""
    alike = (
        all(
            len({np.shape(found[name]) for found in alone}) == 1
            and not (
                isinstance(found := alone[0][name], np.ndarray) and found.dtype == object and isinstance(f, VarLen)
            )
            for name, f in parse.spec.items()
        )
        if alone
        else False
    )
    if not alike:
        return
    stacked = parse.rows(view, rows)
    for name, column in stacked.items():
        assert all(equal(value, found[name]) for value, found in zip(column, alone, strict=True))


def test_every_record_is_in_one_group_or_left_over() -> None:
    """Groups and rest are a partition, and records of one layout are really stepped together."""
    features = {"a": FixedLenFeature([], int), "b": FixedLenFeature([], float, 0.5), "s": FixedLenFeature([], bytes)}
    wanted = [want(name, feature) for name, feature in features.items()]
    slots = {item.key: slot for slot, item in enumerate(wanted)}
    orders = [("a", "b", "s"), ("s", "b", "a"), ("a", "s")]
    values = {"a": 1 << 40, "b": 2.5, "s": b"text"}
    records = [serialize_example({key: values[key] for key in orders[index % 3]}) for index in range(90)]
    records[40] = b"damaged"
    view, rows = scattered([*records, bytes(SPARE_BYTES)], random.Random(1))
    groups, left = columns.BlockReader(wanted, slots).parse(np.frombuffer(view, np.uint8), rows[:90])
    assert left.tolist() == [40]
    assert sorted(index for group in groups for index in group.indices.tolist()) == [i for i in range(90) if i != 40]
    assert len(groups) == 3
    assert all(group.values[0].tolist() == [1 << 40] * len(group.indices) for group in groups)  # type: ignore[union-attr]  # numbers are arrays


def test_damage_in_a_group_is_never_read_over() -> None:
    """One byte of one record is changed: the batch fails if that record does, and gives its values if not."""
    spec: dict[str, Feature] = {
        "i": FixedLenFeature([], int),
        "f": FixedLenFeature([], float),
        "s": FixedLenFeature([], bytes),
        "v": VarLenFeature(int),
    }
    parse = parse_example(spec)
    records = [
        serialize_example({"i": 300 + i, "f": i / 2, "s": b"x" * i, "v": [i, 1000], "more": 5}) for i in range(10)
    ]
    for place in range(len(records[4])):
        for flip in (0x01, 0x02, 0x08, 0x80):
            damaged = bytearray(records[4])
            damaged[place] ^= flip
            batch = [*records[:4], bytes(damaged), *records[5:]]
            alone = one_by_one(parse, batch)[4]
            if alone is None:
                with pytest.raises(CorruptRecordError, match="record 4 of the 10"):
                    parse(batch)
            else:
                column = parse(batch)
                assert all(equal(column[name][4], alone[name]) for name in spec), f"byte {place}, {flip:#x}"


@pytest.mark.parametrize("spare", [0, 1, SPARE_BYTES - 1, SPARE_BYTES, 1000])
def test_records_at_the_very_end_of_a_buffer_are_read(spare: int) -> None:
    """Looking ahead never leaves the buffer, and costs no record."""
    parse = parse_example({"a": FixedLenFeature([], int)})
    records = [serialize_example({"a": index}) for index in range(50)]
    rows = np.array([[index * len(records[0]), len(records[0])] for index in range(50)])
    column = parse.rows(memoryview(b"".join(records) + bytes(spare)), rows)["a"]
    assert list(column) == list(range(50))


def test_long_lists_are_unpacked_across_runs() -> None:
    """Lists that together are longer than one run of the unpacker keep their records apart."""
    source = np.random.default_rng(1)
    lists = [source.integers(-5, 1 << 40, source.integers(0, 3000)) for _ in range(60)]
    parse = parse_example({"v": VarLenFeature(int)})
    view, rows = scattered([serialize_example({"v": values}) for values in lists], random.Random(2))
    column = parse.batched(BytesArray(np.frombuffer(view, np.uint8), rows))["v"]
    assert all(equal(found, values) for found, values in zip(column, lists, strict=True))
