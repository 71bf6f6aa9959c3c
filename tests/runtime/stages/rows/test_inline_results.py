"""A function's results are the same elements wherever it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.advance import EMPTY, NO_ORIGINS
from asyncdata.memory.columns import ArrayColumn
from asyncdata.runtime.stages.rows.inline import block_of_results

COUNT = 4


def mixed(x: Any) -> Any:
    """Numbers of several kinds in turn."""
    return [int(x), float(x), bool(x), complex(x)][int(x)]


def growing(x: Any) -> Any:
    """Integers of more and more bits."""
    return 2 ** (21 * (int(x) + 1)) - 1


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "complex": complex,
    "numpy": np.int16,
    "text": str,
    "tuple": lambda x: (int(x), float(x), str(x)),
    "dict": lambda x: {"a": int(x), "b": (bool(x), None)},
    "mixed": mixed,
    "large": growing,
    "none": lambda _: None,
}


def plain(value: Any) -> Any:
    """A value with its type, and those inside it."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return type(value).__name__, value


@pytest.fixture(scope="module")
def runtime() -> Any:
    """One worker, and some threads, for all."""
    with ad.Runtime(ad.Options(num_workers=1), pipelines=1) as running:
        for executor in ("process", "thread"):
            list(ad.Dataset.range(2).map(float, num_parallel_calls=2, executor=executor))
        yield running


@pytest.mark.sampled
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_makes_no_difference_where_a_function_runs(name: str, runtime: ad.Runtime) -> None:
    """Inline, awaited, in a thread, in a process: the same values of the same types."""
    function = FUNCTIONS[name]
    source = ad.Dataset.range(COUNT)

    async def later(x: Any) -> Any:
        return function(x)

    expected = [plain(item) for item in source.map(function, num_parallel_calls=2)]
    assert len(expected) == COUNT
    for dataset in (
        source.map(function),
        source.map(function, num_parallel_calls=2, executor="thread"),
        source.map(later, num_parallel_calls=2),
        source.map(later, num_parallel_calls=1),
    ):
        assert [plain(item) for item in dataset] == expected


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (7, np.int64),
        (-(2**63), np.int64),
        (2**63, np.uint64),
        (2**64, int),
        (True, np.bool_),
        (0.5, np.float64),
        (1j, np.complex128),
        (np.int8(3), np.int8),
        ("7", str),
        (None, type(None)),
    ],
)
def test_a_number_becomes_what_numpy_makes_of_it(result: Any, kind: type) -> None:
    """Alone, among its like and among others, and inside a nest."""
    origin = np.zeros((1, 4), np.int64)
    for others in ([], [1], [2**63], [0.5], ["x"], [None]):
        results = [result, *others]
        block = block_of_results(results, np.repeat(origin, len(results), 0), EMPTY)
        assert type(block.element(0)) is kind
        assert block.element(0) == result
        nests = block_of_results([(item, 0) for item in results], np.repeat(origin, len(results), 0), EMPTY)
        assert type(nests.element(0)[0]) is kind
    unlike = block_of_results([(result, 1), 5], np.repeat(origin, 2, 0), EMPTY)
    assert type(unlike.element(0)[0]) is kind


def test_numbers_of_a_block_are_one_array() -> None:
    """What follows pays for the block, not for each."""
    block = block_of_results([1, 2, 3], np.zeros((3, 4), np.int64), EMPTY)
    assert isinstance(block.columns[0], ArrayColumn)
    assert not len(block_of_results([], NO_ORIGINS, EMPTY))
