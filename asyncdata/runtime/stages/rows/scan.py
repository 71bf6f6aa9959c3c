"""`take_while`, `scan`, `rejection_resample`: a user's function of each element in turn, on the pipeline's loop.

A slow function is called for some rows at a time; what is done is passed on, and the loop is left to others. An error
is raised when the elements before it have been delivered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata import arguments
from asyncdata.memory.advance import Mark, Rows, State
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.own import own
from asyncdata.memory.structure import LEAF, TupleOf
from asyncdata.runtime.randomness import fractions
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.rows.rowwise import RowwiseStage
from asyncdata.runtime.stages.sources.arrays import block_of_elements
from asyncdata.runtime.state.marker import MARK_EVERY, Marker
from asyncdata.runtime.state.tracks import Track
from asyncdata.runtime.user_code import UserFunction, as_int
from asyncdata.types import Element

SMOOTHING: Final = 10.0
"""Elements of each class that are counted before the first one."""

ESTIMATED: Final = 32
"""So many elements are counted before the estimate of how often classes come is made anew."""
_EQUAL: Final = 1e-6
"""Ratios that differ by less, relatively, are equal."""
_TINY: Final = float(np.finfo(np.float64).tiny)


class TakeWhileStage(RowwiseStage):
    """Elements before the first one that the predicate refuses, which is used up, and the last."""

    skips = False

    def __init__(self, context: StageContext, upstream: Stage, predicate: Callable[..., Any]) -> None:
        super().__init__(context, upstream)
        self._predicate = UserFunction(predicate, context)
        self._refused = False

    def _call(self, element: Element, origin: Rows) -> bool:
        # Not asked again behind the end.
        self._refused = self._refused or not self._predicate.holds(element, origin)
        return not self._refused

    def _made(self, block: Block, values: list[Any]) -> Block:
        if all(values):
            return block
        count = values.index(False)
        self._ended = True
        if self._block is not None:
            self._block.release()
            self._block = None
        used, rest = block.split(count + 1)
        rest.release()
        return used.select(np.arange(count))


class ScanStage(RowwiseStage):
    """``state, output = function(state, element)``; passes the outputs on.

    Args:
        context: What every stage is given.
        upstream: The input.
        initial_state: The first state.
        function: The user's.
        track: Knows the state behind what was delivered, where elements come in no fixed order.
    """

    skips = False

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        initial_state: Any,
        function: Callable[..., Any],
        track: Track | None = None,
    ) -> None:
        super().__init__(context, upstream)
        self._track = track
        # A function may change the state in place, and the next epoch begins with the same one.
        (state,) = (track.saved.value if track is not None else ()) or (initial_state,)
        self._state = copy.deepcopy(state)
        self._passed = 0 if track is None else track.saved.delivered
        self._function = UserFunction(function, context, given="two arguments, the state and the element")
        self._marker = Marker()
        self._count = 0
        self._states: list[Any] = []

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._state = copy.deepcopy(mark["state"])
        self._marker.begin(0, mark["input"])

    def _call(self, element: Element, origin: Rows) -> Any:
        if self._track is None and self._count % MARK_EVERY == 0:
            self._states.append(copy.deepcopy(self._state))
        self._state, output = self._function.answer((self._state, element), origin, self._checked)
        self._count += 1
        if self._track is not None:
            # What follows comes in another order each time, so nothing leads from an earlier state to this one.
            self._states.append(copy.deepcopy(self._state))
        return own(output)  # which may be the state, or hold it

    def _checked(self, answer: Any) -> Any:
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise TypeError(
                f"the function of {self.label} must return (new_state, output), not {arguments.shown(answer)}"
            )
        return answer

    def _made(self, block: Block, values: list[Any]) -> Block:
        if self._track is not None:
            return self._carried(self._track, block, values)
        states, self._states = iter(self._states), []
        self._marker.mark(block, lambda _, state: {"state": next(states), "input": state})
        block.release()
        return block_of_elements(values, block.origin, block.advance)

    def _carried(self, track: Track, block: Block, values: list[Any]) -> Block:
        states, self._states = self._states, []
        numbers = track.next_numbers(len(values))
        track.carries(numbers, states)
        self._passed += len(values)
        block.release()
        return block_of_elements(values, block.origin, track.counted(block.advance, numbers))

    async def _pull(self, limit: int) -> Block | None:
        block = await super()._pull(limit)
        if block is None and self._track is not None:
            self._track.ends(self._passed)
        return block


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


class RejectionStage(RowwiseStage):
    """Keeps each element with the probability that fills up what its class lacks; see `resampling`.

    Args:
        context: What every stage is given.
        upstream: The input.
        function: Gives an element's class.
        target: How often each class is wished for.
        initial: How often each class comes; None to count them as they come.
        key: Of the draws.
        every: Whether all elements are kept.
    """

    skips = False

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        function: Callable[..., Any],
        target: Sequence[float],
        initial: Sequence[float] | None,
        key: tuple[int, int],
        *,
        every: bool,
    ) -> None:
        super().__init__(context, upstream)
        self._function = UserFunction(function, context)
        self._marker = Marker()
        self._target = np.array(target, np.float64)
        self._given = initial is not None
        self._every = every
        # Counted, each class starts with a few, so that the first elements do not decide.
        self._seen = np.array(initial, np.float64) if initial is not None else np.full(len(target), SMOOTHING)
        self._key = key
        self._passed = 0
        self._before: list[Any] = []

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._passed = mark["passed"]
        if mark["seen"] is not None:
            self._seen = np.array(mark["seen"], np.float64)
        self._marker.begin(0, mark["input"])

    def _class_of(self, answer: Any) -> int:
        found = as_int(answer, "class_func")
        if not 0 <= found < len(self._target):
            raise ValueError(f"class_func gave class {answer}; target_dist has {len(self._target)}, counted from 0")
        return found

    def _call(self, element: Element, origin: Rows) -> tuple[int, float]:
        found = self._function.answer(element, origin, self._class_of)
        self._before.append(None if self._given else self._seen.tolist())
        if not self._given:
            self._seen[found] += 1
        if self._every:
            return found, 1.0
        return found, float(resampling(self._target, self._seen)[1][found])

    def _made(self, block: Block, values: list[Any]) -> Block:
        drawn = fractions(self._key, self._passed, len(values))
        kept = np.flatnonzero(drawn < np.array([chance for _, chance in values]))
        passed = self._passed

        def mark(row: int, state: State) -> Mark:
            at = int(kept[row])
            return {"passed": passed + at, "seen": self._before[at], "input": state}

        marks = self._marker.after(block.advance, len(kept), mark, kept)
        self._before.clear()
        self._passed += len(values)
        classes = np.array([found for found, _ in values], np.int64)
        if len(kept) < len(block):
            block = block.select(kept)
        advance = block.advance.with_marks(marks)
        if not len(kept):
            return Block.empty(advance)
        structure = TupleOf((LEAF, block.structure))
        made = Block(structure, (ArrayColumn(classes[kept]), *block.columns), block.origin, advance)
        return made.as_objects() if block.has_nests else made
