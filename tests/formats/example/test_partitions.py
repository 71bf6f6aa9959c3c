"""Values are cut into rows by other lists of the record, and lists that do not fit are errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.example.features import RaggedFeature
from asyncdata.formats.example.parser import parse_example
from asyncdata.formats.example.partitions import UniformRowLength
from asyncdata.formats.example.serialize import serialize_example

LENGTHS = [2, 0, 3]
WAYS: dict[str, tuple[Any, list[int]]] = {
    "lengths": (RaggedFeature.RowLengths("p"), LENGTHS),
    "splits": (RaggedFeature.RowSplits("p"), [0, 2, 2, 5]),
    "starts": (RaggedFeature.RowStarts("p"), [0, 2, 2]),
    "limits": (RaggedFeature.RowLimits("p"), [2, 2, 5]),
    "ids": (RaggedFeature.ValueRowIds("p"), [0, 0, 2, 2, 2]),
}


def record(values: list[int], numbers: list[int]) -> bytes:
    return serialize_example({"x": np.array(values, np.int64), "p": np.array(numbers, np.int64)})


@pytest.mark.parametrize(("partition", "numbers"), WAYS.values(), ids=WAYS)
def test_rows_are_cut_alone_and_in_a_batch(partition: Any, numbers: list[int]) -> None:
    """Each way to say where rows lie gives the same rows; a record without values has none."""
    parse = parse_example({"x": RaggedFeature(int, partitions=[partition])})
    full = record([1, 2, 3, 4, 5], numbers)
    rows = [[1, 2], [], [3, 4, 5]]
    assert parse(full)["x"].to_list() == rows
    batch = parse([full, serialize_example({}), full])["x"]
    assert batch.to_list() == [rows, [], rows]
    assert all(splits.dtype == np.int32 for splits in batch.nested_row_splits)


@pytest.mark.parametrize(
    ("partition", "numbers"),
    [
        (RaggedFeature.RowLengths("p"), [2, 2]),
        (RaggedFeature.RowLengths("p"), [6, -1]),
        (RaggedFeature.RowLengths("p"), [1 << 62, 1 << 62, 1 << 62, 1 << 62, 5]),
        (RaggedFeature.RowSplits("p"), [1, 5]),
        (RaggedFeature.RowSplits("p"), [0, 6, 5]),
        (RaggedFeature.RowStarts("p"), [1, 3]),
        (RaggedFeature.RowStarts("p"), [0, 6]),
        (RaggedFeature.RowLimits("p"), [2, 4]),
        (RaggedFeature.ValueRowIds("p"), [0, 0, 0, 0]),
        (RaggedFeature.ValueRowIds("p"), [0, 0, 2, 1, 3]),
        (RaggedFeature.ValueRowIds("p"), [-1, 0, 0, 0, 0]),
        (RaggedFeature.ValueRowIds("p"), [0, 0, 0, 0, 1 << 60]),
        (RaggedFeature.ValueRowIds("p"), [0, (1 << 63) - 1, -(1 << 63), -1, 5]),
        (UniformRowLength(2), []),
    ],
)
def test_rows_that_do_not_fit_are_errors(partition: Any, numbers: list[int]) -> None:
    """Whatever the numbers say: the message names the feature, and in a batch the record."""
    parse = parse_example({"x": RaggedFeature(int, partitions=[partition])})
    with pytest.raises(CorruptRecordError, match="'x'"):
        parse(record([1, 2, 3, 4, 5], numbers))
    with pytest.raises(CorruptRecordError, match=r"record 1 of the 3 .*'x'"):
        parse([serialize_example({}), record([1, 2, 3, 4, 5], numbers), serialize_example({})])


def test_partitions_nest() -> None:
    """Outermost first: each cuts what the one behind it made; rows of one length are a regular axis."""
    spec = {"x": RaggedFeature(int, partitions=[RaggedFeature.RowLengths("p"), UniformRowLength(2)])}
    found = parse_example(spec)(record([1, 2, 3, 4, 5, 6], [1, 2]))["x"]
    assert found.to_list() == [[[1, 2]], [[3, 4], [5, 6]]]
    assert found.shape == (2, None, 2)
    spec = {"x": RaggedFeature(int, partitions=[UniformRowLength(2), RaggedFeature.RowLengths("p")])}
    assert parse_example(spec)(record([1, 2, 3], [1, 0, 2, 0]))["x"].to_list() == [[[1], []], [[2, 3], []]]


def test_impossible_partitions_are_refused() -> None:
    """Rows of no values, things that are no partition, and splits of another dtype."""
    with pytest.raises(ValueError, match="length must be at least 1"):
        UniformRowLength(0)
    with pytest.raises(TypeError, match="partitions must hold"):
        RaggedFeature(int, partitions=["p"])  # type: ignore[list-item]  # what is refused
    with pytest.raises(ValueError, match="row_splits_dtype"):
        RaggedFeature(int, row_splits_dtype=np.float32)
