"""`list_files`: URLs that match, and what the listing says about them."""

from __future__ import annotations

import numpy as np

from asyncdata.errors import ObjectNotFoundError
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.runtime.io import Io
from asyncdata.runtime.randomness import permutation
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.arrays import block_of_elements, source_advance, source_origin
from asyncdata.types import ObjectInfo


class ListFilesStage(Stage):
    """Lists once per pipeline; sizes and versions go into the manifest, so that no file needs a request to be opened.

    Args:
        label: The stage's name.
        source: Number of the source.
        patterns: Globs and plain URLs.
        key: Of the order, or None for the order of the URLs.
        io: Storage.
        manifest: Filled with what was listed; later epochs take the listing from it.
        listings: Listings made so far in this pipeline, by patterns.
    """

    def __init__(
        self,
        label: str,
        source: int,
        patterns: tuple[str, ...],
        key: tuple[int, int] | None,
        io: Io,
        manifest: dict[str, ObjectInfo],
        listings: dict[tuple[str, ...], list[str]],
    ) -> None:
        super().__init__(label)
        self._source = source
        self._patterns = patterns
        self._key = key
        self._io = io
        self._manifest = manifest
        self._listings = listings
        self._urls: list[str] | None = None
        self._order: Rows | None = None
        self._at = 0

    async def pull(self, limit: int) -> Block | None:
        if self._urls is None:
            self._urls = await self._list()
            if self._key is not None:
                self._order = permutation(self._key, len(self._urls))
        stop = min(self._at + limit, len(self._urls))
        if self._at == stop:
            return None
        index = np.arange(self._at, stop) if self._order is None else self._order[self._at : stop]
        urls = self._urls
        elements = [urls[i] for i in index.tolist()]
        # The provenance names the file's place in the sorted listing, not in this epoch's order.
        origin = source_origin(self._source, self._at, len(elements))
        origin[:, 1] = index
        advance = source_advance(origin, self._at)
        self._at = stop
        return block_of_elements(elements, origin, advance)

    async def _list(self) -> list[str]:
        known = self._listings.get(self._patterns)
        if known is not None:
            return known
        found: dict[str, ObjectInfo] = {}
        for pattern in self._patterns:
            infos = await self._io.glob(pattern)
            if not infos:
                raise ObjectNotFoundError(
                    "no file matches the pattern; check the bucket, the spelling, and that the wildcards are where "
                    "you want them",
                    url=pattern,
                    stage=self.label,
                )
            found.update((info.url, info) for info in infos)
        self._manifest.update(found)
        self._listings[self._patterns] = urls = sorted(found)
        return urls

    @property
    def draining(self) -> bool:
        """Names need no preparation."""
        return True
