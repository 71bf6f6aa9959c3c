from __future__ import annotations

import asyncio
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import aiohttp
import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import infer_storage_options
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
from asyncdata.storage.fsspec import FsspecReader, open_reader, typed_error
from asyncdata.storage.reader import ReaderSpec
from asyncdata.types import ObjectInfo
from tests.patience import LIMIT_S
from tests.storage.given_filesystem import GivenFilesystem


class Odd(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A filesystem that does what a test tells it to."""

    protocol: str | tuple[str, ...] = "odd"
    cachable = False
    size = 10
    version = "1"
    version_key = "ETag"
    data = b"0123456789"
    error: Exception | None = None
    ignores_ranges = False

    def info(self, path: str, **_: object) -> dict[str, object]:
        """Whatever the attributes say."""
        return {"name": path, "size": self.size, "type": "file", self.version_key: self.version}

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
    reader = FsspecReader(GivenFilesystem(filesystem), asynchronous=False, max_threads=1, limits=TimeoutOptions())
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
    with pytest.raises(ObjectChangedError, match="10 bytes were listed, now it has 5"):
        await read(odd, 2, 6)


@pytest.mark.parametrize("key", ["ETag", "modify", "blob_id", "sha", "hex"])
async def test_a_replaced_object_is_noticed(odd: Odd, key: str) -> None:
    """Whatever the filesystem calls its version: FTP, Hugging Face, GitHub and git have words of their own."""
    odd.version_key = key
    assert await read(odd, 2, 5) == b"23456"
    odd.version = "2"
    with pytest.raises(ObjectChangedError):
        await read(odd, 2, 5)


async def test_long_answers_are_refused(odd: Odd) -> None:
    """A filesystem that ignores the range does not write over what lies behind the buffer."""
    odd.ignores_ranges = True
    with pytest.raises(StorageError, match="more bytes"):
        await read(odd, 2, 5)


async def test_an_object_without_a_size_is_refused(odd: Odd) -> None:
    """Nothing can be planned on it."""
    odd.size = None  # type: ignore[assignment]  # as some filesystems do
    reader = FsspecReader(GivenFilesystem(odd), asynchronous=False, max_threads=1, limits=TimeoutOptions())
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
    reader = FsspecReader(GivenFilesystem(odd), asynchronous=False, max_threads=1, limits=TimeoutOptions())
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


@pytest.mark.sampled
async def test_a_filesystem_that_never_answers_is_given_up() -> None:
    """What can be interrupted has a time limit, for metadata and for bytes."""
    limits = TimeoutOptions(connect_s=0.1, first_byte_s=0.1, idle_s=0.1)
    reader = FsspecReader(GivenFilesystem(Silent()), asynchronous=True, max_threads=1, limits=limits)
    try:
        async with asyncio.timeout(LIMIT_S):
            for ask in (reader.stat(INFO.url), reader.read_into(INFO, 0, memoryview(bytearray(10)))):
                with pytest.raises(ReadFailedError, match="in time") as caught:
                    await ask
                assert caught.value.url == INFO.url
    finally:
        await reader.aclose()


class Place(Odd):
    """A filesystem whose URLs name a host, as FTP's do; its paths begin with a slash."""

    protocol = "place"
    made: ClassVar[list[dict[str, object]]] = []
    refuses: ClassVar[Exception | None] = None

    def __init__(self, host: str, port: int = 0, **options: object) -> None:
        super().__init__()
        if self.refuses is not None:
            raise self.refuses
        self.host = host
        self.made.append({"host": host, "port": port, **options})

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(infer_storage_options(path)["path"])

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, object]:
        return {name: value for name, value in infer_storage_options(path).items() if name in ("host", "port")}

    def glob(self, path: str, **_: object) -> dict[str, dict[str, object]]:
        """One match."""
        name = path.replace("*", self.host)
        return {name: self.info(name)}


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> type[Place]:
    """What serves ``place://`` while a test runs."""
    monkeypatch.setattr(Place, "made", [])
    monkeypatch.setattr(fsspec, "get_filesystem_class", {"place": Place}.__getitem__)
    return Place


async def test_a_url_says_which_server(places: type[Place]) -> None:
    """Each host has a filesystem of its own, which is made once; matches keep the host; options outrank the URL."""
    reader = open_reader(ReaderSpec(scheme="place", backend="asyncdata.storage.fsspec", options={"port": 7}))
    try:
        urls = []
        for host in ("one", "two", "one"):
            urls += [info.url for info in await reader.glob(f"place://{host}:21/a/*.txt")]
            assert (await reader.stat(urls[-1])).size == 10
    finally:
        await reader.aclose()
    assert urls == ["place://one:21/a/one.txt", "place://two:21/a/two.txt", "place://one:21/a/one.txt"]
    assert [(made["host"], made["port"]) for made in places.made] == [("one", 7), ("two", 7)]


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (ConnectionRefusedError(111, "refused"), TransientStorageError, "refused"),
        (PermissionError("login"), AccessDeniedError, "login"),
        (FileNotFoundError(2, "no key file"), StorageError, "does not take its options: FileNotFoundError"),
        (TypeError("missing an argument"), StorageError, "does not take its options: TypeError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_what_fails_while_a_filesystem_is_made(
    places: type[Place], monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: type[StorageError], message: str
) -> None:
    """A server that cannot be reached is no wrong option, and another attempt may succeed."""
    monkeypatch.setattr(places, "refuses", raised)
    reader = open_reader(ReaderSpec(scheme="place", backend="asyncdata.storage.fsspec"))
    try:
        with pytest.raises(kind, match=message) as caught:
            await reader.stat("place://one/a")
        assert isinstance(caught.value, TransientStorageError) is (kind is TransientStorageError)
        assert caught.value.url == "place://one/a"
        monkeypatch.setattr(places, "refuses", None)
        assert (await reader.stat("place://one/a")).size == 10
    finally:
        await reader.aclose()


class Hosts(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files in memory, with the URLs of FTP: what follows ``?`` in a URL is no part of a path."""

    protocol = "hosts"
    cachable = False
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, host: str, **_: object) -> None:
        super().__init__()
        self.host = host

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(infer_storage_options(path)["path"]).strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, object]:
        return {name: value for name, value in infer_storage_options(path).items() if name not in ("path", "protocol")}


async def test_names_are_used_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """``?`` is a wildcard or a character of a name, and ``#`` a character, also where others cut a URL there."""
    monkeypatch.setattr(fsspec, "get_filesystem_class", {"hosts": Hosts}.__getitem__)
    names = ["part-", "part-0", "part-1", "part-?", "part-#", "a#b/c?d", "a\tb\n"]
    for name in names:
        Hosts("h").pipe_file(f"/d/{name}", name.encode())
    reader = open_reader(ReaderSpec(scheme="hosts", backend="asyncdata.storage.fsspec"))
    try:
        found = [info.url for info in await reader.glob("hosts://h/d/part-?")]
        assert found == [f"hosts://h/d/part-{character}" for character in "#01?"]
        for name in names:
            buffer = bytearray(20)
            _, size = await reader.open_read(f"hosts://h/d/{name}", memoryview(buffer))
            assert buffer[:size].decode() == name
    finally:
        await reader.aclose()
        Hosts.store.clear()


class Accounts(Hosts):
    """The same with the URLs of Azure: paths begin with the container, which stands before the host."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        said = infer_storage_options(path)
        return "/" + f"{said.get('username', '')}{said['path']}".strip("/")


async def test_matches_keep_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the container stands before it, as in ``abfs://container@account``."""
    monkeypatch.setattr(fsspec, "get_filesystem_class", {"accounts": Accounts}.__getitem__)
    Accounts("account").pipe_file("accounts://container@account/d/x.rec", b"x")
    reader = open_reader(ReaderSpec(scheme="accounts", backend="asyncdata.storage.fsspec"))
    try:
        (found,) = await reader.glob("accounts://container@account/d/*.rec")
        assert found.url == "accounts://container@account/d/x.rec"
        assert (await reader.stat(found.url)).size == 1
    finally:
        await reader.aclose()
        Hosts.store.clear()


class Connection(Odd):
    """A filesystem that speaks over one connection."""

    protocol = ("sftp", "ssh")


def threads_of_fsspec() -> int:
    """How many there are now."""
    return sum(thread.name.startswith("asyncdata-fsspec") for thread in threading.enumerate())


async def test_calls_that_share_a_connection_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one thread, whatever the scheme is called; other filesystems have several."""
    monkeypatch.setattr(fsspec, "get_filesystem_class", {"odd": Odd, "mine": Connection}.__getitem__)
    for scheme, is_one in ("mine", True), ("odd", False):
        reader = open_reader(ReaderSpec(scheme=scheme, backend="asyncdata.storage.fsspec"))
        try:
            await asyncio.gather(*(reader.stat(f"{scheme}://{n}") for n in range(4)))
            assert (threads_of_fsspec() == 1) is is_one
        finally:
            await reader.aclose()


@pytest.mark.parametrize("scheme", ["tar", "zip"])
async def test_members_of_an_archive_are_read_together(tmp_path: Path, scheme: str) -> None:
    """Each has its own bytes, whoever else reads from the archive meanwhile."""
    path, contents = tmp_path / f"archive.{scheme}", [bytes([n]) * (1 << 20) for n in range(8)]
    with tarfile.open(path, "w") if scheme == "tar" else zipfile.ZipFile(path, "w") as archive:
        for number, content in enumerate(contents):
            if isinstance(archive, tarfile.TarFile):
                member = tarfile.TarInfo(f"{number}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                archive.writestr(f"{number}", content)
    reader = open_reader(ReaderSpec(scheme=scheme, backend="asyncdata.storage.fsspec", options={"fo": str(path)}))

    async def read_member(number: int) -> bytes:
        buffer = bytearray(len(contents[number]))
        await reader.open_read(f"{scheme}://{number}", memoryview(buffer))
        return bytes(buffer)

    try:
        assert await asyncio.gather(*map(read_member, range(8))) == contents
        assert threads_of_fsspec() == 1
    finally:
        await reader.aclose()
