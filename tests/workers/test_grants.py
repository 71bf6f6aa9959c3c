"""Tasks that wait for memory make way for those of others, and lose nothing by it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import pytest

from asyncdata.errors import PipelineClosedError
from tests.patience import LIMIT_S
from tests.workers import handlers
from tests.workers.conftest import Kit, MakeKit, Meeting


class Owned:
    """A pool's programs of two owners."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.restarts = 0

    def start(self, owner: int, program: Callable[..., bytes], payload: bytes, grant: Meeting) -> asyncio.Task[bytes]:
        """Runs a task."""
        number = self._kit.pool.register(cloudpickle.dumps(program), owner=owner)
        run = self._kit.pool.run(number, payload, grant=grant, restart=self._restart)
        return asyncio.get_running_loop().create_task(run)

    def _restart(self) -> None:
        self.restarts += 1


async def made_way(
    kit: Kit, program: Callable[..., bytes], payload: bytes
) -> tuple[Owned, Meeting, asyncio.Task[bytes]]:
    """A task that waits for memory, and has made way for somebody else's, which is done."""
    owned = Owned(kit)
    held = Meeting(held=True)
    task = owned.start(1, program, payload, held)
    await held.arrivals.get()
    async with asyncio.timeout(LIMIT_S):
        await owned.start(2, handlers.same, b"", Meeting())
    return owned, held, task


async def test_somebody_elses_task_does_not_wait_for_memory_that_others_wait_for(make_kit: MakeKit) -> None:
    """It runs while both workers' tasks wait; these finish when their memory is there, and asked for it once."""
    kit = await make_kit()
    owned = Owned(kit)
    held = Meeting(held=True)
    waiting = [owned.start(1, handlers.write_at, bytes([65 + i]) * 8, held) for i in range(4)]
    await held.arrivals.get()
    await held.arrivals.get()
    async with asyncio.timeout(LIMIT_S):
        for number in range(5):
            assert await owned.start(2, handlers.same, b"%d" % number, Meeting()) == b"%d" % number
    assert not any(task.done() for task in waiting)
    held.gate.set()
    for i, task in enumerate(waiting):
        offset = int(await task)
        assert kit.arena[offset : offset + 8] == bytes([65 + i]) * 8
    assert held.asked == [8] * 4
    assert not owned.restarts


async def test_tasks_of_one_owner_do_not_make_way_for_each_other(make_kit: MakeKit) -> None:
    """Nothing is run twice where nobody else waits."""
    kit = await make_kit(1)
    owned = Owned(kit)
    held = Meeting(held=True)
    first = owned.start(1, handlers.write_at, b"first", held)
    await held.arrivals.get()
    second = owned.start(1, handlers.same, b"second", Meeting())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.shield(second)
    held.gate.set()
    await first
    assert await second == b"second"
    assert kit.pool.stats().tasks == 2


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_what_was_granted_before_stays(make_kit: MakeKit, before: int) -> None:
    """A task that asked several times, and makes way at the last, gets the same places again without asking."""
    kit = await make_kit(1)
    owned = Owned(kit)
    grant = Counted(free=before)
    task = owned.start(1, handlers.write_payload, b"abc"[: before + 1], grant)
    while len(grant.asked) <= before:
        await grant.arrivals.get()
    async with asyncio.timeout(LIMIT_S):
        assert await owned.start(2, handlers.same, b"other", Meeting()) == b"other"
    grant.gate.set()
    assert await task == str(list(range(before + 1))).encode()
    assert bytes(kit.arena[: before + 1]) == b"abc"[: before + 1]
    assert grant.asked == [1] * (before + 1)


class Counted(Meeting):
    """Grants so many at once, and those that follow when the gate is open."""

    def __init__(self, *, free: int) -> None:
        super().__init__(held=True)
        self._free = free

    async def __call__(self, nbytes: int) -> tuple[int, int]:
        """See the class."""
        if len(self.asked) < self._free:
            self.asked.append(nbytes)
            self.arrivals.put_nowait(nbytes)
            self._offset += nbytes
            return self._offset - nbytes, nbytes
        return await super().__call__(nbytes)


def other_sizes(arena: memoryview, payload: bytes, need: Any) -> bytes:
    """A program that asks for more with every run; the payload is a file that counts them."""
    with open(os.fsdecode(payload), "ab+") as file:
        file.write(b"x")
        file.flush()
        runs = file.seek(0, os.SEEK_END)
    offset, size = need(10 * runs)
    assert size >= 10 * runs
    arena[offset : offset + 10 * runs] = b"y" * (10 * runs)
    return b"%d" % runs


async def test_a_run_that_asks_for_another_size_begins_anew(make_kit: MakeKit, tmp_path: Any) -> None:
    """What the first run was granted may be taken back: it is told so before it asks again."""
    kit = await make_kit(1)
    owned, held, task = await made_way(kit, other_sizes, os.fsencode(tmp_path / "runs"))
    held.gate.set()
    assert await task == b"2"
    assert held.asked == [10, 20]
    assert owned.restarts == 1


async def test_a_task_that_made_way_can_be_cancelled(make_kit: MakeKit) -> None:
    """At once: no worker has it."""
    kit = await make_kit(1)
    owned, _, task = await made_way(kit, handlers.write_at, b"abc")
    async with asyncio.timeout(LIMIT_S):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await owned.start(1, handlers.same, b"next", Meeting()) == b"next"


async def test_a_pool_that_is_closed_ends_what_made_way(make_kit: MakeKit) -> None:
    """When its memory comes, there is nobody to run it."""
    kit = await make_kit(1)
    _, held, task = await made_way(kit, handlers.write_at, b"abc")
    async with asyncio.timeout(LIMIT_S):
        await kit.pool.aclose()
        held.gate.set()
        with pytest.raises(PipelineClosedError):
            await task


async def test_workers_that_die_meanwhile(make_kit: MakeKit) -> None:
    """A task that made way is not theirs any more."""
    kit = await make_kit(1)
    _, held, task = await made_way(kit, handlers.write_at, b"abc")
    async with asyncio.timeout(LIMIT_S):
        os.kill(kit.pids()[0], signal.SIGKILL)
        held.gate.set()
        offset = int(await task)
    assert kit.arena[offset : offset + 3] == b"abc"
