"""What a generator's elements are said to be: in tf.data's words, converted, and checked."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata import ArraySpec, BytesSpec, StrSpec

D = ad.Dataset


def pairs(count: int) -> Iterator[Any]:
    """Pairs of a number and a list."""
    for i in range(count):
        yield i, [i] * 2


async def pairs_later(count: int) -> AsyncIterator[Any]:
    """The same."""
    for pair in pairs(count):
        yield pair


@pytest.mark.parametrize("function", [pairs, pairs_later])
@pytest.mark.parametrize(
    "arguments",
    [
        {"output_signature": (ArraySpec((), np.float32), ArraySpec((2,), np.int16))},
        {"output_types": (np.float32, "int16"), "output_shapes": ((), (2,))},
    ],
)
def test_leaves_are_converted_to_what_was_said(function: Any, arguments: dict[str, Any]) -> None:
    """Numbers and lists become arrays of the dtype; element_spec says so; the dataset travels."""
    ds = pickle.loads(pickle.dumps(D.from_generator(function, args=(2,), **arguments)))
    assert ds.element_spec == (ArraySpec((), np.float32), ArraySpec((2,), np.int16))
    for i, (number, row) in enumerate(ds):
        assert number == i
        assert number.dtype == np.float32
        assert row.dtype == np.int16
        assert row.shape == (2,)


def test_specs_of_others_are_understood() -> None:
    """Whatever has a shape and a dtype will do, TensorFlow's specs among it."""
    dtype = SimpleNamespace(as_numpy_dtype=np.int32)
    foreign = SimpleNamespace(shape=SimpleNamespace(rank=1, as_list=lambda: [None]), dtype=dtype)
    text = SimpleNamespace(shape=(), dtype=SimpleNamespace(as_numpy_dtype=object))
    ds = D.from_generator(lambda: [([1, 2], "a")], output_signature=(foreign, text))
    assert ds.element_spec == (ArraySpec((None,), np.int32), BytesSpec())
    ((row, word),) = list(ds)
    assert row.dtype == np.int32
    assert word == b"a"
    assert D.from_generator(lambda: ["a"], str).element_spec == StrSpec(None)
    assert list(D.from_generator(lambda: ["a"], str)) == ["a"]


@pytest.mark.sampled
@pytest.mark.parametrize("wrong", [None, [1, None], Decimal("1.5"), object()])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool, np.complex64])
def test_objects_do_not_become_numbers(wrong: Any, dtype: Any) -> None:
    """A missing value is neither NaN nor False, and no fraction is cut; decimals are numbers."""
    if isinstance(wrong, Decimal) and dtype in (np.float32, np.complex64):
        assert list(D.from_generator(lambda: [wrong], dtype)) == [1.5]
        return
    with pytest.raises(TypeError, match="but its signature declares"):
        list(D.from_generator(lambda: [wrong], dtype))


def test_objects_that_are_numbers_become_numbers() -> None:
    """Of any type that says what float or integer it is."""
    flags = np.array([np.True_, 0], object)
    for dtype in (np.float32, np.int64, bool):
        assert [row.tolist() for row in D.from_generator(lambda: [flags], dtype)] == [[1, 0]]
    halves = np.array([Fraction(1, 2), 2**70], object)
    assert [row.tolist() for row in D.from_generator(lambda: [halves], float)] == [[0.5, 2.0**70]]


def test_what_is_not_as_said_is_an_error() -> None:
    """Other nests, other shapes, two ways at once."""
    with pytest.raises(TypeError, match="nest"):
        list(D.from_generator(lambda: [1], output_signature=(ArraySpec((), int),)))
    with pytest.raises(TypeError, match="shape"):
        list(D.from_generator(lambda: [[1, 2]], output_signature=ArraySpec((3,), int)))
    with pytest.raises(TypeError, match=r"yielded 1\.5, but its signature declares int64"):
        list(D.from_generator(lambda: [1.5], int))
    assert [row.tolist() for row in D.from_generator(lambda: [[], [1]], np.uint8)] == [[], [1]]
    with pytest.raises(TypeError, match="replaces output_types"):
        D.from_generator(lambda: [1], int, output_signature=ArraySpec((), int))
    with pytest.raises(TypeError, match="needs output_types"):
        D.from_generator(lambda: [1], None, ())
    with pytest.raises(TypeError, match="nest like"):
        D.from_generator(lambda: [1], (int, int), ((), (), ()))
    with pytest.raises(TypeError, match="ArraySpec"):
        D.from_generator(lambda: [1], output_signature="int")


@pytest.mark.parametrize(
    ("rows", "said", "want"),
    [
        ([(1, 2), (3, 4)], np.int32, [[1, 2], [3, 4]]),
        ([((1, 2), 3)], (np.int32, np.int32), [([1, 2], 3)]),
        ([{"b": 1, "a": (2, 3)}], {"a": np.int64, "b": np.int64}, [{"a": [2, 3], "b": 1}]),
        ([["a", b"b\0"], ("c",)], bytes, [[b"a", b"b\0"], [b"c"]]),
        ([[["a", "b"]]], str, [[["a", "b"]]]),
        ([np.array(["a", "bc"]), np.array([b"d"])], bytes, [[b"a", b"bc"], [b"d"]]),
        ([[1e300, 1.0]], np.float32, [[float("inf"), 1.0]]),
    ],
)
def test_what_nests_deeper_than_the_signature_is_an_array(rows: list[Any], said: Any, want: list[Any]) -> None:
    """Tuples and lists where one leaf is said, of numbers and of texts; numbers that float32 does not hold are inf."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return tuple(map(plain, value)) if isinstance(value, tuple) else value.tolist()

    assert [plain(element) for element in D.from_generator(lambda: rows, said)] == want


def test_texts_are_checked_too() -> None:
    """Their shape, and that they are texts."""
    with pytest.raises(TypeError, match="an array of shape"):
        list(D.from_generator(lambda: [["a"]], output_signature=BytesSpec((2,))))
    with pytest.raises(TypeError, match="its signature declares BytesSpec"):
        list(D.from_generator(lambda: [["a", 1]], bytes))
    with pytest.raises(TypeError, match="its signature declares BytesSpec"):
        list(D.from_generator(lambda: [1], bytes))


@pytest.mark.parametrize(
    ("element", "declared"),
    [
        (np.int64(2**40), np.int32),
        (np.array([-1]), np.uint8),
        (np.uint64(2**63), np.int64),
        (np.array([1 + 2j]), np.float64),
        (np.complex64(1j), np.float32),
        (np.array([1j], object), np.float32),
        (np.array([np.complex64(1j), None], object)[:1], np.float64),
        ("1", np.float32),
        (np.array(["1"]), np.int64),
        (3, str),
        (b"x", str),
    ],
)
def test_what_a_signature_does_not_declare_is_refused(element: Any, declared: Any) -> None:
    """No value is changed without a word."""
    with pytest.raises(TypeError, match="but its signature declares"):
        list(D.from_generator(lambda: iter([element]), output_types=declared))


@pytest.mark.parametrize(
    ("element", "declared"),
    [(np.int64(127), np.int8), (np.array([255]), np.uint8), (np.uint8(3), np.int64), (np.float64(0.5), np.float32)],
)
def test_what_fits_is_converted(element: Any, declared: Any) -> None:
    """Whatever type it has."""
    (found,) = D.from_generator(lambda: iter([element]), output_types=declared)
    assert found == element
    assert found.dtype == declared
