"""`list_files`, `from_manifest`: URLs, and what listings and manifests say about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np

from asyncdata.errors import AsyncdataError
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.runtime.randomness import permutation
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.arrays import block_of_elements, source_advance, source_origin


class ListFilesStage(Stage):
    """URLs that are found once per pipeline, in the order of the finding or shuffled as a whole.

    Args:
        label: The stage's name.
        source: Number of the source.
        key: Of the order, or None for the order in which they were found.
        find: Finds them, and enters in the pipeline's manifest what is known about each; quick the second time.
    """

    def __init__(
        self, label: str, source: int, key: tuple[int, int] | None, find: Callable[[], Awaitable[list[str]]]
    ) -> None:
        super().__init__(label)
        self._source = source
        self._key = key
        self._find = find
        self._urls: list[str] | None = None
        self._order: Rows | None = None
        self._at = 0

    async def pull(self, limit: int) -> Block | None:
        if self._urls is None:
            try:
                self._urls = await self._find()
            except AsyncdataError as error:
                error.complete(stage=self.label)
                raise
            if self._key is not None:
                self._order = permutation(self._key, len(self._urls))
        return self._take(self._urls, limit)

    def pull_ready(self, limit: int) -> Block | None:
        return None if self._urls is None else self._take(self._urls, limit)

    def _take(self, urls: list[str], limit: int) -> Block | None:
        stop = min(self._at + limit, len(urls))
        if self._at == stop:
            return None
        index = np.arange(self._at, stop) if self._order is None else self._order[self._at : stop]
        elements = [urls[i] for i in index.tolist()]
        # The provenance names the file's place in the listing, not in this epoch's order.
        origin = source_origin(self._source, self._at, len(elements))
        origin[:, 1] = index
        advance = source_advance(origin, self._at)
        self._at = stop
        return block_of_elements(elements, origin, advance)

    @property
    def draining(self) -> bool:
        """Names need no preparation."""
        return True
