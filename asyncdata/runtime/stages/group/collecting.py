"""The frame of stages that collect rows until a batch is full, and write it into a slab.

    upstream ─▶ Collector ─▶ rows of whole batches, and the state at their borders ─▶ `_make` ─▶ a block of batches

The rows wait as references, charged to the stage.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Foreseen
from asyncdata.memory.advance import EMPTY, Mark, Marks
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.memory.outside_slabs import OutsideSlabs
from asyncdata.runtime.stage import BLOCK_ROWS, Pause, Stage, StageContext
from asyncdata.runtime.stages.order.inputs import HandingOver
from asyncdata.runtime.state.marker import MARK_EVERY, Marker


class Collected(NamedTuple):
    """Rows of some batches.

    Attributes:
        block: The rows.
        stops: Where each batch ends.
        marks: Of the batches.
    """

    block: Block
    stops: list[int]
    marks: Marks

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


class Collector:
    """Input rows on their way to becoming batches, with the state at the borders of batches.

    Args:
        context: Of the stage.
        upstream: The input.
        sizes: Elements of the batches, in turn.
        drop_remainder: Whether a last batch that is smaller than its size is left out.
        writes: Whether rows are written into a slab as soon as a batch is full.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        sizes: Sequence[int],
        *,
        drop_remainder: bool,
        writes: bool = False,
    ) -> None:
        self._upstream = upstream
        if writes and isinstance(upstream, HandingOver):
            upstream.together = max(sizes)
        self._outside = OutsideSlabs(context.budget, context.rows)
        self._sizes = sizes
        self._drop = drop_remainder
        self._parts: list[Block] = []
        self._rows = 0
        self._ended = False
        # As often as its input marks elements; at every batch where these are larger.
        self._marker = Marker(every=max(1, MARK_EVERY // max(sizes)), follows=True)
        self._pause = Pause(context.meter.others)

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._marker.begin(mark["batch"] + mark["skip"], mark["input"])

    async def collect(self, most: int) -> Collected | None:
        """Rows for 1 to `most` batches, which are of one size but for the last one of all; None at the end.

        Elements that are left out at the end give a last block without rows: they have been used up.
        """
        size = self._sizes[self._marker.rows % len(self._sizes)]
        most = most if len(self._sizes) == 1 else 1
        while self._rows < size and not self._ended:
            await self._pause()
            want = size * most - self._rows
            block = await self._upstream.pull(min(max(want, 1), max(BLOCK_ROWS, size)))
            if block is None:
                self._ended = True
            else:
                block.add_to(self._parts)
                self._rows += len(block)
                await self._outside.add(block)
        if not self._parts:
            return None
        joined, self._parts = Block.concat(self._parts), []
        rows = min(self._rows // size, most) * size or (0 if self._drop else self._rows)
        if not rows:
            self._rows = 0
            return Collected(joined.select(np.empty(0, np.int64)), [], ())
        stops = list(range(size, rows + 1, size)) or [rows]
        if rows < len(joined):
            joined, rest = joined.split(rows)
            self._parts = [rest]
        self._outside.drop(joined)
        self._rows -= rows
        before = self._marker.rows
        starts = range(0, rows, size)
        marks = self._marker.after(
            joined.advance, len(stops), lambda j, state: {"batch": before + j, "input": state}, starts
        )
        return Collected(joined, stops, marks)

    def rest(self) -> Block:
        """The rows of a batch that will not be full, because the input failed behind them."""
        parts, self._parts, self._rows = self._parts, [], 0
        return Block.concat(parts) if parts else Block.empty(EMPTY)

    def foresee(self) -> Foreseen:
        """Elements of the largest batch, rows that wait, and their bytes."""
        nbytes = sum(part.payload_bytes(len(part)) for part in self._parts) + self._outside.charged_bytes
        return Foreseen(max(self._sizes), self._rows, nbytes, max(self._sizes))

    def movable(self) -> list[Column]:
        """See `runtime.memory.budget.Holder`."""
        return [column for part in self._parts for column in part.columns]

    def release(self) -> None:
        """Gives back what has been collected."""
        self.rest().release()
        self._outside.close()


class CollectingStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        sizes: Elements of the batches, in turn.
        drop_remainder: Whether a last batch that is smaller than its size is left out.

    Attributes:
        _waiting: Rows of batches that are still to be made.
        _now: Those of the batches that are being made.
        _slab: Where they are written.
        _most: Batches that are worth collecting at a time.
    """

    def __init__(self, context: StageContext, upstream: Stage, sizes: Sequence[int], *, drop_remainder: bool) -> None:
        super().__init__(context, (upstream,))
        self._collector = Collector(context, upstream, sizes, drop_remainder=drop_remainder, writes=True)
        self._budget = context.budget
        self._account = context.tasks
        self._rows_account = context.rows
        self._waiting: Collected | None = None
        self._now: Collected | None = None
        self._slab: Slab | None = None
        self._most = 1
        self._rows_account.foresee = self._foresee
        self._budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """See `runtime.memory.budget.Holder`: those of batches that are being made, too, until there is a slab."""
        columns = self._collector.movable()
        for collected in (self._waiting, self._now):
            if collected is not None and self._slab is None:
                columns += collected.block.columns
        return columns

    def _foresee(self) -> Foreseen:
        collected = self._now or self._waiting
        if collected is None:
            return self._collector.foresee()
        rows = len(collected.block)
        return self._collector.foresee()._replace(rows=rows, nbytes=collected.block.payload_bytes(rows))

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._collector.restore(mark)

    @abstractmethod
    async def _make(self, limit: int) -> Block:
        """A block of 1 to `limit` batches of what is in `_waiting`, where there is at least one."""

    async def _pull(self, limit: int) -> Block | None:
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
                self.context.sources.locate_rows(error, self.label, collected.block.origin)
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
