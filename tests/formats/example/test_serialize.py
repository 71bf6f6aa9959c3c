"""Writing Examples: protobuf's bytes, each of them written once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncdata.formats.example.serialize import serialize_example, serialize_sequence_example
from benchmarks.protobuf_examples import message_classes
from tests.samples import samples

CLASSES = message_classes()
LISTS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
FORMS: dict[str, tuple[Callable[[Sequence[Any]], Any], ...]] = {
    "bytes_list": (
        list,
        tuple,
        lambda values: [bytearray(value) for value in values],
        lambda values: [memoryview(value) for value in values],
        lambda values: np.array(values, object),
        lambda values: [np.bytes_(value) if not value.endswith(b"\0") else value for value in values],
    ),
    "float_list": (
        list,
        tuple,
        lambda values: np.array(values, np.float64),
        lambda values: np.array(values, ">f8"),
        lambda values: [np.float64(value) for value in values],
        lambda values: np.array([*values, 0.5])[:-1].reshape(1, -1),
    ),
    "int64_list": (
        list,
        tuple,
        lambda values: np.array(values, np.int64),
        lambda values: np.array(values, ">i8"),
        lambda values: [np.int64(value) for value in values],
        lambda values: np.array([number for value in values for number in (value, 0)], np.int64)[::2],
    ),
}
# Around the sizes at which a length needs another byte.
STRINGS = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([100, 113, 119, 120, 127, 128, 300, 990, 999, 1000, 1001, 16_370, 16_383, 16_384]).map(bytes),
)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 300),
    st.builds(lambda power, off: min(2**power + off, 2**63 - 1), st.integers(0, 63), st.integers(-1, 1)),
)
FLOATS = st.one_of(st.floats(width=32), st.floats(-3e38, 3e38))


@st.composite
def features(draw: st.DrawFn) -> tuple[Any, Any]:
    """A value as it may be given, and the Feature that protobuf makes of it."""
    field = draw(st.sampled_from([*LISTS, ""]))
    if not field:
        return draw(st.sampled_from([None, [], ()])), CLASSES["Feature"]()
    items = {"bytes_list": STRINGS, "float_list": FLOATS, "int64_list": NUMBERS}[field]
    values = draw(st.lists(items, max_size=3)) * draw(st.sampled_from([1, 1, 1, 10, 30, 50]))
    message = CLASSES["Feature"](**{field: CLASSES[LISTS[field]](value=values)})
    if len(values) == 1 and draw(st.booleans()):
        return values[0], message
    if not values:
        return np.empty(0, {"bytes_list": object, "float_list": np.float32, "int64_list": np.int64}[field]), message
    return draw(st.sampled_from(FORMS[field]))(values), message


def example_of(entries: dict[str, Any]) -> Any:
    """An Example with these features."""
    example = CLASSES["Example"]()
    for key, message in entries.items():
        example.features.feature[key].CopyFrom(message)
    return example


def canonical(message: Any) -> bytes:
    """The bytes of a message, with the keys in protobuf's order."""
    return bytes(message.SerializeToString(deterministic=True))


def same(made: bytes, message: Any) -> bool:
    """Whether these are the bytes of a message but for the order of its keys."""
    return len(made) == message.ByteSize() and canonical(type(message).FromString(made)) == canonical(message)


KEYS = st.one_of(
    st.text(max_size=20),
    st.builds(lambda text, size: text + size * "k", st.text(max_size=5), st.sampled_from([120, 990])),
)
MAPS = st.dictionaries(KEYS, features(), max_size=4)


@settings(max_examples=samples(100, 3000))
@given(KEYS, features())
def test_the_bytes_are_those_of_protobuf(key: str, feature: tuple[Any, Any]) -> None:
    """Every kind, number, form and size of values gives protobuf's own bytes."""
    value, message = feature
    assert serialize_example({key: value}) == example_of({key: message}).SerializeToString()


@settings(max_examples=samples(50, 3000))
@given(MAPS, st.dictionaries(KEYS, st.lists(features(), max_size=3), max_size=2))
def test_many_features_are_protobufs_in_the_callers_order(
    context: dict[str, tuple[Any, Any]], lists: dict[str, list[tuple[Any, Any]]]
) -> None:
    """An Example and a SequenceExample of any features are protobuf's, but for the order of the keys."""
    values = {key: value for key, (value, _) in context.items()}
    example = example_of({key: message for key, (_, message) in context.items()})
    assert same(serialize_example(values), example)
    sequence = CLASSES["SequenceExample"](context=example.features if context else None)
    for key, steps in lists.items():
        sequence.feature_lists.feature_list[key].feature.extend(message for _, message in steps)
    steps_of = {key: [value for value, _ in steps] for key, steps in lists.items()}
    assert same(serialize_sequence_example(values, steps_of), sequence)


class Five:
    """Not an int, but converts to one and adds like one."""

    def __index__(self) -> int:
        return 5

    def __radd__(self, other: int) -> int:
        return other + 5

    def __repr__(self) -> str:
        return "Five()"  # names a test: the same in every process


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([1, Five()], TypeError),
        ([0.5, Five()], TypeError),
        ([0.5, Fraction(1, 2)], TypeError),
        ([1, b"a"], TypeError),
        ([1, None], TypeError),
        ([None], TypeError),
        ([b"a", 1], TypeError),
        ([b"ab", np.zeros(2, np.int16)], TypeError),
        ([1j, 1j], TypeError),
        ([1 << 63], OverflowError),
        ([1, 1 << 63], OverflowError),
        ([-1, -(1 << 63) - 1], OverflowError),
        ([1, -1, 1 << 70], OverflowError),
        ([1, np.uint64(1 << 63)], OverflowError),
        ([[1], [2, 3]], TypeError),
        ([[b"a"], 1], TypeError),
    ],
    ids=str,
)
@pytest.mark.parametrize("repeats", [1, 20, 200])
def test_what_cannot_be_stored_is_named(values: list[Any], error: type[Exception], repeats: int) -> None:
    """Short and long lists alike; what merely converts to a number is none."""
    with pytest.raises(error, match="feature 'key'"):
        serialize_example({"key": values * repeats})


@pytest.mark.parametrize(
    ("values", "plain"),
    [
        ([1, True, False], [1, 1, 0]),
        ([1, np.int32(2)], [1, 2]),
        ([1, np.uint64((1 << 60) + 1)], [1, (1 << 60) + 1]),
        ([1, 0.5], [1.0, 0.5]),
        ([0.5, 1], [0.5, 1.0]),
        ([0.5, np.float64(0.1)], [0.5, 0.1]),
        ([b"ab", "cd"], [b"ab", b"cd"]),
        ([b"ab", bytearray(b"cd"), memoryview(b"ef")], [b"ab", b"cd", b"ef"]),
        ([[1, 2], [3, 4]], [1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("repeats", [1, 20, 200])
def test_types_that_belong_together_are_mixed(values: list[Any], plain: list[Any], repeats: int) -> None:
    """As the list in which all have the plain type; so does an array of objects."""
    assert serialize_example({"key": values * repeats}) == serialize_example({"key": plain * repeats})
    objects = np.empty(len(values) * repeats, object)
    objects[:] = values * repeats
    if not isinstance(values[0], list):
        assert serialize_example({"key": objects}) == serialize_example({"key": plain * repeats})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None], "numbers like the first item, not None"),
        ([0.5, "a"], "numbers like the first item, not a str"),
        ([b"a", 1], "bytes or str like the first item, not an int"),
        ([None, 1], "bytes, str, numbers, or a list or array of one of these, not None"),
    ],
)
def test_the_item_that_does_not_belong_is_named(values: list[Any], expected: str) -> None:
    """And not one that could be stored."""
    with pytest.raises(TypeError, match=expected):
        serialize_example({"key": values})


def test_the_order_of_keys_is_the_callers() -> None:
    """The entries lie in it as they were given."""
    assert serialize_example({"b": 1, "a": 2})[2:] == serialize_example({"b": 1})[2:] + serialize_example({"a": 2})[2:]


@pytest.mark.parametrize(
    "value",
    [
        bytes(4 << 20),
        bytearray(4 << 20),
        memoryview(bytes(4 << 20)),
        np.zeros(1 << 20, np.float32),
        [bytes(1 << 20)] * 4,
    ],
    ids=["bytes", "bytearray", "memoryview", "float32", "strings"],
)
def test_a_payload_is_written_once(value: Any) -> None:
    """The record is the only memory of its size that is taken while it is made."""
    tracemalloc.start()
    try:
        record = serialize_example({"first": 1, "payload": value, "last": "x"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(record) <= peak < len(record) + (64 << 10)  # what other threads take meanwhile is counted, too


@pytest.mark.parametrize("dtype", [np.int64, np.float32, "S1"])
@pytest.mark.parametrize("count", [1, 100])
def test_masked_arrays_are_refused(dtype: Any, count: int) -> None:
    """What lies under a mask is no value of the feature."""
    masked = np.ma.array(np.zeros(count, dtype), mask=True)
    for value in (masked, [masked], [masked, masked]):
        with pytest.raises(TypeError, match=r"^feature 'x': .* lose the mask .* array.filled"):
            serialize_example({"x": value})


@pytest.mark.parametrize("value", [[[]], [[], []], ([],), [[[]]]])
def test_lists_of_no_values_are_no_value(value: Any) -> None:
    """They are flattened like others, and so have no kind; an empty array has one."""
    assert serialize_example({"x": value}) == serialize_example({"x": []})
    assert serialize_example({"x": np.array(value)}) == serialize_example({"x": np.empty(0)})


def test_odd_views_are_written_as_their_bytes() -> None:
    """Of numbers, strided, and empty."""
    numbers = np.arange(6, dtype=np.int32).data
    for view in (numbers, numbers[::2], memoryview(b""), np.empty(0, np.int32).data):
        assert serialize_example({"v": view}) == serialize_example({"v": view.tobytes()})


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: serialize_example(5), "a dict of values by name, not of 5"),  # type: ignore[arg-type]  # that is the case
        (lambda: serialize_example({5: 1}), "must be texts, not 5"),  # type: ignore[dict-item]  # likewise
        (lambda: serialize_sequence_example({}, [1]), "a dict of values by name"),  # type: ignore[arg-type]  # likewise
    ],
)
def test_what_is_no_dict_of_names(made: Callable[[], bytes], why: str) -> None:
    """The error says what is wanted."""
    with pytest.raises(TypeError, match=why):
        made()


@pytest.mark.parametrize("steps", ["abc", b"ab", bytearray(b"ab"), memoryview(b"ab"), {"a": 1}, 5, None])
def test_what_is_no_list_of_steps(steps: Any) -> None:
    """Nothing is taken apart into steps that nobody wrote: bytes into numbers, or a dict into its keys."""
    with pytest.raises(TypeError, match="feature 'words': expected a list of steps"):
        serialize_sequence_example({}, {"words": steps})


def test_a_text_that_is_no_utf_8_names_its_feature() -> None:
    """A half of a surrogate pair, as from a file name or from JSON."""
    with pytest.raises(ValueError, match=r"feature .word.: .*surrogates not allowed"):
        serialize_example({"word": "\ud800"})
