from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.columnar import ColumnarReader
from asyncdata.formats.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
)
from asyncdata.formats.example.fields import SPARE_BYTES
from asyncdata.formats.example.parser import ExampleParser, parse_example
from asyncdata.formats.example.serialize import serialize_example
from asyncdata.formats.example.wanted import want
from asyncdata.memory.bytesarray import BytesArray
from tests.samples import samples

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


def test_batches_give_what_the_records_give_alone() -> None:
    """Stepped together or not, in any buffer, values are the same bit for bit; a batch fails if a record of it does."""
    for seed in range(samples(300, 20_000)):
        drawer = Drawer(seed)
        records = [drawer.record() for _ in range(drawer.random.choice((8, 9, 30, 60)))]
        parse = parse_example(drawer.spec)
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


def test_records_are_read_together_or_left_over() -> None:
    """Records of several layouts are read together, in any order of theirs; only a damaged one is left over."""
    features = {"a": FixedLenFeature([], int), "b": FixedLenFeature([], float, 0.5), "s": FixedLenFeature([], bytes)}
    wanted = [want(name, feature) for name, feature in features.items()]
    orders = [("a", "b", "s"), ("s", "b", "a"), ("a", "s")]
    values = {"a": 1 << 40, "b": 2.5, "s": b"text"}
    records = [serialize_example({key: values[key] for key in orders[index % 3]}) for index in range(90)]
    records[40] = b"damaged"
    view, rows = scattered([*records, bytes(SPARE_BYTES)], random.Random(1))
    found = ColumnarReader(wanted).read(np.frombuffer(view, np.uint8), rows[:90])
    assert found is not None
    (numbers, _, _), good = found
    assert np.flatnonzero(~good).tolist() == [40]
    assert isinstance(numbers, np.ndarray)
    assert numbers[good].tolist() == [1 << 40] * 89


def test_damage_among_records_that_are_alike_is_never_read_over() -> None:
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


def left_over(spec: dict[str, Feature], records: list[bytes]) -> list[int]:
    """Which records are not read together with the others."""
    sizes = np.array([len(record) for record in records])
    rows = np.stack((np.cumsum(sizes) - sizes, sizes), axis=1)
    array = np.frombuffer(b"".join(records) + bytes(SPARE_BYTES), np.uint8)
    found = ColumnarReader([want(name, feature) for name, feature in spec.items()]).read(array, rows)
    return list(range(len(records))) if found is None else np.flatnonzero(~found[1]).tolist()


def test_records_in_any_order_are_read_together() -> None:
    """None is left over, and each value is its record's; keys that are longer or shorter by a bit are other keys."""
    records = [shuffled(index) for index in range(200)]
    assert left_over(SPEC, records) == []
    parse = parse_example(SPEC)
    batch = parse(records)
    for index, record in enumerate(records):
        alone = parse(record)
        for name in SPEC:
            assert np.array_equal(batch[name][index], alone[name]), (index, name)
    assert batch["i"][63] == -1
    assert batch["image/object/bbox/xmax"][3] == -1.0


@pytest.mark.parametrize("kind", [int, float, bytes])
@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0)])
def test_a_shape_may_hold_no_values(kind: type, shape: tuple[int, ...]) -> None:
    """Records without values fit it, and take its empty default; one with a value is an error."""
    empty = np.empty(0, {int: np.int64, float: np.float32, bytes: object}[kind])
    records = [serialize_example({"x": empty, "n": n} if n % 3 else {"n": n}) for n in range(20)]
    parse = parse_example({"x": FixedLenFeature(shape, kind, []), "n": FixedLenFeature([], int)})
    assert parse(records)["x"].shape == (20, *shape)
    records[7] = serialize_example({"x": kind(1), "n": 7})
    with pytest.raises(CorruptRecordError, match=r"record 7 of the 20 .*'x': it holds 1 value, expected 0"):
        parse(records)


def test_unusual_records_are_left_over_and_no_others() -> None:
    """A key twice, a value that is missing, an entry turned round, damage: exactly these go the slow way."""
    records = [shuffled(index) for index in range(40)]
    records[3] += serialize_example({"i": 5})
    records[7] = serialize_example({"i": 5})
    records[11] = records[11][:-1]
    records[15] = b""
    records[19] = shuffled(19, i=0.5)
    assert left_over(SPEC, records) == [3, 7, 11, 15, 19]


def test_lengths_of_keys_may_take_several_bytes() -> None:
    """Of long keys, and of short ones whose length is written longer than it need be: batches are as records alone."""
    # An entry with the key s. Where it would end if 81 were its length, there is what looks like a value up to the end.
    content = b"v" * 118 + b"\x12\xb5\x01" + b"v" * 181
    odd = b"\n\x81\x00s" + b"\x12\xb4\x02" + b"\n\xb1\x02" + b"\n\xae\x02" + content
    entry = b"\n" + bytes([len(odd) & 0x7F | 0x80, len(odd) >> 7]) + odd
    record = b"\n" + bytes([len(entry) & 0x7F | 0x80, len(entry) >> 7]) + entry
    parse = parse_example({"s": FixedLenFeature([], bytes, b"default"), "i": FixedLenFeature([], int, 1)})
    assert parse(record) == {"s": content, "i": 1}
    assert list(parse([record] * 20)["s"]) == [content] * 20
    long = [serialize_example({"k" * 130: b"x" * 200, "s": b"y", "i": index}) for index in range(20)]
    assert list(parse(long)["i"]) == list(range(20))


def test_damage_among_records_in_any_order_is_never_read_over() -> None:
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
    assert left_over(SPEC, records) == [4]


def test_the_outer_length_may_have_any_width() -> None:
    """Records of every size around one, two and three bytes of length are read; one whose length is wrong is not."""
    spec: dict[str, Feature] = {"s": FixedLenFeature([], bytes)}
    sizes = [*range(100, 140), *range(16_370, 16_390)]
    records: list[bytes] = []
    for some in (sizes[:40], sizes[40:52], sizes):
        records = [serialize_example({"s": b"x" * size}) for size in some]
        assert left_over(spec, records) == []
        for change in (-1, 1):
            # The record begins or ends elsewhere than its length says.
            changed = [record[:-1] if change < 0 else record + b"\0" for record in records]
            assert left_over(spec, changed) == list(range(len(changed)))
    odd = b"\x0a\x80" + bytes(128)
    assert left_over(spec, [*records[:10], odd]) == [10]


def test_a_spec_may_have_thousands_of_keys() -> None:
    """Keys that no small table keeps apart are found all the same."""
    names = [f"feature_{number}" for number in range(6000)]
    spec: dict[str, Feature] = {name: FixedLenFeature([], int, -1) for name in names}
    parse = parse_example(spec)
    orders = [names[start::599] for start in range(12)]
    batch = parse([serialize_example({name: int(name[8:]) for name in order}) for order in orders])
    for name in (*names[:50], *names[-50:]):
        number = int(name[8:])
        assert batch[name].tolist() == [number if name in order else -1 for order in orders]


def test_byte_strings_stay_where_they_are() -> None:
    """Single ones and those of lists are references into the records, whatever the order of their keys."""
    spec: dict[str, Feature] = {"s": FixedLenFeature([], bytes), "v": VarLenFeature(bytes)}
    values = {"s": b"x", "v": [b"one", b"", b"three" * 40]}
    records = BytesArray.from_items(
        [serialize_example(dict(sorted(values.items(), reverse=n % 2 > 0))) for n in range(20)]
    )
    batch = parse_example(spec)(records)
    assert batch["s"].memory is records.memory
    assert batch["v"].values.memory is records.memory
    assert batch["v"].to_list() == [values["v"]] * 20
