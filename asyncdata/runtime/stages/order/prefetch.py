"""`prefetch`: works ahead of the consumer, up to a number of elements."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from typing import Final

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column
from asyncdata.memory.short_blocks import SHORT_BYTES, SHORT_ROWS, short_bytes
from asyncdata.runtime.memory.landing import LandingAhead, NoRoomError
from asyncdata.runtime.stage import BLOCK_ROWS, Ahead, Stage, StageContext
from asyncdata.runtime.tuning.knob import Knob, as_knob

_USUAL: Final = 8
_LEAST: Final = 2
_AHEAD_S: Final = 0.05
_SMOOTHING: Final = 0.3


class Depth:
    """How many elements are worth making ahead, found from what they cost.

    What is cheap to make is made many at a time, for a block costs about the same whatever its length: as many as take
    50 ms, and not more bytes than may wait. At least 8, where so many large ones leave memory to others, else 2.

    Args:
        most_bytes: What may wait because it is cheap.
        usual_bytes: What 8 elements may have.
        times: How many times 50 ms, and 8 elements.

    Attributes:
        elements: The answer.
    """

    def __init__(self, most_bytes: int, usual_bytes: int, times: int | Knob = 1) -> None:
        self._most_bytes = most_bytes
        self._times = as_knob(times)
        self._usual_bytes = usual_bytes
        self._seconds = math.nan
        self.elements = _LEAST

    def note(self, block: Block, seconds: float) -> None:
        """So long the elements of a block were waited for; there are some."""
        each = seconds / len(block)
        times = self._times.value
        self._times.done += len(block)
        # From the first measurement on; old ones fade.
        self._seconds = each if math.isnan(self._seconds) else self._seconds + _SMOOTHING * (each - self._seconds)
        by_time = times * _AHEAD_S / max(self._seconds, 1e-9)
        each_bytes = max(block.payload_bytes(len(block)), 1) / len(block)
        least = max(_LEAST, min(times * _USUAL, int(self._usual_bytes / each_bytes)))
        self.elements = max(least, int(min(by_time, self._most_bytes / each_bytes, BLOCK_ROWS)))


class PrefetchStage(Stage):
    """A task pulls the input into a bounded buffer; `pull` empties it.

    Elements that lie outside of slabs are charged; where that fails, no more of them are made.

    Args:
        context: What every stage is given.
        upstream: The input.
        elements: How many elements may wait, or what finds it.
    """

    def __init__(self, context: StageContext, upstream: Stage, elements: int | Depth) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._depth = elements if isinstance(elements, Depth) else None
        self._limit = elements.elements if isinstance(elements, Depth) else elements
        self._landing = LandingAhead(context.budget, context.ahead)
        self._crowded = False
        self._rows = 0
        self._ahead: Ahead[Block] = Ahead(context, self._fill)
        context.budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """See `runtime.memory.budget.Holder`."""
        return [column for block in self._ahead.items for column in block.columns]

    async def _fill(self) -> None:
        while True:
            await self._ahead.room(self._is_full)
            block = await self._next()
            if block is None:
                return
            self._rows += len(block)
            self._ahead.put(block)
            self._crowded = not await self._land(block)
            # Cheap inputs never wait; this lets the loop see to everybody else. What they do is no work of this step.
            with self.context.meter.others:
                await asyncio.sleep(0)

    def _is_full(self) -> bool:
        # Blocks without rows count too: news must not pile up while nobody asks.
        waiting = len(self._ahead.items)
        # With more than half of it there is no hurry: a bit at a time would be as dear as much at once.
        enough = self._limit - 1 if self._depth is None else self._limit // 2
        return self._rows > enough or waiting > self._limit or (self._crowded and waiting > 0)

    async def _land(self, block: Block) -> bool:
        if len(block):
            try:
                await self._landing(block)
            except (NoRoomError, MemoryLimitError):
                return False
        return True

    async def _next(self) -> Block | None:
        began = time.monotonic()
        block = await self._upstream.pull(self._limit - self._rows)
        if self._depth is not None and block is not None and len(block):
            self._depth.note(block, time.monotonic() - began)
            self._limit = self._depth.elements
        return block

    async def _pull(self, limit: int) -> Block | None:
        if not await self._ahead.wait():
            return None
        block = self._ahead.take()
        if len(block) > limit:
            block, rest = block.split(limit)
            self._ahead.items.appendleft(rest)
        elif self._ahead.items and 0 < len(block) < SHORT_ROWS:
            block = self._joined(block, limit)
        self._rows -= len(block)
        return block

    def _joined(self, block: Block, limit: int) -> Block:
        """A short block with those behind it.

        A full buffer asks its input for as many rows as were taken. Whoever takes one at a time once would make all
        blocks that follow of one row, and every step would cost a row what it costs a block.
        """
        blocks, rows, nbytes = [block], len(block), short_bytes(block)
        while (items := self._ahead.items) and rows + len(items[0]) <= limit:
            after = items[0]
            nbytes += short_bytes(after)
            if nbytes > SHORT_BYTES or after.structure != block.structure:
                break
            blocks.append(self._ahead.take())
            rows += len(after)
        return Block.concat(blocks)

    async def aclose(self) -> None:
        await self._ahead.aclose()
        while self._ahead.items:
            self._ahead.items.popleft().release()
        self._landing.close()
        await super().aclose()
