"""Tasks in threads: what becomes of one that waits for memory when nobody wants it any more."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from asyncdata.memory.arena import Arena
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF
from asyncdata.memory.wire import pack, packed_bytes, shape_of, write
from asyncdata.runtime.stages.work.executors import ThreadExecutor
from asyncdata.workers.program import Program
from asyncdata.workers.tasks import NO_SPAN, Task, encode_shape
from asyncdata.workers.threads import ThreadPool


def doubled(number: int) -> int:
    """A user's function."""
    return 2 * number


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_task_that_waits_for_memory_ends_when_it_is_cancelled(cancellations: int) -> None:
    """It is denied what it asked for, so that its thread is free at once, however often it is cancelled."""
    column = ArrayColumn(np.arange(4))
    parts = pack((column,), None)
    inline = np.empty(packed_bytes(parts), np.uint8)
    write(inline, 0, parts)
    task = Task(NO_SPAN, 4, 4, 0, (1, 2), False, encode_shape(shape_of(LEAF, (column,))), inline.tobytes())
    asked = asyncio.Event()
    let_go = asyncio.Event()

    async def never(nbytes: int) -> tuple[int, int]:
        asked.set()
        try:
            await asyncio.Event().wait()
            raise AssertionError(f"{nbytes} bytes were granted")
        finally:
            let_go.set()

    threads = ThreadPool(1)
    await threads.start()
    arena = Arena(1 << 20)
    try:
        executor = ThreadExecutor(threads, arena, Program(functions=(doubled,), rng=(False,)))
        running = asyncio.ensure_future(executor.run(task.encode(), never, lambda: None))
        await asked.wait()
        for _ in range(cancellations):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running
        await let_go.wait()
        assert not threads.stats().running
    finally:
        await threads.aclose()
        arena.close()
