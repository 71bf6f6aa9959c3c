"""gcsfs and nothing else: whole shards, many at a time, split into records. ``python plain_gcsfs.py JSON``."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

# gcsfs otherwise asks a gRPC service for the kind of bucket and waits for it for a minute.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

import gcsfs

from benchmarks.peers.reading import batches_of, frames, report

_AT_A_TIME = 32


def bodies(work: dict[str, Any]) -> Iterator[bytes]:
    """Whole objects as they arrive, `_AT_A_TIME` on their way; an event loop in a thread of its own reads them."""
    found: queue.Queue[Any] = queue.Queue(8)

    async def read() -> None:
        storage = gcsfs.GCSFileSystem(
            endpoint_url=work["endpoint"],
            token="anon",  # noqa: S106 -- no secret
            asynchronous=True,
            loop=asyncio.get_running_loop(),
        )
        names = sorted(await storage._glob(work["pattern"].removeprefix("gs://")))  # noqa: SLF001 -- no public name
        places = asyncio.Semaphore(_AT_A_TIME)
        loop = asyncio.get_running_loop()

        async def one(name: str) -> None:
            async with places:
                body = await storage._cat_file(name)  # noqa: SLF001 -- the coroutine has no public name
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
