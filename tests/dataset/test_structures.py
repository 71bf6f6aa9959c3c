"""How functions are called: a plain tuple becomes several arguments, as in tf.data; everything else is one."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import asyncdata as ad

D = ad.Dataset


class Pair(NamedTuple):
    """An element with names."""

    x: Any
    y: Any


class Named(Pair):
    """A subclass with a method, as people write them."""

    __slots__ = ()

    def total(self) -> Any:
        """Of both."""
        return self.x + self.y


@ad.register_dataclass
@dataclasses.dataclass
class Point:
    """A registered dataclass."""

    x: Any
    y: Any


def total(pair: Any) -> Any:
    """Of one argument with two parts."""
    return pair.x + pair.y


async def total_later(pair: Any) -> Any:
    """The same, awaited."""
    return pair.x + pair.y


@pytest.mark.sampled
@pytest.mark.parametrize("make", [Pair, Named, Point])
@pytest.mark.parametrize(
    "arguments",
    [
        {"map_func": total},
        {"map_func": total_later},
        {"map_func": total, "vectorized": True},
        {"map_func": total, "num_parallel_calls": 1},
        {"map_func": total, "num_parallel_calls": 2, "executor": "thread"},
    ],
    ids=["inline", "async", "vectorized", "process", "thread"],
)
def test_an_element_with_names_is_one_argument(make: Any, arguments: dict[str, Any]) -> None:
    """Wherever the function runs, of a source as of a map in front of it."""
    expected = [10, 12, 14]
    ds = D.from_tensor_slices(make(np.arange(3), np.arange(10, 13)))
    with ad.Runtime(ad.Options(num_workers=1)):
        assert [int(found) for found in ds.map(**arguments)] == expected
        made = D.range(3).map(lambda i: make(i, i + 10), num_parallel_calls=arguments.get("num_parallel_calls"))
        assert [int(found) for found in made.map(**arguments)] == expected


def test_the_other_functions_are_called_alike() -> None:
    """Predicates, keys and functions that make datasets."""
    pairs = D.from_tensor_slices(Named(np.arange(4), np.arange(4)))
    assert [pair.x for pair in pairs.filter(lambda pair: pair.total() > 2)] == [2, 3]
    assert [pair.y for pair in pairs.take_while(lambda pair: pair.x < 2)] == [0, 1]
    assert list(pairs.flat_map(lambda pair: D.range(pair.y))) == [0, 0, 1, 0, 1, 2]
    assert list(pairs.interleave(lambda pair: D.range(pair.y), 2)) == [0, 0, 1, 0, 1, 2]
    grouped = pairs.group_by_window(lambda pair: pair.x % 2, lambda _, window: window.batch(2), window_size=2)
    assert [batch.total().tolist() for batch in grouped] == [[0, 4], [2, 6]]
    assert [int(x) for x in D.from_tensors((1, Pair(2, 3))).map(lambda a, pair: a + pair.y)] == [4]
    assert list(D.from_tensors((5,)).map(lambda a: a + 1)) == [6]


def test_dicts_keep_the_order_of_the_first_element() -> None:
    """In batches; keys that come in another order, as those of JSON may, are the same element."""
    rows = [{"b": 1, "a": 2}, {"a": 4, "b": 3}]
    (batch,) = D.from_generator(lambda: rows).batch(2)
    assert list(batch) == ["b", "a"]
    assert (batch["b"].tolist(), batch["a"].tolist()) == ([1, 3], [2, 4])


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="this numpy has no such strings")
def test_slices_of_numpys_strings_are_strings() -> None:
    """Of any length, with zeros in them; one that is missing is refused."""
    words = ["a", "", "ü\0b"]
    texts = np.array(words, np.dtypes.StringDType())
    assert list(ad.Dataset.from_tensor_slices(texts)) == words
    (batch,) = ad.Dataset.from_tensor_slices({"x": texts}).batch(3)
    assert list(batch["x"]) == words
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    with pytest.raises(TypeError, match="every missing"):
        ad.Dataset.from_tensor_slices(missing)
