"""What a leaf that a function returned is as an element."""

from __future__ import annotations

import enum
import re
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.returned import returned, returned_nest


class Level(enum.IntEnum):
    """A number that is an object."""

    HIGH = 3


class Text(str):
    """A text that is an object."""

    __slots__ = ()


STAYS: list[Any] = [b"b", "t", None, {1}, Level.HIGH, Text("t"), 2**70, [], [[]], [[1], [2, 3]], [b"b"], ["t", 1]]
STAYS += [[1, None], [object()], [2**63, -1], [1.5, 2**60], range(3), np.float32(1), np.arange(3), np.array("t")]
STAYS += [np.array([b"b", None], object), np.empty((0, 2), object)]
STAYS += [[np.ma.masked_array([1, 2], mask=[True, False])] * 2]
STAYS += [np.ma.masked_array([1, 2], mask=[True, False]), np.array([(1, 2)], [("a", "i4"), ("b", "i4")])]

BECOMES: list[tuple[Any, Any]] = [
    (bytearray(b"b"), b"b"),
    (memoryview(b"b"), b"b"),
    ([memoryview(b"b"), "t", 1], [b"b", "t", 1]),
    (np.bytes_(b"b"), b"b"),
    (np.str_("t"), "t"),
    (True, np.True_),
    (3, np.int64(3)),
    (2**63, np.uint64(2**63)),
    (1.5, np.float64(1.5)),
    (1j, np.complex128(1j)),
    (np.array(3, np.int16), np.int16(3)),
    ([1, 2], np.array([1, 2])),
    ([(1, 2), [3, 4]], np.array([[1, 2], [3, 4]])),
    ([np.arange(2), np.arange(2)], np.array([[0, 1], [0, 1]])),
    (np.array([[memoryview(b"b"), "t"], [b"c", None]], object), np.array([[b"b", "t"], [b"c", None]], object)),
]


def named(value: object) -> str:
    """A test's id: the same in every process, which addresses are not."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


@pytest.mark.parametrize("value", STAYS, ids=named)
def test_everything_else_stays_what_it_is(value: Any) -> None:
    """Objects, also such as NumPy could make something of, and what it would hold rounded."""
    assert returned(value) is value


@pytest.mark.parametrize(("value", "expected"), BECOMES, ids=named)
def test_numbers_and_byte_strings_become_those_of_batches(value: Any, expected: Any) -> None:
    """Type, dtype and value; once more it changes nothing, and in a nest it is the same."""
    for found in (returned(value), returned(returned(value)), returned_nest({"a": (value, None)})["a"][0]):
        assert type(found) is type(expected)
        np.testing.assert_array_equal(found, expected, strict=True)
