"""Aliases and small records that all layers share; no behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Element: TypeAlias = Any
"""What one step of an iterator yields: arrays, numpy scalars, bytes, str, and tuples, namedtuples, dicts of them."""

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""What a saved state is made of."""

WritableBuffer: TypeAlias = memoryview
"""A contiguous writable byte view; readers fill it from its first byte on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What storage says about one object, and what a pinned read is pinned to.

    Attributes:
        url: The full URL, scheme included, as a user would write it.
        size: Length of the stored bytes.
        version: Opaque token that changes when the content does: a GCS generation, an ETag, a local inode with its
            size and modification time. ``None`` where the backend has nothing of the kind; reads are then not pinned.
        crc32c: Checksum of the stored bytes, where the store tells it; no part of equality.
    """

    url: str
    size: int
    version: str | None = None
    crc32c: int | None = field(default=None, compare=False)
