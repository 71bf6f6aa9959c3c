"""Buckets and object versions as the catalogue keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fake_gcs.checksums import Checksums
from fake_gcs.objects.bodies import Body

CONTENT_TYPE = "application/octet-stream"
"""Content type of an object whose writer named none."""

SETTABLE = frozenset(
    {
        "acl",
        "cacheControl",
        "contentDisposition",
        "contentEncoding",
        "contentLanguage",
        "contentType",
        "contexts",
        "customTime",
        "eventBasedHold",
        "metadata",
        "retention",
        "storageClass",
        "temporaryHold",
    }
)
"""Object fields a client may set; the others are the server's."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket.

    Attributes:
        name: Its name.
        created: Seconds since the epoch.
        updated: Seconds since the epoch.
        metageneration: Counts changes of the bucket's settings, from 1.
        settings: What the client set: ``location``, ``storageClass``, ``versioning``, ``labels``, ...
        policy: The IAM policy; empty until one was set.
        notifications: Notification configurations by their id.
    """

    name: str
    created: float
    updated: float
    metageneration: int
    settings: dict[str, Any]
    policy: dict[str, Any] = field(default_factory=dict)
    notifications: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def versioned(self) -> bool:
        """Whether replaced and deleted versions are kept."""
        versioning = self.settings.get("versioning")
        return isinstance(versioning, dict) and versioning.get("enabled") is True


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One generation of an object; a change of its metadata is a new value of this type.

    Attributes:
        bucket: Bucket name.
        name: Object name.
        generation: Microseconds since the epoch at its creation, made unique.
        metageneration: Counts changes of the metadata, from 1.
        checksums: None for a file found in the directory and not hashed yet.
        created: Seconds since the epoch.
        updated: Seconds since the epoch.
        deleted: When it stopped being the live version, seconds since the epoch; None while it is live.
        components: Number of parts of a composed object; None for others.
        settings: What the client set, in the JSON API's spelling.
        body: The bytes.
    """

    bucket: str
    name: str
    generation: int
    metageneration: int
    checksums: Checksums | None
    created: float
    updated: float
    deleted: float | None
    components: int | None
    settings: dict[str, Any]
    body: Body

    @property
    def size(self) -> int:
        """Number of bytes of the body as stored."""
        return self.body.size

    @property
    def content_type(self) -> str:
        """The content type that is announced."""
        return str(self.settings.get("contentType") or CONTENT_TYPE)

    @property
    def content_encoding(self) -> str:
        """The content encoding, or an empty text."""
        return str(self.settings.get("contentEncoding") or "")
