"""Reads on several loops: the same laws as on one, and when another one begins."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.errors import PipelineClosedError
from asyncdata.options import AUTOTUNE, Environment, Options, RetryOptions, TimeoutOptions
from asyncdata.runtime.life.loops import LoopThread
from asyncdata.storage import FailureCause, Fetcher
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.failures import ReadFailedError, read_failed
from asyncdata.storage.far_reader import FarReader
from asyncdata.storage.reader import RangeReader
from asyncdata.testing import assert_no_leaks
from asyncdata.testing.readers import Store
from asyncdata.types import ObjectInfo
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.patience import turns, until
from tests.samples import samples
from tests.storage import test_conformance as conformance
from tests.storage.more_loops import more_loops
from tests.storage.test_conformance import opened

DATA = random.Random(3).randbytes(2_000_000)
ASIDE = b"\xa5"


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    """Another one."""
    thread = LoopThread("receiver")
    thread.start()
    yield thread
    thread.end()


class OnAnotherLoop(RangeReader):
    """A reader whose bodies come by another loop."""

    def __init__(self, near: RangeReader, far: FarReader) -> None:
        self._near = near
        self._far = far

    async def stat(self, url: str) -> ObjectInfo:
        return await self._near.stat(url)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        return await self._near.glob(pattern)

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt | None = None) -> int:
        return await self._far.read_into(info, start, buffer, attempt or Attempt())

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt | None = None) -> tuple[ObjectInfo, int]:
        return await self._far.open_read(url, buffer, attempt or Attempt())

    async def aclose(self) -> None:
        await self._far.aclose()


@asynccontextmanager
async def far(place: Any) -> AsyncIterator[Any]:
    """The same store, read by another loop."""
    thread = LoopThread("receiver")
    await asyncio.to_thread(thread.start)
    place.reader = OnAnotherLoop(place.reader, FarReader(thread, place.spec))
    try:
        yield place
    finally:
        await place.reader.aclose()
        await asyncio.to_thread(thread.end)


class TestGcs(conformance.TestGcs):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with super().store() as place, far(place) as there:
            yield there


class TestHttp(conformance.TestHttp):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with super().store() as place, far(place) as there:
            yield there


async def test_what_is_seen_and_asked_goes_both_ways(loop: LoopThread) -> None:
    """Limits and wishes down, times and progress up; an answer that is over cannot be ended any more."""
    stalled = Profile(rules=(Rule(fault=Fault(kind="stall", after_fraction=(0.5, 0.5)), nth=(1,), media_only=True),))
    async with FakeGCS(buckets=["bucket"], profile=stalled) as server:
        server.put("bucket", "x", DATA)
        near, spec = opened("gs://bucket/", {"gs": {"endpoint_url": server.url, "token": "anon"}})
        info = await near.stat("gs://bucket/x")
        reader = FarReader(loop, spec)
        buffer, attempt = bytearray(len(DATA)), Attempt()
        read = asyncio.create_task(reader.read_into(info, 0, memoryview(buffer), attempt))
        await until(lambda: attempt.wire is not None and attempt.wire.filled >= len(DATA) // 2)
        wire = attempt.wire
        assert wire is not None
        assert 0 <= attempt.asked_at <= attempt.first_byte_at <= asyncio.get_running_loop().time()
        # What may have arrived is looked at first; then it is known that nothing has.
        await until(lambda: not wire.has_input())
        wire.nudge()
        wire.fail(read_failed("enough", FailureCause.OVERTAKEN))
        with pytest.raises(ReadFailedError, match="enough") as caught:
            await read
        assert caught.value.filled == attempt.received >= len(DATA) // 2
        assert buffer[: attempt.received] == DATA[: attempt.received]
        assert attempt.wire is None
        # The old wire belongs to an answer that is over; whoever still has it does no harm to the next one.
        again = Attempt()
        next_read = asyncio.create_task(reader.read_into(info, 0, memoryview(buffer), again))
        for _ in range(100):
            wire.fail(read_failed("too late", FailureCause.OVERTAKEN))
            await turns(1)
        assert await next_read == len(DATA)
        assert buffer == DATA
        await reader.aclose()
        await near.aclose()


async def test_a_cancelled_read_lets_its_buffer_go_first(loop: LoopThread) -> None:
    """At whatever moment."""
    draw = random.Random(1)
    async with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "x", DATA)
        near, spec = opened("gs://bucket/", {"gs": {"endpoint_url": server.url, "token": "anon"}})
        info = await near.stat("gs://bucket/x")
        reader = FarReader(loop, spec)
        buffer = bytearray(len(DATA))
        for _ in range(samples(30, 2000)):
            read = asyncio.create_task(reader.read_into(info, 0, memoryview(buffer), Attempt()))
            await turns(draw.randrange(60))
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
            buffer[:] = ASIDE * len(buffer)
            await turns(20)
            assert buffer.count(ASIDE) == len(buffer)
        assert await reader.read_into(info, 0, memoryview(buffer), Attempt()) == len(DATA)
        assert buffer == DATA
        await reader.aclose()
        await near.aclose()


async def test_a_loop_that_has_ended_is_an_error(loop: LoopThread) -> None:
    """Nobody waits for it."""
    near, spec = opened("gs://bucket/", {"gs": {"endpoint_url": "http://127.0.0.1:9", "token": "anon"}})
    await near.aclose()
    loop.end()
    with pytest.raises(PipelineClosedError):
        await FarReader(loop, spec).open_read("gs://bucket/x", memoryview(bytearray(9)), Attempt())


async def test_as_many_loops_receive_as_are_asked_for() -> None:
    """Begun one by one, and left alone again; what they deliver stays the same, and reads go to all of them."""
    async with FakeGCS(buckets=["bucket"]) as server, more_loops(AUTOTUNE, most=8) as receivers:
        server.put("bucket", "x", DATA)
        fetcher = Fetcher(Options(), Environment(storage_emulator_host=server.url), receivers=receivers)
        info = await fetcher.stat("gs://bucket/x")

        async def read() -> None:
            buffers = [bytearray(50_000) for _ in range(16)]
            reads = [fetcher.read(info, 1000 * n, memoryview(buffer)) for n, buffer in enumerate(buffers)]
            await asyncio.gather(*reads)
            assert all(buffer == DATA[1000 * n : 1000 * n + 50_000] for n, buffer in enumerate(buffers))

        try:
            for wanted, count in ((1, 1), (3, 3), (2, 2), (50, 8), (0, 1)):
                receivers.ask(wanted)
                while receivers.count != count:
                    await read()
                before = receivers.cpu_each_s()
                await read()
                assert fetcher.stats().receivers == count == len(before)
                assert all(after > then for after, then in zip(receivers.cpu_each_s(), before, strict=True))
                assert set(receivers.under_way) == {0}
        finally:
            await fetcher.aclose()


@pytest.mark.parametrize("isolate", [False, True])
def test_pipelines_with_several_receivers(isolate: bool, tmp_path: Path) -> None:
    """In bad weather, in either order, left early: the same elements, and nothing is left."""
    names = [f"{number:02}.tfrecord" for number in range(6)]
    records = {name: [random.Random(name).randbytes(3000) for _ in range(200)] for name in names}
    rules = (
        Rule(fault=Fault(kind="status", status=503), rate=0.1, media_only=True),
        Rule(fault=Fault(kind="reset", after_fraction=(0.0, 1.0)), rate=0.1, media_only=True),
    )
    with assert_no_leaks(), FakeGCS(buckets=["bucket"], profile=Profile(rules=rules)) as server:
        for name in names:
            with ad.TFRecordWriter(str(tmp_path / name)) as writer:
                writer.write_many(records[name])
            server.put("bucket", name, (tmp_path / name).read_bytes())
        options = ad.Options(
            receivers=3,
            num_workers=0,
            chunk_bytes=64 << 10,
            isolate=isolate,
            retry=RetryOptions(max_attempts=20, initial_delay_s=0.002, max_delay_s=0.02),
            timeouts=TimeoutOptions(connect_s=20, first_byte_s=20, idle_s=20),
            storage={"gs": {"endpoint_url": server.url, "token": "anon"}},
        )
        files = ad.Dataset.list_files("gs://bucket/*.tfrecord", shuffle=False)
        with ad.Runtime(options):
            for deterministic in (True, False):
                ds = files.interleave(ad.TFRecordDataset, 4, deterministic=deterministic)
                expected = [record for name in names for record in records[name]]
                receivers = 0
                while receivers < 3:  # they begin while it reads
                    with ds.iterator() as it:
                        assert sorted(it) == sorted(expected)
                        receivers = it.stats().fetch["receivers"]
                for taken in (0, 1, 300):
                    with ds.iterator() as it:
                        for _ in range(taken):
                            next(it)
