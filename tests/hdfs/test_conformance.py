"""Both HDFS backends pass the shipped suite on a real cluster."""

from __future__ import annotations

import getpass
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from asyncdata.options import Environment, Options, TimeoutOptions
from asyncdata.storage.backends import spec_for
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.testing.readers import RangeReaderSuite, Store
from tests.hdfs.cluster import Cluster
from tests.hdfs.writing import Writer

# Nothing is tried again here, and servers share a busy machine.
_PATIENT = TimeoutOptions(connect_s=40, first_byte_s=40, idle_s=40)


class HdfsPlace:
    """A folder of the cluster."""

    def __init__(self, cluster: Cluster, folder: str, scheme: str, reader: RangeReader, spec: ReaderSpec) -> None:
        self.reader = reader
        self.spec: ReaderSpec | None = spec
        self._folder = folder
        self._base = cluster.url(folder) if scheme == "hdfs" else cluster.webhdfs_url(folder)
        self._writer = Writer(cluster)

    def url(self, name: str) -> str:
        return f"{self._base}/{name}"

    async def put(self, name: str, data: bytes) -> None:
        await self._writer.put(f"{self._folder}/{name}", data)

    async def delete(self, name: str) -> None:
        await self._writer.delete(f"{self._folder}/{name}")


class _OnTheCluster(RangeReaderSuite):
    scheme: ClassVar[str]
    storage: ClassVar[dict[str, dict[str, Any]]] = {}
    cluster: Cluster
    numbers: ClassVar[Iterator[int]] = itertools.count()

    @pytest.fixture(autouse=True)
    def _take_cluster(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        spec = spec_for(f"{self.scheme}://", Options(storage=self.storage, timeouts=_PATIENT), Environment())
        reader = spec.open()
        try:
            yield HdfsPlace(self.cluster, f"/{self.scheme}-{next(self.numbers)}", self.scheme, reader, spec)
        finally:
            await reader.aclose()


class TestHdfs(_OnTheCluster):
    scheme = "hdfs"


@pytest.mark.usefixtures("needs_webhdfs")
class TestWebHdfs(_OnTheCluster):
    """As the user who runs the cluster: others may not even ask what lies below a file.

    The DataNodes run with a newer Netty than they were made for, and unquote paths twice: percent and plus signs in
    names do not reach them.
    """

    scheme = "webhdfs"
    storage: ClassVar[dict[str, dict[str, Any]]] = {"webhdfs": {"user": getpass.getuser()}}
    odd_names = False

    async def test_names_beyond_ascii_are_used_as_they_are_written(self) -> None:
        """Spaces, letters beyond ASCII and what means something in a URL."""
        async with self.store() as store:
            for name in ("a b", "ä€😀", "a&b=c", "~x'()!", "a?b#c;d"):
                data = name.encode()
                await store.put(name, data)
                (info,) = await store.reader.glob(store.url(name.replace("?", "[?]")))
                assert info == await store.reader.stat(store.url(name))
                await self._read_exactly(store.reader, info, data, 0, len(data))
