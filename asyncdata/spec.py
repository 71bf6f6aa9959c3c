"""The types of elements, as far as a plan knows them: `ArraySpec` and other specs, nested like the elements.

A leaf that cannot be known without running the pipeline, such as the result of a plain Python function, is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from asyncdata import arguments

Shape: TypeAlias = "tuple[int | None, ...] | None"
"""An axis of unknown length is None; an unknown number of axes makes the whole None."""


_KINDS: Final = "?biufcmMSUOV"


def _shape(shape: Any) -> Shape:
    if shape is None:
        return None
    if isinstance(shape, str | bytes) or not isinstance(shape, Iterable):
        raise TypeError(f"shape must be a tuple of lengths, or None, not {arguments.shown(shape)}")
    lengths = [arguments.integer_or_none("every length of shape", extent, least=-1) for extent in shape]
    return tuple(None if length == -1 else length for length in lengths)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array, or a number with the shape ``()``.

    Args:
        shape: The shape; None for axes of unknown length, or for an unknown shape.
        dtype: Anything ``numpy.dtype`` accepts, or None.

    Example:
        >>> import asyncdata as ad
        >>> ad.Dataset.range(10).batch(4).element_spec
        ArraySpec(shape=(None,), dtype=dtype('int64'))
    """

    shape: Shape = None
    dtype: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", arguments.dtype("dtype", self.dtype, _KINDS))


@dataclass(frozen=True, slots=True)
class BytesSpec:
    """Byte strings: one byte string with the shape ``()``, a `BytesArray` with axes.

    Example:
        >>> import asyncdata as ad
        >>> ad.TFRecordDataset("records").batch(4, drop_remainder=True).element_spec
        BytesSpec(shape=(4,))
    """

    shape: Shape = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))


@dataclass(frozen=True, slots=True)
class StrSpec:
    """Texts: one text with the shape ``()``, a `BytesArray` with axes.

    Example:
        >>> import asyncdata as ad
        >>> ad.Dataset.list_files("*.tfrecord").element_spec
        StrSpec(shape=())
    """

    shape: Shape = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))


@dataclass(frozen=True, slots=True)
class RaggedSpec:
    """A `RaggedArray`.

    Args:
        shape: The shape of the whole; None for axes whose rows differ or whose length is not known.
        dtype: The dtype of its flat values; None if not known.
        ragged_rank: The number of ragged axes.

    Example:
        >>> import asyncdata as ad
        >>> rows = ad.Dataset.from_generator(lambda: [[1], [2, 3]], output_signature=ad.ArraySpec((None,), int))
        >>> rows.ragged_batch(2).element_spec
        RaggedSpec(shape=(None, None), dtype=dtype('int64'), ragged_rank=1)
    """

    shape: Shape = None
    dtype: Any = None
    ragged_rank: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", arguments.dtype("dtype", self.dtype, _KINDS))


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """A Dataset, as `window` makes it.

    Args:
        element_spec: The spec of its elements.

    Example:
        >>> import asyncdata as ad
        >>> ad.Dataset.range(6).window(2).element_spec
        DatasetSpec(element_spec=ArraySpec(shape=(), dtype=dtype('int64')))
    """

    element_spec: Any = None
