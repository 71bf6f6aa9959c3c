"""From the lists of the records to what a spec's features are: columns, shapes, padding, rows; and their specs.

| feature                 | one record                          | a batch of n                                      |
|-------------------------|-------------------------------------|---------------------------------------------------|
| FixedLenFeature         | a scalar, bytes, or an array        | array (n, *shape); `BytesArray` of single strings |
| VarLenFeature           | flat array                          | `RaggedArray`                                     |
| RaggedFeature           | flat array, or rows (`RaggedArray`) | `RaggedArray`, a level more per partition         |
| FixedLenSequenceFeature | array (steps, *shape)               | array (n, most steps, *shape), padded             |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from asyncdata.formats.example import partitions as cuts
from asyncdata.formats.example.columnar import Column
from asyncdata.formats.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    value_of,
)
from asyncdata.formats.example.varints import ByteArray
from asyncdata.formats.example.wanted import Output, Wanted
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray
from asyncdata.spec import ArraySpec, BytesSpec, RaggedSpec

Axes: TypeAlias = "tuple[int | None, ...]"


# --- columns of values that were read one by one


def stacked(values: Sequence[Any], item: Wanted, array: ByteArray | None = None) -> Column:
    """The column of a list, from its values in every record; byte strings may be views of an array."""
    if item.count < 0:
        if item.kind != "bytes":
            flat: Any = np.concatenate(values) if values else np.empty(0, item.kind)
        else:
            flat = BytesArray.from_items([value for some in values for value in some])
        return RaggedArray.from_row_lengths(flat, np.array([len(some) for some in values], np.int64))
    if item.single and item.kind == "bytes":
        return _in_place(values, array)
    column = np.empty((len(values), *item.shape), object if item.kind == "bytes" else item.kind)
    _put(column, range(len(values)), values)
    return column


def patched(
    column: Column, places: Sequence[int], values: Sequence[Any], item: Wanted, array: ByteArray | None = None
) -> Column:
    """A column with other values at some places; see `stacked`."""
    if not isinstance(column, np.ndarray):
        every = column.views() if isinstance(column, BytesArray) else list(column)
        for place, value in zip(places, values, strict=True):
            every[place] = value
        return stacked(every, item, array)
    _put(column, places, values)
    return column


def _in_place(values: Sequence[Any], array: ByteArray | None) -> BytesArray:
    """Byte strings where they lie in an array; a copy of all if one lies elsewhere, as defaults do."""
    if array is None or not all(isinstance(value, memoryview) for value in values):
        return BytesArray.from_items(values)
    begin = _address(array)
    places = np.empty((len(values), 2), np.int64)
    for row, value in enumerate(values):
        size = len(value)
        places[row] = _address(np.frombuffer(value, np.uint8)) - begin if size else 0, size
    inside = (places[:, 0] >= 0) & (places.sum(axis=1) <= len(array))
    return BytesArray(array, places) if inside.all() else BytesArray.from_items(values)


def _address(array: ByteArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _put(column: np.ndarray[Any, Any], places: Sequence[int], values: Sequence[Any]) -> None:
    for place, value in zip(places, values, strict=True):
        column[place] = value


# --- features


def of_record(output: Output, values: Sequence[Any]) -> Any:
    """What the feature is in one record whose lists are ``values``."""
    feature, value = output.feature, values[output.slot]
    if isinstance(feature, FixedLenSequenceFeature):
        return value.reshape(-1, *feature.shape)  # type: ignore[misc]  # made a tuple
    if not isinstance(feature, RaggedFeature) or not feature.partitions:
        return value
    columns: list[Any] = list(values)
    for slot in (output.slot, *output.cuts):
        if slot is not None:
            flat = values[slot]
            if flat.dtype == object:
                flat = BytesArray.from_items([bytes(item) for item in flat])
            columns[slot] = RaggedArray(flat, np.array([0, len(flat)]))
    return ragged(output, feature, columns)[0]


def of_batch(output: Output, columns: Sequence[Column]) -> Any:
    """What the feature is in a batch whose lists are ``columns``."""
    feature, column = output.feature, columns[output.slot]
    if not isinstance(column, RaggedArray):
        return column
    if isinstance(feature, RaggedFeature):
        return ragged(output, feature, columns)
    if isinstance(feature, FixedLenSequenceFeature):
        assert isinstance(feature.shape, tuple)
        values = np.asarray(column.values).reshape(-1, *feature.shape)
        return padded(feature, values, column.row_splits // math.prod(feature.shape))
    return column


def of_stack(output: Output, columns: Sequence[Column]) -> Any:
    """What a batch of the single records' values is.

    Raises:
        ValueError: If the records' values differ in shape, and cannot be stacked.
    """
    feature, column = output.feature, columns[output.slot]
    if not isinstance(column, RaggedArray):
        return column
    values, lengths = column.values, column.row_lengths()
    if not isinstance(values, np.ndarray) or output.cuts or not len(lengths) or (lengths != lengths[0]).any():
        raise ValueError(f"the values of feature {output.name!r} cannot be stacked")
    shape: Any = feature.shape if isinstance(feature, FixedLenSequenceFeature) else ()
    return values.reshape(len(lengths), int(lengths[0]) // math.prod(shape), *shape)


def ragged(output: Output, feature: RaggedFeature, columns: Sequence[Any]) -> RaggedArray:
    """The rows of a ragged feature in a batch.

    Raises:
        CorruptRecordError: If its partitions do not fit its values.
    """
    column = columns[output.slot]
    numbers = [None if slot is None else (columns[slot].values, columns[slot].row_splits) for slot in output.cuts]
    parts = tuple(zip(feature.partitions, numbers, strict=True))
    return cuts.cut(output.name, column.values, column.row_splits, parts, feature.row_splits_dtype)


def padded(feature: FixedLenSequenceFeature, steps: Any, splits: Any) -> np.ndarray[Any, Any]:
    """The steps of a batch, each of the feature's shape; shorter records padded."""
    default = feature.default_value
    return RaggedArray(steps, splits).to_dense(None if default is None else value_of(default, feature.dtype, ()))


# --- specs


def of_records(given: Any) -> Axes | None:
    """The axes in front of every value, by the spec of the records: none for one record, one for a batch."""
    if isinstance(given, BytesSpec) and given.shape is not None and len(given.shape) <= 1:
        return given.shape
    return None


def of_examples(features: Mapping[str, Feature], axes: Axes | None) -> dict[str, Any] | None:
    """What `parse_example` makes of records with these axes; None where the records are not known."""
    return None if axes is None else {name: _of_feature(feature, axes) for name, feature in features.items()}


def of_sequences(context: Mapping[str, Feature], sequences: Mapping[str, Feature], axes: Axes | None) -> Any:
    """What `parse_sequence_example` makes of records with these axes."""
    if axes is None:
        return None
    parsed = {name: _of_steps(feature, axes) for name, feature in sequences.items()}
    if not axes:
        return of_examples(context, axes), parsed
    padded = [name for name, feature in sequences.items() if isinstance(feature, FixedLenSequenceFeature)]
    return of_examples(context, axes), parsed, dict.fromkeys(padded, ArraySpec(axes, np.int64))


def _of_feature(feature: Feature, axes: Axes) -> Any:
    single = feature.dtype == "bytes"
    if isinstance(feature, FixedLenFeature | FixedLenSequenceFeature):
        assert isinstance(feature.shape, tuple)
        if single:
            return BytesSpec(axes) if isinstance(feature, FixedLenFeature) and not feature.shape else None
        steps: Axes = () if isinstance(feature, FixedLenFeature) else (None,)
        return ArraySpec((*axes, *steps, *feature.shape), feature.dtype)
    if isinstance(feature, RaggedFeature) and feature.partitions:
        return None
    if not axes:
        return None if single else ArraySpec((None,), feature.dtype)
    return RaggedSpec((*axes, None), object if single else feature.dtype, 1)


def _of_steps(feature: Feature, axes: Axes) -> Any:
    if isinstance(feature, FixedLenSequenceFeature):
        assert isinstance(feature.shape, tuple)
        return None if feature.dtype == "bytes" else ArraySpec((*axes, None, *feature.shape), feature.dtype)
    if isinstance(feature, RaggedFeature) and feature.partitions:
        return None
    return RaggedSpec((*axes, None, None), object if feature.dtype == "bytes" else feature.dtype, len(axes) + 1)
