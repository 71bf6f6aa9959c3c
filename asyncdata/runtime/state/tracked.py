"""`TrackedStage`: where an ordered input enters the unordered part of a plan; see `asyncdata.runtime.state.tracks`."""

from __future__ import annotations

import numpy as np

from asyncdata.memory.advance import Advance
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.state.tracks import Track


class TrackedStage(Stage):
    """Gives each row its position, and leaves out those that were delivered before.

    Args:
        context: Of the input's step.
        upstream: Its stage, which begins at the state of the saved track.
        track: Of the input.
    """

    def __init__(self, context: StageContext, upstream: Stage, track: Track) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._track = track
        self._position = track.saved.at
        self._later = track.saved.later

    @property
    def ordered(self) -> bool:
        """What follows has no fixed order."""
        return False

    async def _pull(self, limit: int) -> Block | None:
        while True:
            await self._pause()
            block = await self._upstream.pull(limit)
            if block is None:
                self._track.ends(self._position)
                return None
            if (tracked := self._tracked(block)) is not None:
                return tracked

    def _pull_ready(self, limit: int) -> Block | None:
        block = self._upstream.pull_ready(limit)
        return None if block is None else self._tracked(block)

    def _tracked(self, block: Block) -> Block | None:
        for row, mark in block.advance.marks:
            self._track.begins(self._position + row, mark)
        first = self._position
        self._position += len(block)
        positions = np.arange(first, self._position)
        known = self._later[slice(*np.searchsorted(self._later, (first, self._position)))]
        if len(known):
            positions = np.setdiff1d(positions, known, assume_unique=True)
            block = block.select(positions - first)
        if not len(block):
            block.release()
            return None
        block.advance = Advance(len(block), self._track.used(positions), ordered=False)
        return block
