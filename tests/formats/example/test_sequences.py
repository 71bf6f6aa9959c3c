"""Contexts and sequences come back as they were written; what is wrong is named."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.features import FixedLenFeature, FixedLenSequenceFeature, RaggedFeature, VarLenFeature
from asyncdata.formats.example.sequences import parse_sequence_example
from asyncdata.formats.example.serialize import serialize_sequence_example

CONTEXT: Any = {"id": FixedLenFeature([], int), "tags": VarLenFeature(bytes)}
SEQUENCES: Any = {
    "x": FixedLenSequenceFeature([2], float),
    "label": FixedLenSequenceFeature([], bytes, allow_missing=True),
    "ids": VarLenFeature(int),
    "cut": RaggedFeature(int, "ids", [RaggedFeature.UniformRowLength(1)]),
}


def record(steps: int) -> bytes:
    return serialize_sequence_example(
        {"id": steps, "tags": ["t"] * steps},
        {
            "x": [np.array([step, 0.5], np.float32) for step in range(steps)],
            "label": [b"%d" % step for step in range(steps)],
            "ids": [np.arange(step) for step in range(steps)],
        },
    )


def test_one_record() -> None:
    """A dict for the context, one for the sequences; a parser travels to other processes."""
    parse = pickle.loads(pickle.dumps(parse_sequence_example(CONTEXT, SEQUENCES)))
    context, sequences = parse(record(3))
    assert int(context["id"]) == 3
    assert context["tags"].tolist() == [b"t"] * 3
    assert sequences["x"].tolist() == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert sequences["label"].tolist() == [b"0", b"1", b"2"]
    assert sequences["ids"].to_list() == [[], [0], [0, 1]]
    assert sequences["cut"].to_list() == [[], [[0]], [[0], [1]]]


def test_a_batch_is_padded_or_ragged() -> None:
    """Fixed steps are padded and their numbers told; the rest is rows of rows."""
    context, sequences, lengths = parse_sequence_example(CONTEXT, SEQUENCES)([record(2), record(0), record(1)][:3:2])
    assert context["id"].tolist() == [2, 1]
    assert context["tags"].to_list() == [[b"t", b"t"], [b"t"]]
    assert sequences["x"].tolist() == [[[0, 0.5], [1, 0.5]], [[0, 0.5], [0, 0]]]
    assert sequences["label"].tolist() == [[b"0", b"1"], [b"0", b""]]
    assert sequences["ids"].to_list() == [[[], [0]], [[]]]
    assert {name: counts.tolist() for name, counts in lengths.items()} == {"x": [2, 1], "label": [2, 1]}


@pytest.mark.parametrize(
    ("sequences", "words"),
    [
        ({}, ["'x'", "missing"]),
        ({"x": [[0.5, 0.5], [0.5]]}, ["'x'", "step 1", "holds 1 value,"]),
        ({"x": [[1, 2]]}, ["'x'", "step 0", "holds int64"]),
        ({"x": [None]}, ["'x'", "step 0", "no value"]),
        ({"x": [], "ids": [["a"]]}, ["'ids'", "step 0", "holds bytes"]),
    ],
)
def test_errors_name_record_feature_and_step(sequences: Any, words: list[str]) -> None:
    """Alone and in a batch."""
    parse = parse_sequence_example({}, {"x": SEQUENCES["x"], "ids": SEQUENCES["ids"]})
    bad = serialize_sequence_example({}, sequences)
    with pytest.raises(CorruptRecordError) as caught:
        parse(bad)
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(CorruptRecordError, match="record 1 of the 2"):
        parse([serialize_sequence_example({}, {"x": []}), bad])


def test_partitions_have_the_steps_of_their_values() -> None:
    """In every record, also in a batch whose records have as many of both together."""
    ragged = RaggedFeature(int, "v", [RaggedFeature.RowLengths("l")])
    parse = parse_sequence_example({}, {"x": ragged})
    right = serialize_sequence_example({}, {"v": [[1, 2], [3]], "l": [[2], [1]]})
    lacking = serialize_sequence_example({}, {"v": [[1, 2], [3, 4]], "l": [[2]]})
    left_over = serialize_sequence_example({}, {"v": [[5, 6]], "l": [[1, 1], [2]]})
    assert parse([right, right])[1]["x"].to_list() == [[[[1, 2]], [[3]]]] * 2
    for bad in (lacking, left_over):
        with pytest.raises(CorruptRecordError, match="'x' and its partitions differ in steps"):
            parse(bad)
    with pytest.raises(CorruptRecordError, match="record 1 of the 3 in the batch: sequence feature 'x' and its"):
        parse([right, lacking, left_over])


def test_every_truncation_raises_or_parses_and_nothing_else() -> None:
    """No byte is read beyond the record."""
    parse, whole = parse_sequence_example(CONTEXT, SEQUENCES), record(3)
    for size in range(len(whole)):
        for place in (size, None):
            damaged = bytearray(whole if place is not None else whole[:size])
            if place is not None:
                damaged[place] ^= 0x84
            try:
                parse(bytes(damaged))
            except CorruptRecordError:
                continue


def test_impossible_specs_are_refused() -> None:
    """No feature at all, and fixed features without steps."""
    with pytest.raises(ValueError, match="no feature"):
        parse_sequence_example({}, {})
    with pytest.raises(TypeError, match="has steps"):
        parse_sequence_example({}, {"a": FixedLenFeature([], int)})
