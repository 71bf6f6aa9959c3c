"""States as JSON: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import contextlib
import enum
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from asyncdata.errors import StateError
from asyncdata.memory.advance import RecordMark, Slots, State
from asyncdata.runtime.state.json_codec import compressed, from_json, to_json

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([np.str_("x"), np.bytes_(b"x"), np.float16(2), np.bool_(True), np.uint64(1 << 63)])
    | st_numpy.arrays(st.sampled_from(["<i8", "<f4", "u1", "?", "<U3", "S2"]), st_numpy.array_shapes(max_dims=2))
    | st_numpy.arrays("<i8", st.integers(0, 50))
)
VALUES = st.recursive(
    PLAIN,
    lambda part: (
        st.lists(part, max_size=3)
        | st.tuples(part, part)
        | st.dictionaries(st.text(max_size=2) | st.integers(), part, max_size=3)
        | st.builds(State, part, st.integers(0, 1 << 40))
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are of the same types and equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return bool(one == other)


@given(VALUES)
def test_what_is_saved_comes_back(value: Any) -> None:
    """Also through the text."""
    assert same(from_json(json.loads(json.dumps(to_json(value)))), value)


def test_compact_marks_are_written_as_lists_and_dicts() -> None:
    """Slots of an interleave, free ones too, and places in files; so stages and earlier versions read them."""
    place, state = RecordMark(3, 1 << 40, "7"), State({"at": 4}, 2)
    given = [(0, State(place, 300)), None, (1 << 33, state), (2, State(None, 0)), (3, State(RecordMark(0, 0, None), 1))]
    slots = Slots.of(given)
    read = from_json(json.loads(json.dumps(to_json({"slots": slots}))))
    assert read == {
        "slots": [
            {"row": 0, "state": State({"record": 3, "offset": 1 << 40, "version": "7"}, 300)},
            None,
            {"row": 1 << 33, "state": state},
            {"row": 2, "state": State(None, 0)},
            {"row": 3, "state": State({"record": 0, "offset": 0, "version": None}, 1)},
        ]
    }


def test_slots_share_what_is_the_same() -> None:
    """Of the mark before, by identity: what marks hold is never compared."""
    version, array, row = "a version", np.zeros(2), 1 << 40
    before = Slots.of([(row, State(RecordMark(1, 20, version), 0)), (5, State({"buffer": array}, 0))])
    after: list[tuple[int, State] | None] = [
        (row, State(RecordMark(2, 30, version), 4)),
        (5, State(before.marks[1], 9)),
    ]
    found = Slots.of(after, before)
    assert found.rows is before.rows
    assert found.marks is before.marks
    assert found == Slots.of(after)
    assert found.written()[0] == {"row": 1 << 40, "state": State(RecordMark(2, 30, version), 4)}
    other = Slots.of([after[0], (5, State({"buffer": array.copy()}, 9))], before)
    assert other.rows is before.rows
    assert other.marks is not before.marks
    assert Slots.of(after[:1], before).rows == (1 << 40,)


@given(st.integers(0, 100), st.integers(-(1 << 62), 1 << 62))
def test_rows_of_a_buffer_take_a_few_bytes_each(count: int, first: int) -> None:
    """They lie close together."""
    rows = first + np.arange(count) * 3
    text = json.dumps(to_json(rows))
    assert len(text) < 150 + 8 * count
    assert np.array_equal(from_json(json.loads(text)), rows)


class Phase(enum.StrEnum):
    """Would come back as a text."""

    WARM = "warm"


RECORD = np.zeros((), [("a", "i4"), ("b", "f8")])[()]


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), lambda: None, 1j, Phase.WARM, RECORD])
def test_other_objects_are_refused(value: Any) -> None:
    """The message names the type."""
    with pytest.raises(StateError, match="cannot be saved"):
        to_json({"part": [value]})


def test_the_buffer_of_a_shuffle_takes_two_to_three_bytes_a_row() -> None:
    """In any order, of rows that are up to nine buffers old."""
    rows = np.random.default_rng(1).permutation(90_000)[:10_000].astype(np.int64)
    text = json.dumps(to_json(rows))
    assert len(text) < 3.3 * len(rows)
    assert np.array_equal(from_json(json.loads(text)), rows)


def test_arrays_of_earlier_versions_are_read() -> None:
    """Differences were stored whole, in four or eight bytes."""
    rows = np.array([5, 3, 1 << 20, -7])
    for width in ("<i4", "<i8"):
        data = compressed(np.diff(rows, prepend=0).astype(width).tobytes())
        value = {"~": "array", "dtype": "<i8", "shape": [4], "differences": width, "data": data}
        assert np.array_equal(from_json(value), rows)


@pytest.mark.parametrize(
    "damaged",
    [
        {"~": "nothing"},
        {"~": "state"},
        {"~": "state", "mark": None, "skip": -1},
        {"~": "state", "mark": None, "skip": True},
        {"~": "bytes", "data": "%%"},
        {"~": "array", "dtype": "<i8", "shape": [2], "data": "AAAA"},
        {"~": "array", "dtype": "|O", "shape": [1], "data": ""},
        {"~": "array", "dtype": "<i8", "shape": [1 << 40], "data": ""},
        {"~": "array", "dtype": "<i8", "shape": [-1], "data": ""},
        {"~": "array", "dtype": [["a", "<i8"]], "shape": [1], "data": ""},
        {"~": "array", "dtype": "<i8", "shape": [2], "planes": 9, "data": compressed(bytes(18))},
        {"~": "array", "dtype": "<i8", "shape": [2], "planes": True, "data": compressed(bytes(2))},
        {"~": "array", "dtype": "<i8", "shape": [2], "planes": 2, "data": compressed(bytes(3))},
        {"~": "array", "dtype": "<i8", "shape": [2, 2], "planes": 1, "data": compressed(bytes(4))},
        {"~": "array", "dtype": "<i8", "shape": [-1], "planes": 1, "data": compressed(b"")},
        {"~": "array", "dtype": "<i8", "shape": [1 << 40], "planes": 8, "data": compressed(b"")},
        {"~": "dict", "items": [[[1], 2]]},
        {"~": "tuple", "items": 3},
    ],
)
def test_damaged_states_are_errors(damaged: Any) -> None:
    """Of one kind; nothing is executed and nothing large is allocated."""
    with pytest.raises(StateError):
        from_json(damaged)


def test_deep_nests_are_an_error() -> None:
    """Not the interpreter's."""
    value: Any = 1
    for _ in range(5000):
        value = [value]
    with pytest.raises(StateError, match="nested"):
        from_json(value)


WORDS = st.sampled_from(["state", "array", "tuple", "dict", "bytes", "scalar", "float"])
KEYS = st.sampled_from(["~", "mark", "skip", "data", "dtype", "shape", "items", "value"])
RUBBISH = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | WORDS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=4),
    max_leaves=10,
)


@given(RUBBISH)
def test_rubbish_is_read_or_refused(value: Any) -> None:
    """With one kind of error."""
    with contextlib.suppress(StateError):
        from_json(value)
