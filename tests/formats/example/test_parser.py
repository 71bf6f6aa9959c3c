from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
)
from asyncdata.formats.example.parser import parse_example
from asyncdata.formats.example.serialize import serialize_example

INT = FixedLenFeature([], int)
INT_7 = FixedLenFeature([], int, 7)
INTS = VarLenFeature(int)
FLOATS = VarLenFeature(float)
STRINGS = VarLenFeature(bytes)


def field(tag: int, body: bytes) -> bytes:
    """A field with a length of one byte."""
    return bytes([tag, len(body)]) + body


def entry(key: bytes, feature: bytes) -> bytes:
    """An entry of the map."""
    return field(0x0A, field(0x0A, key) + field(0x12, feature))


def example(*parts: bytes) -> bytes:
    """An Example with these entries."""
    return field(0x0A, b"".join(parts))


def ints(*values: int) -> bytes:
    """A packed list of small int64."""
    return field(0x1A, field(0x0A, bytes(values)))


ONE = b"\0\0\x80\x3f"
# What tf.io.parse_single_example of TensorFlow 2.21 gives for the feature "a"; None stands for an error.
AS_TENSORFLOW: list[tuple[str, bytes, Feature, Any]] = [
    ("packed", example(entry(b"a", ints(1, 2))), INTS, [1, 2]),
    ("not packed", example(entry(b"a", field(0x1A, b"\x08\x01\x08\x02"))), INTS, [1, 2]),
    ("one, not packed", example(entry(b"a", field(0x1A, b"\x08\x05"))), INT, 5),
    ("two packed runs", example(entry(b"a", field(0x1A, field(0x0A, b"\1") + field(0x0A, b"\2")))), INTS, [1]),
    ("packed, then not", example(entry(b"a", field(0x1A, field(0x0A, b"\1") + b"\x08\x02"))), INTS, [1]),
    ("not packed, then packed", example(entry(b"a", field(0x1A, b"\x08\x02" + field(0x0A, b"\1")))), INTS, None),
    ("bytes behind the list", example(entry(b"a", ints(1) + b"\xff\xff")), INT, 1),
    ("two lists", example(entry(b"a", ints(1) + field(0x12, field(0x0A, ONE)))), INTS, [1]),
    ("key twice", example(entry(b"a", ints(1)), entry(b"a", ints(2))), INT, 2),
    ("key twice, last without a value", example(entry(b"a", ints(1)), entry(b"a", b"")), INT, 1),
    ("key twice, ragged, last without a value", example(entry(b"a", ints(1)), entry(b"a", b"")), INTS, [1]),
    ("key twice, first of another kind", example(entry(b"a", field(0x0A, b"")), entry(b"a", ints(2))), INT, 2),
    ("unknown list", example(entry(b"a", b"\x22\0")), INT, None),
    ("unknown list elsewhere", example(entry(b"b", b"\x22\0"), entry(b"a", ints(2))), INT, 2),
    ("no value", example(entry(b"a", b"")), INT_7, 7),
    ("key without a value field", example(field(0x0A, field(0x0A, b"a"))), INT_7, None),
    ("key, key", example(field(0x0A, field(0x0A, b"b") + field(0x0A, b"a"))), INT_7, 7),
    ("value, key", example(field(0x0A, field(0x12, ints(5)) + field(0x0A, b"a"))), INT, 5),
    ("key, value, more", example(field(0x0A, field(0x0A, b"a") + field(0x12, ints(5)) + b"\x18\x01")), INT, None),
    ("empty entry", example(field(0x0A, b"")), INT_7, None),
    ("unknown field among the entries", example(entry(b"a", ints(5)), b"\x18\x01"), INT, None),
    ("unknown field of the Example", example(entry(b"a", ints(5))) + b"\x18\x01", INT, 5),
    ("unknown field in front", b"\x12\x02xx" + example(entry(b"a", ints(5))), INT, 5),
    ("unknown fixed fields", b"\x19" + bytes(8) + b"\x1d" + bytes(4) + example(entry(b"a", ints(5))), INT, 5),
    ("a group", b"\x13\x14" + example(entry(b"a", ints(5))), INT, None),
    ("two maps", example(entry(b"a", ints(5))) + example(entry(b"a", ints(6))), INT, 6),
    ("nothing, default", b"", INT_7, 7),
    ("nothing, no default", b"", INT, None),
    ("nothing, ragged", b"", INTS, []),
    ("floats packed", example(entry(b"a", field(0x12, field(0x0A, ONE * 2)))), FLOATS, [1.0, 1.0]),
    ("floats not packed", example(entry(b"a", field(0x12, (b"\x0d" + ONE) * 2))), FLOATS, [1.0, 1.0]),
    ("floats, two packed runs", example(entry(b"a", field(0x12, field(0x0A, ONE) * 2))), FLOATS, [1.0]),
    ("floats, empty run", example(entry(b"a", field(0x12, field(0x0A, b"")))), FLOATS, []),
    ("ints, empty run", example(entry(b"a", field(0x1A, field(0x0A, b"")))), INTS, []),
    ("empty list for one value", example(entry(b"a", field(0x1A, b""))), INT_7, None),
    ("empty list of another kind", example(entry(b"a", field(0x12, b""))), INTS, None),
    ("too many", example(entry(b"a", ints(5, 6))), INT, None),
    ("strings", example(entry(b"a", field(0x0A, field(0x0A, b"x") + field(0x0A, b"")))), STRINGS, [b"x", b""]),
    ("strings, unknown field", example(entry(b"a", field(0x0A, field(0x0A, b"x") + b"\x10\x01"))), STRINGS, None),
    ("varint cut", example(entry(b"a", ints(0x80))), INTS, None),
    ("varint of 11 bytes", example(entry(b"a", ints(*[0x80] * 10, 1))), INTS, None),
    ("varint beyond 64 bits", example(entry(b"a", ints(*[0xFF] * 9, 0x7F))), INTS, [-1]),
    ("varint longer than needed", example(entry(b"a", ints(0x81, 0x80, 0))), INTS, [1]),
    ("tag longer than needed", example(field(0x0A, b"\x8a\0\x01a" + field(0x12, ints(3)))), INT, 3),
    ("length longer than needed", example(field(0x0A, b"\x0a\x81\0a" + field(0x12, ints(3)))), INT, 3),
    ("key that is no UTF-8", example(entry(b"\xff", ints(5)), entry(b"a", ints(5))), INT, 5),
    ("sequence", example(entry(b"a", ints(1, 2, 3, 4))), FixedLenSequenceFeature([2], int, True), [[1, 2], [3, 4]]),
    ("sequence, odd", example(entry(b"a", ints(1, 2, 3))), FixedLenSequenceFeature([2], int, True), None),
    ("sequence, absent", b"", FixedLenSequenceFeature([2], int, True), []),
    # Where TensorFlow reads on although a length reaches too far, this parser does not.
    ("list beyond its feature", example(entry(b"a", b"\x1a\x07\x0a\x01\x01")), INTS, None),
    ("entry beyond the record", b"\x0a\x05\x0a\x09abc", INTS, None),
    ("map beyond the record", b"\x0a\x50" + example(entry(b"a", ints(5)))[2:], INTS, None),
    ("floats of odd length", example(entry(b"a", field(0x12, field(0x0A, bytes(6))))), FLOATS, None),
]


def plain(value: Any) -> Any:
    """Numpy taken off."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


@pytest.mark.parametrize(
    ("record", "feature", "expected"), [case[1:] for case in AS_TENSORFLOW], ids=[c[0] for c in AS_TENSORFLOW]
)
def test_values_are_those_of_tensorflow(record: bytes, feature: Feature, expected: Any) -> None:
    """One record alone, and as part of a batch, among records that are laid out in the usual way and its own way."""
    parse = parse_example({"a": feature})
    if expected is None:
        with pytest.raises(CorruptRecordError):
            parse(record)
        with pytest.raises(CorruptRecordError, match="record 1 of the 20"):
            parse([record if index == 1 else parseable(feature) for index in range(20)])
        return
    assert plain(parse(record)["a"]) == expected
    assert plain(parse(memoryview(bytearray(record)))["a"]) == expected
    batch = parse([record if index % 2 else parseable(feature) for index in range(20)])
    padded = expected or ([[0, 0]] if isinstance(feature, FixedLenSequenceFeature) else expected)
    assert all(plain(value) == padded for value in batch["a"][1::2])
    assert all(plain(value) == expected for value in parse([record] * 20)["a"])


def parseable(feature: Feature) -> bytes:
    """An ordinary record for the feature."""
    if isinstance(feature, FixedLenSequenceFeature):
        return serialize_example({"a": [5, 6]})
    return serialize_example({"a": {"int64": 5, "float32": 0.5, "bytes": b"s"}[feature.dtype]})


NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(NUMBERS, max_size=5).map(lambda items: np.array(items, np.int64)),
    st.lists(st.floats(width=32), max_size=5).map(lambda items: np.array(items, np.float32)),
    st.lists(st.binary(max_size=200), min_size=1, max_size=4),
)


@given(st.dictionaries(st.text(max_size=150), VALUES, min_size=1, max_size=5))
def test_what_is_serialized_is_parsed_back(features: dict[str, Any]) -> None:
    """Every kind and count of values survives, in fixed and ragged features."""
    record = serialize_example(features)
    spec: dict[str, Feature] = {}
    fixed: dict[str, Feature] = {}
    for name, value in features.items():
        kind: Any = bytes if isinstance(value, list) else value.dtype
        spec[name] = VarLenFeature(kind)
        fixed[name] = FixedLenFeature([len(value)], kind)
    for parsed in (parse_example(spec)(record), parse_example(fixed)(record)):
        for name, value in features.items():
            if isinstance(value, list):
                assert parsed[name].tolist() == value
            else:
                assert parsed[name].dtype == value.dtype
                assert parsed[name].tobytes() == value.tobytes()


def test_records_of_tensorflow_are_written_byte_for_byte() -> None:
    """The bytes equal those of tf.train.Example(...).SerializeToString(deterministic=True) of TensorFlow 2.21."""
    features = {"a": [1, -1, 300], "b": 0.5, "c": [b"x", ""], "d": None, "e": np.empty(0, np.int64), "f": "y" * 200}
    expected = bytes.fromhex(
        "0a9c020a160a016112111a0f0a0d01ffffffffffffffffff01ac020a0d0a0162120812060a040000003f0a0c0a016312070a050a01780a00"
        "0a050a016412000a070a016512021a000ad4010a016612ce010acb010ac801"
    )
    assert serialize_example(features) == expected + b"y" * 200


def test_dtypes_and_shapes_of_what_comes_back() -> None:
    """One value is a numpy scalar or bytes; more are arrays; arrays can be written to and own their memory."""
    parse = parse_example(
        {
            "i": INT,
            "f": FixedLenFeature((), np.float32),
            "s": FixedLenFeature([], "string"),
            "v": FixedLenFeature([2, 2], "int64"),
            "t": FixedLenFeature(2, str),
            "r": RaggedFeature(float, value_key="many"),
        }
    )
    record = bytearray(
        serialize_example({"i": 1, "f": 2.5, "s": "é", "v": [[1, 2], [3, 4]], "t": ["a", "b"], "many": [0.5, 1.5]})
    )
    found = parse(record)
    record[:] = bytes(len(record))
    assert (type(found["i"]), type(found["f"]), type(found["s"])) == (np.int64, np.float32, bytes)
    assert (found["i"], found["f"], found["s"]) == (1, 2.5, "é".encode())
    assert found["v"].tolist() == [[1, 2], [3, 4]]
    assert found["t"].tolist() == [b"a", b"b"]
    assert found["r"].dtype == np.float32
    assert found["r"].tolist() == [0.5, 1.5]
    found["v"][0, 0] = 9


@pytest.mark.parametrize("size", [10, 100_000])
def test_zero_copy_gives_views_of_the_record(size: int) -> None:
    """With zero_copy, bytes values lie in the record itself, whatever its size; without, they are bytes."""
    record = bytearray(serialize_example({"image": b"\1" * size}))
    found = parse_example({"image": FixedLenFeature([], bytes)}, zero_copy=True)(record)["image"]
    assert isinstance(found, memoryview)
    record[-1] = 7
    assert found[-1] == 7
    found.release()
    rows = np.array([[0, len(record)]] * 9)
    buffer = record + bytes(400)
    column = parse_example({"image": FixedLenFeature([], bytes)}).rows(memoryview(buffer), rows)["image"]
    buffer[len(record) - 1] = 8
    assert [view[-1] for view in column.views()] == [8] * 9
    assert len(column[0]) == size


def test_batches_have_one_entry_per_record() -> None:
    """Fixed numbers become one array, single strings a BytesArray, the rest as documented; none is lost."""
    spec: dict[str, Feature] = {
        "i": INT,
        "v": FixedLenFeature([2], float),
        "s": FixedLenFeature([], bytes),
        "t": FixedLenFeature([2], bytes, ["p", "q"]),
        "r": INTS,
        "d": FixedLenFeature([], float, -1.0),
    }
    records = []
    for index in range(100):
        features: dict[str, Any] = {"i": index, "v": [index, 0.5], "s": b"%d" % index, "r": list(range(index % 4))}
        if index % 3:
            features["t"] = [b"x", b"%d" % index]
            features["d"] = index / 2
        records.append(serialize_example(features))
    parse = parse_example(spec)
    for batch in (parse(records), parse.batched([memoryview(record) for record in records])):
        assert list(batch) == list(spec)
        assert plain(batch["i"]) == list(range(100))
        assert plain(batch["v"]) == [[index, 0.5] for index in range(100)]
        assert batch["s"] == [b"%d" % index for index in range(100)]
        assert isinstance(batch["t"], np.ndarray)
        assert batch["t"].shape == (100, 2)
        assert batch["t"][3].tolist() == [b"p", b"q"]
        assert batch["t"][4].tolist() == [b"x", b"4"]
        assert [plain(value) for value in batch["r"]] == [list(range(index % 4)) for index in range(100)]
        assert plain(batch["d"]) == [index / 2 if index % 3 else -1.0 for index in range(100)]
    assert plain(parse([])["i"]) == []
    assert parse([])["s"] == []


@pytest.mark.parametrize(
    ("spec", "record", "words"),
    [
        ({"a": INT}, {"b": 1}, ["'a'", "missing", "int64"]),
        ({"a": INT}, {"a": 0.5}, ["'a'", "holds float32", "expected int64"]),
        ({"a": INT}, {"a": "x"}, ["'a'", "holds bytes", "expected int64"]),
        ({"a": FixedLenFeature([3], bytes)}, {"a": ["x"]}, ["'a'", "holds 1 value,", "expected 3"]),
        ({"a": FixedLenFeature([2, 2], float)}, {"a": [1.5] * 5}, ["'a'", "holds 5 values", "(2, 2)"]),
    ],
)
def test_errors_name_feature_found_and_expected(spec: Any, record: Any, words: list[str]) -> None:
    """The message says which feature, what it holds, and what the spec says; in a batch, which record too."""
    parse, bad = parse_example(spec), serialize_example(record)
    with pytest.raises(CorruptRecordError) as caught:
        parse(bad)
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(CorruptRecordError, match="record 0 of the 12 in the batch"):
        parse([bad] * 12)


def test_records_that_are_no_examples_say_what_they_look_like() -> None:
    """Length and first bytes help to find out what was read instead."""
    parse = parse_example({"a": INT})
    for record in (
        b"\xff\xd8\xff\xe0 a JPEG",
        b"some text",
        b"\x0a",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ):
        with pytest.raises(CorruptRecordError, match=f"not a tf.train.Example.*{record[:8].hex(' ')}"):
            parse(record)


def test_parsers_travel_to_other_processes() -> None:
    """A parser is picklable, defaults included, and shows its features."""
    parse = parse_example({"a": FixedLenFeature([2], int, [1, 2]), "b": VarLenFeature(bytes)}, zero_copy=True)
    again = pickle.loads(pickle.dumps(parse))
    assert again.spec == parse.spec
    assert again.zero_copy
    assert plain(again(b"")["a"]) == [1, 2]
    assert repr(again) == "parse_example(a, b)"


@pytest.mark.parametrize("bits", [0x7F800001, 0xFFC12345, 0x80000000, 0x00000001])
def test_floats_keep_their_bits(bits: int) -> None:
    """Those of a NaN too, in one record, in a few and in many."""
    value = np.array([bits], np.uint32).view(np.float32)
    record = serialize_example({"x": value})
    parse = parse_example({"x": FixedLenFeature((), float)})
    assert parse(record)["x"].view(np.uint32) == bits
    for count in (2, 100):
        assert parse([record] * count)["x"].view(np.uint32).tolist() == [bits] * count


def test_two_names_may_share_a_key() -> None:
    """A RaggedFeature's value_key may be another feature's key; both get the values."""
    parse = parse_example({"a": INT, "b": RaggedFeature(int, value_key="a")})
    batch = parse([serialize_example({"a": index}) for index in range(20)])
    assert plain(batch["a"]) == list(range(20))
    assert [plain(value) for value in batch["b"]] == [[index] for index in range(20)]


@pytest.mark.parametrize("seed", range(6))
def test_damaged_records_raise_or_parse_and_nothing_else(seed: int) -> None:
    """Any bytes give values or a CorruptRecordError: no other exception, and no endless loop."""
    source = random.Random(seed)
    parse = parse_example({"a": INT_7, "v": INTS, "f": FLOATS, "s": STRINGS})
    good = serialize_example({"a": 300, "v": list(range(100)), "f": [0.5] * 9, "s": ["x", "yz" * 80]})
    for _ in range(500):
        damaged = bytearray(good[: source.choice([len(good), source.randrange(1, len(good))])])
        for _ in range(source.randint(0, 3)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        try:
            assert set(parse(bytes(damaged))) == {"a", "v", "f", "s"}
        except CorruptRecordError:
            continue


@pytest.mark.parametrize("shape", [[0], [0, 2], [2, 0]])
@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("count", [1, 300])
def test_shapes_without_numbers(shape: list[int], kind: type[int | float], count: int) -> None:
    """A block of them has a row for each record all the same."""
    record = serialize_example({"a": np.zeros(0, np.int64 if kind is int else np.float32), "b": 1})
    parse = parse_example({"a": FixedLenFeature(shape, kind), "b": FixedLenFeature([], int)})
    values = parse([record] * count)
    assert values["a"].shape == (count, *shape)
    assert values["b"].tolist() == [1] * count


@pytest.mark.parametrize(
    "records",
    ["text", ["text"], 3, {"a": b"b"}, [[b"a"]], np.array([[b"a"], [b"b"]], object), np.zeros(4, np.uint8), [None]],
    ids=repr,
)
def test_what_is_no_batch_of_records_is_refused(records: Any) -> None:
    """By both parsers, with a TypeError; no address and no character is parsed for a record."""
    feature = ad.FixedLenFeature((), int, 7)
    for parse in (ad.parse_example({"a": feature}), ad.parse_sequence_example({"a": feature}, {})):
        with pytest.raises(TypeError, match="bytes"):
            parse(records)
        batch = parse(np.array([b"", b""], object))
        assert (batch if isinstance(batch, dict) else batch[0])["a"].tolist() == [7, 7]
