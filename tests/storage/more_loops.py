"""Loops that receive beside the one of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncdata.runtime.life.loops import LoopThread
from asyncdata.storage.receivers import Receivers


@asynccontextmanager
async def more_loops(count: int, *, most: int | None = None) -> AsyncIterator[Receivers]:
    """So many loops together, that of the caller included; ended afterwards."""
    begun: list[LoopThread] = []

    async def begin() -> LoopThread:
        begun.append(LoopThread(f"receiver {len(begun)}"))
        await asyncio.to_thread(begun[-1].start)
        return begun[-1]

    try:
        yield Receivers(count, begin, most=most)
    finally:
        for loop in begun:
            await asyncio.to_thread(loop.end)
