"""Ranges from a real HDFS: this library by both protocols, bare hdfs-native, and fsspec's WebHDFS.

    python -m benchmarks.hdfs_read [--quick]

One NameNode and two DataNodes of the tests' own cluster (see docs/howto/hdfs.md) share the machine with one client at
a time, which is a process of its own. Same files, same ranges, same number in flight. asyncdata fills the caller's warm
slabs and verifies the version of the file after each range; bare hdfs-native returns bytes, and the copy into a slab
that would still have to follow is not counted. fsspec runs in as many threads as there are ranges in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import fsspec
import numpy as np
import uvloop
from hdfs_native import AsyncClient, WriteOptions

from asyncdata.options import Environment, Options
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.hdfs.native import shared_client
from benchmarks.conditions import SEED, conditions
from benchmarks.launch import run_json
from benchmarks.measure import in_turn
from benchmarks.table import markdown, median_cell, ratio_cell
from tests.hdfs.cluster import Cluster, running_cluster
from tests.hdfs.software import UnavailableError

BARE: Final = "bare hdfs-native"
OURS: Final = "asyncdata hdfs://"
CLIENTS: Final = (BARE, OURS, "asyncdata webhdfs://", "fsspec webhdfs://")
HEAD: Final = ("client", "GB/s", "CPU s/GB", "CPU us/range", "x bare")
ALLOWED_S: Final = 0.25
_FILES: Final = 2
_BLOCK_BYTES: Final = 64 << 20
_MIB: Final = 1 << 20

Result = dict[str, float]
Read = Callable[[int, int, memoryview], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one client does.

    Attributes:
        client: A name from `CLIENTS`.
        rpc: ``host:port`` of the NameNode.
        http: The same for WebHDFS; empty where it is not served.
        file_bytes: Size of each file.
        chunk_bytes: Length of a range.
        window: Ranges in flight.
        requests: Ranges in all.
    """

    client: str
    rpc: str
    http: str
    file_bytes: int
    chunk_bytes: int
    window: int
    requests: int


def content(number: int, size: int) -> bytes:
    """A file's bytes."""
    return np.random.default_rng(SEED + number).bytes(size)


def path_of(number: int) -> str:
    """A file's path."""
    return f"/bench/{number}"


async def _write(cluster: Cluster, size: int) -> None:
    client = shared_client(cluster.address, (("dfs.client.failover.max.attempts", "0"),))
    options = WriteOptions(overwrite=True, create_parent=True, block_size=_BLOCK_BYTES, replication=2)
    for number in range(_FILES):
        async with await client.create(path_of(number), options) as file:
            await file.write(content(number, size))


async def _measure(task: Task, read: Read, check: Callable[[int, memoryview], None]) -> Result:
    slabs = [memoryview(bytearray(b"\1") * task.chunk_bytes) for _ in range(task.window)]
    draw = random.Random(SEED)

    def ranges(count: int) -> list[tuple[int, int]]:
        return [(draw.randrange(_FILES), draw.randrange(task.file_bytes - task.chunk_bytes + 1)) for _ in range(count)]

    async def run(wanted: list[tuple[int, int]]) -> None:
        left = iter(wanted)

        async def work(slab: memoryview) -> None:
            for number, start in left:
                await read(number, start, slab)

        async with asyncio.TaskGroup() as group:
            for slab in slabs:
                group.create_task(work(slab))

    for number in range(_FILES):
        await read(number, 0, slabs[0])
        check(number, slabs[0])
    await run(ranges(2 * task.window))
    wanted = ranges(task.requests)
    wall, cpu = time.perf_counter(), time.process_time()
    await run(wanted)
    return {
        "bytes": float(task.requests * task.chunk_bytes),
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
    }


def _expect(task: Task, number: int, data: Any) -> None:
    if bytes(data) != content(number, task.file_bytes)[: task.chunk_bytes]:
        raise RuntimeError(f"{task.client} read other bytes than were written")


async def _bare(task: Task) -> Result:
    client: AsyncClient = shared_client(task.rpc, (("dfs.client.failover.max.attempts", "0"),))
    files = [await client.read(path_of(number)) for number in range(_FILES)]
    last: list[bytes] = [b""]

    async def read(number: int, start: int, slab: memoryview) -> None:
        last[0] = await files[number].read_range(start, len(slab))

    return await _measure(task, read, lambda number, _: _expect(task, number, last[0]))


async def _asyncdata(task: Task) -> Result:
    base = f"hdfs://{task.rpc}" if task.client == OURS else f"webhdfs://{task.http}"
    fetcher = Fetcher(Options(max_requests_in_flight=task.window), Environment())
    try:
        infos = [await fetcher.stat(base + path_of(number)) for number in range(_FILES)]

        async def read(number: int, start: int, slab: memoryview) -> None:
            await fetcher.read(infos[number], start, slab, priority=0)

        return await _measure(task, read, functools.partial(_expect, task))
    finally:
        await fetcher.aclose()


async def _fsspec(task: Task) -> Result:
    host, _, port = task.http.partition(":")
    storage = fsspec.filesystem("webhdfs", host=host, port=int(port))
    last: list[bytes] = [b""]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(task.window) as threads:

        async def read(number: int, start: int, slab: memoryview) -> None:
            last[0] = await loop.run_in_executor(threads, storage.cat_file, path_of(number), start, start + len(slab))

        return await _measure(task, read, lambda number, _: _expect(task, number, last[0]))


def run_client(task: Task) -> Result:
    """Does the task."""
    job = {BARE: _bare, CLIENTS[3]: _fsspec}.get(task.client, _asyncdata)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(job(task))


def table(results: dict[str, list[Result]], chunk_bytes: int) -> str:
    """One line per client."""
    rows = []
    bare = [result["cpu_s"] / result["bytes"] for result in results[BARE]]
    for name, runs in results.items():
        cpu = [result["cpu_s"] / result["bytes"] for result in runs]
        rows.append(
            [
                name,
                median_cell([result["bytes"] / result["wall_s"] / 1e9 for result in runs]),
                median_cell([1e9 * value for value in cpu]),
                median_cell([1e6 * chunk_bytes * value for value in cpu], 0),
                ratio_cell(cpu, bare),
            ]
        )
    return markdown(HEAD, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; fails where this library costs more than bare hdfs-native and what is allowed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hdfs_read", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    try:
        with running_cluster() as cluster:
            size = 16 * _MIB if given.quick else 256 * _MIB
            asyncio.run(_write(cluster, size))
            task = Task(
                client="",
                rpc=cluster.address,
                http=cluster.http_address if cluster.webhdfs else "",
                file_bytes=size,
                chunk_bytes=(1 if given.quick else 8) * _MIB,
                window=8,
                requests=16 if given.quick else 96,
            )
            names = [name for name in CLIENTS if task.http or "webhdfs" not in name]
            results = in_turn(1 if given.quick else given.rounds, {name: _starter(task, name) for name in names}, _note)
    except UnavailableError as error:
        _note(f"not measured: {error}")
        return 0
    print(conditions(packages=("asyncdata", "hdfs-native", "fsspec", "aiohttp", "uvloop")))
    print(
        f"\n{task.requests} ranges of {task.chunk_bytes >> 20} MiB, {task.window} in flight; CPU of the client alone.\n"
    )
    print(table(results, task.chunk_bytes))
    more = [
        1e9 * (ours["cpu_s"] / ours["bytes"] - bare["cpu_s"] / bare["bytes"])
        for ours, bare in zip(results[OURS], results[BARE], strict=True)
    ]
    extra = statistics.median(more)
    print(
        f"\n{OURS} costs {extra:+.2f} s/GB against {BARE}, the copy into the slab included ({ALLOWED_S:+.2f} allowed)."
    )
    return int(extra > ALLOWED_S and not given.quick)


def _starter(task: Task, name: str) -> Callable[[], Result]:
    words = [sys.executable, "-m", "benchmarks.hdfs_read", "--client"]
    return lambda: run_json([*words, json.dumps(dataclasses.asdict(dataclasses.replace(task, client=name)))])


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        print(json.dumps(run_client(Task(**json.loads(sys.argv[2])))))
        sys.exit(0)
    sys.exit(main())
