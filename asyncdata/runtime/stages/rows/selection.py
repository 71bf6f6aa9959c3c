"""`filter`, `take`, `skip`: which elements go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asyncdata.memory.advance import Advance, Mark, Rows
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.rows.rowwise import RowwiseStage
from asyncdata.runtime.state.marker import Marker
from asyncdata.runtime.state.tracks import Track
from asyncdata.runtime.user_code import UserFunction
from asyncdata.types import Element


class FilterStage(RowwiseStage):
    """Elements for which the predicate is true. What it drops stays in the advance."""

    def __init__(self, context: StageContext, upstream: Stage, predicate: Callable[..., Any]) -> None:
        super().__init__(context, upstream)
        self._predicate = UserFunction(predicate, context)

    def _call(self, element: Element, origin: Rows) -> bool:
        return self._predicate.holds(element, origin)

    def _made(self, block: Block, values: list[Any]) -> Block:
        return block if all(values) else block.select(np.flatnonzero(values))


class TakeStage(Stage):
    """The first `count` elements; asks its input for no more than that."""

    def __init__(self, context: StageContext, upstream: Stage, count: int, track: Track | None = None) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._count = count
        self._marker = Marker(follows=True)
        self._track = track
        if track is not None:
            self._marker.begin(track.saved.delivered)
            self._count = self._marker.rows if track.is_over else count

    async def _pull(self, limit: int) -> Block | None:
        passed = self._marker.rows
        left = self._count - passed
        block = await self._upstream.pull(min(limit, left)) if left > 0 else None
        if block is None:
            if self._track is not None:
                self._track.ends(passed)
            return None
        if self._track is not None:
            block.advance = self._track.counted(block.advance)
        self._marker.mark(block, lambda row, state: {"passed": passed + row, "input": state})
        if len(block) == left:
            # What would follow the last element is not used up, wherever the block happened to end.
            block.advance = block.advance.split(left)[0]
        return block

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._marker.begin(mark["passed"] + mark["skip"], mark["input"])

    @property
    def draining(self) -> bool:
        """Also when nothing is left to take."""
        return self._marker.rows >= self._count or super().draining


class SkipStage(Stage):
    """All but the first `count` elements."""

    def __init__(self, context: StageContext, upstream: Stage, count: int, track: Track | None = None) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._left = count if track is None else count - track.saved.delivered
        self._count = count
        self._marker = Marker(follows=True)
        self._track = track

    def restore(self, mark: Mark) -> None:
        """See `Stage`; what there is to skip was skipped in front of the first mark."""
        self._left = 0
        self._marker.begin(mark["passed"] + mark["skip"], mark["input"])

    async def _pull(self, limit: int) -> Block | None:
        # What is left out is asked for in large blocks, even if the caller wants a few elements only.
        block = await self._upstream.pull(max(limit, min(self._left, BLOCK_ROWS)))
        if block is None:
            if self._track is not None:
                self._track.ends(self._count - self._left)
            return None
        skipped = min(self._left, len(block))
        if self._track is not None and skipped:
            head, rest = block.advance.split(skipped)
            block.advance = Advance.concat([self._track.counted(head), rest])
        taken, passed = block.advance, self._marker.rows
        kept = np.arange(skipped, len(block))
        self._left -= len(block) - len(kept)
        if len(kept) < len(block):
            block = block.select(kept)
        marks = self._marker.after(taken, len(kept), lambda row, state: {"passed": passed + row, "input": state}, kept)
        block.advance = block.advance.with_marks(marks)
        return block
