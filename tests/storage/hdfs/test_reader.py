"""What a read of HDFS tells whoever watches it; the protocol itself is tested against a real cluster."""

from __future__ import annotations

import asyncio

import pytest

from asyncdata.options import TimeoutOptions
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.failures import FailureCause, ReadFailedError
from asyncdata.storage.hdfs.native import NativeFile
from asyncdata.storage.hdfs.reader import HdfsReader
from asyncdata.storage.hdfs.tree import FileStatus
from asyncdata.storage.reader import ReaderSpec
from asyncdata.types import ObjectInfo

DATA = bytes(range(256)) * 40
URL = "hdfs://namenode:8020/x"


class StalledFile:
    """hdfs-native's reader of a file of which nothing comes."""

    def __len__(self) -> int:
        return len(DATA)

    async def read_range(self, start: int, length: int) -> bytes:
        """Never."""
        await asyncio.Event().wait()
        return DATA[start : start + length]


class Cluster:
    """A client of one file."""

    prefers_brisk = False

    async def look(self, path: str) -> FileStatus:
        """The file."""
        return FileStatus(path=path, is_folder=False, size=len(DATA), version="7-10240")

    async def open(self, path: str, *, brisk: bool) -> NativeFile:
        """Its blocks."""
        assert path == "/x"
        return NativeFile(StalledFile(), brisk=brisk)

    def note_failure(self, file: NativeFile, cause: FailureCause) -> None:
        """It was silent."""
        assert file.size == len(DATA)
        assert cause is FailureCause.FIRST_BYTE_TIMEOUT


async def test_an_opening_read_tells_what_the_object_is_before_its_bytes_come() -> None:
    """So that a second attempt asks for no more than the file has, and for what follows the first's last byte."""
    reader = HdfsReader(ReaderSpec(scheme="hdfs", backend="", timeouts=TimeoutOptions(first_byte_s=0.1)))
    reader._clients["namenode:8020"] = Cluster()  # type: ignore[assignment]  # stands for a cluster
    attempt = Attempt()
    with pytest.raises(ReadFailedError) as caught:
        await reader.open_read(URL, memoryview(bytearray(2 * len(DATA))), attempt)
    assert attempt.opened == caught.value.info == ObjectInfo(url=URL, size=len(DATA), version="7-10240")
    await reader.aclose()
