"""The frame of stages that call a function for every row on the stage loop: inline maps, filters, scans.

It is called for some rows at a time; what is done is passed on, and the loop is left to others in between. A row that
fails ends the block before it: the rows in front are delivered first, then the row is left out, if a policy says so, or
its error is raised.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.user_code import call_rows, leave_out
from asyncdata.types import Element


class RowwiseStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.

    Attributes:
        skips: Whether a row that fails may be left out; not where later rows depend on it.
    """

    skips: ClassVar[bool] = True

    def __init__(self, context: StageContext, upstream: Stage) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._guard = context.guard if self.skips else None
        self._error: Exception | None = None
        self._ended = False

    @abstractmethod
    def _call(self, element: Element, origin: Rows) -> Any:
        """Calls the function for the next element."""

    @abstractmethod
    def _made(self, block: Block, values: list[Any]) -> Block:
        """What becomes of rows for which `_call` returned `values`; owns the block."""

    def _look(self, block: Block, limit: int) -> tuple[list[Any], Exception | None]:
        """What the calls for rows from the first on returned, and why the next row fails."""
        return call_rows(self._call, block, limit, self.context.block_bytes)

    async def _pull(self, limit: int) -> Block | None:
        await self._pause()
        if self._error is not None:
            return self._leave_out(self._error)
        if self._block is None and not self._ended:
            self._block = await self._upstream.pull(limit)
        block = self._block
        if block is None:
            self._ended = True
            return None
        values, self._error = self._look(block, limit)
        if self._guard is not None:
            self._guard.passed(len(values))
        if self._error is not None and not values:
            return self._leave_out(self._error)
        self._block = None
        if len(values) < len(block):
            block, self._block = block.split(len(values))
        return self._made(block, values)

    def _leave_out(self, error: Exception) -> Block:
        """Goes on without the next row, or raises its error."""
        assert self._block is not None
        news, self._block = leave_out(self._block, error, self._guard)
        self._error = None
        return Block.empty(news.advance)

    @property
    def draining(self) -> bool:
        """Also when it has ended early."""
        return self._ended or super().draining
