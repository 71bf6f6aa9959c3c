"""`take_while`, `scan`, `rejection_resample`: a user's function of each element in turn, on the pipeline's loop.

A slow function is called for some rows at a time; what is done is passed on, and the loop is left to others. An error
is raised when the elements before it have been delivered.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Fold, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF, TupleOf
from asyncdata.runtime.randomness import fractions
from asyncdata.runtime.stage import BLOCK_BYTES, MARK_EVERY, Pause, Stage, row_marks
from asyncdata.runtime.stages.sources.arrays import block_of_elements
from asyncdata.runtime.user_code import UserFunction, as_int, call_rows
from asyncdata.types import Element

SMOOTHING: Final = 10.0
"""Elements of each class that are counted before the first one."""

ESTIMATED: Final = 32
"""So many elements are counted before the estimate of how often classes come is made anew."""
_EQUAL: Final = 1e-6
"""Ratios that differ by less, relatively, are equal."""
_TINY: Final = float(np.finfo(np.float64).tiny)


class CallingStage(Stage):
    """What the stages here share: calling for row after row, and what is left of a block."""

    def __init__(self, label: str, upstream: Stage, most_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._most_bytes = most_bytes
        self._block: Block | None = None
        self._error: Exception | None = None
        self._ended = False
        self._fold = Fold()
        self._pause = Pause()

    @abstractmethod
    def _call(self, element: Element, origin: Rows) -> Any:
        """Calls the function for the next element."""

    @abstractmethod
    def _block_of(self, block: Block, results: list[Any]) -> Block:
        """What becomes of the elements that the function was called for."""

    async def pull(self, limit: int) -> Block | None:
        if self._error is not None:
            raise self._error
        if self._ended:
            return None
        await self._pause()
        if self._block is None:
            self._block = await self._upstream.pull(limit)
        block = self._block
        if block is None:
            self._ended = True
            return None
        results, self._error = call_rows(self._call, block, limit, self._most_bytes)
        if self._error is not None and not results:
            raise self._error
        if len(results) < len(block):
            block, self._block = block.split(len(results))
        else:
            self._block = None
        return self._block_of(block, results)

    @property
    def draining(self) -> bool:
        """When nothing is left over, and the input drains."""
        return self._ended or (self._block is None and super().draining)

    async def aclose(self) -> None:
        self._release()
        await super().aclose()

    def _release(self) -> None:
        if self._block is not None:
            self._block.release()
            self._block = None


class TakeWhileStage(CallingStage):
    """Elements before the first one that the predicate refuses, which is used up, and the last."""

    def __init__(self, label: str, upstream: Stage, predicate: UserFunction) -> None:
        super().__init__(label, upstream)
        self._predicate = predicate
        self._refused = False

    def _call(self, element: Element, origin: Rows) -> bool:
        # Not asked again behind the end.
        self._refused = self._refused or not self._predicate.holds(element, origin)
        return not self._refused

    def _block_of(self, block: Block, results: list[Any]) -> Block:
        if all(results):
            return block
        count = results.index(False)
        self._ended = True
        self._release()
        used, rest = block.split(count + 1)
        rest.release()
        return used.select(np.arange(count))


class ScanStage(CallingStage):
    """``state, output = function(state, element)``; passes the outputs on.

    Args:
        label: The stage's name.
        upstream: The input.
        initial_state: The first state.
        function: The user's.
        most_bytes: What a block of outputs may take, unless it is one.
    """

    def __init__(
        self,
        label: str,
        upstream: Stage,
        initial_state: Any,
        function: UserFunction,
        most_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(label, upstream, most_bytes)
        self._state = initial_state
        self._function = function
        self._count = 0
        self._out = 0
        self._states: list[Any] = []

    def _call(self, element: Element, origin: Rows) -> Any:
        if self._count % MARK_EVERY == 0:
            # A function may change the state in place.
            self._states.append(copy.deepcopy(self._state))
        answer = self._function((self._state, element), origin)
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise TypeError(f"the function of {self.label} must return (new_state, output), not {answer!r}")
        self._state, output = answer
        self._count += 1
        return output

    def _block_of(self, block: Block, results: list[Any]) -> Block:
        marks = tuple(
            (row, {"state": state, "input": self._fold.at(block.advance, row)})
            for row, state in zip(row_marks(self._out, len(results)), self._states, strict=False)
        )
        self._states = self._states[len(marks) :]
        self._fold.feed(block.advance)
        self._out += len(results)
        block.release()
        return block_of_elements(results, block.origin, block.advance.with_marks(marks))


def resampling(
    target: npt.NDArray[np.float64], initial: npt.NDArray[np.float64]
) -> tuple[float, npt.NDArray[np.float64]]:
    """How classes that come as often as `initial` says are made to come as often as `target` says.

    A part of the result is the input as it is; the rest is drawn from the input once more, by class. The part is as
    large as it can be, so that as little as possible is rejected.

    Returns:
        The part, and the probability with which an element of each class is kept for the rest.
    """
    ratios = target / target.sum() * (initial.sum() / np.maximum(initial, _TINY))
    least, most = ratios.min(), ratios.max()
    if most - least <= _EQUAL * most:
        return 1.0, np.ones(len(target))
    return float(least), (ratios - least) / (most - least)


class RejectionStage(CallingStage):
    """Keeps each element with the probability that fills up what its class lacks; see `resampling`.

    Args:
        label: The stage's name.
        upstream: The input.
        function: Gives an element's class.
        target: How often each class is wished for.
        initial: How often each class comes; None to count them as they come.
        key: Of the draws.
        every: Whether all elements are kept.
    """

    def __init__(
        self,
        label: str,
        upstream: Stage,
        function: UserFunction,
        target: Sequence[float],
        initial: Sequence[float] | None,
        key: tuple[int, int],
        *,
        every: bool,
    ) -> None:
        super().__init__(label, upstream)
        self._function = function
        self._target = np.array(target, np.float64)
        self._given = initial is not None
        self._every = every
        # Counted, each class starts with a few, so that the first elements do not decide.
        self._seen = np.array(initial, np.float64) if initial is not None else np.full(len(target), SMOOTHING)
        self._key = key
        self._passed = 0
        self._out = 0
        self._before: list[Any] = []

    def _call(self, element: Element, origin: Rows) -> tuple[int, float]:
        number = self._function(element, origin)
        found = as_int(number, "class_func")
        if not 0 <= found < len(self._target):
            raise ValueError(f"class_func gave class {number}; target_dist has {len(self._target)}, counted from 0")
        self._before.append(None if self._given else self._seen.tolist())
        if not self._given:
            self._seen[found] += 1
        if self._every:
            return found, 1.0
        return found, float(resampling(self._target, self._seen)[1][found])

    def _block_of(self, block: Block, results: list[Any]) -> Block:
        drawn = fractions(self._key, self._passed, len(results))
        kept = np.flatnonzero(drawn < np.array([chance for _, chance in results]))
        advance = block.advance
        marks = tuple(
            (row, {"passed": self._passed + at, "seen": self._before[at], "input": self._fold.at(advance, at)})
            for row, at in ((row, int(kept[row])) for row in row_marks(self._out, len(kept)))
        )
        self._before.clear()
        self._fold.feed(advance)
        self._passed += len(results)
        self._out += len(kept)
        classes = np.array([found for found, _ in results], np.int64)
        if len(kept) < len(block):
            block = block.select(kept)
        advance = block.advance.with_marks(marks)
        if not len(kept):
            return Block.empty(advance)
        structure = TupleOf((LEAF, block.structure))
        return Block(structure, (ArrayColumn(classes[kept]), *block.columns), block.origin, advance)
