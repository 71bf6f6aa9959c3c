"""What every handler works on: the catalogue and the work in progress of one server."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fake_gcs.checksums import Checksums
from fake_gcs.objects.bodies import Body, BodyWriter
from fake_gcs.objects.catalogue import Catalogue
from fake_gcs.objects.preconditions import Preconditions
from fake_gcs.retry_test import RetryTests

_MAX_PENDING = 10_000

T = TypeVar("T")


class Pending(Generic[T]):
    """Work in progress by an identifier nobody can guess; the oldest goes when there is too much."""

    def __init__(self, limit: int = _MAX_PENDING) -> None:
        self._limit = limit
        self._items: dict[str, T] = {}

    def add(self, item: T) -> tuple[str, T | None]:
        """Keep an item; returns its identifier, and the item that had to go for it."""
        dropped = None
        if len(self._items) >= self._limit:
            dropped = self._items.pop(next(iter(self._items)))
        key = secrets.token_urlsafe(24)
        self._items[key] = item
        return key, dropped

    def get(self, key: str) -> T | None:
        """The item, or None."""
        return self._items.get(key)

    def remove(self, key: str) -> None:
        """Forget the item."""
        self._items.pop(key, None)

    def values(self) -> list[T]:
        """Everything kept, oldest first."""
        return list(self._items.values())


@dataclass(slots=True)
class Draft:
    """An object to be: everything but its bytes.

    Attributes:
        bucket: Bucket name.
        name: Object name.
        settings: What the client set.
        conditions: Must hold when it is committed.
        expected_crc32c: Announced by the client, base64; None for nothing announced.
        expected_md5: Announced by the client, base64; None for nothing announced.
    """

    bucket: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    conditions: Preconditions = field(default_factory=Preconditions)
    expected_crc32c: str | None = None
    expected_md5: str | None = None


@dataclass(slots=True)
class ResumableSession:
    """A resumable upload.

    Attributes:
        draft: The object to be.
        writer: The bytes so far.
        size: Of the object, if it was announced.
        finished: The resource of the object, once it is made: not the object, whose bytes go when it is deleted.
    """

    draft: Draft
    writer: BodyWriter
    size: int | None = None
    finished: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an XML multipart upload."""

    body: Body
    checksums: Checksums
    etag: str
    uploaded: float


@dataclass(slots=True)
class MultipartUpload:
    """An XML multipart upload."""

    draft: Draft
    parts: dict[int, Part] = field(default_factory=dict)


@dataclass(slots=True)
class Rewriting:
    """A rewrite that takes several calls."""

    bucket: str
    source: str
    generation: int
    target: tuple[str, str]
    copied: int = 0


@dataclass(frozen=True, slots=True)
class HmacKey:
    """An HMAC key without its secret.

    Attributes:
        access_id: Its name.
        project: The project it belongs to.
        account: The service account that the token was issued to.
        created: Seconds since the epoch.
        updated: Seconds since the epoch.
        state: ``ACTIVE``, ``INACTIVE`` or ``DELETED``.
        changes: Counts them, from 1.
    """

    access_id: str
    project: str
    account: str
    created: float
    updated: float
    state: str = "ACTIVE"
    changes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How the service itself behaves.

    Attributes:
        rewrite_bytes_per_call: A rewrite of more takes several calls; None for as much as the client allows.
        token_lifetime_s: Announced by ``/token``, in seconds.
        strict_bucket_delete: Refuse to delete a bucket that holds archived versions only, as GCS does. Off, because
            test suites that clean up after themselves expect an emulator to delete it.
    """

    rewrite_bytes_per_call: int | None = None
    token_lifetime_s: int = 3600
    strict_bucket_delete: bool = False


class Service:
    """State shared by the handlers of one server. Used on one thread only."""

    def __init__(self, catalogue: Catalogue, options: ServiceOptions) -> None:
        self.catalogue = catalogue
        self.options = options
        self.resumable = Pending[ResumableSession]()
        self.multipart = Pending[MultipartUpload]()
        self.rewrites = Pending[Rewriting]()
        self.retry_tests = RetryTests()
        self.hmac_keys: dict[str, HmacKey] = {}

    def close(self) -> None:
        """Forget the work in progress and what it holds open."""
        for session in self.resumable.values():
            session.writer.abort()
        for upload in self.multipart.values():
            for part in upload.parts.values():
                self.catalogue.discard(part.body)


def header_settings(headers: Mapping[str, str]) -> dict[str, Any]:
    """Object settings from the headers of an upload by the XML API."""
    known = {
        "content-type": "contentType",
        "content-encoding": "contentEncoding",
        "content-disposition": "contentDisposition",
        "content-language": "contentLanguage",
        "cache-control": "cacheControl",
        "x-goog-storage-class": "storageClass",
        "x-goog-custom-time": "customTime",
    }
    settings: dict[str, Any] = {field: _text(headers[name]) for name, field in known.items() if headers.get(name)}
    if encoding := settings.get("contentEncoding"):
        kept = [word.strip() for word in encoding.split(",") if word.strip().lower() != "aws-chunked"]
        settings["contentEncoding"] = ", ".join(kept)
    prefix = "x-goog-meta-"
    if metadata := {name[len(prefix) :]: _text(value) for name, value in headers.items() if name.startswith(prefix)}:
        settings["metadata"] = metadata
    return settings


def _text(value: str) -> str:
    """A header value as UTF-8, for what is kept."""
    return value.encode("latin-1", "replace").decode("utf-8", "replace")
