"""``memory://``: the contents of fsspec's memory filesystem; the reference for testing other readers.

Nothing here waits. Everything that this process has put into fsspec's ``memory://`` is readable at once.
"""

from __future__ import annotations

from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from asyncdata.errors import ObjectNotFoundError, StorageError
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.changed import object_changed, object_deleted, object_resized
from asyncdata.storage.globs import compile_glob
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.types import ObjectInfo

_SCHEME = "memory://"


def open_reader(spec: ReaderSpec) -> MemoryReader:
    """Makes the reader; called by ``ReaderSpec.open``."""
    del spec
    return MemoryReader()


class MemoryReader(RangeReader):
    """A ``RangeReader`` over a dict of bytes."""

    async def stat(self, url: str) -> ObjectInfo:
        """Size and version."""
        return _info(url, _file(url))

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The objects that match, spelled like the pattern (``memory://name`` or ``memory:///name``)."""
        lead = _SCHEME + ("/" if _rest(pattern).startswith("/") else "")
        patterns = compile_glob(_rest(pattern).lstrip("/"))
        names = sorted(path.lstrip("/") for path in MemoryFileSystem.store)
        urls = [lead + name for name in names if any(item.matches(name) for item in patterns)]
        return [_info(url, _file(url)) for url in urls]

    async def read_into(
        self,
        info: ObjectInfo,
        start: int,
        buffer: memoryview,
        attempt: Attempt | None = None,  # noqa: ARG002 -- this store has no wire to watch
    ) -> int:
        """Copies from the dict."""
        try:
            file = _file(info.url)
        except ObjectNotFoundError:
            if info.version is None:
                raise
            raise object_deleted(info, start=start) from None
        current = _info(info.url, file)
        if info.version is not None and current.version != info.version:
            raise object_changed(info, current.version, start=start)
        if 0 <= info.size != current.size:
            raise object_resized(info, current.size, start=start, found=current.version)
        if start + len(buffer) > current.size:
            raise StorageError(f"the object ends at {current.size}", url=info.url, version=info.version, offset=start)
        with file.getbuffer() as stored:
            buffer[:] = stored[start : start + len(buffer)]
        return len(buffer)

    async def aclose(self) -> None:
        """Nothing is held."""


def _rest(url: str) -> str:
    return url.partition("://")[2]


def _file(url: str) -> MemoryFile:
    file = MemoryFileSystem.store.get("/" + _rest(url).strip("/"))
    if file is None:
        raise ObjectNotFoundError("no such object", url=url)
    return file


def _info(url: str, file: MemoryFile) -> ObjectInfo:
    # Two files made within one tick of the clock differ by their place in memory.
    return ObjectInfo(url=url, size=file.size, version=f"{file.modified.timestamp():.6f}-{file.size}-{id(file):x}")
