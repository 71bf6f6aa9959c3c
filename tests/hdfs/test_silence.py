"""DataNodes that accept everything and answer nothing: a stopped process, which no connection tells from a slow one."""

from __future__ import annotations

import asyncio
import getpass
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.options import Environment, HedgeOptions, Options, RetryOptions, TimeoutOptions
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.backends import spec_for
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.hdfs.native import NativeClient
from asyncdata.types import ObjectInfo
from tests.hdfs.cluster import Cluster
from tests.hdfs.settings import BLOCK_BYTES, DATANODES
from tests.hdfs.writing import Writer
from tests.integration.shards import records, shard_bytes
from tests.patience import LIMIT_S, until

# Which DataNode is asked first is chosen when a file is opened: of so many files some begin with each.
_FILES = 16
_DATA = random.Random(21).randbytes(_FILES * BLOCK_BYTES)
_CHUNK = BLOCK_BYTES // 2
# Nothing of these ends a read within a test.
_ENDLESS = TimeoutOptions(connect_s=600, first_byte_s=600, idle_s=600, floor_s=600)
_NEVER = HedgeOptions(enabled=False)
_EAGER = HedgeOptions(least_delay_s=0.1, most_delay_s=0.5, max_extra=1.0)
_STEADY = RetryOptions(max_attempts=100, initial_delay_s=0.01, max_delay_s=0.1)


@pytest.fixture
def datanodes(cluster: Cluster) -> Iterator[Callable[..., None]]:
    """Stops DataNodes by name; afterwards all go on."""

    def stop(*names: str) -> None:
        for name in names:
            cluster.pause(name)

    try:
        yield stop
    finally:
        for name in DATANODES:
            cluster.resume(name)


@asynccontextmanager
async def opened(cluster: Cluster, folder: str, **changes: Any) -> AsyncIterator[tuple[Fetcher, list[ObjectInfo]]]:
    """A Fetcher that has read all files, and so has learned."""
    for number in range(_FILES):
        await Writer(cluster).put(f"{folder}/{number:02}", _DATA[number * BLOCK_BYTES :][:BLOCK_BYTES])
    fetcher = Fetcher(Options(retry=_STEADY, max_requests_in_flight=8, **changes), Environment())
    try:
        infos = await fetcher.glob(cluster.url(f"{folder}/*"))
        assert await read_all(fetcher, infos) == _DATA
        yield fetcher, infos
    finally:
        await fetcher.aclose()


async def read_all(
    fetcher: Fetcher, infos: list[ObjectInfo], *, after: Callable[[int], None] = lambda _: None
) -> bytes:
    """All files, by ranges side by side; ``after`` is told how many are complete."""
    data = bytearray(len(_DATA))
    view = memoryview(data)
    done = 0

    async def read(start: int) -> None:
        nonlocal done
        number, inside = divmod(start, BLOCK_BYTES)
        await fetcher.read(infos[number], inside, view[start : start + _CHUNK], priority=start)
        done += 1
        after(done)

    async with asyncio.TaskGroup() as group:
        for start in range(0, len(_DATA), _CHUNK):
            group.create_task(read(start))
    return bytes(data)


async def test_a_silent_read_is_overtaken(cluster: Cluster, folder: str, datanodes: Callable[..., None]) -> None:
    """No limit of time mends it: second attempts do, by the other replica; each byte is counted once."""
    async with opened(cluster, folder, timeouts=_ENDLESS, hedge=_EAGER) as (fetcher, infos):
        before = fetcher.stats()

        def stop_once(done: int) -> None:
            if done == 2:
                datanodes("datanode2")

        assert await asyncio.wait_for(read_all(fetcher, infos, after=stop_once), LIMIT_S) == _DATA
        stats = fetcher.stats()
        assert stats.hedges_won >= 1
        assert stats.bytes - before.bytes == len(_DATA)
        assert not stats.timeouts
        assert (stats.in_flight, stats.waiting) == (0, 0)
        assert stats.peak_in_flight <= stats.limit


async def test_a_silent_read_is_left_after_the_limit_that_was_learned(
    cluster: Cluster, folder: str, datanodes: Callable[..., None]
) -> None:
    """The options allow minutes; what was seen of this cluster allows less, and the other replica serves the rest."""
    allowed = TimeoutOptions(connect_s=600, first_byte_s=600, idle_s=600, floor_s=0.5)
    async with opened(cluster, folder, timeouts=allowed, hedge=_NEVER) as (fetcher, infos):
        before = fetcher.stats()
        assert before.first_byte_p90_s > 0

        def stop_once(done: int) -> None:
            if done == 2:
                datanodes("datanode2")

        assert await asyncio.wait_for(read_all(fetcher, infos, after=stop_once), LIMIT_S) == _DATA
        stats = fetcher.stats()
        assert sum(stats.timeouts.values()) >= 1
        assert stats.bytes - before.bytes == len(_DATA)
        assert stats.hedges == 0


async def test_a_cluster_that_is_well_is_left_alone(cluster: Cluster, folder: str) -> None:
    """While pieces come, nothing is asked for twice, nothing is given up and nothing is thrown away."""
    hedge = HedgeOptions(least_delay_s=10, most_delay_s=20)
    async with opened(cluster, folder, timeouts=_ENDLESS, hedge=hedge) as (fetcher, infos):
        for _ in range(3):
            assert await read_all(fetcher, infos) == _DATA
        stats = fetcher.stats()
        assert (stats.hedges, stats.retries, stats.wasted_bytes, stats.resumes) == (0, 0, 0, 0)
        assert not stats.failures
        assert stats.bytes == 4 * len(_DATA)


async def test_pieces_are_seen_as_they_come(cluster: Cluster, folder: str) -> None:
    """A long range tells its beginning, its first byte and how far it is, before it is complete."""
    await Writer(cluster).put(f"{folder}/x", _DATA)
    reader = spec_for(cluster.url(f"{folder}/x"), Options(), Environment()).open()
    try:
        info = await reader.stat(cluster.url(f"{folder}/x"))
        attempt, buffer, seen = Attempt(), bytearray(len(_DATA)), set()
        reading = asyncio.create_task(reader.read_into(info, 0, memoryview(buffer), attempt), name="reading")
        while not reading.done():
            if attempt.wire is not None:
                seen.add((attempt.wire.filled, attempt.first_byte_at >= 0))
            await asyncio.sleep(0)
        assert await reading == len(_DATA)
        assert buffer == _DATA
        # The range is larger than what a socket holds, so it cannot come at once. How many pieces it has is chance.
        assert any(0 < count < len(_DATA) for count, _ in seen)
        assert {first for count, first in seen if count} == {True}
        # On a busy machine the first look may come when there is something already.
        assert {first for count, first in seen if not count} <= {False}
        assert 0 <= attempt.asked_at <= attempt.first_byte_at
        assert attempt.received == len(_DATA)
        assert attempt.wire is None
    finally:
        await reader.aclose()


async def test_after_a_cancellation_nothing_is_written(
    cluster: Cluster, folder: str, datanodes: Callable[..., None]
) -> None:
    """A read and its second attempt that are cancelled while no DataNode answers; then both answer."""
    async with opened(cluster, folder, timeouts=_ENDLESS, hedge=_EAGER) as (fetcher, infos):
        datanodes(*DATANODES)
        buffer = bytearray(BLOCK_BYTES)
        reading = asyncio.create_task(fetcher.read(infos[0], 0, memoryview(buffer)), name="reading")
        await until(lambda: fetcher.stats().hedges_in_flight == 1)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        assert fetcher.stats().in_flight == 0
        for name in DATANODES:
            cluster.resume(name)
        await until(lambda: fetcher.stats().hedges_in_flight == 0)
        assert await read_all(fetcher, infos) == _DATA
        assert not any(buffer)


async def test_files_are_read_briskly_after_a_silence_until_that_fails(cluster: Cluster, folder: str) -> None:
    """Only silence begins it; a brisk read that fails ends it, lest slow DataNodes be left by every read."""
    await Writer(cluster).put(f"{folder}/x", b"something")
    client = NativeClient(cluster.address, {}, TimeoutOptions())
    plain, brisk = await client.open(f"{folder}/x"), await client.open(f"{folder}/x", brisk=True)
    assert await plain.read(0, 9) == await brisk.read(0, 9) == b"something"
    client.note_failure(plain, FailureCause.BACKEND)
    assert not client.prefers_brisk
    for cause in (FailureCause.FIRST_BYTE_TIMEOUT, FailureCause.IDLE_TIMEOUT, FailureCause.OVERTAKEN):
        client.note_failure(plain, cause)
        assert client.prefers_brisk
        client.note_failure(brisk, FailureCause.BACKEND)
        assert not client.prefers_brisk


def test_a_stopped_datanode_costs_no_record(cluster: Cluster, folder: str, datanodes: Callable[..., None]) -> None:
    """A pipeline under its default limits: stopped after the first batch, every record comes exactly once, in order."""
    shards, count, size = 8, 100, 5000

    async def write() -> None:
        for shard in range(shards):
            await Writer(cluster).put(f"{folder}/{shard}", shard_bytes(records(shard, count, size)))

    asyncio.run(write())
    # Little memory, so that most of the shards is still to be read.
    limits = ad.Options(memory_limit_bytes=2 << 20, chunk_bytes=256 << 10, retry=_STEADY)
    urls = [cluster.url(f"{folder}/{shard}") for shard in range(shards)]
    seen: list[bytes] = []
    with ad.TFRecordDataset(urls).batch(20).with_options(limits).iterator() as batches:
        for batch in batches:
            if not seen:
                datanodes("datanode2")
            seen += [bytes(record) for record in batch]
    assert seen == [record for shard in range(shards) for record in records(shard, count, size)]


@pytest.mark.usefixtures("needs_webhdfs")
async def test_over_http_it_is_the_datanode_that_is_watched(
    cluster: Cluster, folder: str, datanodes: Callable[..., None]
) -> None:
    """The NameNode's redirect is no first byte: the limit is the DataNode's, and the failure tells that none came."""
    await Writer(cluster).put(f"{folder}/x", _DATA)
    url = cluster.webhdfs_url(f"{folder}/x")
    options = Options(storage={"webhdfs": {"user": getpass.getuser()}})
    reader = spec_for(url, options, Environment()).open()
    try:
        info = await reader.stat(url)
        well = Attempt()
        buffer = bytearray(BLOCK_BYTES)
        assert await reader.read_into(info, 0, memoryview(buffer), well) == len(buffer)
        assert buffer == _DATA[: len(buffer)]
        assert 0 <= well.asked_at <= well.first_byte_at
        assert well.received == len(buffer)
        datanodes(*DATANODES)
        silent = Attempt(ReadLimits(connect_s=30, first_byte_s=0.5, idle_s=30))
        with pytest.raises(ReadFailedError) as caught:
            await reader.read_into(info, 0, memoryview(buffer), silent)
        assert caught.value.cause is FailureCause.FIRST_BYTE_TIMEOUT
        assert silent.asked_at >= 0
        assert silent.first_byte_at < 0
    finally:
        await reader.aclose()
