"""The pages of a new slab are taken while its request is under way, and by nobody once the slab was given back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import fsspec
import pytest

from asyncdata.errors import PipelineClosedError, StorageError
from asyncdata.memory.arena import Arena
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.memory.spans import SpanAllocator
from asyncdata.options import Environment, Options
from asyncdata.runtime.life.loops import LoopThread
from asyncdata.runtime.reading.io import Io
from asyncdata.storage import Fetcher
from asyncdata.types import ObjectInfo
from tests.patience import LIMIT_S

SIZE = 1 << 20
URL = "memory://new_pages/x"


class Populating:
    """Stands in for `populate`: notes what it is given, and waits for a permission."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.fails = False

    def __call__(self, view: memoryview) -> None:
        self.sizes.append(len(view))
        assert self.may_end.wait(LIMIT_S)
        if self.fails:
            raise RuntimeError("can't start new thread")


@pytest.fixture
def populating(monkeypatch: pytest.MonkeyPatch) -> Populating:
    """What is asked for."""
    stand_in = Populating()
    monkeypatch.setattr("asyncdata.runtime.reading.io.populate", stand_in)
    return stand_in


class Place:
    """Storage and memory."""

    def __init__(self, io: Io, slabs: Slabs) -> None:
        self.io, self.slabs = io, slabs

    async def read(self, url: str, size: int, *, slab_bytes: int = SIZE) -> Slab:
        """One slab that was read into and is still held."""
        slab = self.slabs.take(slab_bytes, None)
        read = self.io.read(self.slabs, slab, 0, size, ObjectInfo(url=url, size=SIZE), 0, (0,))
        await read.wait()
        assert bytes(self.slabs.arena.view[slab.offset : slab.offset + size]) == bytes([5]) * size
        return slab


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """Everything is given back at the end."""
    fsspec.filesystem("memory").pipe("/new_pages/x", bytes([5]) * SIZE)
    arena = Arena(64 * SIZE)
    slabs = Slabs(arena, SpanAllocator(arena.nbytes, 16 * SIZE), lambda _slab: None)
    thread = LoopThread("io of a test")
    thread.start()

    async def make() -> Fetcher:
        return Fetcher(Options(), Environment())

    fetcher = await asyncio.wrap_future(thread.submit(make()))
    io = Io(thread, asyncio.get_running_loop(), fetcher, check_object_crc=False)
    try:
        yield Place(io, slabs)
        assert not slabs.alive()
    finally:
        await io.aclose()
        await asyncio.to_thread(thread.end)
        slabs.close()
        arena.close()


async def test_only_new_memory_for_what_comes_from_afar(place: Place, populating: Populating, tmp_path: Path) -> None:
    """Neither memory that is used again, nor what local files, small reads or objects of unknown size go into."""
    first = await place.read(URL, SIZE)
    assert populating.sizes == [SIZE]
    second = await place.read(URL, SIZE // 2)
    assert populating.sizes == [SIZE, SIZE // 2]
    place.slabs.drop(first)
    assert (await place.read(URL, SIZE)).offset == first.offset
    place.slabs.drop(place.slabs.at(first.offset))
    (tmp_path / "x").write_bytes(bytes([5]) * SIZE)
    place.slabs.drop(await place.read(str(tmp_path / "x"), SIZE, slab_bytes=3 * SIZE))
    place.slabs.drop(await place.read(URL, 1000, slab_bytes=2 * SIZE))
    unknown = place.slabs.take(4 * SIZE, None)
    read = place.io.read(place.slabs, unknown, 0, 4 * SIZE, URL, 0, (0,))
    await read.wait()
    assert (read.filled, read.info) == (SIZE, await place.io.stat(URL))
    place.slabs.drop(unknown)
    place.slabs.drop(second)
    assert populating.sizes == [SIZE, SIZE // 2]


@pytest.mark.parametrize("url", [URL, "memory://new_pages/missing"])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_slab_is_given_back_only_behind_it(
    place: Place, populating: Populating, url: str, cancelled: bool
) -> None:
    """Whatever becomes of the read: pages that are taken later would belong to nobody."""
    populating.may_end.clear()
    slab = place.slabs.take(SIZE, None)
    read = place.io.read(place.slabs, slab, 0, SIZE, ObjectInfo(url=url, size=SIZE), 0, (0,))
    place.slabs.drop(slab)
    if cancelled:
        read.cancel()
    for _ in range(20):
        await place.io.call(asyncio.sleep(0))
    is_held_while_populated = not populating.sizes or place.slabs.alive() == [slab]
    populating.may_end.set()
    assert is_held_while_populated
    async with asyncio.timeout(LIMIT_S):
        try:
            await read.wait()
        except (StorageError, PipelineClosedError):
            assert cancelled or url != URL
    assert not place.slabs.alive()


async def test_a_read_does_without_it(place: Place, populating: Populating) -> None:
    """No thread, no memory: then the pages come as they are written."""
    populating.fails = True
    place.slabs.drop(await place.read(URL, SIZE))
    assert populating.sizes == [SIZE]
