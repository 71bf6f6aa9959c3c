"""Much of everything: files in a folder, reads at a time, clients that come and go."""

from __future__ import annotations

import asyncio
import getpass
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncdata.errors import StorageError
from asyncdata.options import Environment, HedgeOptions, Options
from asyncdata.storage.backends import spec_for
from asyncdata.storage.fetch import Fetcher
from tests.hdfs.cluster import Cluster
from tests.hdfs.settings import BLOCK_BYTES
from tests.hdfs.writing import Writer
from tests.patience import turns
from tests.samples import samples


@asynccontextmanager
async def opened(requests: int = 32) -> AsyncIterator[Fetcher]:
    """A Fetcher that is closed at the end."""
    storage = {"webhdfs": {"user": getpass.getuser()}}
    fetcher = Fetcher(Options(max_requests_in_flight=requests, storage=storage), Environment())
    try:
        yield fetcher
    finally:
        await fetcher.aclose()


async def test_ten_thousand_files_are_listed(cluster: Cluster, folder: str) -> None:
    """More than one page of a NameNode's listing; every name once, in order, by each protocol."""
    names = [f"part-{number:05d}" for number in range(10_000)]
    await Writer(cluster).make_empty(folder, names)
    async with opened() as fetcher:
        urls = [cluster.url(f"{folder}/{name}") for name in names]
        found = await fetcher.glob(cluster.url(f"{folder}/part-*"))
        assert [info.url for info in found] == urls
        assert {info.size for info in found} == {0}
        some = await fetcher.glob(cluster.url(f"{folder}/part-0[0-4]??7"))
        assert [info.url for info in some] == [url for url in urls[:5000] if url.endswith("7")]
        if cluster.webhdfs:
            listed = await fetcher.glob(cluster.webhdfs_url(f"{folder}/part-*"))
            assert [info.url for info in listed] == [cluster.webhdfs_url(f"{folder}/{name}") for name in names]


@pytest.mark.sampled
@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
async def test_a_thousand_reads_at_a_time(
    cluster: Cluster, folder: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    """Each gets its own bytes; no more run at a time than were allowed."""
    if scheme == "webhdfs":
        request.getfixturevalue("needs_webhdfs")
    data = random.Random(8).randbytes(8 * BLOCK_BYTES)
    await Writer(cluster).put(f"{folder}/x", data)
    url = cluster.url(f"{folder}/x") if scheme == "hdfs" else cluster.webhdfs_url(f"{folder}/x")
    draw = random.Random(9)
    async with opened(requests=1000 if scheme == "hdfs" else 100) as fetcher:
        info = await fetcher.stat(url)

        async def read_one() -> None:
            start = draw.randrange(len(data))
            buffer = bytearray(min(draw.randrange(1, 40_000), len(data) - start))
            await fetcher.read(info, start, memoryview(buffer))
            assert buffer == data[start : start + len(buffer)]

        async with asyncio.TaskGroup() as group:
            for _ in range(1000):
                group.create_task(read_one())
        stats = fetcher.stats()
        assert stats.requests >= 1000
        assert stats.peak_in_flight <= stats.limit
        assert stats.peak_hedges_in_flight <= HedgeOptions().max_at_once


async def test_readers_come_and_go_with_reads_cancelled_at_any_moment(cluster: Cluster, folder: str) -> None:
    """However a read ends, its reader can be closed at once, and the next one works."""
    data = random.Random(10).randbytes(3 * BLOCK_BYTES)
    await Writer(cluster).put(f"{folder}/x", data)
    draw = random.Random(11)
    url = cluster.url(f"{folder}/x")
    for _ in range(samples(40, 2000)):
        reader = spec_for(url, Options(), Environment()).open()
        info = await reader.stat(url)
        buffers = [bytearray(draw.randrange(1, len(data))) for _ in range(draw.randrange(1, 8))]
        tasks = [asyncio.create_task(reader.read_into(info, 0, memoryview(buffer))) for buffer in buffers]
        await turns(draw.randrange(800))
        for task in tasks:
            if draw.random() < 0.8:
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await reader.aclose()
        for outcome, buffer in zip(outcomes, buffers, strict=True):
            assert not isinstance(outcome, StorageError)
            assert isinstance(outcome, asyncio.CancelledError) or buffer == data[: len(buffer)]
