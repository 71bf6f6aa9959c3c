"""The features that a pipeline expects in a ``tf.train.Example``: tf.io's feature classes, as frozen records.

A feature holds one of three things: a list of byte strings, of float32, or of int64. ``dtype`` may be a numpy dtype or
scalar type, ``bytes``, ``str``, ``float`` or ``int``, or one of the names "string", "bytes", "float32", "int64". It is
stored as "bytes", "float32" or "int64".
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np

from asyncdata import arguments
from asyncdata.formats.example import partitions as cuts
from asyncdata.wording import counted

Kind: TypeAlias = Literal["bytes", "float32", "int64"]

_MOST_VALUES: Final = sys.maxsize // 16
_NAMES: Final[dict[Any, Kind]] = {
    bytes: "bytes",
    str: "bytes",
    object: "bytes",
    "bytes": "bytes",
    "str": "bytes",
    "string": "bytes",
    "object": "bytes",
    float: "float32",
    "float": "float32",
    int: "int64",
    "int": "int64",
}


def kind_of(dtype: Any) -> Kind:
    """Returns the canonical name of a feature's dtype.

    Raises:
        ValueError: No feature can hold it; features hold only byte strings, float32 and int64.
    """
    if isinstance(dtype, (str, type)) and dtype in _NAMES:
        return _NAMES[dtype]
    foreign = getattr(dtype, "as_numpy_dtype", dtype)
    try:
        found = np.dtype(foreign)
    except TypeError:
        found = None
    if found is not None:
        if found.kind in "OSU":
            return "bytes"
        if found == np.float32:
            return "float32"
        if found == np.int64:
            return "int64"
    raise ValueError(
        f"dtype must be bytes, float32 or int64, as in features, not {arguments.shown(dtype)}; parse it as one "
        "of these and cast it"
    )


def _shape_of(shape: Any) -> tuple[int, ...]:
    sizes: Any = (shape,) if isinstance(shape, int | np.integer) else shape
    if not isinstance(sizes, Iterable) or isinstance(sizes, str | bytes) or isinstance(shape, bool):
        raise TypeError(f"shape must be a tuple of lengths, not {arguments.shown(shape)}")
    sizes = tuple(sizes)
    if not all(isinstance(size, int | np.integer) and size >= 0 for size in sizes):
        raise ValueError(f"shape must contain known lengths, not {arguments.shown(sizes)}; see FixedLenSequenceFeature")
    if math.prod(map(int, sizes)) > _MOST_VALUES:
        raise ValueError(f"shape {sizes} holds more values than an array can")
    return tuple(int(size) for size in sizes)


def _partitions(partitions: Any) -> tuple[Any, ...]:
    if not isinstance(partitions, list | tuple):
        raise TypeError(f"partitions must be a list, not {arguments.shown(partitions)}")
    return tuple(partitions)


class AnyFeature:
    """One of the feature classes: what type checkers say of a dict that holds several of them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FixedLenFeature(AnyFeature):
    """A feature with the same number of values in every record.

    Example:
        >>> import asyncdata as ad
        >>> parse = ad.parse_example({"x": ad.FixedLenFeature((2,), float, default_value=[0, 0])})
        >>> parse(ad.serialize_example({"x": [1.0, 2.0]}))["x"].tolist(), parse(b"")["x"].tolist()
        ([1.0, 2.0], [0.0, 0.0])

    Attributes:
        shape: Shape of the values; () for one value.
        dtype: See the module.
        default_value: Used if a record lacks the feature; as many values as ``shape`` has. None: a missing feature is
            an error.
    """

    shape: Sequence[int] | int
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape_of(self.shape))
        object.__setattr__(self, "dtype", kind_of(self.dtype))
        if self.default_value is not None:
            value_of(self.default_value, self.dtype, _shape_of(self.shape))


@dataclass(frozen=True, slots=True)
class FixedLenSequenceFeature(AnyFeature):
    """A feature with any number of steps, each of one shape.

    Example:
        >>> import asyncdata as ad
        >>> parse = ad.parse_example({"x": ad.FixedLenSequenceFeature((2,), int, allow_missing=True)})
        >>> parse(ad.serialize_example({"x": [1, 2, 3, 4]}))["x"].tolist()
        [[1, 2], [3, 4]]

    One record gives an array of shape (steps, *shape). A batch gives one of shape (n, most steps, *shape), with shorter
    records padded.

    Attributes:
        shape: Shape of one step.
        dtype: See the module.
        allow_missing: A record without the feature has no steps. Must be True in the features of an Example. In the
            sequence features of a SequenceExample, False makes a missing feature an error.
        default_value: The value that pads a batch; None means 0 or ``b""``.
    """

    shape: Sequence[int] | int
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        arguments.flag("allow_missing", self.allow_missing)
        if 0 in _shape_of(self.shape):
            raise ValueError(f"the steps of a FixedLenSequenceFeature must hold values, not shape {self.shape}")
        object.__setattr__(self, "shape", _shape_of(self.shape))
        object.__setattr__(self, "dtype", kind_of(self.dtype))
        if self.default_value is not None:
            value_of(self.default_value, self.dtype, ())


@dataclass(frozen=True, slots=True)
class VarLenFeature(AnyFeature):
    """A feature with any number of values; none if a record lacks it.

    Example:
        >>> import asyncdata as ad
        >>> parse = ad.parse_example({"words": ad.VarLenFeature(bytes)})
        >>> parse(ad.serialize_example({"words": ["a", "b"]}))["words"].tolist()
        [b'a', b'b']

    One record gives a flat array, a batch a `RaggedArray`.

    Attributes:
        dtype: See the module.
    """

    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", kind_of(self.dtype))


@dataclass(frozen=True, slots=True)
class RaggedFeature(AnyFeature):
    """A feature with any number of values, cut into rows according to other keys of the record.

    Without partitions one record gives a flat array, and a batch a `RaggedArray`; every partition adds a level of rows.
    The names are those of tf.io: ``RaggedFeature.RowLengths("key")``, ``RowSplits``, ``RowStarts``, ``RowLimits``,
    ``ValueRowIds``, and ``UniformRowLength(length)``.

    Example:
        >>> import asyncdata as ad
        >>> spec = {"x": ad.RaggedFeature(int, "values", [ad.RaggedFeature.RowLengths("lengths")])}
        >>> record = ad.serialize_example({"values": [1, 2, 3], "lengths": [2, 0, 1]})
        >>> ad.parse_example(spec)(record)["x"].to_list()
        [[1, 2], [], [3]]

    Attributes:
        dtype: See the module.
        value_key: The key of the values in the record; None means the key in the spec.
        partitions: How to cut the values, outermost first.
        row_splits_dtype: Dtype of the row splits: int32, as in tf.io, or int64.
    """

    dtype: Any
    value_key: str | None = None
    partitions: Sequence[cuts.Partition] = ()
    row_splits_dtype: Any = np.int32

    RowSplits: ClassVar[type[cuts.RowSplits]] = cuts.RowSplits
    RowLengths: ClassVar[type[cuts.RowLengths]] = cuts.RowLengths
    RowStarts: ClassVar[type[cuts.RowStarts]] = cuts.RowStarts
    RowLimits: ClassVar[type[cuts.RowLimits]] = cuts.RowLimits
    ValueRowIds: ClassVar[type[cuts.ValueRowIds]] = cuts.ValueRowIds
    UniformRowLength: ClassVar[type[cuts.UniformRowLength]] = cuts.UniformRowLength

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", kind_of(self.dtype))
        arguments.instance("value_key", self.value_key, str | None, "a str or None")
        object.__setattr__(self, "partitions", _partitions(self.partitions))
        for partition in self.partitions:
            if not isinstance(partition, cuts.Partition):
                raise TypeError(
                    f"partitions must hold RaggedFeature.RowLengths(key) and its like, not {arguments.shown(partition)}"
                )
            if not isinstance(partition, cuts.UniformRowLength):
                arguments.instance(f"the key of {type(partition).__name__}", partition.key, str, "a str")
        splits = arguments.dtype("row_splits_dtype", self.row_splits_dtype)
        if splits not in (np.int32, np.int64):
            raise ValueError(f"row_splits_dtype must be int32 or int64, not {arguments.shown(self.row_splits_dtype)}")
        object.__setattr__(self, "row_splits_dtype", splits.type)


Feature: TypeAlias = FixedLenFeature | FixedLenSequenceFeature | VarLenFeature | RaggedFeature


def value_of(value: Any, kind: Kind, shape: tuple[int, ...]) -> Any:
    """Returns a default value as a record would give it: bytes, a numpy scalar, or a read-only array of ``shape``.

    Raises:
        ValueError: It does not have as many values as ``shape``, or has another type.
    """
    if kind == "bytes":
        flat = [_as_bytes(item) for item in np.asarray(value, object).ravel().tolist()]
    else:
        found = np.asarray(value)
        # An empty list is one of floats to numpy.
        if found.size and found.dtype.kind not in ("biu" if kind == "int64" else "biuf"):
            raise ValueError(f"default_value {arguments.shown(value)} is not of dtype {kind}")
        flat = found.ravel().tolist()
    if len(flat) != math.prod(shape):
        raise ValueError(
            f"default_value {arguments.shown(value)} holds {counted(len(flat), 'value')}, not "
            f"{math.prod(shape)} for shape {shape}"
        )
    if kind == "bytes":
        if not shape:
            return flat[0]
        array = object_array(flat)
    else:
        with np.errstate(over="ignore"):
            array = np.array(flat, kind)
        if not np.array_equal(np.isinf(array), np.isinf(np.array(flat, np.float64))):
            raise ValueError(f"default_value {arguments.shown(value)} does not fit {kind}")
        if not shape:
            return array[0]
    array = array.reshape(shape)
    array.setflags(write=False)
    return array


def object_array(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Returns a flat object array; ``np.array`` would make byte strings a fixed-width type and cut trailing zeros."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise ValueError(f"default_value {arguments.shown(value)} is not bytes or str")
