"""`prefetch`: works ahead of the consumer, up to a number of elements."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import Final

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.block import Block
from asyncdata.runtime.memory.landing import LandingAhead, NoRoomError
from asyncdata.runtime.stage import BLOCK_ROWS, Spawn, Stage

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

    Attributes:
        elements: The answer.
    """

    def __init__(self, most_bytes: int, usual_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._usual_bytes = usual_bytes
        self._seconds = math.nan
        self.elements = _LEAST

    def note(self, block: Block, seconds: float) -> None:
        """So long the elements of a block were waited for; there are some."""
        each = seconds / len(block)
        # From the first measurement on; old ones fade.
        self._seconds = each if math.isnan(self._seconds) else self._seconds + _SMOOTHING * (each - self._seconds)
        by_time = _AHEAD_S / max(self._seconds, 1e-9)
        each_bytes = max(block.payload_bytes(len(block)), 1) / len(block)
        least = max(_LEAST, min(_USUAL, int(self._usual_bytes / each_bytes)))
        self.elements = max(least, int(min(by_time, self._most_bytes / each_bytes, BLOCK_ROWS)))


class PrefetchStage(Stage):
    """A task pulls the input into a bounded buffer; `pull` empties it.

    Args:
        label: The stage's name.
        upstream: The input.
        elements: How many elements may wait, or what finds it.
        spawn: Starts a task of the pipeline.
        landing: Charges elements that lie outside of slabs; where that fails, no more of them are made.
    """

    def __init__(
        self, label: str, upstream: Stage, elements: int | Depth, spawn: Spawn, landing: LandingAhead | None = None
    ) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._depth = elements if isinstance(elements, Depth) else None
        self._limit = elements.elements if isinstance(elements, Depth) else elements
        self._spawn = spawn
        self._landing = landing
        self._crowded = False
        self._blocks: deque[Block] = deque()
        self._rows = 0
        self._pump: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def _run(self) -> None:
        try:
            while True:
                # Blocks without rows count too: news must not pile up while nobody asks.
                while self._rows > self._enough or len(self._blocks) > self._limit or (self._crowded and self._blocks):
                    self._room.clear()
                    await self._room.wait()
                block = await self._next()
                if block is None:
                    break
                self._blocks.append(block)
                self._rows += len(block)
                self._crowded = not await self._land(block)
                self._news.set()
                # Cheap inputs never wait; this lets the loop see to everybody else.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- raised by the pull that has emptied the buffer
            self._error = error
        finally:
            self._ended = True
            self._news.set()

    async def _land(self, block: Block) -> bool:
        if self._landing is not None and len(block):
            try:
                await self._landing(block)
            except (NoRoomError, MemoryLimitError):
                return False
        return True

    @property
    def _enough(self) -> int:
        """With more than so many there is no hurry: a bit at a time would be as dear as much at once."""
        return self._limit - 1 if self._depth is None else self._limit // 2

    async def _next(self) -> Block | None:
        began = time.monotonic()
        block = await self._upstream.pull(self._limit - self._rows)
        if self._depth is not None and block is not None and len(block):
            self._depth.note(block, time.monotonic() - began)
            self._limit = self._depth.elements
        return block

    async def pull(self, limit: int) -> Block | None:
        if self._pump is None:
            self._pump = self._spawn(self._run())
        while not self._blocks:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()
        block = self._blocks.popleft()
        if len(block) > limit:
            block, rest = block.split(limit)
            self._blocks.appendleft(rest)
        self._rows -= len(block)
        self._room.set()
        return block

    async def aclose(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        while self._blocks:
            self._blocks.popleft().release()
        if self._landing is not None:
            self._landing.close()
        await super().aclose()
