"""Tasks in threads: what becomes of one that asks for memory when nobody wants it any more, or there is none."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from asyncdata.errors import CloseTimeoutError, MemoryLimitError
from asyncdata.memory.arena import Arena
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF
from asyncdata.memory.wire import pack, packed_bytes, shape_of, write
from asyncdata.runtime.stages.work.executors import ThreadExecutor
from asyncdata.workers.child import GrantDeniedError
from asyncdata.workers.program import Program, execute
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


def _left_behind(asks_first: bool) -> BaseException:
    """What a thread hears that asks for memory and whose caller and loop go, before it asks or while it waits."""
    inside, may_go_on, heard = threading.Event(), threading.Event(), queue.SimpleQueue[BaseException]()

    def slow(number: int) -> int:
        inside.set()
        may_go_on.wait()
        return number

    async def never(_nbytes: int, _slot: int) -> tuple[int, int]:
        inside.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def told(*args: Any) -> bytes:
        try:
            return execute(*args)
        except BaseException as error:
            heard.put(error)
            raise

    async def run() -> None:
        pool = ThreadPool(1, close_timeout_s=0)
        await pool.start()
        executor = ThreadExecutor(pool, arena, Program(functions=(doubled if asks_first else slow,), rng=(False,)))
        running = asyncio.ensure_future(executor.run(task(), never))
        await asyncio.to_thread(inside.wait)
        with pytest.raises(CloseTimeoutError):
            await pool.aclose()
        with pytest.raises(CloseTimeoutError):
            await running

    arena = Arena(1 << 20)
    with mock.patch("asyncdata.runtime.stages.work.executors.execute", told):
        asyncio.run(run())
    may_go_on.set()
    error = heard.get()
    arena.close()
    return error


@pytest.mark.parametrize("asks_first", [False, True])
def test_a_thread_that_was_left_behind_gets_an_error(asks_first: bool) -> None:
    """Its loop is gone, and nobody would ever answer, neither what it asked before nor what it asks now."""
    assert isinstance(_left_behind(asks_first), GrantDeniedError)


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
