"""Calls functions that users wrote, and reports the element on which they failed."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.own import settled
from asyncdata.memory.structure import element_bytes
from asyncdata.runtime.error_policy import Guard
from asyncdata.runtime.stage import BLOCK_BYTES, LONG_STEP_S, StageContext
from asyncdata.types import Element
from asyncdata.workers.calling import as_element, explain_call, no_coroutine
from asyncdata.workers.failure import as_raisable
from asyncdata.workers.program import generator

T = TypeVar("T")


class UserFunction:
    """A function of one element, called where the pipeline runs.

    A tuple is unpacked into the arguments, a namedtuple is one. An exception keeps its type and traceback and gains a
    note with the stage and the element's provenance.

    Args:
        function: The user's function.
        context: Of the stage that calls it.
        keys: Key of the random generators, when the function takes one.
        depth: Of the function's step in the plan; sets its random numbers apart from those of other steps.
        given: What the arguments are, if they are not an element or its items.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        context: StageContext,
        keys: tuple[int, int] | None = None,
        depth: int = 0,
        given: str | None = None,
    ) -> None:
        self._function = function
        self._context = context
        self._keys = keys
        self._depth = depth
        self._given = given

    def __call__(self, element: Element, origin: Rows) -> Any:
        """What the function returns."""
        return self._call(element, origin, None)

    def element(self, element: Element, origin: Rows) -> Element:
        """What the function returns, as an element."""
        value = self._call(element, origin, as_element)
        return settled(value)

    def holds(self, element: Element, origin: Rows) -> bool:
        """Whether the function's answer is true."""
        answer: bool = self._call(element, origin, _truth)
        return answer

    def answer(self, element: Element, origin: Rows, convert: Callable[[Any], T]) -> T:
        """What `convert` makes of the function's answer; what it raises names the element as well."""
        made: T = self._call(element, origin, convert)
        return made

    def _call(self, element: Element, origin: Rows, convert: Callable[[Any], Any] | None) -> Any:
        arguments = element if type(element) is tuple else (element,)
        try:
            if self._keys is None:
                value = self._function(*arguments)
            else:
                value = self._function(*arguments, rng=generator(self._keys, origin, self._depth))
            no_coroutine(value)
            return value if convert is None else convert(value)
        except BaseException as error:
            named = {} if self._keys is None else {"rng": None}
            explain_call(error, self._function, arguments, named, self._given)
            raised = as_raisable(error)
            self._context.sources.locate(raised, self._context.label, origin)
            if raised is error:
                raise
            raise raised from raised.__cause__


def _truth(value: Any) -> bool:
    # A generator is always true.
    return bool(as_element(value))


def as_int(value: Any, what: str) -> int:
    """What a function returned: an integer, or an array of one."""
    try:
        return operator.index(value.item() if isinstance(value, np.ndarray | np.generic) else value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must return an integer, not {type(value).__name__}") from None


def call_rows(
    call: Callable[[Element, Rows], T], block: Block, limit: int, most_bytes: int = BLOCK_BYTES
) -> tuple[list[T], Exception | None]:
    """Calls a function for row after row, until `limit` are done, one fails, or 2 ms have passed.

    Or until what it returned takes `most_bytes`, so that the collecting stage is charged before there is more.

    Returns:
        What it returned, and the exception of the row after these, if that was the reason to stop. See `leave_out`.
    """
    results: list[T] = []
    nbytes = 0
    until = time.monotonic() + LONG_STEP_S
    try:
        elements = block.privates()
        for origin in block.origin[:limit]:
            results.append(result := call(next(elements), origin))
            nbytes += element_bytes(result)
            if nbytes >= most_bytes or time.monotonic() >= until:
                break
    except Exception as error:  # noqa: BLE001 -- raised once the rows before it are delivered
        return results, error
    return results, None


def leave_out(block: Block, error: Exception, guard: Guard | None) -> tuple[Block, Block]:
    """Takes the first row, for which a function failed, out of a block.

    Returns:
        A block without rows that says that it is used up, and the others.

    Raises:
        Exception: That error, or that it was one too many.
    """
    over = error if guard is None else guard.skip(error, block.origin[0])
    if over is not None:
        raise over
    bad, rest = block.split(1)
    return bad.select(np.empty(0, np.int64)), rest
