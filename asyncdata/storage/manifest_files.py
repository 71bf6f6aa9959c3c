r"""Manifest files: stored listings, so that a pipeline with many shards starts without listing them again. Pure.

A manifest has one JSON object per line, with keys in any order::

    {"url": "gs://bucket/train-00000.tfrecord", "size": 104857600, "version": "1767225600000000"}

``size`` (bytes), ``version`` (a generation, an ETag, or what the scheme's listing reports) and ``crc32c`` (a number)
are optional: the first read opens an object whose size or version is not told. A manifest is a list: its order is
kept, and a URL that occurs twice is two elements. Nothing in it is trusted: a wrong size ends in an error of the read.
"""

from __future__ import annotations

import json
from typing import Any, Final

from asyncdata.errors import DataError
from asyncdata.types import ObjectInfo

MAX_MANIFEST_BYTES: Final = 1 << 30
"""A longer manifest is refused before it is read."""

UNKNOWN_SIZE: Final = -1
_MAX_SIZE: Final = 1 << 63
_KEYS: Final = frozenset({"url", "size", "version", "crc32c"})


def format_entry(info: ObjectInfo) -> str:
    """The line of an object, without the line break."""
    entry: dict[str, Any] = {"url": info.url}
    if info.size >= 0:
        entry["size"] = info.size
    if info.version is not None:
        entry["version"] = info.version
    if info.crc32c is not None:
        entry["crc32c"] = info.crc32c
    # Names of local files need not be text: what cannot be shown is escaped.
    return json.dumps(entry, ensure_ascii=not info.url.isprintable())


def parse_entry(line: bytes, number: int, manifest_url: str) -> ObjectInfo:
    """The object of a line; its size is ``UNKNOWN_SIZE`` where the line does not tell it.

    Args:
        line: Without its line break.
        number: Of the line, from 0, for messages.
        manifest_url: Of the file, for messages.

    Raises:
        DataError: Not a line of a manifest.
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise _refused("is not a JSON object", number, manifest_url)
    url, size, version = entry.get("url"), entry.get("size", UNKNOWN_SIZE), entry.get("version")
    if not isinstance(url, str) or not url:
        raise _refused("has no 'url'", number, manifest_url)
    if type(size) is not int or not UNKNOWN_SIZE <= size < _MAX_SIZE:
        raise _refused("has a 'size' that is not a number of bytes", number, manifest_url)
    if version is not None and not isinstance(version, str):
        raise _refused("has a 'version' that is not a string", number, manifest_url)
    crc = entry.get("crc32c")
    if crc is not None and (type(crc) is not int or not 0 <= crc < 1 << 32):
        raise _refused("has a 'crc32c' that is not a number of 32 bits", number, manifest_url)
    unknown = entry.keys() - _KEYS
    if unknown:
        raise _refused(f"has unknown keys: {', '.join(sorted(unknown))[:100]}", number, manifest_url)
    return ObjectInfo(url=url, size=size, version=version, crc32c=crc)


def _refused(what: str, number: int, manifest_url: str) -> DataError:
    return DataError(f"line {number + 1} of the manifest {what}", url=manifest_url, record=number)
