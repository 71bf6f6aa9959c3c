"""Rows of different lengths keep their values, however they are cut, nested, pickled or padded."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.ragged import RaggedArray
from asyncdata.memory.structure import flatten, flatten_as, leaf_count, leaf_names, unflatten

ROWS = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6)
WORDS = st.lists(st.lists(st.binary(max_size=3), max_size=3), max_size=5)
DEEP = st.lists(ROWS, max_size=4)


def ragged(rows: list[list[int]]) -> RaggedArray:
    return RaggedArray.from_row_lengths(
        np.array([value for row in rows for value in row], np.int64), [len(row) for row in rows]
    )


@given(ROWS, st.integers(-8, 8), st.integers(-8, 8), st.sampled_from([None, 1, 2, -1]))
def test_it_is_the_list_of_its_rows(rows: list[list[int]], begin: int, end: int, step: int | None) -> None:
    """Length, items, slices and iteration are those of the list of lists; so after pickling and copying."""
    array = ragged(rows)
    assert array.to_list() == rows
    assert [row.tolist() for row in array] == rows
    assert [array[index].tolist() for index in range(-len(rows), len(rows))] == rows + rows
    assert array[begin:end:step].to_list() == rows[begin:end:step]
    assert pickle.loads(pickle.dumps(array)) == array == array.copy()
    assert array.shape == (len(rows), None)
    assert array.take(list(range(len(rows)))[::-1]).to_list() == rows[::-1]
    with pytest.raises(IndexError):
        array[len(rows)]


@given(st.one_of(ROWS, WORDS))
def test_rows_are_gathered_from_lists(rows: list[list[Any]]) -> None:
    """Rows of numbers, or of byte strings, become one array and come back."""
    array = RaggedArray.from_rows(rows, row_splits_dtype=np.int32)
    assert array.to_list() == rows
    assert array.row_splits.dtype == np.int32
    assert np.array_equal(array.value_rowids(), np.repeat(np.arange(len(rows)), [len(row) for row in rows]))


@given(DEEP)
def test_levels_nest(rows: list[list[list[int]]]) -> None:
    """Rows of rows have two levels of splits, from which they are made again."""
    array = RaggedArray.from_row_lengths(
        ragged([inner for outer in rows for inner in outer]), [len(outer) for outer in rows]
    )
    assert array.to_list() == rows
    assert array.shape == (len(rows), None, None)
    again = RaggedArray.from_nested_row_splits(array.flat_values, array.nested_row_splits)
    assert again == array
    assert array[1:].to_list() == rows[1:]


@given(st.one_of(ROWS, WORDS))
def test_it_is_structure(rows: list[list[Any]]) -> None:
    """Inside an element it comes apart into flat arrays and together again."""
    array = RaggedArray.from_rows(rows)
    element = {"a": array, "b": 1}
    leaves, structure = flatten(element)
    assert leaf_names(structure) == ["a.values", "a.row_splits[0]", "b"]
    assert len(leaves) == leaf_count(structure) == 3
    assert not any(isinstance(leaf, RaggedArray) for leaf in leaves)
    found: list[Any] = []
    assert flatten_as(pickle.loads(pickle.dumps(structure)), element, found)
    again = unflatten(structure, iter(found))
    assert again["a"] == array
    assert not flatten_as(structure, {"a": 5, "b": 1}, [])
    assert not flatten_as(None, array, [])


def test_padded_and_sparse() -> None:
    """Padding fills up every row; the sparse form names each value's place."""
    array = ragged([[1, 2], [], [3, 4, 5]])
    assert array.to_dense().tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    indices, values, dense_shape = array.to_sparse()
    assert indices.tolist() == [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2]]
    assert np.asarray(values).tolist() == [1, 2, 3, 4, 5]
    assert dense_shape.tolist() == [3, 3]
    words = RaggedArray.from_rows([[b"a"], [b"b", b"c"]])
    assert words.to_dense().tolist() == [[b"a", b""], [b"b", b"c"]]
    deep = RaggedArray.from_row_lengths(array, [1, 2])
    assert deep.to_dense(9).tolist() == [[[1, 2, 9], [9, 9, 9]], [[9, 9, 9], [3, 4, 5]]]
    indices, values, dense_shape = deep.to_sparse()
    assert indices.tolist() == [[0, 0, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1], [1, 1, 2]]
    assert dense_shape.tolist() == [2, 2, 3]
    with pytest.raises(ValueError, match="single values"):
        RaggedArray(np.zeros((2, 3)), np.array([0, 2])).to_sparse()


def test_texts_are_padded_with_texts() -> None:
    """What stands for nothing is of the kind of the values."""
    for words in (
        RaggedArray.from_rows([["a"], ["b", "c"]]),
        RaggedArray(np.array(["a", "b", "c"], object), np.array([0, 1, 3])),
    ):
        assert words.to_dense().tolist() == [["a", ""], ["b", "c"]]
        deep = RaggedArray.from_row_lengths(words, [2, 0])
        assert deep.to_dense().tolist() == [[["a", ""], ["b", "c"]], [["", ""]] * 2]
    assert RaggedArray(np.array(["aa", "b"]), np.array([0, 0, 2])).to_dense("x").tolist() == [["x", "x"], ["aa", "b"]]
    assert RaggedArray.from_rows([[], [b"b"]]).to_dense("x").tolist() == [[b"x"], [b"b"]]


@pytest.mark.parametrize(
    ("values", "fitting", "others"),
    [
        (np.arange(3), [-1, 2.0, np.int8(5)], [0.5, np.nan, 2**70, 2**63, "x", b"1", 1j]),
        (np.arange(3, dtype=np.uint8), [255, 0.0], [-1, 256, 1e9]),
        (np.arange(3, dtype=np.uint64), [2**64 - 1], [-1, 2**64]),
        (np.arange(3, dtype=np.float32), [0.1, np.nan, -np.inf, 7, np.float64(2)], [1e300, 1j, "x"]),
        (np.arange(3.0), [2**70, 2**53 + 1], [1j]),
        (np.array([True, False, True]), [False, 1], [2, -1]),
        (np.array([b"a", b"bb", b""]), [b"xy"], [b"xyz", 7]),
        (np.array(["a", "b", "c"]), ["x"], ["xy", b"x", 7]),
        (BytesArray.from_items([b"a", b"b", b"c"]), [b"x" * 9], [7]),
        (BytesArray.from_items(["a", "b", "c"]), ["x" * 9], [7, b"x"]),
        (np.array(["a", "b", "c"], object), ["x" * 9], [7, b"x"]),
        (np.array(["a", 1, None], object), [7, "x"], []),
    ],
)
def test_padding_that_the_values_cannot_hold_is_refused(values: Any, fitting: list[Any], others: list[Any]) -> None:
    """It is never made into another value; floats may be rounded."""
    array = RaggedArray(values, np.array([0, 1, 3]))
    for padding in fitting:
        assert array.to_dense(padding)[0, 1] == pytest.approx(padding, nan_ok=True)
    for padding in others:
        with pytest.raises(ValueError, match=r"default value .* does not fit values of"):
            array.to_dense(padding)
        with pytest.raises(ValueError, match="does not fit"):
            RaggedArray.from_row_lengths(array, [2]).to_dense(padding)


@pytest.mark.parametrize("splits", [[], [1, 3], [0, 2, 1, 3], [0, 2], [[0, 3]]])
def test_splits_that_do_not_fit_are_refused(splits: list[Any]) -> None:
    """Splits ascend from 0 to the number of values."""
    with pytest.raises(ValueError, match="row_splits"):
        RaggedArray(np.arange(3), np.array(splits))


def test_values_of_several_dimensions() -> None:
    """The axes behind the ragged ones are regular."""
    array = RaggedArray(np.arange(6).reshape(3, 2), np.array([0, 1, 3]))
    assert array.shape == (2, None, 2)
    assert array.to_list() == [[[0, 1]], [[2, 3], [4, 5]]]
    assert array.to_dense().shape == (2, 2, 2)
    assert BytesArray.from_items([b"x"]) == RaggedArray.from_rows([[b"x"]]).flat_values
