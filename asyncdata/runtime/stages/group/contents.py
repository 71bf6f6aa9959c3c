"""The source that reads what a window holds."""

from __future__ import annotations

from typing import Final

from asyncdata.memory.advance import NO_ORIGINS, Advance
from asyncdata.memory.block import Block
from asyncdata.memory.slabs import Slabs
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.stage import BLOCK_BYTES, Stage, row_marks
from asyncdata.runtime.stages.group.materialized import Contents
from asyncdata.runtime.stages.sources.arrays import source_advance

_NOTHING: Final = Contents(LEAF, (), NO_ORIGINS)


class ContentsStage(Stage):
    """Elements that were collected before.

    Args:
        label: The stage's name.
        contents: The elements.
        slabs: Of the pipeline that reads them.
        most_bytes: What the copies that a block is made of may take, unless it is one.
    """

    def __init__(self, label: str, contents: Contents, slabs: Slabs, most_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(label)
        self._contents = contents
        self._slabs = slabs
        self._most = max(1, most_bytes * len(contents) // max(contents.copied_bytes, 1))
        self._at = 0
        self._history: Advance | None = None

    async def pull(self, limit: int) -> Block | None:
        count = min(limit, self._most, len(self._contents) - self._at)
        if count <= 0:
            return None
        if not self._at:
            self._history = self._contents.take_history()
        block = self._contents.read(self._at, count, self._slabs)
        if self._history is None:
            block.advance = source_advance(block.origin, self._at)
        else:
            part, rest = self._history.split(count)
            self._history = rest if rest.rows or rest.has_news else None
            marks = tuple((row, {"at": self._at + row}) for row in row_marks(self._at, count))
            block.advance = part.with_marks(marks)
        self._at += count
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
