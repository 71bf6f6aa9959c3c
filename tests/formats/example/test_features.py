from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncdata.formats.example.features import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature, kind_of
from asyncdata.formats.example.parser import parse_example
from asyncdata.formats.example.serialize import serialize_example


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (bytes, "bytes"),
        (str, "bytes"),
        ("string", "bytes"),
        (np.bytes_, "bytes"),
        (np.dtype("S3"), "bytes"),
        (object, "bytes"),
        (int, "int64"),
        ("int64", "int64"),
        (np.int64, "int64"),
        (np.dtype("int64"), "int64"),
        (float, "float32"),
        ("float32", "float32"),
        (np.float32, "float32"),
    ],
)
def test_dtypes_may_be_spelled_in_many_ways(dtype: Any, kind: str) -> None:
    """Names, Python types and numpy dtypes of the three kinds."""
    assert kind_of(dtype) == kind


@pytest.mark.parametrize("dtype", [np.int32, np.float64, "uint8", bool, "nonsense", None, 3])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    """Features hold three kinds; nothing is cast unasked."""
    with pytest.raises(ValueError, match="bytes, float32 or int64"):
        VarLenFeature(dtype)


def test_foreign_dtype_objects_are_understood() -> None:
    """Whoever changes an import keeps ``tf.int64`` in the spec."""

    class Foreign:
        as_numpy_dtype = np.int64

    assert VarLenFeature(Foreign()).dtype == "int64"


@pytest.mark.parametrize(
    ("shape", "dtype", "default"),
    [([2], int, 7), ([], int, [1, 2]), ([], int, 0.5), ([], bytes, 3), ([], float, "x"), ([2, 2], float, [1, 2, 3])],
)
def test_defaults_must_fit(shape: list[int], dtype: Any, default: Any) -> None:
    """A default has the dtype and as many values as the shape; found out when the spec is written."""
    with pytest.raises(ValueError, match="default_value"):
        FixedLenFeature(shape, dtype, default)


def test_one_length_is_a_shape() -> None:
    """An integer of Python or of numpy."""
    two: Any = np.int64(2)
    assert FixedLenFeature(two, int) == FixedLenFeature(2, int) == FixedLenFeature((2,), int)


def test_defaults_take_the_shape() -> None:
    """A flat default is given the feature's shape, as TensorFlow does."""
    feature = FixedLenFeature([2, 2], int, [1, 2, 3, 4])
    assert parse_example({"a": feature})(b"")["a"].tolist() == [[1, 2], [3, 4]]
    assert parse_example({"a": FixedLenFeature([], bytes, "text")})(b"")["a"] == b"text"


def test_impossible_specs_are_refused() -> None:
    """Unknown dimensions, an empty spec, and what is no feature."""
    with pytest.raises(ValueError, match="FixedLenSequenceFeature"):
        FixedLenFeature([None], int)  # type: ignore[list-item]  # what is refused
    with pytest.raises(ValueError, match="allow_missing"):
        parse_example({"a": FixedLenSequenceFeature([], int)})
    with pytest.raises(ValueError, match="must hold values"):
        FixedLenSequenceFeature([0], int, allow_missing=True)
    with pytest.raises(ValueError, match="no feature"):
        parse_example({})
    with pytest.raises(TypeError, match="'a'"):
        parse_example({"a": int})  # type: ignore[dict-item]  # what is refused


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (object(), TypeError),
        ([1, "a"], TypeError),
        (["a", 1], TypeError),
        ([b"a", None], TypeError),
        (1j, TypeError),
        (2**63, OverflowError),
        ([2**70], OverflowError),
        ([2**63, -1], OverflowError),
        (-(2**63) - 1, OverflowError),
    ],
)
def test_values_that_cannot_be_stored_are_refused(value: Any, error: type[Exception]) -> None:
    """The error names the feature."""
    with pytest.raises(error, match="feature 'a'"):
        serialize_example({"a": value})
