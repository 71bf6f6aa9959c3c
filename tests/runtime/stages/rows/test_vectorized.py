"""`map` of a vectorized function: any blocking, any kind of column, and errors that say what is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.runtime.stages.rows.vectorized import VectorizedMapStage
from tests.runtime.stages.laws import Bench, Kinds, Scripted, check_any_blocking, check_closing, script
from tests.samples import samples


@pytest.mark.parametrize("kind", ["array", "refs", "twice", "nests"])
def test_any_blocking_gives_the_same(kind: Kinds) -> None:
    """Elements and state do not depend on how many rows a call gets, and nothing stays held."""

    def make(bench: Bench) -> VectorizedMapStage:
        source = Scripted(bench, script(40), kind)
        return VectorizedMapStage(bench.context("map"), source, lambda *parts: (parts[0], parts[-1]))

    check_any_blocking(make, seeds=range(samples(3, 60)))
    check_closing(make)


@pytest.mark.parametrize(
    "items",
    [
        [np.arange(2, dtype=">i4")] * 4,
        [1, 2.5, True, 2**63, 3j],
        [b"bytes", "text", b"more", 4],
        [np.arange(n % 3) for n in range(6)],
        [(1, 2), {"a": 1}, 3, (4, 5), [1, 2]],
        [{1}, None, [[1], [2, 3]]],
    ],
    ids=["byte order", "numbers", "strings", "shapes", "nests", "objects"],
)
def test_only_what_is_alike_arrives_together(items: list[Any]) -> None:
    """NumPy would convert what came together, and how much that is depends on time."""
    ds = ad.Dataset.from_generator(lambda: items)
    same = ds.map(lambda *parts: parts[0] if len(parts) == 1 else parts)
    together = ds.map(lambda *parts: parts[0] if len(parts) == 1 else parts, vectorized=True)
    assert list(map(repr, together)) == list(map(repr, same))


def test_leaves_arrive_as_arrays_of_rows_and_leave_as_elements() -> None:
    """Numbers as arrays of their own, byte strings and texts as BytesArray; results nest as they like."""
    seen: list[Any] = []

    def function(element: dict[str, Any]) -> Any:
        seen.append((type(element["n"]), element["n"].flags.writeable, type(element["s"]), element["t"][0]))
        return element["n"] * 2, {"s": element["s"], "v": np.stack([element["n"], element["n"]], 1)}

    ds = ad.Dataset.from_tensor_slices({"n": [1, 2, 3], "s": [b"a", b"", b"ccc"], "t": ["x", "y", "z"]})
    found = list(ds.map(function, vectorized=True))
    assert [(int(n), rest["s"], rest["v"].tolist()) for n, rest in found] == [
        (2, b"a", [1, 1]),
        (4, b"", [2, 2]),
        (6, b"ccc", [3, 3]),
    ]
    assert seen == [(np.ndarray, True, BytesArray, first) for first in "xy"]  # one element, then the others


@pytest.mark.parametrize("result", [3, [1, 2, 3], np.arange(2), np.int64(5)])
def test_what_is_no_array_of_rows_is_refused(result: Any) -> None:
    """The message says how many rows were expected; the stage and the elements are named."""
    with pytest.raises(TypeError, match="arrays of 1 row,") as caught:
        list(ad.Dataset.range(3).map(lambda _: result, vectorized=True))
    assert any("called for 1 element " in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "arguments", [{"num_parallel_calls": 2}, {"executor": "process"}, {"rng": True}, {"zero_copy": True}]
)
def test_what_goes_element_by_element_does_not_go_with_it(arguments: Any) -> None:
    """Such arguments are refused at once."""
    with pytest.raises(ValueError, match=r"vectorized function"):
        ad.Dataset.range(3).map(lambda x: x, vectorized=True, **arguments)
