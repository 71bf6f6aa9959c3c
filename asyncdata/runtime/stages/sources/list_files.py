"""`list_files`, `from_manifest`: URLs, and what listings and manifests say about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np

from asyncdata.errors import AsyncdataError
from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ObjectColumn
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.randomness import permutation
from asyncdata.runtime.stage import StageContext
from asyncdata.runtime.stages.sources.arrays import CountedStage, Taken


class ListFilesStage(CountedStage):
    """URLs that are found once per pipeline, in the order of the finding or shuffled as a whole.

    An error of the listing names this step, as listing runs outside of the pull of any other.

    Args:
        context: What every stage is given.
        key: Of the order, or None for the order in which they were found.
        find: Finds them, and enters in the pipeline's manifest what is known about each; quick the second time.
    """

    def __init__(
        self, context: StageContext, key: tuple[int, int] | None, find: Callable[[], Awaitable[list[str]]]
    ) -> None:
        super().__init__(context)
        self._key = key
        self._find = find
        self._urls: list[str] | None = None
        self._order: Rows | None = None

    async def _pull(self, limit: int) -> Block | None:
        if self._urls is None:
            try:
                with self.context.meter.storage:
                    self._urls = await self._find()
            except AsyncdataError as error:
                error.complete(stage=self.label)
                raise
            count = len(self._urls)
            self._order = np.arange(count) if self._key is None else permutation(self._key, count)
        return self._pull_ready(limit)

    def take(self, start: int, limit: int) -> Taken | None:
        if self._urls is None or self._order is None or start >= len(self._urls):
            return None
        urls = [self._urls[i] for i in self._order[start : start + limit].tolist()]
        return len(urls), LEAF, (ObjectColumn(urls),)

    def _origin(self, count: int) -> Rows:
        origin = super()._origin(count)
        # The provenance names the file's place in the listing, not in this epoch's order.
        assert self._order is not None
        origin[:, 1] = self._order[origin[:, 1]]
        return origin
