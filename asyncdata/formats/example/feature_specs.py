"""What parsed features are made of: the specs behind `parse_example` and `parse_sequence_example`. Pure.

They follow ``outputs``: of one record where the input is one byte string, of a batch where it is an axis of them. What
has no spec of its own (arrays of byte strings, rows cut by partitions) is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from asyncdata.formats.example.features import Feature, FixedLenFeature, FixedLenSequenceFeature, RaggedFeature
from asyncdata.spec import ArraySpec, BytesSpec, RaggedSpec

Axes: TypeAlias = "tuple[int | None, ...]"


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
