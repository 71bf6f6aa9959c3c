"""`DropStage`: leaves out what was delivered before the state that a pipeline was brought back to."""

from __future__ import annotations

from asyncdata.memory.block import Block
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext


class DropStage(Stage):
    """Drops the first rows of its input, because they were delivered before; `skip` would count them as used again.

    Args:
        context: Of the step whose rows they are.
        upstream: Its stage.
        count: How many.
    """

    def __init__(self, context: StageContext, upstream: Stage, count: int) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._left = count

    async def _pull(self, limit: int) -> Block | None:
        while self._left:
            await self._pause()
            block = await self._upstream.pull(min(BLOCK_ROWS, self._left + limit))
            if block is None:
                return None
            dropped = min(self._left, len(block))
            self._left -= dropped
            if dropped == len(block):
                # What follows its last row is news for the next one, as it is without a state.
                tail = block.advance.split(dropped)[1]
                block.release()
                if tail.has_news and not self._left:
                    return Block.empty(tail)
                continue
            head, block = block.split(dropped)
            head.release()
            return self._cut(block, limit)
        if self._block is not None:
            return self._cut(self._block, limit)
        return await self._upstream.pull(limit)

    def _cut(self, block: Block, limit: int) -> Block:
        self._block = None
        if len(block) > limit:
            block, self._block = block.split(limit)
        return block

    def _pull_ready(self, limit: int) -> Block | None:
        return None if self._left or self._block is not None else self._upstream.pull_ready(limit)
