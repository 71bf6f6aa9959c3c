"""``s3://``, ``az://`` and, on request, ``gs://`` through obstore. Only this file imports it (extra ``obstore``).

::

    range ──get_async──▶ obstore's own bytes ──one copy──▶ the caller's buffer

The version is the ETag, which both listings and responses contain. Every read sends ``If-Match``. obstore's own retries
are off, because the Fetcher makes the attempts. A call that has ended, in any way, leaves nothing behind that writes
into the caller's memory, because the bytes are copied on the loop, after the call.

obstore reports the kind of an error by its type. All responses without a type of their own share one type; their
status code is in a fixed phrase of object_store, which only ``typed_error`` inspects. obstore may hold an exception
until it is called again, so what it raises loses its traceback here. object_store cannot name objects with empty
segments (``a//b``). obstore's threads belong to the process and outlive every reader.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import importlib.util
import re
from collections.abc import Callable
from typing import Any, Final

from asyncdata.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    UnsupportedURLError,
)
from asyncdata.options import TimeoutOptions
from asyncdata.storage import fsspec
from asyncdata.storage.attempt import Attempt, ReadLimits
from asyncdata.storage.changed import object_changed, object_deleted, object_resized
from asyncdata.storage.cloud_options import AZURE, GS, S3, SPELLINGS, StoreConfig, fsspec_options, store_config
from asyncdata.storage.failures import (
    FailureCause,
    ReadFailedError,
    locate,
    read_failed,
    refused_whole,
    without_frames,
)
from asyncdata.storage.globs import GlobPattern, compile_glob, has_wildcard
from asyncdata.storage.reader import RangeReader, ReaderSpec
from asyncdata.storage.statuses import status_error
from asyncdata.storage.urls import scheme_of, split_bucket
from asyncdata.types import ObjectInfo

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})\b")
_ACCOUNT_KEYS: Final = frozenset({"account_name", "azure_storage_account_name"})
"""obstore's two names of one key."""
_LONGEST: Final = 300
_PIECE_BYTES: Final = 512 << 10
"""So many bytes come out of obstore's memory at a time; a read that breaks off goes on behind the last of them."""
_NO_LIMIT_S: Final = 86400.0

# What obstore raises, the most special first. Beside these a GenericError, which `_STATUS` may tell more about.
_KINDS: Final[tuple[tuple[str, type[StorageError]], ...]] = (
    ("FileNotFoundError", ObjectNotFoundError),
    ("PermissionDeniedError", AccessDeniedError),
    ("UnauthenticatedError", AccessDeniedError),
    ("PreconditionError", ObjectChangedError),
    ("NotModifiedError", ObjectChangedError),
    ("InvalidPathError", UnsupportedURLError),
    ("UnknownConfigurationKeyError", StorageError),
    ("NotSupportedError", StorageError),
    ("ValueError", UnsupportedURLError),
)


def is_installed() -> bool:
    """Whether obstore can be imported."""
    return importlib.util.find_spec("obstore") is not None


def open_reader(spec: ReaderSpec) -> RangeReader:
    """Makes the reader; called by ``ReaderSpec.open``.

    Where obstore is not installed and was not asked for by name, fsspec's filesystem serves instead.
    """
    options = dict(spec.options)
    asked_for = options.pop("backend", None) is not None
    if not is_installed():
        if asked_for:
            raise StorageError("the backend 'obstore' is not installed: pip install 'asyncdata[obstore]'")
        try:
            return fsspec.open_reader(dataclasses.replace(spec, options=fsspec_options(spec.scheme, options)))
        except UnsupportedURLError:
            raise UnsupportedURLError(
                f"no backend for {spec.scheme}:// URLs is installed: pip install 'asyncdata[obstore]', or fsspec's own "
                f"({'s3fs' if spec.scheme in S3 else 'adlfs'})"
            ) from None
    config = store_config(spec.scheme, options)
    config.client.update(_client_limits(spec.timeouts, spec.max_connections))
    return ObstoreReader(_opener(spec.scheme, config), limits=spec.timeouts)


def _client_limits(limits: TimeoutOptions, max_connections: int) -> dict[str, Any]:
    """Limits in obstore's terms; its limit on a whole transfer, which knows no size, is out of the way."""
    return {
        "connect_timeout": datetime.timedelta(seconds=limits.connect_s),
        "read_timeout": datetime.timedelta(seconds=max(limits.first_byte_s, limits.idle_s)),
        "timeout": datetime.timedelta(days=1),
        "pool_max_idle_per_host": str(max_connections),
        "http1_only": True,
    }


def _opener(scheme: str, options: StoreConfig) -> Callable[[str], Any]:
    """A function from a bucket to its store."""
    import obstore.store  # noqa: PLC0415 -- an extra

    retries = {"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=1)}

    def open_store(bucket: str) -> Any:
        config = dict(options.config)
        # abfs://container@account.dfs.core.windows.net/name
        container, _, host = bucket.partition("@") if scheme in AZURE else (bucket, "", "")
        if host:
            named = host.partition(".")[0]
            given = next((str(value) for key, value in config.items() if key.lower() in _ACCOUNT_KEYS), None)
            if given is not None and given.lower() != named.lower():
                raise UnsupportedURLError(f"the URL names the account {named!r}, and the storage options another one")
            if given is None:
                config["account_name"] = named
        arguments: dict[str, Any] = {"client_options": options.client, "retry_config": retries}
        try:
            if scheme in GS:
                return obstore.store.GCSStore(bucket, config=config, **arguments)  # type: ignore[arg-type]  # a dict
            if scheme in S3:
                return obstore.store.S3Store(bucket, config=config, **arguments)  # type: ignore[arg-type]  # a dict
            return obstore.store.AzureStore(container, config=config, **arguments)  # type: ignore[arg-type]  # a dict
        except Exception as error:  # noqa: BLE001 -- whatever it is, its text may hold secrets
            if scheme not in GS + S3 and not any("account_name" in key.lower() for key in config):
                raise StorageError(
                    "which account? Give Options(storage={'az': {'account_name': ...}}), set "
                    "AZURE_STORAGE_ACCOUNT_NAME, or write abfs://container@account.dfs.core.windows.net/name"
                ) from None
            raise StorageError(
                f"obstore does not take these options for {scheme} ({type(error).__name__}); keys: "
                f"{', '.join(sorted(config)) or 'none'}"
            ) from None

    return open_store


class ObstoreReader:
    """A ``RangeReader`` over obstore's stores, one per bucket.

    Args:
        open_store: Makes the store of a bucket when it is first needed.
        limits: Of one attempt.
    """

    def __init__(self, open_store: Callable[[str], Any], *, limits: TimeoutOptions) -> None:
        import obstore  # noqa: PLC0415 -- an extra

        self._obstore: Any = obstore
        self._open_store = open_store
        self._limits = limits
        self._stores: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<ObstoreReader {len(self._stores)} buckets>"

    async def stat(self, url: str) -> ObjectInfo:
        """Size and ETag."""
        store, name = self.place(url)
        if not name or name.endswith("/"):
            raise ObjectNotFoundError("the URL names no object", url=url)
        try:
            meta = await self._limited(self._obstore.head_async(store, name))
        except Exception as error:
            without_frames(error)
            raise typed_error(error, url) from error
        return _info_of(url, meta)

    async def glob(self, pattern: str) -> list[ObjectInfo]:
        """The objects that match; listings are of folders, for object_store knows no other prefixes."""
        scheme, (bucket, name) = scheme_of(pattern), split_bucket(pattern, SPELLINGS)
        if has_wildcard(bucket):
            raise UnsupportedURLError("a wildcard in the name of the bucket", url=pattern)
        lead = f"{scheme}://{bucket}/"
        found: dict[str, ObjectInfo] = {}
        for item in compile_glob(name):
            if item.is_literal:
                try:
                    info = await self.stat(lead + item.text)
                except ObjectNotFoundError:
                    continue
                found[info.url] = info
                continue
            try:
                await self._list(self._store(bucket), item, lead, found)
            except StorageError:
                raise
            except Exception as error:
                without_frames(error)
                raise typed_error(error, pattern) from error
        return [found[url] for url in sorted(found)]

    async def read_into(self, info: ObjectInfo, start: int, buffer: memoryview, attempt: Attempt | None = None) -> int:
        """One conditional GET, and one copy."""
        if not buffer:
            return 0
        try:
            meta, filled = await self._get(info.url, start, buffer, info.version, attempt)
        except ObjectChangedError as error:
            raise await self._changed(info, start, error) from None
        except ObjectNotFoundError as error:
            if info.version is None:
                raise locate(error, info, start) from None
            raise object_deleted(info, start=start) from None
        except StorageError as error:
            raise locate(error, info, start) from None
        if 0 <= info.size != meta.size:
            raise object_resized(info, meta.size, start=start, found=meta.version)
        if filled < len(buffer):
            if start + len(buffer) > meta.size:
                raise StorageError(
                    f"the object ends at {meta.size}", url=info.url, version=info.version, offset=start + filled
                )
            raise read_failed(
                f"obstore returned {filled} of {len(buffer)} bytes",
                FailureCause.SHORT_BODY,
                filled=filled,
                url=info.url,
                version=info.version,
                offset=start,
            )
        return filled

    async def open_read(self, url: str, buffer: memoryview, attempt: Attempt | None = None) -> tuple[ObjectInfo, int]:
        """The first GET; its answer tells size and ETag."""
        if not buffer:
            return await self.stat(url), 0
        try:
            info, filled = await self._get(url, 0, buffer, None, attempt)
        except RangeBeyondEndError:
            info = await self.stat(url)
            if info.size:
                raise refused_whole(info) from None
            return info, 0  # an empty object has no range at all
        except StorageError as error:
            raise locate(error, ObjectInfo(url=url, size=-1), 0) from None
        if filled < min(info.size, len(buffer)):
            failure = read_failed("the body is too short", FailureCause.SHORT_BODY, filled=filled, url=url)
            failure.info = info
            raise failure
        return info, filled

    async def aclose(self) -> None:
        """Lets go of the stores, and with them of their connections."""
        self._stores.clear()

    def _store(self, bucket: str) -> Any:
        store = self._stores.get(bucket)
        if store is None:
            store = self._stores[bucket] = self._open_store(bucket)
        return store

    def place(self, url: str) -> tuple[Any, str]:
        """(store, name in it) of a URL."""
        bucket, name = split_bucket(url, SPELLINGS)
        return self._store(bucket), name

    async def _get(
        self, url: str, start: int, buffer: memoryview, etag: str | None, attempt: Attempt | None
    ) -> tuple[ObjectInfo, int]:
        """(what the answer says about the object, how many bytes came) of one attempt."""
        store, name = self.place(url)
        asked: dict[str, Any] = {"range": (start, start + len(buffer))}
        if etag is not None:
            asked["if_match"] = etag
        limits = self._limits if attempt is None or attempt.limits is None else attempt.limits
        exchange = _Exchange(asyncio.timeout(limits.connect_s + limits.first_byte_s))
        loop = asyncio.get_running_loop()
        if attempt is not None:
            attempt.wire, attempt.asked_at = exchange, loop.time()
        info: ObjectInfo | None = None
        try:
            async with exchange.limit:
                answer = await self._obstore.get_async(store, name, options=asked)
                if attempt is not None:
                    attempt.first_byte_at = loop.time()
                info = _info_of(url, answer.meta)
                if answer.range[0] != start:
                    raise StorageError(f"requested bytes from {start} on, got {answer.range}")
                if etag is not None and info.version != etag:
                    # The store took no notice of the condition.
                    raise ObjectChangedError("another version arrived")
                if attempt is not None and info.version is not None:
                    attempt.opened = info
                await exchange.receive(answer, buffer, limits)
                return info, exchange.filled
        except StorageError:
            raise
        except Exception as error:
            without_frames(error)
            raise exchange.failure(error, info, url) from error
        finally:
            if attempt is not None:
                attempt.wire, attempt.received = None, exchange.filled

    async def _limited(self, call: Any) -> Any:
        """Waits for an answer no longer than it may take."""
        async with asyncio.timeout(self._limits.connect_s + self._limits.first_byte_s):
            return await call

    async def _list(self, store: Any, pattern: GlobPattern, lead: str, found: dict[str, ObjectInfo]) -> None:
        folder = pattern.prefix.rpartition("/")[0] or None
        if pattern.is_shallow:
            level = await self._obstore.list_with_delimiter_async(store, folder)
            metas = level["objects"]
        else:
            metas = await self._obstore.list(store, folder).collect_async()
        for meta in metas:
            if pattern.matches(meta["path"]):
                info = _info_of(lead + meta["path"], meta)
                found[info.url] = info

    async def _changed(self, info: ObjectInfo, start: int, cause: StorageError | None) -> StorageError:
        """What became of a version that cannot be read any more."""
        try:
            current = await self.stat(info.url)
        except ObjectNotFoundError:
            return object_deleted(info, start=start)
        except StorageError:
            return object_changed(info, None, start=start)
        if current.version == info.version and cause is not None:
            return read_failed("the store denied a version that exists", FailureCause.SERVER_ERROR, url=info.url)
        return object_changed(info, current.version, start=start)


class _Exchange:
    """The attempt as its watcher sees it."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.filled = 0
        self.limit = limit
        self.error: StorageError | None = None

    async def receive(self, answer: Any, buffer: memoryview, limits: ReadLimits | TimeoutOptions) -> None:
        """The body, piece by piece: silences are limited by obstore, a body that drips is limited here."""
        least = limits.least_bytes_per_s
        piece_s = limits.idle_s + (_PIECE_BYTES / least if least else _NO_LIMIT_S)
        self._allow(piece_s)
        async for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
            self.filled += _copy(piece, buffer[self.filled :])
            self._allow(piece_s)

    def _allow(self, seconds: float) -> None:
        """Moves the limit, unless the attempt was ended in this turn of the loop, which moving it would undo."""
        if self.error is not None:
            raise TimeoutError
        self.limit.reschedule(asyncio.get_running_loop().time() + seconds)

    def failure(self, error: Exception, info: ObjectInfo | None, url: str) -> StorageError:
        """What an exception means, and how far the bytes are good."""
        failure = self.error or typed_error(error, url)
        if isinstance(failure, ReadFailedError):
            failure.filled, failure.info = self.filled, info
            if isinstance(error, TimeoutError) and info is not None and self.error is None:
                failure.cause = FailureCause.SLOW
        return failure

    def nudge(self) -> None:
        """Nothing is held back here."""

    def has_input(self) -> bool:
        """What has arrived is obstore's business."""
        return False

    def fail(self, error: StorageError) -> None:
        """Ends the attempt with an error, unless it is ending."""
        if self.error is None and not self.limit.expired():
            self.error = error
            self.limit.reschedule(asyncio.get_running_loop().time())


class RangeBeyondEndError(StorageError):
    """A range that begins behind the object's end."""


def typed_error(error: Exception, url: str) -> StorageError:
    """The one table from obstore's errors to ours."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = " ".join(str(error).partition("Debug source:")[0].split())
    shown = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    if isinstance(error, TimeoutError):
        return read_failed("no response within the time limit", FailureCause.FIRST_BYTE_TIMEOUT, url=url)
    for name, kind in _KINDS:
        if name in names:
            return kind("no such object" if kind is ObjectNotFoundError else shown, url=url)
    if "InvalidCertificate" in str(error):
        return StorageError("the server's certificate is not trusted", url=url)
    found = _STATUS.search(text)
    if found is None:
        # No answer at all, or one that broke off.
        return read_failed(shown or type(error).__name__, FailureCause.CONNECTION_LOST, url=url)
    status = int(found[1])
    if status == 416:
        return RangeBeyondEndError("the range begins beyond the object's end", url=url)
    return status_error(status, "", url=url)


def _info_of(url: str, meta: Any) -> ObjectInfo:
    return ObjectInfo(url=url, size=meta["size"], version=meta["e_tag"])


def _copy(data: Any, buffer: memoryview) -> int:
    received = memoryview(data)
    size = min(len(received), len(buffer))
    buffer[:size] = received[:size]
    return size
