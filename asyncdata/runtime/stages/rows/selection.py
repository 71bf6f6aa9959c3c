"""`filter`, `take`, `skip`: which elements go on."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncdata.memory.advance import Advance, Fold
from asyncdata.memory.block import Block
from asyncdata.runtime.error_policy import Guard
from asyncdata.runtime.stage import Stage, row_marks
from asyncdata.runtime.stages.rows.rowwise import RowwiseStage
from asyncdata.runtime.user_code import UserFunction


class FilterStage(RowwiseStage):
    """Elements for which the predicate is true. What it drops stays in the advance."""

    def __init__(self, label: str, upstream: Stage, predicate: UserFunction, guard: Guard | None = None) -> None:
        super().__init__(label, upstream, predicate.holds, guard)

    def _made(self, block: Block, values: list[Any]) -> Block:
        return block if all(values) else block.select(np.flatnonzero(values))


class _Counter:
    """Counts the rows that pass, and marks every so many of them with the count and the input's state."""

    def __init__(self) -> None:
        self.passed = 0
        self._fold = Fold()

    def mark(self, block: Block, advance: Advance, dropped: int) -> Block:
        """Marks a block made of the input rows of `advance` from row `dropped` on."""
        marks = tuple(
            (row, {"passed": self.passed + row, "input": self._fold.at(advance, dropped + row)})
            for row in row_marks(self.passed, len(block))
        )
        self._fold.feed(advance)
        self.passed += len(block)
        block.advance = block.advance.with_marks(marks)
        return block


class TakeStage(Stage):
    """The first `count` elements; asks its input for no more than that."""

    def __init__(self, label: str, upstream: Stage, count: int) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._count = count
        self._counter = _Counter()

    async def pull(self, limit: int) -> Block | None:
        left = self._count - self._counter.passed
        if left <= 0:
            return None
        block = await self._upstream.pull(min(limit, left))
        if block is None:
            return None
        self._counter.mark(block, block.advance, 0)
        if len(block) == left:
            # What would follow the last element is not used up, wherever the block happened to end.
            block.advance = block.advance.split(left)[0]
        return block

    @property
    def draining(self) -> bool:
        """Also when nothing is left to take."""
        return self._counter.passed >= self._count or super().draining


class SkipStage(Stage):
    """All but the first `count` elements."""

    def __init__(self, label: str, upstream: Stage, count: int) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._left = count
        self._counter = _Counter()

    async def pull(self, limit: int) -> Block | None:
        block = await self._upstream.pull(limit)
        if block is None:
            return None
        advance = block.advance
        dropped = min(self._left, len(block))
        if dropped:
            self._left -= dropped
            block = block.select(np.arange(dropped, len(block)))
        return self._counter.mark(block, advance, dropped)
