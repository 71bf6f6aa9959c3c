"""From the lists of the records to what a spec's features are: shapes, padding, rows.

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
from typing import Any, NamedTuple

import numpy as np

from asyncdata import arguments
from asyncdata.formats.example import partitions as cuts
from asyncdata.formats.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
    Wanted,
    value_of,
    want,
    want_partition,
)
from asyncdata.formats.example.lists import Column
from asyncdata.formats.example.stepping import Ragged
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray


class Output(NamedTuple):
    """One feature of a spec and the lists it is made of.

    Attributes:
        name: Its key in the result.
        feature: What it is.
        slot: The list of its values.
        cuts: The list of each partition, outermost first; None for one without a list.
    """

    name: str
    feature: Feature
    slot: int
    cuts: tuple[int | None, ...]


def check_spec(argument: str, spec: Any) -> dict[str, Feature]:
    """A copy of the spec. Raises ``TypeError`` for an entry that is none of the feature classes."""
    if not isinstance(spec, Mapping):
        raise TypeError(f"{argument} must be a dict of features by name, not {arguments.shown(spec)}")
    for name, feature in spec.items():
        arguments.instance(f"every key of {argument}", name, str, "a str")
        if not isinstance(feature, FixedLenFeature | FixedLenSequenceFeature | VarLenFeature | RaggedFeature):
            raise TypeError(
                f"{argument} says of feature {name!r} {arguments.shown(feature)}, which is none of the feature classes"
            )
    return dict(spec)


def plan(spec: Mapping[str, Feature]) -> tuple[list[Wanted], list[Output]]:
    """The lists to look for, each once, and what is made of them."""
    wanted: list[Wanted] = []
    found: dict[Any, int] = {}

    def slot_of(item: Wanted) -> int:
        # Lists of any length are alike if key and kind are; fixed ones have a feature each.
        identity = (item.key, item.kind, item.step) if item.count < 0 else (item.name,)
        if identity not in found:
            found[identity] = len(wanted)
            wanted.append(item)
        return found[identity]

    outputs = []
    for name, feature in spec.items():
        slot = slot_of(want(name, feature))
        parts = feature.partitions if isinstance(feature, RaggedFeature) else ()
        outputs.append(
            Output(
                name,
                feature,
                slot,
                tuple(
                    None if isinstance(part, cuts.UniformRowLength) else slot_of(want_partition(name, part.key))
                    for part in parts
                ),
            )
        )
    return wanted, outputs


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
            columns[slot] = _column_of_one(values[slot])
    return ragged(output, feature, columns)[0]


def _column_of_one(values: Any) -> Ragged:
    flat = BytesArray.from_items([bytes(item) for item in values]) if values.dtype == object else values
    return Ragged(flat, np.array([0, len(flat)]))


def of_batch(output: Output, columns: Sequence[Column]) -> Any:
    """What the feature is in a batch whose lists are ``columns``."""
    feature, column = output.feature, columns[output.slot]
    if not isinstance(column, Ragged):
        return column
    if isinstance(feature, RaggedFeature):
        return ragged(output, feature, columns)
    if isinstance(feature, FixedLenSequenceFeature):
        return padded(feature, column)
    return RaggedArray(column.values, column.splits)


def of_stack(output: Output, columns: Sequence[Column]) -> Any:
    """What a batch of the single records' values is.

    Raises:
        ValueError: If the records' values differ in shape, and cannot be stacked.
    """
    feature, column = output.feature, columns[output.slot]
    if not isinstance(column, Ragged):
        return column
    lengths = np.diff(column.splits)
    if isinstance(column.values, BytesArray) or output.cuts or not len(lengths) or (lengths != lengths[0]).any():
        raise ValueError(f"the values of feature {output.name!r} cannot be stacked")
    shape: Any = feature.shape if isinstance(feature, FixedLenSequenceFeature) else ()
    return column.values.reshape(len(lengths), -1, *shape) if len(column.values) else _no_values(column, shape)


def _no_values(column: Ragged, shape: Any) -> Any:
    assert isinstance(column.values, np.ndarray)
    return column.values.reshape(len(column.splits) - 1, 0, *shape)


def ragged(output: Output, feature: RaggedFeature, columns: Sequence[Any]) -> RaggedArray:
    """The rows of a ragged feature in a batch.

    Raises:
        CorruptRecordError: If its partitions do not fit its values.
    """
    column = columns[output.slot]
    numbers = [None if slot is None else (columns[slot].values, columns[slot].splits) for slot in output.cuts]
    parts = tuple(zip(feature.partitions, numbers, strict=True))
    return cuts.cut(output.name, column.values, column.splits, parts, feature.row_splits_dtype)


def padded(feature: FixedLenSequenceFeature, column: Ragged) -> np.ndarray[Any, Any]:
    """The steps of a batch, shorter records padded."""
    assert isinstance(feature.shape, tuple)
    values = np.asarray(column.values).reshape(-1, *feature.shape)
    rows = RaggedArray(values, column.splits // math.prod(feature.shape))
    default = feature.default_value
    return rows.to_dense(None if default is None else value_of(default, feature.dtype, ()))
