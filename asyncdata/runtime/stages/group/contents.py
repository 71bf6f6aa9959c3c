"""The source that reads what a window holds."""

from __future__ import annotations

from typing import Final

from asyncdata.memory.advance import NO_ORIGINS, Advance
from asyncdata.memory.block import Block
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.group.materialized import Contents
from asyncdata.runtime.stages.sources.arrays import source_advance
from asyncdata.runtime.state.marker import Marker

_NOTHING: Final = Contents(LEAF, (), NO_ORIGINS)


class ContentsStage(Stage):
    """Elements that were collected before.

    Args:
        context: What every stage is given.
        contents: The elements.
    """

    def __init__(self, context: StageContext, contents: Contents) -> None:
        super().__init__(context)
        self._contents = contents
        self._most = max(1, context.block_bytes * len(contents) // max(contents.copied_bytes, 1))
        self._history: Advance | None = None
        self._marker = Marker()

    async def _pull(self, limit: int) -> Block | None:
        start = self._marker.rows
        count = min(limit, self._most, len(self._contents) - start)
        if count <= 0:
            return None
        if not start:
            self._history = self._contents.take_history()
        block = self._contents.read(start, count, self.context.budget.slabs)
        advance = source_advance(block.origin, self._marker)
        if self._history is not None:
            part, rest = self._history.split(count)
            self._history = rest if rest.rows or rest.has_news else None
            advance = part.with_marks(advance.marks if part.ordered else ())
        block.advance = advance
        return block

    @property
    def draining(self) -> bool:
        """Nothing to prepare."""
        return True

    async def aclose(self) -> None:
        if self._history is not None:
            self._contents.give_history(self._history)
            self._history = None
        self._contents = _NOTHING
        await super().aclose()
