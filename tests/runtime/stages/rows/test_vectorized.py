"""`map` of a vectorized function: any blocking, any kind of column, and errors that say what is expected."""

from __future__ import annotations

from collections.abc import Callable
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
        [["a", 1], ["b", 2], [b"a\0", b"b"], [["c\0"]], [2**63, -1], [2**53 + 1, 0.5], [None, 1], [], []],
        [[1, 2], [3, 4], [True, False], [0.5, 1]],
    ],
    ids=["byte order", "numbers", "strings", "shapes", "nests", "objects", "lists", "lists of numbers"],
)
def test_only_what_is_alike_arrives_together(items: list[Any]) -> None:
    """NumPy would convert what came together, and how much that is depends on time."""
    ds = ad.Dataset.from_generator(lambda: items)
    same = ds.map(lambda *parts: parts[0] if len(parts) == 1 else parts)
    together = ds.map(lambda *parts: parts[0] if len(parts) == 1 else parts, vectorized=True)
    assert list(map(repr, together)) == list(map(repr, same))


def test_lists_are_the_functions_own() -> None:
    """It may write to them, and they are the same in the next epoch."""
    ds = ad.Dataset.from_tensors(["a", 1]).cache().repeat(2)

    def function(lists: Any) -> Any:
        for each in lists:
            each.append("more")
        return lists

    assert list(ds.map(function, vectorized=True)) == [["a", 1, "more"]] * 2


def test_masks_of_results_stay() -> None:
    """Rows of a masked array are masked arrays, or the number; none is put into a batch without its mask."""
    ds = ad.Dataset.range(4).map(
        lambda x: np.ma.masked_array(np.stack([x, x], 1), [[False, True]] * len(x)), vectorized=True
    )
    assert [row.tolist() for row in ds] == [[number, None] for number in range(4)]
    flat = ad.Dataset.range(4).map(lambda x: np.ma.masked_greater(x, 2), vectorized=True)
    assert [row is np.ma.masked for row in flat] == [False] * 3 + [True]
    assert [batch.tolist() for batch in flat.take(3).batch(3)] == [[0, 1, 2]]
    for each in (ds, flat):
        with pytest.raises(ad.UnbatchableError, match="mask would be lost"):
            list(each.batch(4))


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


def unless(*bad: int) -> Callable[[Any], Any]:
    """A vectorized function that fails for these elements."""

    def function(numbers: Any) -> Any:
        if np.isin(numbers, bad).any():
            raise ValueError("bad")
        return numbers * 2

    return function


@pytest.mark.parametrize("bad", [0, 1, 37, 98, 99])
@pytest.mark.parametrize("together", [1, 7, 100])
def test_elements_before_one_that_fails_are_delivered(bad: int, together: int) -> None:
    """However many arrive together, also behind a state; the error names the one that failed."""
    numbers = ad.Dataset.range(100).batch(together).unbatch()
    ds = numbers.map(unless(bad), vectorized=True).with_options(ad.Options(state_history=100))
    with ds.iterator() as it:
        for number in range(bad):
            assert next(it) == 2 * number
        with pytest.raises(ValueError, match="bad") as caught:
            next(it)
        states = [it.state_dict(at=position) for position in {0, bad // 2, bad}]
    assert f", element {bad - bad % together} of " in caught.value.__notes__[-1]
    for state in states:
        with ds.iterator(state=state) as it:
            for number in range(state["position"], bad):
                assert next(it) == 2 * number
            with pytest.raises(ValueError, match="bad"):
                next(it)


@pytest.mark.parametrize("bad", [(0,), (99,), (3, 4, 50), tuple(range(0, 100, 3)), tuple(range(100))])
def test_a_policy_leaves_out_the_elements_that_fail(bad: tuple[int, ...]) -> None:
    """These and no others, as of functions that are called for one element."""
    ds = ad.Dataset.range(100).map(unless(*bad), vectorized=True)
    expected = [2 * number for number in range(100) if number not in bad]
    assert list(ds.ignore_errors()) == expected
    policy = ad.ErrorPolicy(max_skipped=len(bad))
    with ds.with_options(ad.Options(errors=policy)).iterator() as it:
        assert list(it) == expected
        assert it.stats().skipped.elements == len(bad)
    policy = ad.ErrorPolicy(max_skipped=len(bad) - 1)
    with pytest.raises(ad.TooManyErrorsError):
        list(ds.with_options(ad.Options(errors=policy)))


def test_one_element_that_fails_takes_few_calls() -> None:
    """The elements beside it are soon called for together again."""
    calls: list[int] = []

    def function(numbers: Any) -> Any:
        calls.append(len(numbers))
        return unless(1234)(numbers)

    assert len(list(ad.Dataset.range(4000).map(function, vectorized=True).ignore_errors())) == 3999
    assert len(calls) < 50


def test_a_function_that_is_wrong_is_no_fault_of_the_elements() -> None:
    """What is no array of rows ends the pipeline under any policy, and is not tried with fewer elements."""
    ds = ad.Dataset.range(100).map(lambda numbers: numbers[:1], vectorized=True)
    with pytest.raises(TypeError, match="arrays of 99 rows,"):
        list(ds.ignore_errors())


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
