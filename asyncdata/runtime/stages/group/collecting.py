"""The frame of stages that collect rows until a batch is full, and write it into a slab.

    upstream ─▶ Collector ─▶ rows of whole batches, and the state at their borders ─▶ `_make` ─▶ a block of batches

The rows wait as references, charged to the stage. The ledger hears once, and for good, that they wait: what has been
collected gives no memory back by itself, neither while nobody asks for a batch nor while the stage itself waits for
the memory to write one. Were it told that the stage is at work, an ask that cannot be granted would wait for ever.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, Protocol

import numpy as np

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Account, Foreseen
from asyncdata.memory.advance import EMPTY, Fold, Mark
from asyncdata.memory.block import Block
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.stage import BLOCK_ROWS, Pause, Stage


class Collected(NamedTuple):
    """Rows of some batches.

    Attributes:
        block: The rows.
        stops: Where each batch ends.
        marks: Of the batches.
    """

    block: Block
    stops: list[int]
    marks: tuple[tuple[int, Mark], ...]

    def split(self, batches: int) -> tuple[Collected, Collected]:
        """The first so many batches and the rest."""
        cut = self.stops[batches - 1]
        head, tail = self.block.split(cut)
        return (
            Collected(head, self.stops[:batches], tuple(mark for mark in self.marks if mark[0] < batches)),
            Collected(
                tail,
                [stop - cut for stop in self.stops[batches:]],
                tuple((j - batches, mark) for j, mark in self.marks if j >= batches),
            ),
        )


class Collects(Protocol):
    """Gathers input rows; see `Collector`."""

    async def collect(self, most: int) -> Collected | None:
        """Rows for 1 to `most` batches; None at the end."""

    def release(self) -> None:
        """Gives back what has been collected."""

    def foresee(self) -> Foreseen:
        """Elements of a batch, rows that wait, and their bytes."""


class Collector:
    """Input rows on their way to becoming batches, with the state at every batch's border.

    Args:
        upstream: The input.
        size: Elements of a batch.
        drop_remainder: Whether a last, smaller batch is left out.
    """

    def __init__(self, upstream: Stage, size: int, *, drop_remainder: bool) -> None:
        self._upstream = upstream
        self._size = size
        self._drop = drop_remainder
        self._parts: list[Block] = []
        self._rows = 0
        self._ended = False
        self._fold = Fold()
        self._batches = 0
        self._pause = Pause()

    async def collect(self, most: int) -> Collected | None:
        """Rows for 1 to `most` batches; None at the end.

        Elements that are left out at the end give a last block without rows: they have been used up.
        """
        while self._rows < self._size and not self._ended:
            await self._pause()
            want = self._size * most - self._rows
            block = await self._upstream.pull(min(max(want, 1), max(BLOCK_ROWS, self._size)))
            if block is None:
                self._ended = True
            else:
                self._parts.append(block)
                self._rows += len(block)
        if not self._parts:
            return None
        joined, self._parts = Block.concat(self._parts), []
        count = min(self._rows // self._size, most)
        rows = count * self._size or (0 if self._drop else self._rows)
        if not rows:
            self._rows = 0
            return Collected(joined.select(np.empty(0, np.int64)), [], ())
        stops = list(range(self._size, rows + 1, self._size)) or [rows]
        if rows < len(joined):
            joined, rest = joined.split(rows)
            self._parts = [rest]
        self._rows -= rows
        marks = tuple(
            (j, {"batch": self._batches + j, "input": self._fold.at(joined.advance, j * self._size)})
            for j in range(len(stops))
        )
        self._fold.feed(joined.advance)
        self._batches += len(stops)
        return Collected(joined, stops, marks)

    def rest(self) -> Block:
        """The rows of a batch that will not be full, because the input failed behind them."""
        parts, self._parts, self._rows = self._parts, [], 0
        return Block.concat(parts) if parts else Block.empty(EMPTY)

    def foresee(self) -> Foreseen:
        """Elements of a batch, rows that wait, and their bytes."""
        nbytes = sum(part.payload_bytes(len(part)) for part in self._parts)
        return Foreseen(self._size, self._rows, nbytes, self._size)

    def release(self) -> None:
        """Gives back what has been collected."""
        self.rest().release()


class CollectingStage(Stage):
    """See the module's docstring.

    Args:
        label: The stage's name.
        upstream: The input.
        collector: Gathers its rows.
        budget: For slabs.
        account: Charged with finished batches.
        rows_account: Of the rows being collected.
        sources: For naming a record that does not fit.

    Attributes:
        _waiting: Rows of batches that are still to be made.
        _now: Those of the batches that are being made.
        _slab: Where they are written.
        _most: Batches that are worth collecting at a time.
    """

    def __init__(
        self,
        label: str,
        upstream: Stage,
        collector: Collects,
        *,
        budget: Budget,
        account: Account,
        rows_account: Account,
        sources: SourceTable,
    ) -> None:
        super().__init__(label, (upstream,))
        self._collector = collector
        self._budget = budget
        self._account = account
        self._rows_account = rows_account
        self._sources = sources
        self._waiting: Collected | None = None
        self._now: Collected | None = None
        self._slab: Slab | None = None
        self._most = 1
        self._pause = Pause()
        rows_account.foresee = self._foresee

    def _foresee(self) -> Foreseen:
        collected = self._now or self._waiting
        if collected is None:
            return self._collector.foresee()
        rows = len(collected.block)
        return self._collector.foresee()._replace(rows=rows, nbytes=collected.block.payload_bytes(rows))

    @abstractmethod
    async def _make(self, limit: int) -> Block:
        """A block of 1 to `limit` batches of what is in `_waiting`, where there is at least one."""

    async def pull(self, limit: int) -> Block | None:
        if self._waiting is None:
            self._waiting = await self._collector.collect(min(limit, self._most))
        if self._waiting is None:
            return None
        if not self._waiting.stops:
            news, self._waiting = self._waiting.block, None
            return news
        try:
            return await self._make(limit)
        except MemoryLimitError as error:
            collected = self._now or self._waiting
            if collected is not None:
                self._sources.locate_rows(error, self.label, collected.block.origin)
            raise

    async def aclose(self) -> None:
        self._collector.release()
        for collected in (self._waiting, self._now):
            if collected is not None:
                collected.block.release()
        self._waiting = self._now = None
        if self._slab is not None:
            self._budget.slabs.drop(self._slab)
            self._slab = None
        await super().aclose()
