"""`sample_from_datasets`, `choose_from_datasets`: a selector says which input each element comes from.

    selector: 0 1 1 0 2 …        a stage like any other, of numbers
    inputs:   ▒ ▒ ▒              rows available of each; an input is asked when a choice falls on it and it has none

The order is the selector's, never that of arrival. A choice that falls on an input that has ended is passed over, or
ends the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.errors import PipelineError
from asyncdata.memory.advance import Advance, Mark, Marks, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.randomness import fractions
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.order.inputs import Input
from asyncdata.runtime.stages.rows.rowwise import RowwiseStage
from asyncdata.runtime.stages.sources.arrays import CountedStage, Taken
from asyncdata.runtime.state.marker import Marker
from asyncdata.types import Element
from asyncdata.wording import counted, kind_of

Numbers: TypeAlias = npt.NDArray[np.float64]


class RandomChoices(CountedStage):
    """The numbers of inputs, drawn by weight without an end.

    Args:
        context: What every stage is given.
        key: Of the draws.
        weights: Of each input; at least one is above 0.
    """

    def __init__(self, context: StageContext, key: tuple[int, int], weights: Sequence[float]) -> None:
        super().__init__(context)
        self._number = 0
        self._key = key
        self._bounds = bounds(np.array([weights], np.float64))

    def take(self, start: int, limit: int) -> Taken:
        return limit, LEAF, (ArrayColumn(choose(self._bounds, fractions(self._key, start, limit))),)


class VaryingChoices(RowwiseStage):
    """The numbers of inputs, each drawn by the weights that one element of a dataset gives.

    Args:
        context: What every stage is given.
        upstream: Gives the weights.
        key: Of the draws.
        count: How many inputs there are.
    """

    skips = False

    def __init__(self, context: StageContext, upstream: Stage, key: tuple[int, int], count: int) -> None:
        super().__init__(context, upstream)
        self._key = key
        self._count = count
        self._at = 0
        self._marker = Marker()

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._at = mark["at"] + mark["skip"]
        self._marker.begin(self._at, mark["input"])

    def _made(self, block: Block, values: list[Any]) -> Block:
        block.release()
        drawn = fractions(self._key, self._at, len(block))
        chosen = choose(np.array(values), drawn) if values else np.empty(0, np.int64)
        at = self._at
        self._at += len(block)
        made = Block(LEAF, (ArrayColumn(chosen),), block.origin, block.advance)
        # Draws go by the position, so the state of the weights' dataset is not enough.
        return self._marker.mark(made, lambda row, state: {"at": at + row, "input": state})

    def _call(self, element: Element, origin: Rows) -> Numbers:
        del origin
        try:
            weights = np.asarray(element, np.float64).reshape(1, -1)
        except (TypeError, ValueError):
            raise PipelineError(
                f"the dataset of weights must give arrays of {counted(self._count, 'number')}, not {kind_of(element)}",
                stage=self.label,
            ) from None
        if weights.shape[1] != self._count:
            raise PipelineError(f"{weights.shape[1]} weights for {self._count} datasets", stage=self.label)
        row: Numbers = bounds(weights)[0]
        return row


def bounds(weights: Numbers) -> Numbers:
    """``float64[n, inputs]``: input i is chosen by a number from 0 to 1 that is below bound i and not below i - 1."""
    if not (np.isfinite(weights).all() and (weights >= 0).all() and (weights.sum(axis=1) > 0).all()):
        raise ValueError("weights must be finite, not negative, and not all 0")
    sums = np.cumsum(weights, axis=1, dtype=np.float64)
    normalized: Numbers = sums / sums[:, -1:]
    return normalized


def choose(limits: Numbers, drawn: Numbers) -> Rows:
    """The input that each number drawn chooses; `limits` has a row for each, or one for all."""
    if len(limits) == 1:
        return np.searchsorted(limits[0], drawn, side="right").astype(np.int64)
    chosen: Rows = (limits <= drawn[:, None]).sum(axis=1, dtype=np.int64)
    return chosen


class SampleStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        selector: Gives the number of an input for each element.
        stages: The inputs.
        stop_on_empty: Whether a choice that falls on an input that has ended is the end.
        ended: Told the number of each input that has ended and is closed.
    """

    def __init__(
        self,
        context: StageContext,
        selector: Stage,
        stages: Sequence[Stage],
        *,
        stop_on_empty: bool,
        ended: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(context, (selector, *stages))
        self._selector = Input(selector)
        self._inputs = [Input(stage) for stage in stages]
        self._stop_on_empty = stop_on_empty
        self._told = ended
        self._choices = np.empty(0, np.int64)
        self._begun = False
        self._ended = False
        self._marker = Marker()

    def restore(self, mark: Mark) -> None:
        """See `Stage`; an input without a state has ended."""
        *states, choices = mark["inputs"]
        self._selector.begin(choices)
        for source, state in zip(self._inputs, states, strict=True):
            source.begin(state)
            source.ended = state is None
        self._marker.begin(0)

    async def _pull(self, limit: int) -> Block | None:
        if not self._begun:
            self._begun = True
            self.prepare()
            for number, source in enumerate(self._inputs):
                if source.ended:  # before the state
                    await self._close(number)
        while not self._ended:
            if not await self._next_choices(limit):
                break
            kept = self._kept()
            if not len(kept):
                self._pass_over(len(self._choices))
                continue
            number = int(self._choices[kept[0]])
            source = self._inputs[number]
            if source.rows:
                return self._emit(kept[:limit])
            self._pass_over(int(kept[0]))
            if await source.more(BLOCK_ROWS, self._pause):
                continue
            # A choice has met the end of an input.
            await self._close(number)
            if self._stop_on_empty or all(one.ended for one in self._inputs):
                self._pass_over(1)
                break
        self._finish()
        return None

    def prepare(self) -> None:
        """Prepares all inputs but those that had ended before a state."""
        for source in (self._selector, *self._inputs):
            if not source.ended:
                source.stage.prepare()

    async def _close(self, number: int) -> None:
        """Closes an input that has ended."""
        source = self._inputs[number]
        source.release()
        await source.stage.aclose()
        if self._told is not None:
            self._told(number)

    async def _next_choices(self, limit: int) -> bool:
        """Makes sure that there are choices; False when there are no more."""
        await self._pause()
        if not len(self._choices):
            if not await self._selector.more(limit, self._pause):
                return False
            self._choices = self._numbers(self._selector.peek())
        return True

    def _numbers(self, block: Block) -> Rows:
        """The choices before the first one that is none."""
        column = block.columns[0]
        whole = isinstance(column, ArrayColumn) and block.structure is LEAF
        chosen = column.array if whole and isinstance(column, ArrayColumn) else np.asarray(block.elements())
        if chosen.dtype.kind not in "iu" or chosen.size != len(block):
            raise PipelineError("the dataset of choices must give integers", stage=self.label)
        numbers = chosen.reshape(-1).astype(np.int64, copy=False)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= len(self._inputs)))
        if not len(wrong):
            return numbers
        if not wrong[0]:
            count = len(self._inputs)
            raise PipelineError(
                f"there is no dataset {numbers[0]}: there are {count}, counted from 0", stage=self.label
            )
        return numbers[: wrong[0]]

    def _kept(self) -> Rows:
        """Where in the choices those are that do not fall on an input that has ended."""
        live = np.array([not source.ended or source.rows > 0 for source in self._inputs])
        return np.flatnonzero(live[self._choices])

    def _pass_over(self, count: int) -> None:
        """Uses up choices."""
        if count:
            self._selector.skip(count)
            self._choices = self._choices[count:]

    def _emit(self, kept: Rows) -> Block:
        """As many rows as can leave without asking an input for more."""
        order = self._choices[kept]
        by_input = np.argsort(order, kind="stable")
        starts = np.flatnonzero(np.diff(order[by_input], prepend=-1))
        at_hand = np.array([self._inputs[number].rows for number in order[by_input[starts]].tolist()])
        lacking = at_hand < np.diff(starts, append=len(order))
        # The first choice for which an input has no row waits, and so do those behind it.
        stop = int(by_input[(starts + at_hand)[lacking]].min(initial=len(order)))
        order, kept, by_input = order[:stop], kept[:stop], by_input[by_input < stop]
        counts = np.bincount(order, minlength=len(self._inputs))
        present = np.flatnonzero(counts).tolist()
        # One input that gives its rows in any order makes all of them so, also where none of its rows is here.
        ordered = self.ordered
        marks = self._marks(order, kept, present, ordered=ordered)
        self._pass_over(int(kept[-1]) + 1)
        joined = Block.concat([self._inputs[number].take(int(counts[number])) for number in present])
        if len(present) > 1:
            back = np.empty(stop, np.int64)
            back[by_input] = np.arange(stop)
            joined = joined.reorder(back, joined.advance)
        joined.advance = Advance(stop, marks, ordered=ordered)
        return joined

    def _marks(self, order: Rows, kept: Rows, present: Sequence[int], *, ordered: bool) -> Marks:
        def mark(row: int) -> Mark:
            counts = np.bincount(order[:row], minlength=len(self._inputs)).tolist()
            states = [None if s.ended and not s.rows else s.at(n) for s, n in zip(self._inputs, counts, strict=True)]
            return {"inputs": [*states, self._selector.at(int(kept[row]))]}

        # What an input reads that is kept is known from its first row on.
        first = [int(np.argmax(order == number)) for number in present if self._inputs[number].tells_filling]
        return self._marker.marks(len(order), mark, ordered=ordered, also=first)

    def _finish(self) -> None:
        self._ended = True
        for source in (self._selector, *self._inputs):
            source.release()

    @property
    def draining(self) -> bool:
        """When every input drains."""
        return self._ended or all(source.ended or source.stage.draining for source in self._inputs)

    async def aclose(self) -> None:
        self._finish()
        await super().aclose()
