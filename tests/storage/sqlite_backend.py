"""A backend that asyncdata does not bring: ``blobs://name`` is a row of a table in a SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from asyncdata.errors import ObjectNotFoundError, StorageError
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.blocking_jobs import ThreadJobs
from asyncdata.storage.changed import object_changed, object_deleted, object_resized
from asyncdata.storage.globs import compile_glob
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.types import ObjectInfo

LEAD = "blobs://"


def open_reader(spec: ReaderSpec) -> SqliteReader:
    """Makes the reader."""
    return SqliteReader(Path(spec.options["database"]))


class SqliteReader(RangeReader):
    """Every call has a connection of its own, in a thread."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._jobs = ThreadJobs(2, "sqlite")

    async def stat(self, url: str) -> ObjectInfo:
        found = await self._jobs.run(self._rows, "name = ?", url.removeprefix(LEAD))
        if not found:
            raise ObjectNotFoundError("no such blob", url=url)
        return found[0]

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        patterns = compile_glob(pattern.removeprefix(LEAD))
        found = await self._jobs.run(self._rows, "true")
        return [info for info in found if any(each.matches(info.url.removeprefix(LEAD)) for each in patterns)]

    async def read_into(
        self,
        info: ObjectInfo,
        start: int,
        buffer: memoryview,
        attempt: Attempt | None = None,  # noqa: ARG002 -- this store has no wire to watch
    ) -> int:
        return await self._jobs.run(self._read, info, start, buffer)

    async def aclose(self) -> None:
        await self._jobs.aclose()

    def _connect(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self._database))

    def _rows(self, condition: str, *values: str) -> list[ObjectInfo]:
        with self._connect() as connection:
            rows = connection.execute(f"select name, length(data), version from blobs where {condition}", values)
            found = [ObjectInfo(url=LEAD + name, size=size, version=str(version)) for name, size, version in rows]
        return sorted(found, key=lambda info: info.url)

    def _read(self, info: ObjectInfo, start: int, buffer: memoryview) -> int:
        with self._connect() as connection:
            command = "select version, coalesce(substr(data, ?, ?), x''), length(data) from blobs where name = ?"
            name = info.url.removeprefix(LEAD)
            row = connection.execute(command, (start + 1, len(buffer), name)).fetchone()
        if row is None:
            raise object_deleted(info, start=start)
        version, data, size = row
        if info.version not in (None, str(version)):
            raise object_changed(info, str(version), start=start)
        if 0 <= info.size != size:
            raise object_resized(info, size, start=start)
        if len(data) != len(buffer):
            raise StorageError(f"the object ends at {size}", url=info.url, version=info.version, offset=start)
        buffer[:] = data
        return len(buffer)


def create(database: Path) -> None:
    """An empty store."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table blobs (name text primary key, data blob, version integer)")


def put(database: Path, name: str, data: bytes) -> None:
    """Writes or replaces a blob."""
    with closing(sqlite3.connect(database)) as connection, connection:
        version = connection.execute("select coalesce(max(version), 0) + 1 from blobs").fetchone()[0]
        connection.execute("insert or replace into blobs values (?, ?, ?)", (name, data, version))


def delete(database: Path, name: str) -> None:
    """Deletes a blob."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("delete from blobs where name = ?", (name,))
