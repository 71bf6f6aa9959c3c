"""Copies the rows of passing blocks into a store, image by image."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from asyncdata.formats.block_image import ImageBuilder, unpickled
from asyncdata.memory.advance import EMPTY
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ObjectColumn
from asyncdata.memory.structure import LEAF, flatten, has_structure
from asyncdata.runtime.stage import BLOCK_ROWS, Pause
from asyncdata.runtime.stages.group.materialized import rows_of
from asyncdata.runtime.stages.sources.arrays import block_of_elements
from asyncdata.runtime.stages.store.stored import StoreWriter

IMAGE_BYTES: Final = 1 << 20
"""An image is complete when it is so large, or holds `BLOCK_ROWS` rows."""


class Recorder:
    """See the module's docstring.

    Args:
        filling: Takes the images.
        image_bytes: Size at which an image is complete.
    """

    def __init__(self, filling: StoreWriter, image_bytes: int) -> None:
        self._filling = filling
        self._image_bytes = image_bytes
        self._builder = ImageBuilder()
        self._pause = Pause()

    async def keep(self, block: Block) -> None:
        """Copies the rows of a block."""
        for part in (block,) if self._filling.keeps_objects else _alike(block):
            await self._keep(part)

    async def _keep(self, block: Block) -> None:
        """So many at a time that no image becomes much too large."""
        rows = max(1, len(block) * self._image_bytes // (block.nbytes + 48 * len(block)))
        for start in range(0, len(block), rows):
            some = slice(start, min(start + rows, len(block)))
            columns = tuple(unpickled(rows_of(column, some)) for column in block.columns)
            part = Block(block.structure, columns, block.origin[some], EMPTY)
            if not self._builder.takes(part):
                await self._flush()
            self._builder.add(part)
            if self._builder.nbytes >= self._image_bytes or self._builder.rows >= BLOCK_ROWS:
                await self._flush()
            await self._pause()

    async def finish(self) -> None:
        """The last row was kept."""
        await self._flush()
        await self._filling.finish()

    async def discard(self) -> None:
        """Gives everything up."""
        await self._filling.discard()

    async def _flush(self) -> None:
        if self._builder.rows:
            await self._filling.add(self._builder.finish())


def _alike(block: Block) -> Iterator[Block]:
    """The rows by how they nest: where they nest differently, a block has them as bare objects."""
    column = unpickled(block.columns[0]) if block.structure is LEAF else None
    if not isinstance(column, ObjectColumn) or not any(has_structure(type(item)) for item in column.items):
        yield block
        return
    start = 0
    for _, run in itertools.groupby(column.items, lambda item: flatten(item)[1]):
        part = list(run)
        yield block_of_elements(part, block.origin[start : start + len(part)], EMPTY)
        start += len(part)
