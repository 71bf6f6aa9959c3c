"""Every backend passes the shipped suite."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from aiohttp import web
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem

from asyncdata.options import Environment, Options, TimeoutOptions
from asyncdata.storage.backends import spec_for
from asyncdata.storage.fsspec import FsspecReader
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.testing.readers import RangeReaderSuite, Store
from fake_gcs import FakeGCS
from tests.storage.given_filesystem import GivenFilesystem


class _Place:
    """A store around a folder URL."""

    def __init__(self, base: str, reader: RangeReader, spec: ReaderSpec | None) -> None:
        self.base = base
        self.reader = reader
        self.spec = spec

    def url(self, name: str) -> str:
        return self.base + name


class MemoryPlace(_Place):
    """Written through fsspec's memory filesystem."""

    async def put(self, name: str, data: bytes) -> None:
        MemoryFileSystem().pipe_file(f"/suite/{name}", data)

    async def delete(self, name: str) -> None:
        MemoryFileSystem().rm_file(f"/suite/{name}")


class FolderPlace(_Place):
    """Written to a local folder; replaced as careful writers do, by a rename."""

    def __init__(self, folder: Path, base: str, reader: RangeReader, spec: ReaderSpec | None) -> None:
        super().__init__(base, reader, spec)
        self._folder = folder

    async def put(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + "~new")
        fresh.write_bytes(data)
        os.replace(fresh, path)

    async def delete(self, name: str) -> None:
        (self._folder / name).unlink()


class GcsPlace(_Place):
    """Written to a fake server from beside."""

    def __init__(self, server: FakeGCS, reader: RangeReader, spec: ReaderSpec | None) -> None:
        super().__init__("gs://bucket/some/where/", reader, spec)
        self._server = server

    async def put(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(self._server.put, "bucket", f"some/where/{name}", data)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._server.delete, "bucket", f"some/where/{name}")


class HttpPlace(FolderPlace):
    """A folder behind a web server; names become paths."""

    def url(self, name: str) -> str:
        return self.base + quote(name)


def opened(base: str, storage: dict[str, dict[str, Any]] | None = None) -> tuple[RangeReader, ReaderSpec]:
    """The reader that the registry chooses for a URL."""
    spec = spec_for(base, Options(storage=storage or {}), Environment())
    return spec.open(), spec


@asynccontextmanager
async def web_server(folder: Path) -> AsyncIterator[str]:
    """aiohttp serving a folder."""

    async def serve(request: web.Request) -> web.StreamResponse:
        path = folder / request.match_info["name"]
        if not path.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(path, chunk_size=65_536)

    app = web.Application()
    app.router.add_get("/files/{name:.*}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}/files/"
    finally:
        await runner.cleanup()


class TestMemory(RangeReaderSuite):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        reader, spec = opened("memory://suite/")
        try:
            yield MemoryPlace("memory://suite/", reader, spec)
        finally:
            await reader.aclose()
            MemoryFileSystem.store.clear()
            MemoryFileSystem.pseudo_dirs[:] = [""]


class TestLocal(RangeReaderSuite):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        with TemporaryDirectory() as name:
            reader, spec = opened(f"{name}/")
            try:
                yield FolderPlace(Path(name), f"{name}/", reader, spec)
            finally:
                await reader.aclose()


class TestLocalUrl(RangeReaderSuite):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        with TemporaryDirectory() as name:
            reader, spec = opened(f"file://{name}/")
            try:
                yield FolderPlace(Path(name), f"file://{name}/", reader, spec)
            finally:
                await reader.aclose()


class TestGcs(RangeReaderSuite):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with FakeGCS(buckets=["bucket"]) as server:
            reader, spec = opened("gs://bucket/", {"gs": {"endpoint_url": server.url, "token": "anon"}})
            try:
                yield GcsPlace(server, reader, spec)
            finally:
                await reader.aclose()


class TestGcsOverTls(RangeReaderSuite):
    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        with TemporaryDirectory() as folder:
            async with FakeGCS(buckets=["bucket"], tls=True) as server:
                authority = Path(folder, "ca.pem")
                authority.write_bytes(server.certificate)
                storage = {"gs": {"endpoint_url": server.url, "token": "anon", "ca_file": str(authority)}}
                reader, spec = opened("gs://bucket/", storage)
                try:
                    yield GcsPlace(server, reader, spec)
                finally:
                    await reader.aclose()


class TestHttp(RangeReaderSuite):
    can_list = False

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        with TemporaryDirectory() as name:
            async with web_server(Path(name)) as base:
                reader, spec = opened(base)
                try:
                    yield HttpPlace(Path(name), base, reader, spec)
                finally:
                    await reader.aclose()


class TestFsspecThreads(RangeReaderSuite):
    """A filesystem that blocks: fsspec's own for local files."""

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        with TemporaryDirectory() as name:
            spec = ReaderSpec(scheme="file", backend="asyncdata.storage.fsspec")
            reader = spec.open()
            try:
                yield FolderPlace(Path(name), f"file://{name}/", reader, spec)
            finally:
                await reader.aclose()


class TestFsspecAsync(RangeReaderSuite):
    """An asynchronous filesystem with a listing."""

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        wrapped = AsyncFileSystemWrapper(MemoryFileSystem(), asynchronous=True)
        reader = FsspecReader(GivenFilesystem(wrapped), asynchronous=True, max_threads=1, limits=TimeoutOptions())
        try:
            yield MemoryPlace("memory://suite/", reader, None)
        finally:
            await reader.aclose()
            MemoryFileSystem.store.clear()
            MemoryFileSystem.pseudo_dirs[:] = [""]


class TestFsspecHttp(RangeReaderSuite):
    """An asynchronous filesystem with a session of its own."""

    can_list = False

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        with TemporaryDirectory() as name:
            async with web_server(Path(name)) as base:
                spec = ReaderSpec(scheme="http", backend="asyncdata.storage.fsspec")
                reader = spec.open()
                try:
                    yield HttpPlace(Path(name), base, reader, spec)
                finally:
                    await reader.aclose()
