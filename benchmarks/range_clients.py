"""One client reading ranges, in a process of its own; prints bytes, wall and CPU seconds as one line of JSON.

Connections are opened, slabs touched and the first ranges compared with the files before the clock runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import mmap
import os
import random
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from unittest import mock
from urllib.parse import quote

import aiohttp
import gcsfs
import obstore
import uvloop

from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.options import Environment, Options
from asyncdata.runtime.receiving.starter import ReceiverStarter
from asyncdata.storage.fetch import Fetcher
from asyncdata.storage.http1 import connection
from asyncdata.storage.receivers import Receivers
from asyncdata.types import ObjectInfo
from benchmarks.bare_client import BareClient
from benchmarks.body_paths import Buffered, PathClient, Reader
from benchmarks.body_paths import Path as BodyPath
from benchmarks.conditions import SEED
from benchmarks.cpu_quota import held
from benchmarks.measure import tree, tree_cpu_s

RECEIVERS: Final = (2, 4, 8)

Range = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one client does.

    Attributes:
        client: A name from `CLIENTS`, or "bare".
        endpoint: Base URL of the server.
        ca_file: Its certificate; empty without TLS.
        folder: The bucket as a folder; its name is the bucket's.
        chunk_bytes: Length of a range.
        window: Ranges in flight.
        requests: Ranges in all.
        cpu: The one processor the client may use; None leaves that open.
        quota: The part of a processor that each process of the client may use; 0 leaves that open.
    """

    client: str
    endpoint: str
    ca_file: str
    folder: str
    chunk_bytes: int
    window: int
    requests: int
    cpu: int | None = None
    quota: float = 0.0

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return Path(self.folder).name


class AsyncClient(Protocol):
    """Reads one range at a time, several times at once."""

    async def get(self, name: str, start: int, slab: memoryview) -> bytes | None:
        """Reads as many bytes as the slab holds; returns them where the client does not fill the slab."""

    async def aclose(self) -> None:
        """Closes every connection."""


class Asyncdata:
    """This library's storage layer: retries, time limits, order and accounting on.

    Args:
        task: What to read.
        receivers: In how many places bodies are received: this process, and others.
    """

    def __init__(self, task: Task, receivers: int = 1) -> None:
        storage: dict[str, Any] = {"endpoint_url": task.endpoint, "token": "anon"}
        if task.ca_file:
            storage["ca_file"] = task.ca_file
        options = Options(storage={"gs": storage}, max_requests_in_flight=task.window)
        self._starter = ReceiverStarter(make_arena(task))
        self._wanted = receivers
        self._receivers = Receivers(receivers, self._starter.begin)
        self._fetcher = Fetcher(options, Environment(), receivers=self._receivers)
        self._bucket = task.bucket
        self._infos: dict[str, ObjectInfo] = {}
        self._size = max(path.stat().st_size for path in Path(task.folder).iterdir())

    @property
    def is_ready(self) -> bool:
        """Whether all processes take reads; they start while it reads."""
        return self._receivers.count == self._wanted

    async def get(self, name: str, start: int, slab: memoryview) -> bytes | None:
        """Received in place."""
        info = self._infos.get(name)
        if info is None:
            info = self._infos[name] = ObjectInfo(url=f"gs://{self._bucket}/{name}", size=self._size)
        await self._fetcher.read(info, start, slab, priority=0)
        return None

    async def aclose(self) -> None:
        """See `AsyncClient`."""
        await self._fetcher.aclose()
        self._starter.close()


class Bare:
    """One of the two paths on which a body can come, and nothing else."""

    def __init__(self, path: type[BodyPath], task: Task) -> None:
        self._client = PathClient(path, task.endpoint, _context(task.ca_file))
        self._bucket = task.bucket

    async def get(self, name: str, start: int, slab: memoryview) -> bytes | None:
        """Received in place."""
        await self._client.get(_target(self._bucket, name), start, slab)
        return None

    async def aclose(self) -> None:
        """See `AsyncClient`."""
        await self._client.aclose()


class Aiohttp:
    """aiohttp, each piece of the body copied into the slab as it comes."""

    def __init__(self, task: Task) -> None:
        self._url = f"{task.endpoint}/download/storage/v1/b/{task.bucket}/o/"
        context = _context(task.ca_file)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=True if context is None else context), auto_decompress=False
        )

    async def get(self, name: str, start: int, slab: memoryview) -> bytes | None:
        """Copied into the slab."""
        headers = {"Range": f"bytes={start}-{start + len(slab) - 1}"}
        async with self._session.get(self._url + quote(name, safe="") + "?alt=media", headers=headers) as answer:
            answer.raise_for_status()
            at = 0
            while piece := await answer.content.readany():
                slab[at : at + len(piece)] = piece
                at += len(piece)
        return None

    async def aclose(self) -> None:
        """See `AsyncClient`."""
        await self._session.close()


class Gcsfs:
    """gcsfs, which returns bytes."""

    def __init__(self, task: Task) -> None:
        self._bucket = task.bucket
        self._storage = gcsfs.GCSFileSystem(
            endpoint_url=task.endpoint,
            token="anon",  # noqa: S106 -- no secret
            asynchronous=True,
            loop=asyncio.get_running_loop(),
            skip_instance_cache=True,
        )

    async def get(self, name: str, start: int, slab: memoryview) -> bytes | None:
        """Returned, not copied."""
        data: bytes = await self._storage._cat_file(f"{self._bucket}/{name}", start, start + len(slab))  # noqa: SLF001 -- the coroutine has no public name
        return data

    async def aclose(self) -> None:
        """See `AsyncClient`."""
        await self._storage.session.close()


class Obstore:
    """obstore, whose Rust threads receive into memory of their own."""

    def __init__(self, task: Task) -> None:
        options: Any = {"allow_http": True, "allow_invalid_certificates": bool(task.ca_file)}
        self._store = obstore.store.HTTPStore.from_url(f"{task.endpoint}/{task.bucket}", client_options=options)

    async def get(self, name: str, start: int, slab: memoryview) -> bytes | None:
        """Returned as a buffer, not copied."""
        data: Any = await obstore.get_range_async(self._store, name, start=start, length=len(slab))
        return memoryview(data)  # type: ignore[return-value]  # any buffer will do

    async def aclose(self) -> None:
        """Nothing to close."""


def _without_low_water(task: Task) -> Asyncdata:
    mock.patch.object(connection, "_RCVLOWAT", None).start()
    return Asyncdata(task)


CLIENTS: Final[dict[str, tuple[Callable[[Task], AsyncClient], bool]]] = {
    "buffered": (functools.partial(Bare, Buffered), True),
    "reader": (functools.partial(Bare, Reader), True),
    "asyncdata": (Asyncdata, True),
    **{f"asyncdata, {count} receivers": (functools.partial(Asyncdata, receivers=count), True) for count in RECEIVERS},
    "asyncdata on asyncio": (Asyncdata, False),
    "buffered on asyncio": (functools.partial(Bare, Buffered), False),
    "reader on asyncio": (functools.partial(Bare, Reader), False),
    "asyncdata without SO_RCVLOWAT": (_without_low_water, True),
    "aiohttp": (Aiohttp, False),
    "gcsfs": (Gcsfs, False),
    "obstore": (Obstore, True),
}
"""How each is made, and whether it is at its best on uvloop."""


def _context(ca_file: str) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=ca_file) if ca_file else None


def _target(bucket: str, name: str) -> str:
    return f"/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media"


def random_ranges(task: Task, count: int, draw: random.Random) -> list[Range]:
    """Aligned nowhere, spread over all objects."""
    sizes = {path.name: path.stat().st_size for path in sorted(Path(task.folder).iterdir())}
    names = list(sizes)
    picked = [draw.choice(names) for _ in range(count)]
    return [(name, draw.randrange(sizes[name] - task.chunk_bytes + 1)) for name in picked]


@functools.cache
def make_arena(task: Task) -> Arena:
    """What the ranges are received into."""
    return Arena(-(-task.window * task.chunk_bytes // GRANULE) * GRANULE)


def make_slabs(task: Task) -> list[memoryview]:
    """One per range in flight, in shared memory, every page touched."""
    memory = make_arena(task).view[: task.window * task.chunk_bytes]
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
    return [memory[at : at + task.chunk_bytes] for at in range(0, len(memory), task.chunk_bytes)]


def _expect(task: Task, item: Range, data: bytes | memoryview) -> None:
    with Path(task.folder, item[0]).open("rb") as file:
        file.seek(item[1])
        if file.read(task.chunk_bytes) != bytes(data):
            raise RuntimeError(f"{task.client} received other bytes than were stored")


async def _read_all(client: AsyncClient, ranges: Iterable[Range], slabs: Sequence[memoryview]) -> None:
    left = iter(ranges)

    async def work(slab: memoryview) -> None:
        for name, start in left:
            await client.get(name, start, slab)

    async with asyncio.TaskGroup() as group:
        for slab in slabs:
            group.create_task(work(slab))


async def _run_async(task: Task) -> dict[str, float]:
    slabs, draw = make_slabs(task), random.Random(SEED)
    client = CLIENTS[task.client][0](task)
    try:
        for item, slab in zip(random_ranges(task, min(4, task.window), draw), slabs, strict=False):
            data = await client.get(*item, slab)
            _expect(task, item, slab if data is None else data)
        while not getattr(client, "is_ready", True):
            await _read_all(client, random_ranges(task, 1, draw), slabs)
            await asyncio.sleep(0.02)
        await _read_all(client, random_ranges(task, 2 * task.window, draw), slabs)
        await _read_all(client, random_ranges(task, 2 * task.window, draw), slabs)
        ranges = random_ranges(task, task.requests, draw)
        with held(tree(os.getpid()), task.quota) if task.quota else contextlib.nullcontext():
            wall, cpu = time.perf_counter(), tree_cpu_s(os.getpid())
            await _read_all(client, ranges, slabs)
            return _result(task, wall, cpu)
    finally:
        await client.aclose()


def _run_bare(task: Task) -> dict[str, float]:
    slabs, draw = make_slabs(task), random.Random(SEED)

    def targets(count: int) -> Iterator[Range]:
        return iter([(_target(task.bucket, name), start) for name, start in random_ranges(task, count, draw)])

    client = BareClient(task.endpoint, _context(task.ca_file), slabs)
    try:
        (item,) = random_ranges(task, 1, draw)
        client.read_all(iter([(_target(task.bucket, item[0]), item[1])]))
        _expect(task, item, slabs[0])
        client.read_all(targets(2 * task.window))
        ranges = targets(task.requests)
        wall, cpu = time.perf_counter(), tree_cpu_s(os.getpid())
        client.read_all(ranges)
        return _result(task, wall, cpu)
    finally:
        client.close()


def _result(task: Task, wall: float, cpu: float) -> dict[str, float]:
    return {
        "bytes": float(task.requests * task.chunk_bytes),
        "wall_s": time.perf_counter() - wall,
        "cpu_s": tree_cpu_s(os.getpid()) - cpu,
    }


def run(task: Task) -> dict[str, float]:
    """Does the task."""
    if task.cpu is not None:
        os.sched_setaffinity(0, {task.cpu})
    if task.client == "bare":
        return _run_bare(task)
    loop_factory = uvloop.new_event_loop if CLIENTS[task.client][1] else None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_run_async(task))


if __name__ == "__main__":
    print(json.dumps(run(Task(**json.loads(sys.argv[1])))))
