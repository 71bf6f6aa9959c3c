"""Examples read one by one without a spec: what was written is found; damage is an error and nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.scalar import features_of

VALUES = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1).map(lambda x: np.array(x, np.int64)),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1).map(lambda x: np.array(x, np.float32)),
)
FEATURES = st.dictionaries(st.text(max_size=40), VALUES)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@given(FEATURES)
def test_what_was_written_is_found(features: dict[str, Any]) -> None:
    """Names, kinds and values of all features."""
    found = features_of(ad.serialize_example(features))
    assert {name: plain(value) for name, value in found.items()} == {
        name: plain(value) for name, value in features.items()
    }
    for name, value in features.items():
        assert found[name].dtype == (value.dtype if isinstance(value, np.ndarray) else object)


def test_sequence_examples() -> None:
    """The context's features, and the steps of each feature list."""
    record = ad.serialize_sequence_example({"id": 3}, {"words": [[b"a"], [b"b", b"c"]], "lengths": [[1], [2]]})
    found = features_of(record)
    assert found["id"].tolist() == [3]
    assert [step.tolist() for step in found["words"]] == [[b"a"], [b"b", b"c"]]
    assert [step.tolist() for step in found["lengths"]] == [[1], [2]]


def test_features_without_values() -> None:
    """A feature that was never set has no list; an empty record has no feature."""
    assert features_of(b"\x0a\x07\x0a\x05\x0a\x01x\x12\x00") == {"x": None}
    assert features_of(b"") == {}


@given(st.one_of(st.binary(), st.tuples(FEATURES, st.integers(0, 1 << 30), st.integers(1, 255))))
def test_damaged_records(drawn: Any) -> None:
    """Any bytes are an Example or raise the error for records."""
    if not isinstance(drawn, bytes):
        features, at, turned = drawn
        record = bytearray(ad.serialize_example(features) or b"\x0a")
        record[at % len(record)] ^= turned
        drawn = bytes(record)
    with contextlib.suppress(CorruptRecordError):
        assert isinstance(features_of(drawn), dict)


def test_other_bytes_are_refused() -> None:
    """Text, for instance."""
    with pytest.raises(CorruptRecordError):
        features_of(b"hello, this is text")
