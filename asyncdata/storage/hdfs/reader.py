"""``hdfs://``: positioned reads through hdfs-native, copied once, into the buffer.

Options (``Options.storage["hdfs"]``): ``config`` (Hadoop keys and values), ``config_dir`` (by default
``HADOOP_CONF_DIR``), ``kerberos_principal``, ``kerberos_keytab``, ``kerberos_cache``. Without Kerberos the user is
``HADOOP_USER_NAME``, or the user who runs the program.

The version is the time of the last modification and the length. HDFS cannot pin reads: an open file keeps reading its
old blocks. The reader therefore looks up the version again after the bytes have arrived, and accepts them only if it is
unchanged. This detects files that were replaced, appended to, truncated or deleted meanwhile.

::

    read_into ──▶ open file (kept) ──▶ pieces ──copy──▶ buffer ──▶ version as listed?
                       ▲                  │ silence
                       └── opened anew, ◀─┘
                           briskly read
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from asyncdata.errors import ObjectChangedError, ObjectNotFoundError, StorageError, UnsupportedURLError
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.changed import object_changed, object_deleted, object_resized
from asyncdata.storage.failures import FailureCause, ReadFailedError, locate
from asyncdata.storage.globs import compile_glob
from asyncdata.storage.hdfs.native import NativeClient, NativeFile
from asyncdata.storage.hdfs.pieces import PieceLength, PiecewiseRead
from asyncdata.storage.hdfs.tree import FileStatus, Questions, find_files
from asyncdata.storage.reader import ReaderSpec
from asyncdata.types import ObjectInfo

MAX_OPEN_FILES: Final = 512


def open_reader(spec: ReaderSpec) -> HdfsReader:
    """Makes the reader; called by ``ReaderSpec.open``."""
    return HdfsReader(spec)


class HdfsReader:
    """A ``RangeReader`` for every NameNode and nameservice that URLs name."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._clients: dict[str, NativeClient] = {}
        self._files: OrderedDict[tuple[str, str], NativeFile] = OrderedDict()
        self._length = PieceLength()

    def __repr__(self) -> str:
        return f"<HdfsReader {sorted(self._clients)}, {len(self._files)} files open>"

    async def stat(self, url: str) -> ObjectInfo:
        """Size and version of a file."""
        authority, path = split_url(url)
        try:
            entry = await self._client(authority).look(path)
        except StorageError as error:
            error.url = url
            raise
        if entry.is_folder:
            raise ObjectNotFoundError("not a file", url=url)
        return ObjectInfo(url=url, size=entry.size, version=entry.version)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The files that match."""
        authority, path = split_url(pattern)
        lead = pattern[: len(pattern) - len(path)]
        found: dict[str, ObjectInfo] = {}
        try:
            client = self._client(authority)
            questions = Questions(look=_Looker(client).look, entries=_Looker(client).entries)
            for item in compile_glob(path):
                for entry in await find_files(item, questions):
                    url = lead + entry.path
                    found[url] = ObjectInfo(url=url, size=entry.size, version=entry.version)
        except StorageError as error:
            error.url = pattern
            raise
        return [found[url] for url in sorted(found)]

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt | None = None) -> int:
        """Reads piece by piece, then looks whether the file is still the listed one."""
        if not buffer:
            return 0
        authority, path = split_url(info.url)
        attempt = attempt or Attempt()
        reading = PiecewiseRead(attempt, attempt.limits or self._spec.timeouts, self._length)
        file: NativeFile | None = None
        checking = False
        try:
            file = await self._file(authority, path, info, detour=attempt.detour)
            if 0 <= info.size != file.size:
                raise object_resized(info, file.size, start=None)
            if start + len(buffer) > file.size:
                raise StorageError(f"the file ends at {file.size}")
            await reading.run(file, start, buffer)
            if info.version is not None:
                checking = True
                await self._check(info, authority, path)
            if attempt.detour:
                self._keep(info, file)
        except StorageError as error:
            if file is not None:
                self._doubt(info, file, authority, error)
            # The last byte is asked for again where the look failed, so that the next attempt ends with one as well.
            raise locate(await self._explain(error, info, reading.filled - checking, authority), info, start) from None
        return len(buffer)

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt | None = None) -> tuple[ObjectInfo, int]:
        """The file's state, then its beginning."""
        info = await self.stat(url)
        wanted = buffer[: min(info.size, len(buffer))]
        if attempt is not None:
            attempt.opened = info
        try:
            return info, await self.read_into(info, 0, wanted, attempt)
        except ReadFailedError as error:
            error.info = info
            raise

    async def aclose(self) -> None:
        """Forgets the files; the clients are the process's, see ``native``."""
        self._files.clear()
        self._clients.clear()

    def _client(self, authority: str) -> NativeClient:
        client = self._clients.get(authority)
        if client is None:
            client = NativeClient(authority, self._spec.options, self._spec.timeouts)
            self._clients[authority] = client
        return client

    async def _file(self, authority: str, path: str, info: ObjectInfo, *, detour: bool) -> NativeFile:
        """The open file; kept for the version it was opened for, which each read confirms.

        Opened anew, replicas may be named in another order.
        """
        if info.version is None:
            return await self._client(authority).open(path, brisk=detour)
        client = self._client(authority)
        if detour:
            return await client.open(path, brisk=True)
        key = (info.url, info.version)
        file = self._files.get(key)
        if file is None or (client.prefers_brisk and not file.brisk):
            file = await client.open(path, brisk=client.prefers_brisk)
            self._keep(info, file)
        else:
            self._files.move_to_end(key)
        return file

    def _keep(self, info: ObjectInfo, file: NativeFile) -> None:
        if info.version is None:
            return
        key = (info.url, info.version)
        self._files[key] = file
        self._files.move_to_end(key)
        if len(self._files) > MAX_OPEN_FILES:
            self._files.popitem(last=False)

    def _doubt(self, info: ObjectInfo, file: NativeFile, authority: str, error: StorageError) -> None:
        """A read of an open file failed: the file is not kept, unless another one is by now."""
        key = (info.url, info.version or "")
        if self._files.get(key) is file:
            del self._files[key]
        if isinstance(error, ReadFailedError):
            self._client(authority).note_failure(file, error.cause)

    async def _check(self, info: ObjectInfo, authority: str, path: str) -> None:
        """Raises unless the file is the listed one."""
        try:
            entry = await self._client(authority).look(path)
        except ObjectNotFoundError:
            raise object_deleted(info, start=None) from None
        if entry.is_folder or entry.version != info.version:
            raise object_changed(info, entry.version, start=None, note=" (mtime-length)")

    async def _explain(self, error: StorageError, info: ObjectInfo, filled: int, authority: str) -> StorageError:
        """A read that failed because the file is another one by now says so."""
        if isinstance(error, ObjectChangedError):
            return error
        if isinstance(error, ObjectNotFoundError) and info.version is not None:
            return object_deleted(info, start=None)
        if isinstance(error, ReadFailedError):
            error.filled = filled
            if error.cause is FailureCause.BACKEND and info.version is not None:
                try:
                    await self._check(info, authority, split_url(info.url)[1])
                except ObjectChangedError as changed:
                    return changed
                except StorageError:
                    pass  # the NameNode cannot tell; report the first failure
        return error


class _Looker:
    """Answers a glob's questions: what is missing is no error there."""

    def __init__(self, client: NativeClient) -> None:
        self._client = client

    async def look(self, path: str) -> FileStatus | None:
        try:
            return await self._client.look(path)
        except ObjectNotFoundError:
            return None

    async def entries(self, folder: str) -> list[FileStatus]:
        try:
            found = await self._client.entries(folder)
        except ObjectNotFoundError:
            return []
        # A listing of a file is that file.
        return [entry for entry in found if entry.path != folder]


def split_url(url: str) -> tuple[str, str]:
    """(authority, absolute path); both are used as they are written."""
    _, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    if not separator or not slash or not path:
        raise UnsupportedURLError("expected hdfs://namenode:port/path or hdfs://nameservice/path", url=url)
    if "@" in authority:
        raise UnsupportedURLError("a user name in the URL; set HADOOP_USER_NAME instead")
    return authority, f"/{path}"
