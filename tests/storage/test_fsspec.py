from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest
from fsspec.spec import AbstractFileSystem
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from asyncdata.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from asyncdata.options import TimeoutOptions
from asyncdata.storage.failures import ReadFailedError
from asyncdata.storage.fsspec import FsspecReader, typed_error
from asyncdata.types import ObjectInfo
from tests.patience import LIMIT_S


class Odd(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A filesystem that does what a test tells it to."""

    protocol = "odd"
    cachable = False
    size = 10
    version = "1"
    data = b"0123456789"
    error: Exception | None = None
    ignores_ranges = False

    def info(self, path: str, **_: object) -> dict[str, object]:
        """Whatever the attributes say."""
        return {"name": path, "size": self.size, "type": "file", "ETag": self.version}

    def cat_file(self, _path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        """Whatever the attributes say."""
        if self.error is not None:
            raise self.error
        return self.data if self.ignores_ranges else self.data[start:end]


@pytest.fixture
def odd() -> Iterator[Odd]:
    """A fresh one."""
    return Odd()


INFO = ObjectInfo(url="odd://x", size=10, version="1")


async def read(filesystem: Odd, start: int, size: int) -> bytes:
    """One read."""
    reader = FsspecReader(filesystem, asynchronous=False, max_threads=1, limits=TimeoutOptions())
    buffer = bytearray(size)
    try:
        await reader.read_into(INFO, start, memoryview(buffer))
    finally:
        await reader.aclose()
    return bytes(buffer)


async def test_short_answers_are_resumable_unless_the_object_changed(odd: Odd) -> None:
    """A short answer is transient with what came; of a changed object it is final; beyond the end likewise."""
    assert await read(odd, 2, 5) == b"23456"
    odd.data = b"01234"
    with pytest.raises(ReadFailedError, match="3 of 6") as caught:
        await read(odd, 2, 6)
    assert caught.value.filled == 3
    assert caught.value.offset == 5
    odd.size, odd.version = 5, "2"
    with pytest.raises(ObjectChangedError):
        await read(odd, 2, 6)
    odd.version = "1"
    with pytest.raises(StorageError, match="ends at 5"):
        await read(odd, 2, 6)


async def test_long_answers_are_refused(odd: Odd) -> None:
    """A filesystem that ignores the range does not write over what lies behind the buffer."""
    odd.ignores_ranges = True
    with pytest.raises(StorageError, match="more bytes"):
        await read(odd, 2, 5)


async def test_an_object_without_a_size_is_refused(odd: Odd) -> None:
    """Nothing can be planned on it."""
    odd.size = None  # type: ignore[assignment]  # as some filesystems do
    reader = FsspecReader(odd, asynchronous=False, max_threads=1, limits=TimeoutOptions())
    with pytest.raises(StorageError, match="size"):
        await reader.stat("odd://x")
    await reader.aclose()


def response_error(status: int) -> aiohttp.ClientResponseError:
    """What aiohttp-based filesystems let through."""
    request = aiohttp.RequestInfo(URL("http://h"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://h"))
    return aiohttp.ClientResponseError(request, (), status=status, message="words")


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (FileNotFoundError(), ObjectNotFoundError),
        (IsADirectoryError(), ObjectNotFoundError),
        (PermissionError(), AccessDeniedError),
        (TimeoutError(), TransientStorageError),
        (ConnectionResetError(), TransientStorageError),
        (OSError(5, "I/O"), TransientStorageError),
        (aiohttp.ClientPayloadError(), TransientStorageError),
        (response_error(503), TransientStorageError),
        (response_error(404), ObjectNotFoundError),
        (response_error(403), AccessDeniedError),
        (ValueError("what"), StorageError),
    ],
)
async def test_foreign_errors_become_typed(odd: Odd, raised: Exception, kind: type[StorageError]) -> None:
    """By their type, with the URL; the original is kept as the cause."""
    error = typed_error(raised, "odd://x")
    assert isinstance(error, kind)
    assert isinstance(error, TransientStorageError) == (kind is TransientStorageError)
    assert error.url == "odd://x"
    odd.error = raised
    with pytest.raises(kind):
        await read(odd, 0, 5)


async def test_a_cancelled_read_ends_with_its_thread(odd: Odd) -> None:
    """The thread does not hold the caller's buffer: the copy is made on the loop."""
    reader = FsspecReader(odd, asynchronous=False, max_threads=1, limits=TimeoutOptions())
    task = asyncio.create_task(reader.read_into(INFO, 0, memoryview(bytearray(5))))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await reader.aclose()


class Silent(Odd):
    """An asynchronous filesystem that never answers."""

    async def _info(self, path: str, **_: object) -> dict[str, object]:
        await asyncio.Event().wait()
        return self.info(path)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        await asyncio.Event().wait()
        return self.cat_file(path, start, end)


async def test_a_filesystem_that_never_answers_is_given_up() -> None:
    """What can be interrupted has a time limit, for metadata and for bytes."""
    limits = TimeoutOptions(connect_s=0.1, first_byte_s=0.1, idle_s=0.1)
    reader = FsspecReader(Silent(), asynchronous=True, max_threads=1, limits=limits)
    try:
        async with asyncio.timeout(LIMIT_S):
            for ask in (reader.stat(INFO.url), reader.read_into(INFO, 0, memoryview(bytearray(10)))):
                with pytest.raises(ReadFailedError, match="in time") as caught:
                    await ask
                assert caught.value.url == INFO.url
    finally:
        await reader.aclose()
