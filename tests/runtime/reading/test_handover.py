"""Reads that worker processes do: the same records and numbers as ever, whatever becomes of files and workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.accounts import Kind
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.reading.handover import Handover
from asyncdata.runtime.reading.io import Read
from asyncdata.storage.local.descriptors import version_of
from asyncdata.types import ObjectInfo
from tests.integration.shards import records, write_shards
from tests.patience import LIMIT_S

MIB = 1 << 20
SHARDS, RECORDS, RECORD_BYTES = 4, 60, 50_000
NO_SUCH = "1-2-3"

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system has no RWF_NOWAIT")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of 3 MB that were just written, and are in memory."""
    write_shards(tmp_path, SHARDS, RECORDS, RECORD_BYTES)
    return tmp_path


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    """Two workers that are ready."""
    with ad.Runtime(options(), pipelines=1) as runtime:
        ready(runtime)
        yield runtime


def options(**changes: Any) -> ad.Options:
    """Records are verified in two workers; reads have 512 KiB."""
    return ad.Options(memory_limit_bytes=64 * MIB, num_workers=2, chunk_bytes=MIB // 2, **changes)


def ready(runtime: Runtime) -> None:
    """Returns when the workers can be given something."""
    runtime.submit(runtime.start_pool()).result()
    runtime.submit(runtime.pool.ready()).result()


def handover(runtime: Runtime) -> Handover:
    """That of the Runtime."""
    found = runtime.io._handover
    assert found is not None
    return found[0]


def pipeline(folder: Path) -> ad.Dataset:
    """Every record once."""
    files = ad.Dataset.list_files(f"{folder}/*", shuffle=False)
    return files.interleave(ad.TFRecordDataset, cycle_length=2).batch(7)


def everything(dataset: ad.Dataset) -> list[bytes]:
    """Its records, sorted."""
    return sorted(record for batch in dataset for record in batch)


def expected() -> list[bytes]:
    """What was written."""
    return sorted(record for shard in range(SHARDS) for record in records(shard, RECORDS, RECORD_BYTES))


def info_of(path: Path) -> ObjectInfo:
    """As listing tells it."""
    status = path.stat()
    return ObjectInfo(url=str(path), size=status.st_size, version=version_of(status))


class Memory:
    """One slab of a Runtime's memory, in a budget of its own; used on the stage loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._budgets = runtime.budgets

    def _is_leaving(self) -> bool:
        return False

    async def take(self, nbytes: int) -> Slab:
        """The slab."""
        self._budget = await self._budgets.take(self._is_leaving)
        self._account = self._budget.open("test", rank=1, kind=Kind.FLOW, reserved_bytes=nbytes)
        self._slab = await self._budget.take(self._account, nbytes)
        self.slabs = self._budget.slabs
        return self._slab

    async def holds(self) -> int:
        """Who holds it."""
        return self.slabs.holds(self._slab)

    async def give(self) -> None:
        """Gives it back."""
        self.slabs.drop(self._slab)
        self._budget.close(self._account)
        self._budgets.give(self._budget, self._is_leaving)


@contextlib.contextmanager
def stopped(runtime: Runtime) -> Iterator[list[int]]:
    """The workers do nothing meanwhile."""
    pids = [worker.pid for worker in runtime.pool.stats().workers]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_workers_read_what_is_in_memory(folder: Path, runtime: Runtime) -> None:
    """Every record arrives once, all bytes are counted, and none of them was copied by this process."""
    assert everything(pipeline(folder)) == expected()
    reads = handover(runtime)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert reads.bytes == size == runtime.io.stats().bytes
    assert reads.reads == runtime.io.stats().requests
    assert not reads.under_way


@pytest.mark.parametrize(
    "changes", [{"max_requests_in_flight": 3}, {"check_object_crc": True}, {"num_workers": 0}], ids=str
)
def test_not_where_the_user_asked_for_something_else(folder: Path, changes: dict[str, Any]) -> None:
    """A limit of requests, or the checksum of the whole object, is the storage layer's to keep."""
    with ad.Runtime(options(**changes) if "num_workers" not in changes else ad.Options(**changes)) as runtime:
        assert everything(pipeline(folder)) == expected()
        found = runtime.io._handover
        assert found is None or not found[0].reads


def test_what_is_not_in_memory_is_read_all_the_same(folder: Path, runtime: Runtime) -> None:
    """Files that the page cache dropped are read by threads, and workers are soon asked less often."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    assert everything(pipeline(folder)) == expected()
    assert runtime.io.stats().bytes == sum(path.stat().st_size for path in folder.iterdir())


def test_workers_are_asked_less_often_after_misses(folder: Path, runtime: Runtime) -> None:
    """Of reads that no worker can do only few are tried; one that can be done is tried soon after, and ends that."""
    reads = handover(runtime)
    info = info_of(next(iter(sorted(folder.iterdir()))))
    other = ObjectInfo(url=info.url, size=info.size, version=NO_SUCH)

    async def tried(source: ObjectInfo, count: int) -> int:
        memory = Memory(runtime)
        slab = await memory.take(MIB)
        tries = 0
        for _ in range(count):
            request = reads.request(source, 0, slab.offset, MIB // 2)
            if request is not None:
                tries += 1
                assert await reads.run(request, MIB // 2) is (source is info)
        await memory.give()
        return tries

    assert runtime.submit(tried(other, 1000)).result() < 30
    assert runtime.submit(tried(info, 200)).result() > 100


def test_small_and_unknown_objects_are_not_for_workers(folder: Path, runtime: Runtime) -> None:
    """Nor are other schemes."""
    reads = handover(runtime)
    info = info_of(next(folder.iterdir()))
    unpinned = ObjectInfo(url=info.url, size=info.size)
    remote = ObjectInfo(url="gs://bucket/file", size=info.size, version="7")

    async def requests() -> list[bytes | None]:
        return [
            reads.request(info, 0, 0, 1000),
            reads.request(info.url, 0, 0, MIB),
            reads.request(unpinned, 0, 0, MIB),
            reads.request(remote, 0, 0, MIB),
        ]

    assert runtime.submit(requests()).result() == [None] * 4


def test_a_replaced_file_is_an_error(folder: Path, runtime: Runtime) -> None:
    """A worker copies nothing of another version; the error is the storage layer's."""
    manifest = folder.parent / "manifest"
    ad.write_manifest(f"{folder}/*", manifest)
    last = max(folder.iterdir())
    fresh = folder.parent / "fresh"
    fresh.write_bytes(last.read_bytes())
    fresh.rename(last)
    files = ad.Dataset.from_manifest(str(manifest), shuffle=False)
    seen: list[bytes] = []
    with pytest.raises(ad.ObjectChangedError, match=last.name):  # noqa: PT012 -- what comes before it counts, too
        for batch in files.interleave(ad.TFRecordDataset, cycle_length=1).batch(1):
            seen += list(batch)
    assert sorted(seen) == sorted(
        record for shard in range(SHARDS - 1) for record in records(shard, RECORDS, RECORD_BYTES)
    )
    del runtime


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "file://elsewhere/file"},
        {"url": "/tmp/\ud800"},
        {"url": "/tmp/a\0b"},
        {"url": "/", "version": "\ud800"},
        {"url": "/", "version": "1" * 70_000},
        {"url": "/" + "a" * 200_000},
    ],
    ids=lambda entry: ascii(entry)[:40],
)
def test_a_manifest_may_say_anything(tmp_path: Path, entry: dict[str, Any]) -> None:
    """What cannot be asked of a worker is an error of the read, and holds nothing: closing raises nothing."""
    manifest = tmp_path / "manifest"
    manifest.write_text(json.dumps({"size": 4 * MIB, "version": NO_SUCH} | entry))
    with ad.Runtime(options(), pipelines=1) as runtime:
        ready(runtime)
        files = ad.Dataset.from_manifest(str(manifest), shuffle=False)
        with pytest.raises((ad.StorageError, ValueError)):
            list(files.interleave(ad.TFRecordDataset, cycle_length=1))


def test_workers_that_die(folder: Path, runtime: Runtime) -> None:
    """A read whose worker was killed is done by another one, or by threads: every record arrives once."""
    for _ in range(3):
        seen: list[bytes] = []
        with pipeline(folder).iterator() as batches:
            for number, batch in enumerate(batches):
                seen += list(batch)
                if number == 2:
                    # One of them: a task that was moved to the other one, and died there as well, would be an error.
                    os.kill(runtime.pool.stats().workers[0].pid, signal.SIGKILL)
        assert sorted(seen) == expected()
    assert runtime.pool.stats().deaths >= 2


@pytest.mark.slow  # needs workers that are stopped in the middle of a read, which a busy machine may not let them reach
def test_a_cancelled_read_waits_for_its_worker(folder: Path, runtime: Runtime) -> None:
    """The slab is let go only when the worker, stopped here in the middle of things, cannot write into it any more."""
    info = info_of(next(iter(sorted(folder.iterdir()))))
    memory = Memory(runtime)

    async def begin() -> list[Read]:
        slab = await memory.take(2 * MIB)
        return [runtime.io.read(memory.slabs, slab, 0, MIB, info, 0, (0,)) for _ in range(4)]

    async def cancel(reads: list[Read]) -> None:
        for read in reads:
            read.cancel()
        for read in reads:
            with pytest.raises(ad.PipelineClosedError):
                await read.wait()

    with stopped(runtime):
        reads = runtime.submit(begin()).result()
        cancelled = runtime.submit(cancel(reads))
        time.sleep(0.2)
        assert runtime.submit(memory.holds()).result() > 1
        assert not cancelled.done()
    cancelled.result(LIMIT_S)
    assert runtime.submit(memory.holds()).result() == 1
    runtime.submit(memory.give()).result()


def test_a_read_that_is_cancelled_late_is_not_begun_again(folder: Path, runtime: Runtime) -> None:
    """Cancelled after its worker said no, and before anybody else was asked, a read ends there."""
    info = info_of(min(folder.iterdir()))
    other = ObjectInfo(url=info.url, size=info.size, version=NO_SUCH)
    reads: list[Read] = []

    class Late(Handover):
        async def run(self, request: bytes, length: int) -> bool:
            found = await super().run(request, length)
            asyncio.get_running_loop().call_soon(reads[0].cancel)
            return found

    async def read() -> None:
        found = runtime.io._handover
        assert found is not None
        runtime.io._handover = Late(lambda: runtime.pool), found[1]
        memory = Memory(runtime)
        slab = await memory.take(MIB)
        reads.append(runtime.io.read(memory.slabs, slab, 0, MIB, other, 0, (0,)))
        with pytest.raises(ad.PipelineClosedError):
            await reads[0].wait()
        assert await memory.holds() == 1
        await memory.give()

    runtime.submit(read()).result(LIMIT_S)


def test_a_read_is_not_queued_behind_what_came_meanwhile(folder: Path, runtime: Runtime) -> None:
    """Where workers got something long between the question whether they have time and the read, it does not wait."""
    info = info_of(min(folder.iterdir()))
    reads = handover(runtime)

    async def fill_workers() -> list[asyncio.Task[bytes]]:
        memory = Memory(runtime)
        slab = await memory.take(MIB)
        request = reads.request(info, 0, slab.offset, MIB)
        assert request is not None
        number = runtime.pool.register(_SLEEPER)
        tasks = [asyncio.create_task(runtime.pool.run(number, b"", grant=_refuse)) for _ in range(2)]
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S):
            assert not await reads.run(request, MIB)
        assert not any(task.done() for task in tasks)
        await memory.give()
        return tasks

    with stopped(runtime):
        tasks = runtime.submit(fill_workers()).result()

    async def ended() -> bytes | None:
        await asyncio.gather(*tasks)
        return reads.request(info, 0, 0, MIB)

    assert runtime.submit(ended()).result() is not None  # nothing was missing: the next one is asked for as ever


def test_a_read_whose_worker_dies_is_left_to_others(folder: Path, runtime: Runtime) -> None:
    """It is not begun anew in another worker, where something long may have come first."""
    info = info_of(min(folder.iterdir()))
    reads = handover(runtime)

    async def run() -> list[bool]:
        memory = Memory(runtime)
        slab = await memory.take(MIB)
        request = reads.request(info, 0, slab.offset, MIB)
        assert request is not None
        found = [asyncio.ensure_future(reads.run(request, MIB)) for _ in range(3)]
        await asyncio.sleep(0)
        assert reads.under_way == runtime.io.stats().in_flight == 3
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        answers = await asyncio.gather(*found)
        await memory.give()
        return answers

    with stopped(runtime) as pids:
        assert runtime.submit(run()).result(LIMIT_S) == [False] * 3
    assert not reads.under_way


def test_names_that_may_mean_two_files_are_not_for_workers(runtime: Runtime) -> None:
    """To find out which, one would have to look; a plain path with the same characters means itself."""
    reads = handover(runtime)

    async def requests() -> list[bool]:
        urls = ["file:///a%20b", "FILE:/a%20b", "/a%20b", "file:///a b"]
        infos = [ObjectInfo(url=url, size=MIB, version=NO_SUCH) for url in urls]
        return [reads.request(info, 0, 0, MIB) is not None for info in infos]

    assert runtime.submit(requests()).result() == [False, False, True, True]


def slow(record: bytes) -> np.ndarray[Any, Any]:
    """A user's function that takes its time."""
    time.sleep(0.005)
    return np.frombuffer(record[:8], np.uint8).copy()


def test_no_read_waits_for_a_users_function(folder: Path) -> None:
    """Where workers run what may take long, they are given a read only while one of them has nothing to do."""
    with ad.Runtime(options(), pipelines=1) as runtime:
        ready(runtime)
        files = ad.Dataset.list_files(f"{folder}/*", shuffle=False)
        ds = files.interleave(ad.TFRecordDataset, cycle_length=2).map(slow, 4).batch(4)
        with ds.iterator() as batches:
            assert sum(len(batch) for batch in batches) == SHARDS * RECORDS
        assert runtime.io.stats().bytes == sum(path.stat().st_size for path in folder.iterdir())

        async def busy() -> bool:
            """Whether a brief task is welcome while both workers have something long to do."""
            assert runtime.pool.ends_brief_ones_soon
            number = runtime.pool.register(_SLEEPER)
            tasks = [asyncio.ensure_future(runtime.pool.run(number, b"", grant=_refuse)) for _ in range(2)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            welcome = runtime.pool.ends_brief_ones_soon
            await asyncio.gather(*tasks)
            runtime.pool.unregister(number)
            return welcome

        assert runtime.submit(busy()).result() is False


class Sleeper:
    """A program that takes its time."""

    def run(self, arena: memoryview, request: bytes) -> bytes:
        """Sleeps."""
        del arena, request
        time.sleep(0.5)
        return b""


async def _refuse(nbytes: int) -> tuple[int, int]:
    raise AssertionError(nbytes)


_SLEEPER = bytes(cloudpickle.dumps(Sleeper()))


def test_leaving_in_the_middle(folder: Path, runtime: Runtime) -> None:
    """A pipeline that is left while workers read for it gives all memory back, again and again."""
    for count in range(8):
        with pipeline(folder).iterator() as batches:
            for _ in range(count):
                next(batches)
    assert everything(pipeline(folder)) == expected()
