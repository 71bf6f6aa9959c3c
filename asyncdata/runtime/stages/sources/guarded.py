"""A source of one shard that may end early: what cannot be read any further is counted, and the shard ends there."""

from __future__ import annotations

from collections.abc import Callable

from asyncdata.memory.block import Block
from asyncdata.runtime.error_policy import Guard
from asyncdata.runtime.stage import Stage, StageContext


class GuardedStage(Stage):
    """Passes on what its source delivers, and ends where the source fails in a way that ends one shard only.

    Args:
        context: What every stage is given.
        source: Reads the shard.
        guard: Counts; one for all shards of one step.
        size: Of the object, if it is known by then.
    """

    def __init__(self, context: StageContext, source: Stage, guard: Guard, size: Callable[[], int | None]) -> None:
        super().__init__(context, (source,))
        self._source = source
        self._guard = guard
        self._size = size
        self._ended = False

    async def _pull(self, limit: int) -> Block | None:
        if self._ended:
            return None
        try:
            block = await self._source.pull(limit)
        except Exception as error:
            if not self._guard.ends_shard(error):
                raise
            over = self._guard.end_shard(error, self._size)
            if over is not None:
                raise over from error
            self._ended = True
            return None
        if block is not None:
            self._guard.passed(len(block))
        return block

    def _pull_ready(self, limit: int) -> Block | None:
        block = None if self._ended else self._source.pull_ready(limit)
        if block is not None:
            self._guard.passed(len(block))
        return block

    @property
    def draining(self) -> bool:
        """Also when it has ended early."""
        return self._ended or super().draining
