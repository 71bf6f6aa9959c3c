"""What a pipeline knows about its files: sizes and versions, from listings, manifest files and first reads.

A file with an entry here is opened without a metadata request, and read only in the version of its entry.
"""

from __future__ import annotations

import io
from typing import Final, TypeVar

from asyncdata.errors import DataError, ObjectNotFoundError
from asyncdata.redaction import redact_url
from asyncdata.runtime.reading.io import Io
from asyncdata.runtime.stage import Pause
from asyncdata.runtime.state.listings import Listings, key_of
from asyncdata.storage.globs import has_wildcard
from asyncdata.storage.groups import gather_bounded
from asyncdata.storage.manifest_files import MAX_MANIFEST_BYTES, parse_entry
from asyncdata.storage.urls import scheme_of
from asyncdata.types import ObjectInfo

D = TypeVar("D")

_GLOBS_AT_A_TIME: Final = 16
_LINES_PER_STEP: Final = 256


class Manifest:
    """One per pipeline, on the stage loop; bounded by the number of the pipeline's files.

    Args:
        io: Storage.
        kept: What the pipeline has listed, for its states.
        number: Of the storage options, among those of the pipeline.
    """

    def __init__(self, io: Io, kept: Listings | None = None, number: int = 0) -> None:
        self._io = io
        self._kept = kept or Listings(())
        self._number = number
        self._objects: dict[str, ObjectInfo] = {}
        self._listings: dict[tuple[str, ...], list[str]] = {}
        self._before: dict[str, str | None] = {}
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, url: str, default: D) -> ObjectInfo | D:
        """What is known about an object."""
        return self._objects.get(url, default)

    def __setitem__(self, url: str, info: ObjectInfo) -> None:
        self._objects[url] = info

    def before(self, url: str) -> str | None:
        """The version of a local file that the epoch was begun with, if the state that it continues says so."""
        return self._before.get(url)

    def said_size(self, url: str) -> int | None:
        """The size that an object should have when it is opened, if that alone was said about it."""
        return self._sizes.get(url)

    def forget(self, url: str) -> None:
        """What is known about an object is not true any more."""
        self._objects.pop(url, None)
        self._sizes.pop(url, None)

    async def matching(self, patterns: tuple[str, ...]) -> list[str]:
        """The URLs that match, sorted; listed once, or not at all if the epoch was begun with a listing.

        Raises:
            ObjectNotFoundError: A pattern matches nothing.
        """
        known = self._known(patterns)
        if known is not None:
            return known
        found: dict[str, ObjectInfo] = {}
        groups = await gather_bounded(self._glob, patterns, min(_GLOBS_AT_A_TIME, len(patterns)))
        for pattern, infos in zip(patterns, groups, strict=True):
            if not infos:
                raise await self._nothing_matches(pattern)
            found.update((info.url, info) for info in infos)
        self._objects.update(found)
        self._listings[patterns] = urls = sorted(found)
        self._kept.note(key_of(self._number, patterns), [found[url] for url in urls])
        return urls

    def _known(self, patterns: tuple[str, ...]) -> list[str] | None:
        """What was found before, by this pipeline or by the one whose state it continues."""
        known = self._listings.get(patterns)
        recorded = self._kept.recall(key_of(self._number, patterns)) if known is None else None
        if recorded is not None:
            known = self._listings[patterns] = [info.url for info in recorded]
            for info in recorded:
                if scheme_of(info.url) == "file":
                    # It may have been copied since: its reader looks at what it is now, and compares it.
                    self._before[info.url] = info.version
                else:
                    self._believe(info)
        return known

    def _believe(self, info: ObjectInfo) -> None:
        """Keeps what a line says that was written before.

        Without a version, reads would be of whatever is there: the parts of one object could be of two versions. So the
        object is opened, unless its checksum is compared behind the last byte. One that is said to be empty is, too:
        nothing of it is read that could show that it is not.
        """
        is_checked = info.size > 0 and info.crc32c is not None and self._io.checks_objects
        if is_checked or (info.size >= 0 and info.version is not None):
            self._objects[info.url] = info
        elif info.size > 0:
            self._sizes[info.url] = info.size

    async def _glob(self, pattern: str) -> list[ObjectInfo]:
        """No object's name ends in a slash; over http there are no names."""
        return [] if pattern.endswith("/") and not pattern.startswith("http") else await self._io.glob(pattern)

    async def _nothing_matches(self, pattern: str) -> ObjectNotFoundError:
        """Looks whether the pattern is a directory."""
        inside = f"{pattern.rstrip('/')}/*"
        if not has_wildcard(pattern) and not pattern.startswith("http") and await self._io.glob(inside):
            return ObjectNotFoundError(f"this is a directory; use list_files({redact_url(inside)!r})", url=pattern)
        return ObjectNotFoundError(
            "no file matches the pattern; check the bucket, the spelling, and that the wildcards are where "
            "you want them",
            url=pattern,
        )

    async def listed_in(self, url: str) -> list[str]:
        """The URLs in a manifest file, in its order; read once.

        Raises:
            DataError: It is not a manifest.
        """
        key = ("", url)  # no pattern is empty
        known = self._known(key)
        if known is not None:
            return known
        data = await self._io.call(self._read_whole(url))
        infos: list[ObjectInfo] = []
        pause = Pause()
        for number, line in enumerate(io.BytesIO(data)):
            if number % _LINES_PER_STEP == 0:
                await pause()
            if not line.strip():
                continue
            info = parse_entry(line, number, url)
            infos.append(info)
            self._believe(info)
        if not infos:
            raise DataError("the manifest names no file", url=url)
        self._listings[key] = urls = [info.url for info in infos]
        self._kept.note(key_of(self._number, key), infos)
        return urls

    async def _read_whole(self, url: str) -> bytearray:
        """On the I/O loop."""
        fetcher = self._io.fetcher
        info = await fetcher.stat(url)
        if info.size > MAX_MANIFEST_BYTES:
            raise DataError(f"a manifest of {info.size} bytes; at most {MAX_MANIFEST_BYTES} are read", url=url)
        data = bytearray(info.size)
        await fetcher.read(info, 0, memoryview(data))
        return data
