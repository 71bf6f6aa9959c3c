"""Pools on a small arena, closed and checked at the end of the test that made them."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import pytest
import uvloop

from asyncdata.workers.pool import WorkerPool

ARENA_BYTES = 1 << 20


@pytest.fixture(scope="session", autouse=True)
def libuv() -> None:
    """libuv opens one pipe for the whole process with its first loop; no single test is blamed for it."""
    uvloop.new_event_loop().close()


class Meeting:
    """A grant that a test can watch: where programs meet the test.

    Attributes:
        asked: Every number of bytes that was asked for.
    """

    def __init__(self, *, held: bool = False) -> None:
        self.asked: list[int] = []
        self.arrivals: asyncio.Queue[int] = asyncio.Queue()
        self.gate = asyncio.Event()
        self._offset = 0
        if not held:
            self.gate.set()

    async def __call__(self, nbytes: int, _slot: int = 0) -> tuple[int, int]:
        """Grants the next bytes, once the gate is open."""
        self.asked.append(nbytes)
        self.arrivals.put_nowait(nbytes)
        await self.gate.wait()
        offset = self._offset
        self._offset += nbytes
        return offset, nbytes


class Kit:
    """A started pool, its arena, and short ways to use it."""

    def __init__(self, pool: WorkerPool, arena: memoryview) -> None:
        self.pool = pool
        self.arena = arena
        self._programs: dict[Any, int] = {}

    def register(self, program: Any) -> int:
        """The number of a program, registered once."""
        if program not in self._programs:
            self._programs[program] = self.pool.register(cloudpickle.dumps(program))
        return self._programs[program]

    async def run(self, program: Any, payload: bytes = b"", *, grant: Any = None) -> bytes:
        """Runs a program once."""
        return await self.pool.run(self.register(program), payload, grant=Meeting() if grant is None else grant)

    def task(self, program: Any, payload: bytes = b"", *, grant: Any = None) -> asyncio.Task[bytes]:
        """Runs a program in a task of its own; the test awaits it."""
        return asyncio.get_running_loop().create_task(self.run(program, payload, grant=grant))

    def pids(self) -> list[int]:
        """The process ids of the workers alive."""
        return [worker.pid for worker in self.pool.stats().workers]

    def pause(self) -> int:
        """Stops the first worker; returns its process id when it has stopped, which takes a moment after the signal."""
        pid = self.pids()[0]
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return pid


MakeKit = Callable[..., Any]


@pytest.fixture
async def make_kit() -> AsyncIterator[MakeKit]:
    """A function that starts a pool and waits until it is ready."""
    async with AsyncExitStack() as stack:

        async def make(num_workers: int = 2, first: int | None = None, **options: Any) -> Kit:
            fd = os.memfd_create("arena")
            stack.callback(os.close, fd)
            os.ftruncate(fd, ARENA_BYTES)
            mapped = mmap.mmap(fd, ARENA_BYTES)
            stack.callback(mapped.close)
            arena = memoryview(mapped)
            stack.callback(arena.release)
            options.setdefault("handler", "tests.workers.handlers:call_program")
            pool = WorkerPool(arena_fd=fd, arena_bytes=ARENA_BYTES, num_workers=num_workers, **options)
            stack.push_async_callback(pool.aclose)
            await pool.start(first)
            await pool.ready()
            return Kit(pool, arena)

        yield make
