"""All other URLs, through fsspec: asynchronous filesystems on the running loop, others in threads.

fsspec has neither reads into a buffer nor pinned reads. A range arrives as bytes and is copied once; it is delivered if
a check of the object after the read shows the listed version. Options are fsspec's ``storage_options`` of the
filesystem, and ``verify_version``: False skips this check, one request per range, for objects that are never replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import aiohttp
import fsspec
import fsspec.asyn

from asyncdata.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StorageError,
    UnsupportedURLError,
)
from asyncdata.options import TimeoutOptions
from asyncdata.storage.attempt import Attempt
from asyncdata.storage.backends import nearest_scheme
from asyncdata.storage.blocking_jobs import ThreadJobs
from asyncdata.storage.changed import object_changed, object_deleted, object_resized
from asyncdata.storage.failures import FailureCause, locate, read_failed
from asyncdata.storage.globs import compile_glob, expand_braces
from asyncdata.storage.reader import ReaderSpec
from asyncdata.storage.statuses import status_error
from asyncdata.types import ObjectInfo

MAX_THREADS: Final = 16
_ONE_AT_A_TIME: Final = frozenset({"ftp", "libarchive", "sftp", "ssh", "tar", "zip"})
"""Filesystems whose calls share one connection, one position in a file, or an index that the first call makes."""
_NO_FILE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_LEAST_PACE: Final = 32 << 10
"""Bytes per second: a filesystem tells nothing before all has come, so this alone tells slow from never."""
# Filesystems that take URLs apart as RFC 3986 says cut a path at the first two and drop the others, which here are a
# wildcard and characters of names. They are shown characters in their places that no name has.
_HIDE: Final = {ord(character): 0xFDD0 + number for number, character in enumerate("?#\t\r\n")}
_SHOW: Final = {hidden: character for character, hidden in _HIDE.items()}
# What filesystems call their version token, the most telling first; a listing may know fewer of them than `info`.
_VERSION_KEYS: Final = (
    "generation",
    "ETag",
    "etag",
    "e_tag",
    "version_id",
    "VersionId",
    "mtime",
    "modificationTime",
    "last_modified",
    "LastModified",
    "created",
    "modified",
    "updated",
    "modify",  # FTP
    "blob_id",  # Hugging Face
    "sha",  # GitHub
    "hex",  # git
)


def protocols() -> list[str]:
    """The URL schemes that fsspec knows, those of filesystems registered by others included."""
    return [*fsspec.available_protocols(), *fsspec.registry]


def option_names(scheme: str) -> list[str]:
    """The options that a filesystem names; many filesystems pass others on to libraries, which nobody can check."""
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except (ValueError, ImportError):
        return []  # it is an error when something is read
    makers = [vars(each).get("__init__") for each in kind.__mro__]
    names = {name for make in makers if inspect.isfunction(make) for name in inspect.signature(make).parameters}
    return sorted(names.union(_OPTIONS_OF_ALL) - {"self", "args", "kwargs", "storage_options"})


_OPTIONS_OF_ALL: Final = (
    "asynchronous",
    "listings_expiry_time",
    "loop",
    "max_paths",
    "skip_instance_cache",
    "use_listings_cache",
    "verify_version",
)


def open_reader(spec: ReaderSpec) -> FsspecReader:
    """Makes the reader; called by ``ReaderSpec.open`` on the loop that will use it."""
    scheme = spec.scheme
    if "::" in scheme:
        raise UnsupportedURLError(f"chained URLs are not supported: {scheme}")
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise UnsupportedURLError(f"no backend for {scheme}:// URLs: {error}") from None
    except ValueError:
        raise UnsupportedURLError(f"no backend for {scheme}:// URLs{nearest_scheme(scheme)}") from None
    asynchronous = issubclass(kind, fsspec.asyn.AsyncFileSystem) and kind.async_impl
    options = dict(spec.options)
    verifies = bool(options.pop("verify_version", True))
    if asynchronous:
        options |= {"asynchronous": True, "loop": asyncio.get_running_loop()}
    options |= {"skip_instance_cache": True, "use_listings_cache": False}
    return FsspecReader(
        Filesystems(kind, options),
        asynchronous=asynchronous,
        max_threads=1 if _is_one_at_a_time(kind) else min(MAX_THREADS, spec.max_connections),
        limits=spec.timeouts,
        verifies=verifies,
    )


def _is_one_at_a_time(kind: Any) -> bool:
    """Whether two calls of such a filesystem at the same time may get each other's bytes."""
    return not _ONE_AT_A_TIME.isdisjoint((kind.protocol,) if isinstance(kind.protocol, str) else kind.protocol)


class Filesystems:
    """The filesystems of one scheme: one for each place that its URLs name, such as the host of an FTP server.

    Args:
        kind: The filesystem's class.
        options: Its arguments; they outrank what URLs say.
    """

    def __init__(self, kind: Any, options: Mapping[str, Any]) -> None:
        self._kind = kind
        self._options = options
        self._made: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        """Those that were made."""
        return iter(self._made.values())

    def __repr__(self) -> str:
        return str(self._kind.__name__)

    def of(self, url: str) -> Any:
        """The filesystem that a URL is about; None until it is made."""
        return self._made.get(repr(self._said_by(url)))

    def make(self, url: str) -> Any:
        """Makes it, which may connect to a server, and block.

        Raises:
            TransientStorageError: Its server cannot be reached.
            StorageError: It does not take its options.
        """
        said = self._said_by(url)
        try:
            made = self._kind(**{**dict(said), **self._options})
        except Exception as error:  # noqa: BLE001 -- whatever it is, its text may hold secrets
            # Options may name files that are not there.
            if isinstance(error, OSError | EOFError) and not isinstance(error, _NO_FILE):
                raise typed_error(error, url) from None
            what = f"the filesystem does not take its options: {type(error).__name__}: {error}"
            raise StorageError(what, url=url) from None
        self._made[repr(said)] = made
        return made

    def _said_by(self, url: str) -> list[tuple[str, Any]]:
        """The arguments that a URL holds, but for the version in a name: names are used as written."""
        kind = self._kind
        said: dict[str, Any] = kind._get_kwargs_from_urls(url.translate(_HIDE))  # noqa: SLF001 -- fsspec's interface
        shown = {name: value.translate(_SHOW) if isinstance(value, str) else value for name, value in said.items()}
        return sorted((name, value) for name, value in shown.items() if name != "version_aware")


class FsspecReader:
    """A ``RangeReader`` around the fsspec filesystems of one scheme.

    Args:
        filesystems: Made for this reader alone; their sessions are closed with it.
        asynchronous: They are made with ``asynchronous=True`` on the running loop.
        max_threads: For filesystems that block.
        limits: Of one call, where it can be interrupted: one in a thread cannot.
        verifies: Look after each read whether the object is still the listed version.
    """

    def __init__(
        self,
        filesystems: Filesystems,
        *,
        asynchronous: bool,
        max_threads: int,
        limits: TimeoutOptions,
        verifies: bool = True,
    ) -> None:
        self._filesystems = filesystems
        self._making = asyncio.Lock()
        self._limits = limits
        self._verifies = verifies
        self._asynchronous = asynchronous
        self._jobs = ThreadJobs(max_threads, "asyncdata-fsspec")

    def __repr__(self) -> str:
        return f"<FsspecReader {self._filesystems}>"

    async def stat(self, url: str) -> ObjectInfo:
        """``info`` of one object."""
        try:
            async with asyncio.timeout(self._limit_s(0)):
                info = await self._call("info", url)
        except TimeoutError:
            raise _too_late(url) from None
        if info.get("type") == "directory":
            raise ObjectNotFoundError("not an object", url=url)
        return _info_of(url, info)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The objects that match; the filesystem's own glob finds candidates, the project's decides."""
        found: dict[str, ObjectInfo] = {}
        for text in dict.fromkeys(expand_braces(pattern)):
            path = _path_of(await self._filesystem(text), text)
            (compiled,) = compile_glob(path)
            if compiled.is_literal:
                try:
                    info = await self.stat(text)
                except ObjectNotFoundError:
                    continue
                found[info.url] = info
                continue
            try:
                entries: Mapping[str, Mapping[str, Any]] = await self._call("glob", _candidates(text), detail=True)
            except ObjectNotFoundError:
                continue
            lead, container = _lead_of(text, path)
            for name, entry in entries.items():
                if entry.get("type") != "directory" and compiled.matches(name):
                    url = f"{lead}{name.lstrip('/').removeprefix(container)}"
                    found[url] = _info_of(url, entry)
        return [found[url] for url in sorted(found)]

    async def read_into(
        self,
        info: ObjectInfo,
        start: int,
        buffer: memoryview,
        attempt: Attempt | None = None,  # noqa: ARG002 -- this store has no wire to watch
    ) -> int:
        """``cat_file`` of the range, and one copy."""
        if not buffer:
            return 0
        try:
            async with asyncio.timeout(self._limit_s(len(buffer))):
                data = await self._call("cat_file", info.url, start=start, end=start + len(buffer))
        except TimeoutError:
            raise locate(_too_late(), info, start) from None
        except StorageError as error:
            raise locate(error, info, start) from None
        size = min(len(data), len(buffer))
        if len(data) == len(buffer) and (info.version is None or not self._verifies):
            buffer[:] = data
            return size
        # fsspec reads no particular version. The one that is there after the read was there while it went on, if it is
        # the listed one.
        try:
            current = await self.stat(info.url)
        except ObjectNotFoundError:
            raise object_deleted(info, start=start) from None
        if info.version is not None and current.version != info.version:
            raise object_changed(info, current.version, start=start)
        if 0 <= info.size != current.size:
            raise object_resized(info, current.size, start=start, found=current.version)
        if len(data) == len(buffer):
            buffer[:] = data
            return size
        if len(data) > len(buffer):
            raise StorageError("the filesystem returned more bytes than asked for", url=info.url, offset=start)
        if start + len(buffer) > current.size:
            raise StorageError(f"the object ends at {current.size}", url=info.url, version=info.version, offset=start)
        buffer[:size] = data
        raise read_failed(
            f"the filesystem returned {size} of {len(buffer)} bytes",
            FailureCause.SHORT_BODY,
            filled=size,
            url=info.url,
            version=info.version,
            offset=start,
        )

    async def open_read(
        self,
        url: str,
        buffer: memoryview,
        attempt: Attempt | None = None,  # noqa: ARG002 -- this store has no wire to watch
    ) -> tuple[ObjectInfo, int]:
        """``info``, then the first bytes."""
        info = await self.stat(url)
        return info, await self.read_into(info, 0, buffer[: min(info.size, len(buffer))])

    async def aclose(self) -> None:
        """Ends the threads and closes the filesystem's session, where it has one."""
        await self._jobs.aclose()
        if not self._asynchronous:
            return
        for filesystem in self._filesystems:
            session = getattr(filesystem, "_session", None)
            close = getattr(session, "close", None)
            if close is not None:
                outcome = close()
                if inspect.isawaitable(outcome):
                    await outcome

    async def _filesystem(self, url: str) -> Any:
        known = self._filesystems.of(url)
        if known is not None:
            return known
        async with self._making:
            known = self._filesystems.of(url)
            if known is not None:
                return known
            if self._asynchronous:
                return self._filesystems.make(url)
            return await self._jobs.run(self._filesystems.make, url)

    def _limit_s(self, nbytes: int) -> float | None:
        """How long a call may take that brings so many bytes; None where nothing can be interrupted."""
        if not self._asynchronous:
            return None
        limits = self._limits
        pace = max(limits.least_bytes_per_s, _LEAST_PACE)
        return limits.connect_s + limits.first_byte_s + limits.idle_s + nbytes / pace

    async def _call(self, name: str, url: str, **kwargs: Any) -> Any:
        filesystem = await self._filesystem(url)
        try:
            path = _path_of(filesystem, url)
            if self._asynchronous:
                return await getattr(filesystem, f"_{name}")(path, **kwargs)
            return await self._jobs.run(getattr(filesystem, name), path, **kwargs)
        except StorageError:
            raise
        except Exception as error:
            raise typed_error(error, url) from error


def _candidates(pattern: str) -> str:
    """A pattern that matches at least as much: to fsspec, two stars are a whole segment or an error."""
    segments = pattern.split("/")
    for index, segment in enumerate(segments):
        if "**" in segment and segment != "**":
            return "/".join([*segments[:index], "**"])
    return pattern


def _path_of(filesystem: Any, url: str) -> str:
    path: str = filesystem._strip_protocol(url.translate(_HIDE))  # noqa: SLF001 -- fsspec's interface for this
    return path.translate(_SHOW)


def _lead_of(url: str, path: str) -> tuple[str, str]:
    """What of a URL stands before its path, and what of the path is in that already.

    Some filesystems keep a leading slash in their paths, and some URLs do. ``abfs://container@account/name`` has its
    path, which begins with the container, in two parts.
    """
    bare = path.lstrip("/")
    if url.endswith(bare):
        return url.removesuffix(bare), ""
    scheme, _, rest = url.partition("://")
    container, _, name = bare.partition("/")
    if rest.startswith(f"{container}@") and rest.endswith(f"/{name}"):
        return url.removesuffix(name), f"{container}/"
    return f"{scheme}:///" if rest.startswith("/") else f"{scheme}://", ""


def _too_late(url: str | None = None) -> StorageError:
    return read_failed("the filesystem did not answer in time", FailureCause.FIRST_BYTE_TIMEOUT, url=url)


def typed_error(error: Exception, url: str) -> StorageError:
    """The typed error for what a filesystem raised: by its type, never by its words."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, _NO_FILE):
        return ObjectNotFoundError("no such object", url=url)
    if isinstance(error, PermissionError):
        return AccessDeniedError(what, url=url)
    if isinstance(error, aiohttp.ClientResponseError):
        return status_error(error.status, error.message, url=url)
    if isinstance(error, TimeoutError | ConnectionError | aiohttp.ClientError | EOFError):
        return read_failed(what, FailureCause.BACKEND, url=url)
    if isinstance(error, OSError):
        return read_failed(what, FailureCause.BACKEND, url=url)
    return StorageError(what, url=url)


def _info_of(url: str, info: Mapping[str, Any]) -> ObjectInfo:
    size = info.get("size")
    if not isinstance(size, int) or size < 0:
        raise StorageError("the filesystem does not report the object's size", url=url)
    version = next((info[key] for key in _VERSION_KEYS if info.get(key) is not None), None)
    if isinstance(version, datetime):
        version = version.timestamp()  # some filesystems list a number and tell a date
    text = None if version is None else str(version)
    if text is not None and len(text) > 100:
        text = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return ObjectInfo(url=url, size=size, version=text)
