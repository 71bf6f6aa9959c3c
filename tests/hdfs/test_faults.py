"""What becomes of reads when parts of a real cluster fail under them; the same for both protocols."""

from __future__ import annotations

import asyncio
import getpass
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncdata.errors import AccessDeniedError, ObjectChangedError, ObjectNotFoundError, StorageError
from asyncdata.options import Environment, Options, RetryOptions, TimeoutOptions
from asyncdata.storage.backends import spec_for
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.reader import RangeReader
from asyncdata.types import ObjectInfo
from tests.hdfs.cluster import Cluster
from tests.hdfs.settings import BLOCK_BYTES, DATANODES
from tests.hdfs.writing import Writer

_STEADY = RetryOptions(max_attempts=40, initial_delay_s=0.05, max_delay_s=0.5)
_BRIEF = RetryOptions(max_attempts=3, initial_delay_s=0.01, max_delay_s=0.02)


@pytest.fixture(params=["hdfs", "webhdfs"])
def url_of(request: pytest.FixtureRequest, cluster: Cluster) -> Callable[[str], str]:
    """Makes URLs of paths, for one protocol and then for the other."""
    if request.param == "hdfs":
        return cluster.url
    request.getfixturevalue("needs_webhdfs")
    return cluster.webhdfs_url


def options(retry: RetryOptions = _STEADY, timeouts: TimeoutOptions | None = None, requests: int = 8) -> Options:
    """As the user who runs the cluster."""
    return Options(
        retry=retry,
        timeouts=timeouts or TimeoutOptions(),
        max_requests_in_flight=requests,
        storage={"webhdfs": {"user": getpass.getuser()}},
    )


@asynccontextmanager
async def opened(chosen: Options) -> AsyncIterator[Fetcher]:
    """A Fetcher that is closed at the end."""
    fetcher = Fetcher(chosen, Environment())
    try:
        yield fetcher
    finally:
        await fetcher.aclose()


async def read_all(fetcher: Fetcher, info: ObjectInfo, chunk: int, *, after: Callable[[int], None]) -> bytes:
    """The whole file by ranges side by side; ``after`` is told how many of them are complete."""
    data = bytearray(info.size)
    view = memoryview(data)
    done = 0

    async def read(start: int) -> None:
        nonlocal done
        await fetcher.read(info, start, view[start : start + chunk], priority=start)
        done += 1
        after(done)

    async with asyncio.TaskGroup() as group:
        for start in range(0, info.size, chunk):
            group.create_task(read(start))
    return bytes(data)


def nothing(done: int) -> None:
    """For reads that are not disturbed."""


def flip(path: Path, at: int) -> None:
    """Changes one byte of a replica on the disk of its DataNode."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


async def put_with_replicas(cluster: Cluster, path: str, data: bytes) -> dict[str, list[Path]]:
    """Writes a file; returns the replicas it has on each DataNode."""
    before = {name: set(cluster.replicas(name)) for name in DATANODES}
    await Writer(cluster).put(path, data)
    fresh = {
        name: [file for block, file in sorted(cluster.replicas(name).items()) if block not in before[name]]
        for name in DATANODES
    }
    assert [len(files) for files in fresh.values()] == [len(data) // BLOCK_BYTES] * 2
    return fresh


@pytest.mark.sampled
async def test_a_killed_datanode_costs_no_byte(
    whole_cluster: Cluster, folder: str, url_of: Callable[[str], str]
) -> None:
    """``kill -9`` in the middle of a read: the other replicas serve the rest."""
    data = random.Random(1).randbytes(16 * BLOCK_BYTES)
    await Writer(whole_cluster).put(f"{folder}/x", data)
    async with opened(options()) as fetcher:
        info = await fetcher.stat(url_of(f"{folder}/x"))

        def kill_once(done: int) -> None:
            if done == 8:
                whole_cluster.kill("datanode1")

        assert await read_all(fetcher, info, BLOCK_BYTES // 2, after=kill_once) == data
        assert fetcher.stats().bytes == len(data)


async def test_a_stopped_datanode_costs_a_time_limit(whole_cluster: Cluster, folder: str) -> None:
    """A DataNode that still listens and never answers is left after the time limit; no byte is lost.

    With WebHDFS the other DataNode may wait for the stopped one, for a time that no client can choose.
    """
    data = random.Random(2).randbytes(4 * BLOCK_BYTES)
    await Writer(whole_cluster).put(f"{folder}/x", data)
    limits = TimeoutOptions(connect_s=0.5, first_byte_s=0.5, idle_s=0.5)
    try:
        async with opened(options(timeouts=limits, requests=4)) as fetcher:
            info = await fetcher.stat(whole_cluster.url(f"{folder}/x"))
            whole_cluster.pause("datanode2")
            assert await read_all(fetcher, info, BLOCK_BYTES, after=nothing) == data
    finally:
        whole_cluster.resume("datanode2")


async def test_a_flipped_byte_on_one_replica_is_never_delivered(
    cluster: Cluster, folder: str, url_of: Callable[[str], str]
) -> None:
    """Its checksum gives it away, and the other replica is read, whichever is asked first."""
    data = random.Random(3).randbytes(BLOCK_BYTES)
    replicas = await put_with_replicas(cluster, f"{folder}/x", data)
    flip(replicas["datanode1"][0], 70_000)
    async with opened(options()) as fetcher:
        info = await fetcher.stat(url_of(f"{folder}/x"))
        for _ in range(8):
            assert await read_all(fetcher, info, BLOCK_BYTES, after=nothing) == data


async def test_two_bad_replicas_are_an_error_that_says_so(
    cluster: Cluster, folder: str, url_of: Callable[[str], str]
) -> None:
    """Bytes with a wrong checksum are never delivered; the error names the file, the offset and the attempts."""
    data = random.Random(4).randbytes(2 * BLOCK_BYTES)
    replicas = await put_with_replicas(cluster, f"{folder}/x", data)
    for name in DATANODES:
        flip(replicas[name][1], 1000)
    async with opened(options(_BRIEF)) as fetcher:
        info = await fetcher.stat(url_of(f"{folder}/x"))
        first = bytearray(BLOCK_BYTES)
        await fetcher.read(info, 0, memoryview(first))
        assert first == data[:BLOCK_BYTES]
        with pytest.raises(StorageError) as caught:
            await fetcher.read(info, BLOCK_BYTES, memoryview(bytearray(4096)))
    error = caught.value
    assert (error.url, error.attempts) == (info.url, 3)
    assert error.offset is not None
    assert BLOCK_BYTES <= error.offset < BLOCK_BYTES + 1000
    assert any(words in str(error) for words in ("no replica can be read", "bytes", "HDFS refused"))


@pytest.mark.sampled
@pytest.mark.parametrize("change", ["append", "replace", "delete"])
async def test_a_file_that_changes_under_a_read_is_noticed(
    cluster: Cluster, folder: str, url_of: Callable[[str], str], change: str
) -> None:
    """Appended, replaced or deleted: who listed it before gets ``ObjectChangedError``, though its blocks are there."""
    writer = Writer(cluster)
    data = random.Random(5).randbytes(3 * BLOCK_BYTES)
    await writer.put(f"{folder}/x", data)
    async with opened(options(_BRIEF)) as fetcher:
        info = await fetcher.stat(url_of(f"{folder}/x"))
        buffer = bytearray(BLOCK_BYTES)
        await fetcher.read(info, 0, memoryview(buffer))
        assert buffer == data[:BLOCK_BYTES]
        changes = {
            "append": lambda: writer.append(f"{folder}/x", b"more"),
            "replace": lambda: writer.put(f"{folder}/x", data[::-1]),
            "delete": lambda: writer.delete(f"{folder}/x"),
        }
        await changes[change]()
        with pytest.raises(ObjectChangedError) as caught:
            await fetcher.read(info, BLOCK_BYTES, memoryview(buffer))
        assert caught.value.url == info.url
        if change == "delete":
            with pytest.raises(ObjectNotFoundError):
                await fetcher.stat(info.url)
        else:
            current = await fetcher.stat(info.url)
            await fetcher.read(current, 0, memoryview(bytearray(100)))


@pytest.mark.sampled
async def test_a_namenode_that_restarts_is_waited_for(
    whole_cluster: Cluster, folder: str, url_of: Callable[[str], str]
) -> None:
    """While it is down and in safe mode attempts fail and are repeated; then everything is read."""
    data = random.Random(6).randbytes(6 * BLOCK_BYTES)
    await Writer(whole_cluster).put(f"{folder}/x", data)
    async with opened(options(RetryOptions(max_attempts=400, initial_delay_s=0.05, max_delay_s=0.2))) as fetcher:
        info = await fetcher.stat(url_of(f"{folder}/x"))
        whole_cluster.kill("namenode")
        starting = asyncio.create_task(asyncio.to_thread(whole_cluster.start, "namenode"))
        assert await read_all(fetcher, info, BLOCK_BYTES, after=nothing) == data
        assert await fetcher.stat(info.url) == info
        assert fetcher.stats().retries > 0
        await starting


async def test_who_may_not_read_is_told_so(
    cluster: Cluster, folder: str, url_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode of the file counts, for the user that the program claims to be; nothing is tried again."""
    await Writer(cluster).put(f"{folder}/x", b"secret", permission=0o600)
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    # Clients are shared by equal options, and take the user when they are made: an option of her own makes one of hers.
    storage: dict[str, dict[str, Any]] = {"webhdfs": {"user": "alice"}, "hdfs": {"config": {"tests.user": "alice"}}}
    async with opened(Options(storage=storage)) as fetcher:
        info = await fetcher.stat(url_of(f"{folder}/x"))
        with pytest.raises(AccessDeniedError, match="alice"):
            await fetcher.read(info, 0, memoryview(bytearray(6)))
        assert fetcher.stats().requests == 1


def test_nothing_is_opened_before_it_is_needed() -> None:
    """A wrong option is found before any connection."""

    def reader(scheme: str, **chosen: str) -> RangeReader:
        return spec_for(f"{scheme}://h:1/x", Options(storage={scheme: chosen}), Environment()).open()

    for scheme in ("hdfs", "webhdfs", "swebhdfs"):
        with pytest.raises(ValueError, match="unknown option 'token'"):
            reader(scheme, token="x")
    with pytest.raises(AccessDeniedError, match="cannot be read"):
        reader("webhdfs", delegation_token_file="/nonexistent/token")
