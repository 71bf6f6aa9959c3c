"""The frame of stages that look at every row on the stage loop: inline maps and filters, checksums.

Some rows are looked at at a time; what is done is passed on, and the loop is left to others in between. A row that
fails ends the block before it: the rows in front are delivered first, then the row is left out, if a policy says so, or
its error is raised.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from asyncdata.memory.block import Block
from asyncdata.runtime.error_policy import Guard
from asyncdata.runtime.stage import BLOCK_BYTES, Pause, Stage
from asyncdata.runtime.user_code import call_rows, leave_out


class RowByRowStage(Stage):
    """See the module's docstring.

    Args:
        label: The stage's name.
        upstream: The input.
        guard: Says whether a row that fails may be left out; None lets none.
    """

    def __init__(self, label: str, upstream: Stage, guard: Guard | None) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._guard = guard
        self._block: Block | None = None
        self._error: Exception | None = None
        self._pause = Pause()

    @abstractmethod
    def _look(self, block: Block, limit: int) -> tuple[int, Exception | None]:
        """Looks at rows from the first on; how many of them, up to `limit`, go on, and why the next one fails."""

    @abstractmethod
    def _outcome(self, block: Block) -> Block:
        """What becomes of the rows that were looked at and go on; owns the block."""

    async def pull(self, limit: int) -> Block | None:
        await self._pause()
        if self._error is not None:
            assert self._block is not None
            news, self._block = leave_out(self._block, self._error, self._guard)
            self._error = None
            return Block.empty(news.advance)
        if self._block is None:
            self._block = await self._upstream.pull(limit)
        block = self._block
        if block is None:
            return None
        rows, self._error = self._look(block, limit)
        if self._guard is not None:
            self._guard.passed(rows)
        if rows < len(block):
            block, self._block = block.split(rows)
        else:
            self._block = None
        return self._outcome(block)

    @property
    def draining(self) -> bool:
        """When nothing is left over, and the input drains."""
        return self._block is None and super().draining

    async def aclose(self) -> None:
        if self._block is not None:
            self._block.release()
            self._block = None
        await super().aclose()


class RowwiseStage(RowByRowStage):
    """Calls a function for every row.

    Args:
        label: The stage's name.
        upstream: The input.
        call: Called with each element.
        guard: Says whether a row that fails may be left out; None lets none.
        most_bytes: What a block of results may take, unless it is one.
    """

    def __init__(
        self,
        label: str,
        upstream: Stage,
        call: Callable[..., Any],
        guard: Guard | None,
        most_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(label, upstream, guard)
        self._call = call
        self._most_bytes = most_bytes
        self._values: list[Any] = []

    @abstractmethod
    def _made(self, block: Block, values: list[Any]) -> Block:
        """What becomes of rows whose calls returned `values`; owns the block."""

    def _look(self, block: Block, limit: int) -> tuple[int, Exception | None]:
        self._values, error = call_rows(self._call, block, limit, self._most_bytes)
        return len(self._values), error

    def _outcome(self, block: Block) -> Block:
        values, self._values = self._values, []
        return self._made(block, values)
