"""How the values of a `RaggedFeature` are cut into rows: the partitions of tf.io.RaggedFeature.

A partition names another key of the record, an int64 list that says where rows begin or end, or a fixed length. Several
partitions nest, outermost first; each cuts the result of the one behind it. Cutting works on a whole batch at once::

    items     a b c d e | f          (two records)
    lengths   2 3       | 1          (RowLengths of each record)
    rows      [a b] [c d e] | [f]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.errors import CorruptRecordError
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import Flat, RaggedArray

IntArray: TypeAlias = npt.NDArray[np.int64]

_MAX_ROWS: Final = 1 << 24
"""Rows of one record that row ids may claim; a list of ids is as long as its values, the highest id may be anything."""


@dataclass(frozen=True, slots=True)
class RowSplits:
    """``key`` holds where rows begin and end: one more number than there are rows, the first 0."""

    key: str


@dataclass(frozen=True, slots=True)
class RowLengths:
    """``key`` holds the length of each row."""

    key: str


@dataclass(frozen=True, slots=True)
class RowStarts:
    """``key`` holds where each row begins."""

    key: str


@dataclass(frozen=True, slots=True)
class RowLimits:
    """``key`` holds where each row ends."""

    key: str


@dataclass(frozen=True, slots=True)
class ValueRowIds:
    """``key`` holds the row of each value, ascending."""

    key: str


@dataclass(frozen=True, slots=True)
class UniformRowLength:
    """Every row has ``length`` values; such a level is a regular axis where it is the innermost."""

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", arguments.integer("length", self.length, least=1))


Keyed: TypeAlias = RowSplits | RowLengths | RowStarts | RowLimits | ValueRowIds
Partition: TypeAlias = Keyed | UniformRowLength


def cut(
    name: str,
    items: Flat | RaggedArray,
    splits: IntArray,
    partitions: tuple[tuple[Partition, tuple[IntArray, IntArray] | None], ...],
    splits_dtype: Any,
) -> RaggedArray:
    """Cuts the values of every record of a batch.

    Args:
        name: The feature, for errors.
        items: The values of all records.
        splits: Which of them belong to which record.
        partitions: Each with its numbers and their splits over the records; outermost first.
        splits_dtype: Of the result's row splits.

    Raises:
        CorruptRecordError: If the rows of a record are not made of all its values.
    """
    for partition, numbers in reversed(partitions):
        counts = np.diff(splits)
        if isinstance(partition, UniformRowLength):
            length = partition.length
            _check(counts % length == 0, name, partition)
            rows = len(items) // length
            if isinstance(items, RaggedArray | BytesArray):
                items = RaggedArray(items, np.arange(rows + 1, dtype=splits_dtype) * splits_dtype(length))
            else:
                items = items.reshape(rows, length, *items.shape[1:])
            splits = splits // length
            continue
        assert numbers is not None
        values, bounds = numbers
        lengths, splits = _lengths(name, partition, values, bounds, counts)
        right = (lengths >= 0) & (lengths <= len(items))
        inside = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.where(right, lengths, 0))))
        wrong = np.concatenate((np.zeros(1, np.int64), np.cumsum(~right)))
        _check(
            (inside[splits[1:]] - inside[splits[:-1]] == counts) & (wrong[splits[1:]] == wrong[splits[:-1]]),
            name,
            partition,
        )
        items = RaggedArray(items, inside.astype(splits_dtype))
    return RaggedArray(items, splits.astype(splits_dtype))


def _lengths(
    name: str, partition: Keyed, values: IntArray, bounds: IntArray, counts: IntArray
) -> tuple[IntArray, IntArray]:
    """The length of every row, and which rows belong to which record."""
    if isinstance(partition, RowLengths):
        return values, bounds
    sizes = np.diff(bounds)
    filled = np.flatnonzero(sizes)
    firsts = bounds[:-1][filled]
    if isinstance(partition, ValueRowIds):
        falls = np.zeros(len(values), np.bool_)
        np.less(values[1:], values[:-1], out=falls[1:])
        falls[firsts] = False
        low = np.concatenate((np.zeros(1, np.int64), np.cumsum(falls)))
        right = (low[bounds[1:]] == low[bounds[:-1]]) & (sizes == counts)
        rows = np.zeros(len(sizes), np.int64)
        rows[filled] = values[bounds[1:][filled] - 1] + 1
        right[filled] &= (values[firsts] >= 0) & (rows[filled] <= _MAX_ROWS) & (rows[filled] > 0)
        _check(right, name, partition)
        splits = np.concatenate((np.zeros(1, np.int64), np.cumsum(rows)))
        ids = values + np.repeat(splits[:-1], sizes)
        return np.bincount(ids, minlength=int(splits[-1])), splits
    if isinstance(partition, RowLimits):
        lengths = np.diff(values, prepend=0)
        lengths[firsts] = values[firsts]
        return lengths, bounds
    right = np.ones(len(sizes), np.bool_)
    right[filled] = values[firsts] == 0
    _check(right, name, partition)
    if isinstance(partition, RowStarts):
        lengths = np.diff(values, append=0)
        lasts = bounds[1:][filled] - 1
        lengths[lasts] = counts[filled] - values[lasts]
        return lengths, bounds
    lengths = np.diff(values, prepend=0)
    kept = np.ones(len(values), np.bool_)
    kept[firsts] = False
    splits = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.maximum(sizes - 1, 0))))
    return lengths[kept], splits


def _check(right: npt.NDArray[np.bool_], name: str, partition: Partition) -> None:
    if not right.all():
        bad = int(np.argmin(right))
        where = f"record {bad} of the {len(right)} in the batch: " if len(right) > 1 else ""
        raise CorruptRecordError(f"{where}feature {name!r}: {partition} does not cut all of its values into rows")
