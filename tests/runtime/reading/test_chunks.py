"""Chunks of one object arrive in order and without a gap, whatever is recalled meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from asyncdata.errors import PipelineClosedError
from asyncdata.memory.accounts import Kind
from asyncdata.memory.arena import Arena
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.chunks import ChunkReader
from asyncdata.runtime.reading.io import Read
from asyncdata.types import ObjectInfo

CHUNK = 1 << 16
BIG = 1 << 20


class Storage:
    """Reads end at once, or when they are cancelled."""

    def read(self, slabs: Slabs, slab: Slab, _start: int, length: int, source: Any, *_rest: Any) -> Read:
        """One range."""
        read = Read(slabs, slab, asyncio.get_running_loop(), Stopwatch())
        read.finish(source, length, None)
        return read


async def test_recalled_chunks_leave_no_gap() -> None:
    """Memory that a recalled chunk gives back may be used at once to read ahead again: from the first one recalled."""
    arena = Arena(64 * CHUNK)
    budget = Budget(arena, 12 * CHUNK)
    account = budget.open("source", rank=1, kind=Kind.SOURCE, reserved_bytes=CHUNK)
    info = ObjectInfo(url="memory://b/x", size=200 * CHUNK)
    reader = ChunkReader(
        Storage(),  # type: ignore[arg-type]  # only `read` is used
        budget,
        account,
        info,
        slab_bytes=CHUNK,
        window=lambda: 40,
        order=0,
        opened=lambda _info: None,
    )
    position = 0
    for round_ in range(12):
        budget.wait(account)
        chunk = await reader.next()
        assert chunk is not None
        assert chunk.position == position
        position += chunk.stop - chunk.start
        budget.slabs.drop(chunk.slab)
        ahead = [slab for slab in budget.slabs.alive() if not budget.is_kept(slab)]
        assert ahead, "nothing was read ahead"
        reader.recall(ahead[round_ % len(ahead)])
        await asyncio.sleep(0)
    reader.close()
    assert not budget.slabs.alive()
    budget.close(account)
    budget.end()
    arena.close()


class SlowStorage(Storage):
    """Its first read ends when it is cancelled."""

    def __init__(self) -> None:
        self.first: Read | None = None

    def read(self, slabs: Slabs, slab: Slab, _start: int, length: int, source: Any, *_rest: Any) -> Read:
        if self.first is not None:
            return super().read(slabs, slab, _start, length, source)
        self.first = read = Read(slabs, slab, asyncio.get_running_loop(), Stopwatch())
        read.on_cancel = lambda: read.finish(None, 0, PipelineClosedError("the read was cancelled"))
        return read


@pytest.mark.parametrize("ending", ["recalled", "cancelled", "closed"])
async def test_a_chunk_that_is_recalled_while_it_is_awaited_is_read_again(ending: str) -> None:
    """The end of its read is no error then, as it is where somebody else ends the read, or the reader is closed."""
    arena = Arena(64 * CHUNK)
    budget = Budget(arena, 12 * CHUNK)
    account = budget.open("source", rank=1, kind=Kind.SOURCE, reserved_bytes=CHUNK)
    storage = SlowStorage()
    reader = ChunkReader(
        storage,  # type: ignore[arg-type]  # only `read` is used
        budget,
        account,
        ObjectInfo(url="memory://b/x", size=CHUNK // 2),
        slab_bytes=CHUNK,
        window=lambda: 1,
        order=0,
        opened=lambda _info: None,
    )
    budget.wait(account)
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    first = storage.first
    assert first is not None
    if ending == "recalled":
        reader.recall(first.slab)
        chunk = await waiting
        assert chunk is not None
        assert (chunk.position, chunk.stop - chunk.start) == (0, CHUNK // 2)
        budget.slabs.drop(chunk.slab)
        assert await reader.next() is None
    else:
        (first.cancel if ending == "cancelled" else reader.close)()
        with pytest.raises(PipelineClosedError):
            await waiting
    reader.close()
    assert not budget.slabs.alive()
    budget.close(account)
    budget.end()
    arena.close()


@pytest.mark.parametrize("size", [1000, 1001, BIG, 2 * BIG, 3 * BIG, 10 * BIG + 1])
@pytest.mark.parametrize("start", [0, 500])
@pytest.mark.parametrize("first_bytes", [None, 1000])
async def test_chunks_are_of_one_size(size: int, start: int, first_bytes: int | None) -> None:
    """But for the first, which may be a small one; all other slabs are alike, so that the next file uses them again."""
    arena = Arena(64 * BIG)
    budget = Budget(arena, 12 * BIG)
    account = budget.open("source", rank=1, kind=Kind.SOURCE, reserved_bytes=BIG)
    reader = ChunkReader(
        Storage(),  # type: ignore[arg-type]  # only `read` is used
        budget,
        account,
        ObjectInfo(url="memory://b/x", size=size),
        slab_bytes=BIG,
        window=lambda: 2,
        order=0,
        opened=lambda _info: None,
        first_bytes=first_bytes,
    )
    reader.begin(start)
    reader.prepare()
    found: list[tuple[int, int]] = []
    slabs: set[int] = set()
    while (chunk := await reader.next()) is not None:
        if chunk.room and len(found) >= (first_bytes is not None):  # at the very beginning nothing is kept free
            slabs.add(chunk.slab.nbytes)
        found.append((chunk.position, chunk.stop - chunk.start))
        budget.slabs.drop(chunk.slab)
    assert found[0][0] == start
    assert all(one[0] + one[1] == other[0] for one, other in itertools.pairwise(found))
    assert sum(found[-1]) == size
    sizes = [length for _, length in found]
    if first_bytes is not None:
        assert sizes[0] == min(size - start, first_bytes)
    assert max(sizes) <= reader.data_bytes
    assert len(slabs) <= 1
    if rest := sizes[first_bytes is not None :]:
        assert min(rest) > max(rest) - len(sizes) - (first_bytes or 0)
    reader.close()
    budget.close(account)
    budget.end()
    arena.close()
