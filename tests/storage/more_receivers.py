"""Processes that receive beside the loop of a test, into whatever buffers the test has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.runtime.receiving.receiver import ReceiverProcess
from asyncdata.runtime.receiving.starter import ReceiverStarter
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.reader import ReaderSpec
from asyncdata.storage.receivers import BodyReader, Receiver, Receivers
from asyncdata.types import ObjectInfo
from tests.patience import until

ARENA_BYTES = 1 << 27


class Processes:
    """Starts them, on one arena, of which every read has a place of its own."""

    def __init__(self) -> None:
        self.arena = Arena(ARENA_BYTES)
        self.starter = ReceiverStarter(self.arena)
        self._next = 0

    async def begin(self, lost: Callable[[Receiver], None] = lambda _: None) -> Outside:
        """One more."""
        made = Outside(self)
        made.process = await self.starter.begin(lambda _: lost(made))
        return made

    def place(self, nbytes: int) -> memoryview:
        """Memory that no other read is given soon."""
        if self._next + nbytes > ARENA_BYTES:
            self._next = 0
        begin, self._next = self._next, self._next + -(-nbytes // GRANULE) * GRANULE
        return self.arena.view[begin : begin + nbytes]

    def close(self) -> None:
        """Ends them."""
        self.starter.kill()
        self.starter.close()
        self.arena.close()


class Outside:
    """A process that also serves buffers outside the arena: what came there is copied when a read has ended."""

    process: ReceiverProcess

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    @property
    def fallbacks(self) -> dict[str, int]:
        return self.process.fallbacks

    def reader(self, spec: ReaderSpec, near: BodyReader) -> OutsideReader:
        return OutsideReader(self.processes, self.process.reader(spec, near))

    async def ready(self) -> None:
        await self.process.ready()

    def cpu_s(self) -> float:
        return self.process.cpu_s()

    def kill(self) -> None:
        self.process.kill()

    async def aclose(self) -> None:
        await self.process.aclose()


class OutsideReader:
    """Its reader."""

    def __init__(self, processes: Processes, reader: BodyReader) -> None:
        self._processes = processes
        self._reader = reader

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt) -> int:
        found: int = await self._copied(buffer, lambda inside: self._reader.read_into(info, start, inside, attempt))
        return found

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt) -> tuple[ObjectInfo, int]:
        found: tuple[ObjectInfo, int] = await self._copied(
            buffer, lambda inside: self._reader.open_read(url, inside, attempt)
        )
        return found

    async def _copied(self, buffer: memoryview, read: Callable[[memoryview], Coroutine[Any, Any, Any]]) -> Any:
        inside = self._processes.place(len(buffer))
        inside[:] = buffer
        try:
            return await read(inside)
        finally:
            buffer[:] = inside


@asynccontextmanager
async def processes() -> AsyncIterator[Processes]:
    """Ended afterwards."""
    made = Processes()
    try:
        yield made
    finally:
        made.close()


@asynccontextmanager
async def more_receivers(count: int, *, most: int | None = None) -> AsyncIterator[Receivers]:
    """So many processes that receive; 1: that of the test alone. Ended afterwards."""
    async with processes() as made:
        receivers = Receivers(count, made.begin, most=most)
        try:
            if count > 1:
                await until(lambda: receivers.choose() is not None and receivers.count == count)
            yield receivers
        finally:
            await receivers.aclose()
