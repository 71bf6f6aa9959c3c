"""Writes to the test cluster, by hdfs-native: beside what is tested, in the same process."""

from __future__ import annotations

import asyncio
import contextlib

from hdfs_native import WriteOptions

from asyncdata.storage.hdfs.native import shared_client
from tests.hdfs.cluster import Cluster

_TRIES = 5
_NOT_YET = ("complete file in time", "Not replicated yet", "NotReplicatedYet")
"""What the client says of a cluster that is slow to take note of blocks."""


class Writer:
    """Puts files into a cluster.

    Args:
        cluster: Where.
    """

    def __init__(self, cluster: Cluster) -> None:
        # Shared with nobody but other writers, and never dropped, for the reasons that the module gives.
        self.client = shared_client(cluster.address, (("dfs.client.failover.max.attempts", "0"),))

    async def put(self, path: str, data: bytes, *, permission: int = 0o644, block_bytes: int | None = None) -> None:
        """Writes or replaces a file, such that its modification time differs from that of a file it replaces."""
        before = None
        with contextlib.suppress(FileNotFoundError):
            before = (await self.client.get_file_info(path)).modification_time
        while True:
            options = WriteOptions(
                overwrite=True, create_parent=True, permission=permission, replication=2, block_size=block_bytes
            )
            for patience in range(_TRIES - 1, -1, -1):
                try:
                    async with await self.client.create(path, options) as file:
                        if data:
                            await file.write(data)
                    break
                except RuntimeError as error:
                    if not patience or not any(words in str(error) for words in _NOT_YET):
                        raise
            if before is None or (await self.client.get_file_info(path)).modification_time != before:
                return

    async def append(self, path: str, data: bytes) -> None:
        """Adds to the end of a file."""
        async with await self.client.append(path) as file:
            await file.write(data)

    async def delete(self, path: str) -> None:
        """Deletes a file or a folder with all it holds."""
        await self.client.delete(path, True)

    async def make_empty(self, folder: str, names: list[str]) -> None:
        """Creates many files without content."""
        names = list(names)

        async def work() -> None:
            while names:
                path = f"{folder}/{names.pop()}"
                async with await self.client.create(path, WriteOptions(overwrite=True, create_parent=True)):
                    pass

        async with asyncio.TaskGroup() as group:
            for _ in range(16):
                group.create_task(work())
