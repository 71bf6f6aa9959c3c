"""Tasks in threads: what becomes of one that asks for memory when nobody wants it any more, or there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.arena import Arena
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF
from asyncdata.memory.wire import pack, packed_bytes, shape_of, write
from asyncdata.runtime.stages.work.executors import ThreadExecutor
from asyncdata.workers.program import Program
from asyncdata.workers.task_records import NO_SPAN, Reply, Task, encode_shape
from asyncdata.workers.thread_pool import ThreadPool


def doubled(number: int) -> int:
    """A user's function."""
    return 2 * number


def task() -> bytes:
    """Four numbers, and no memory for results."""
    column = ArrayColumn(np.arange(4))
    parts = pack((column,), None)
    inline = np.empty(packed_bytes(parts), np.uint8)
    write(inline, 0, parts)
    return Task(NO_SPAN, 4, 4, 0, (1, 2), False, encode_shape(shape_of(LEAF, (column,))), inline.tobytes()).encode()


@pytest.fixture
async def threads() -> AsyncIterator[ThreadPool]:
    """One thread."""
    pool = ThreadPool(1)
    await pool.start()
    yield pool
    await pool.aclose()


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_cancelled_task_returns_when_its_thread_is_done(threads: ThreadPool, cancellations: int) -> None:
    """It may still write where it was granted memory, however often it is cancelled."""
    asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def late(nbytes: int, _slot: int) -> tuple[int, int]:
        asked.set()
        await may_go_on.wait()
        return 0, nbytes

    arena = Arena(1 << 20)
    executor = ThreadExecutor(threads, arena, Program(functions=(doubled,), rng=(False,)))
    running = asyncio.ensure_future(executor.run(task(), late))
    await asked.wait()
    for _ in range(cancellations):
        running.cancel()
        await asyncio.sleep(0)
    assert not running.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not threads.stats().running
    arena.close()


async def test_a_refusal_is_raised_as_it_is(threads: ThreadPool) -> None:
    """The error of whoever grants memory ends the task; the next one runs."""

    async def refuse(nbytes: int, _slot: int) -> tuple[int, int]:
        raise MemoryLimitError(f"{nbytes} bytes in one piece are needed")

    async def grant(nbytes: int, _slot: int) -> tuple[int, int]:
        return 0, nbytes

    arena = Arena(1 << 20)
    executor = ThreadExecutor(threads, arena, Program(functions=(doubled,), rng=(False,)))
    with pytest.raises(MemoryLimitError, match="bytes in one piece are needed"):
        await executor.run(task(), refuse)
    assert Reply.decode(await executor.run(task(), grant)).count == 4
    arena.close()
