"""`enumerate`, `shard`, `assert_cardinality`: what depends on an element's place in the sequence alone."""

from __future__ import annotations

import numpy as np

from asyncdata.errors import PipelineError
from asyncdata.memory.advance import Fold
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF, TupleOf
from asyncdata.runtime.stage import Stage, row_marks


class EnumerateStage(Stage):
    """Puts the number of each element in front of it."""

    def __init__(self, label: str, upstream: Stage, start: int) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._start = start
        self._count = 0
        self._fold = Fold()

    async def pull(self, limit: int) -> Block | None:
        block = await self._upstream.pull(limit)
        if block is None:
            return None
        count, advance = self._count, block.advance
        marks = tuple(
            (row, {"passed": count + row, "input": self._fold.at(advance, row)}) for row in row_marks(count, len(block))
        )
        self._fold.feed(advance)
        self._count += len(block)
        if not len(block):
            return block
        first = self._start + count
        numbers = ArrayColumn(np.arange(first, first + len(block), dtype=np.int64))
        structure = TupleOf((LEAF, block.structure))
        return Block(structure, (numbers, *block.columns), block.origin, advance.with_marks(marks))


class ShardStage(Stage):
    """Every so many-th element."""

    def __init__(self, label: str, upstream: Stage, num_shards: int, index: int) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._num_shards = num_shards
        self._index = index
        self._seen = 0
        self._out = 0
        self._fold = Fold()

    async def pull(self, limit: int) -> Block | None:
        block = await self._upstream.pull(limit)
        if block is None:
            return None
        kept = np.arange((self._index - self._seen) % self._num_shards, len(block), self._num_shards)
        advance = block.advance
        marks = tuple(
            (row, {"passed": self._seen + at, "input": self._fold.at(advance, at)})
            for row, at in ((row, int(kept[row])) for row in row_marks(self._out, len(kept)))
        )
        self._fold.feed(advance)
        self._seen += len(block)
        self._out += len(kept)
        if len(kept) < len(block):
            block = block.select(kept)
        block.advance = block.advance.with_marks(marks)
        return block


class AssertCardinalityStage(Stage):
    """Passes on as many elements as were announced; one more, or the end before, is an error.

    Args:
        label: The stage's name.
        upstream: The input.
        count: How many there must be; negative: no end.
    """

    def __init__(self, label: str, upstream: Stage, count: int) -> None:
        super().__init__(label, (upstream,))
        self._upstream = upstream
        self._count = count
        self._passed = 0

    async def pull(self, limit: int) -> Block | None:
        left = self._count - self._passed if self._count >= 0 else limit
        block = await self._upstream.pull(max(1, min(limit, left)))
        if block is None:
            if left > 0:
                announced = self._count if self._count >= 0 else "infinitely many"
                raise PipelineError(f"{announced} elements were announced, there are {self._passed}", stage=self.label)
            return None
        if left == 0 and len(block):
            block.release()
            raise PipelineError(f"{self._count} elements were announced, there are more", stage=self.label)
        self._passed += len(block)
        return block
