"""obstore and nothing else: whole shards, many at a time, split into records. ``python plain_obstore.py JSON``."""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.obstore_clients import list_shards, open_store, split
from benchmarks.peers.reading import batches_of, frames, report

_AT_A_TIME = 32


def bodies(work: dict[str, Any]) -> Iterator[Any]:
    """Whole objects as they arrive, `_AT_A_TIME` on their way; an event loop in a thread of its own reads them."""
    found: queue.Queue[Any] = queue.Queue(8)

    async def read() -> None:
        bucket, prefix = split(work["pattern"])
        store = open_store(work["endpoint"], bucket)
        names = list_shards(store, prefix)
        places = asyncio.Semaphore(_AT_A_TIME)
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


if __name__ == "__main__":
    work = json.loads(sys.argv[1])
    report(batches_of((record for body in bodies(work) for record in frames(body)), work))
