"""User functions are called element by element; errors name the element."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.advance import Advance
from asyncdata.memory.block import Block
from asyncdata.plan.label import function_name
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.stage import StageContext
from asyncdata.runtime.stages.sources.arrays import block_of_elements, source_origin
from asyncdata.runtime.user_code import UserFunction, call_rows
from asyncdata.workers.failure import UserFunctionError

ORIGIN = source_origin(1, 3, 1)[0]


def context(label: str, sources: SourceTable | None = None) -> StageContext:
    """Of a stage that calls functions, and does nothing else."""
    nothing: Any = None
    return StageContext(
        label=label,
        budget=nothing,
        sources=sources or SourceTable(),
        threads=nothing,
        spawn=nothing,
        account=nothing,
    )


def test_tuples_are_unpacked() -> None:
    """A tuple element becomes arguments, anything else is one."""
    function = UserFunction(lambda *parts: parts, context("map"))
    assert function((1, 2), ORIGIN) == (1, 2)
    assert function([1, 2], ORIGIN) == ([1, 2],)
    assert function({"a": 1}, ORIGIN) == ({"a": 1},)


def test_generators_are_keyed_by_the_element() -> None:
    """The same key and provenance give the same numbers; another record others."""
    function = UserFunction(lambda _, rng: rng.random(), context("map"), keys=(1, 2))
    other = source_origin(1, 4, 1)[0]
    assert function(0, ORIGIN) == function(1, ORIGIN) != function(0, other)


def test_errors_keep_their_type_and_name_the_element() -> None:
    """An exception passes through with a note; its traceback leads to the user's line."""

    def broken(x: int) -> int:
        return x // 0

    sources = SourceTable()
    number = sources.add(("1",), "range(5)")
    function = UserFunction(broken, context("map(broken)", sources))
    with pytest.raises(ZeroDivisionError) as caught:
        function(1, source_origin(number, 3, 1)[0])
    assert caught.value.__notes__ == ["in map(broken), element 3 of range(5)"]
    assert caught.traceback[-1].name == "broken"


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
def test_errors_that_mean_something_else_are_wrapped(error: type[Exception]) -> None:
    """What would end a loop silently becomes an error that is caused by it."""

    def broken(_: int) -> int:
        raise error("ended")

    with pytest.raises(UserFunctionError) as caught:
        UserFunction(broken, context("map"))(1, ORIGIN)
    assert isinstance(caught.value.__cause__, error)


def test_truth_is_part_of_the_predicate() -> None:
    """An answer without a truth value is the predicate's error, named like any other."""
    function = UserFunction(lambda x: x, context("filter"))
    assert function.holds([1], ORIGIN) is True
    assert function.holds([], ORIGIN) is False
    with pytest.raises(ValueError, match="ambiguous") as caught:
        function.holds(np.arange(2), ORIGIN)
    assert caught.value.__notes__


def block(count: int) -> Block:
    origin = source_origin(1, 0, count)
    return block_of_elements(list(range(count)), origin, Advance(count))


def test_rows_until_one_fails() -> None:
    """The rows before an error are kept, and the error comes beside them."""

    def function(element: int, _: object) -> int:
        if element == 3:
            raise KeyError(element)
        return element

    assert call_rows(function, block(3), 9) == ([0, 1, 2], None)
    assert call_rows(function, block(3), 2) == ([0, 1], None)
    values, error = call_rows(function, block(5), 9)
    assert values == [0, 1, 2]
    assert isinstance(error, KeyError)


def test_slow_rows_are_passed_on_early() -> None:
    """A function that takes its time yields at least one row, and far fewer than there are."""

    def slow(element: int, _: object) -> int:
        until = time.monotonic() + 0.005
        while time.monotonic() < until:
            pass
        return element

    assert call_rows(slow, block(1000), 1000) == ([0], None)


def test_names() -> None:
    """Functions, classes, partials and objects have a name for labels."""

    class Callable_:  # noqa: N801 -- no other class may be meant
        def __call__(self) -> None:
            """Does nothing."""

    assert function_name(len) == "len"
    assert function_name(Callable_()).endswith("Callable_")
    assert function_name(functools.partial(len)) == "partial"
    assert "<locals>" not in function_name(lambda: None)
