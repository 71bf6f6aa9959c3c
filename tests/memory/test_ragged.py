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
