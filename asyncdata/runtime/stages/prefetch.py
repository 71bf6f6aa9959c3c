"""`prefetch`: works ahead of the consumer, up to a number of elements."""

from __future__ import annotations

import asyncio
from collections import deque

from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Spawn, Stage


class PrefetchStage(Stage):
    """A task pulls the input into a bounded buffer; `pull` empties it.

    Args:
        label: The stage's name.
        upstream: The input.
        elements: How many elements may wait.
        spawn: Starts a task of the pipeline.
    """

    def __init__(self, label: str, upstream: Stage, elements: int, spawn: Spawn) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._limit = elements
        self._spawn = spawn
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
                while self._rows >= self._limit or len(self._blocks) > self._limit:
                    self._room.clear()
                    await self._room.wait()
                block = await self._upstream.pull(self._limit - self._rows)
                if block is None:
                    break
                self._blocks.append(block)
                self._rows += len(block)
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
        await super().aclose()
