"""obstore and nothing else: whole shards, many at a time, split into records. ``python plain_obstore.py JSON``.

Pictures are decoded by this library's decoder, in two processes that read a half of the shards each and drop the
pixels. Nothing is put into batches or handed over, so no reader that delivers pictures is expected to be faster.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.measure import cpu_s
from benchmarks.peers.obstore_clients import list_shards, open_store, split
from benchmarks.peers.reading import batches_of, end, frames, report

_AT_A_TIME = 32
_PROCESSES = 2


def bodies(work: dict[str, Any], share: int = 0, shares: int = 1) -> Iterator[Any]:
    """Whole objects as they arrive, `_AT_A_TIME` on their way; an event loop in a thread of its own reads them.

    Args:
        work: What to read.
        share: Which part of it.
        shares: Parts in all.
    """
    found: queue.Queue[Any] = queue.Queue(8)

    async def read() -> None:
        bucket, prefix = split(work["pattern"])
        store = open_store(work["endpoint"], bucket)
        names = list_shards(store, prefix)[share::shares]
        places = asyncio.Semaphore(_AT_A_TIME // shares)
        loop = asyncio.get_running_loop()

        async def one(name: str) -> None:
            async with places:
                body = await (await store.get_async(name)).bytes_async()
                await loop.run_in_executor(None, found.put, body)

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(one(name))
        found.put(None)

    threading.Thread(target=asyncio.run, args=(read(),), daemon=True).start()
    while (body := found.get()) is not None:
        yield body


def decode_share(work: dict[str, Any], share: int, results: Connection) -> None:
    """Decodes the pictures of a share; sends seconds to the first batch, their number, checksum and CPU seconds."""
    from benchmarks.peers.same_decoder import picture_decoder  # noqa: PLC0415 -- only pictures need OpenCV

    one = picture_decoder()
    results.send(None)
    results.recv()
    began, cpu = time.perf_counter(), cpu_s(os.getpid())
    first_s, count, checksum = 0.0, 0, 0
    for body in bodies(work, share, _PROCESSES):
        for record in frames(body):
            checksum += int(one(record)["label"])
            count += 1
            if count == work["batch"]:
                first_s = time.perf_counter() - began
    results.send((first_s, count, checksum, cpu_s(os.getpid()) - cpu))
    os._exit(0)  # threads of the client are not waited for


def decode(work: dict[str, Any]) -> None:
    """Decodes everything once and prints what it cost; the clock starts when both processes have their imports."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for share in range(_PROCESSES):
        ours, theirs = context.Pipe()
        context.Process(target=decode_share, args=(work, share, theirs)).start()
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    began = time.perf_counter()
    for pipe in pipes:
        pipe.send(None)
    shares = [pipe.recv() for pipe in pipes]
    wall_s = time.perf_counter() - began
    epoch = {
        "first_s": min(first_s for first_s, *_ in shares),
        "wall_s": wall_s,
        "first_records": work["batch"],
        "records": sum(count for _, count, *_ in shares),
        "nbytes": 0,
        "cpu_s": sum(spent for *_, spent in shares),
        "parent_cpu_s": 0.0,
        "tasks": 0,
        "checksum": sum(checksum for *_, checksum, _ in shares),
    }
    end([epoch])


if __name__ == "__main__":
    work = json.loads(sys.argv[1])
    if work["kind"] == "jpeg":
        decode(work)
    else:
        report(batches_of((record for body in bodies(work) for record in frames(body)), work))
