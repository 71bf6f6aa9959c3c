"""`enumerate`, `shard`, `assert_cardinality`: what depends on an element's place in the sequence alone."""

from __future__ import annotations

import numpy as np

from asyncdata.errors import PipelineError, StateError
from asyncdata.memory.advance import Mark
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF, TupleOf
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.state.marker import Marker
from asyncdata.runtime.state.places import Places
from asyncdata.runtime.state.tracks import Track
from asyncdata.wording import counted


class EnumerateStage(Stage):
    """Puts the number of each element in front of it."""

    def __init__(self, context: StageContext, upstream: Stage, start: int, track: Track | None = None) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._start = start
        self._marker = Marker(follows=True)
        self._track = track
        if track is not None:
            self._marker.begin(track.saved.delivered)

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._marker.begin(mark["passed"] + mark["skip"], mark["input"])

    async def _pull(self, limit: int) -> Block | None:
        block = await self._upstream.pull(limit)
        passed = self._marker.rows
        if block is None:
            if self._track is not None:
                self._track.ends(passed)
            return None
        self._marker.mark(block, lambda row, state: {"passed": passed + row, "input": state})
        if not len(block):
            return block
        if self._track is None:
            places = np.arange(passed, passed + len(block), dtype=np.int64)
        else:
            places = self._track.next_numbers(len(block))
            block.advance = self._track.counted(block.advance, places)
        return _numbered(ArrayColumn(self._start + places), block)


class EnumeratePickedStage(Stage):
    """Likewise, for elements that are read by themselves.

    Args:
        context: What every stage is given.
        upstream: The elements, in any order.
        start: The first number.
        places: Where they lie, and which element of the input each of them is.
    """

    def __init__(self, context: StageContext, upstream: Stage, start: int, places: Places) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._start = start
        self._places = places

    async def _pull(self, limit: int) -> Block | None:
        block = await self._upstream.pull(limit)
        if block is None or not len(block):
            return block
        if self._places.numbers is None:
            raise StateError("the state is damaged: elements of the buffer have no numbers", stage=self.label)
        numbers = ArrayColumn(self._start + self._places.numbers[self._places.find(block.origin)])
        return _numbered(numbers, block)


def _numbered(numbers: ArrayColumn, block: Block) -> Block:
    made = Block(TupleOf((LEAF, block.structure)), (numbers, *block.columns), block.origin, block.advance)
    return made.as_objects() if block.has_nests else made


class ShardStage(Stage):
    """Every so many-th element."""

    def __init__(self, context: StageContext, upstream: Stage, num_shards: int, index: int) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._num_shards = num_shards
        self._index = index
        self._seen = 0
        self._marker = Marker(follows=True)

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._seen = mark["passed"] + mark["skip"] * self._num_shards
        self._marker.begin(mark["skip"], mark["input"])

    async def _pull(self, limit: int) -> Block | None:
        block = await self._upstream.pull(limit)
        if block is None:
            return None
        kept = np.arange((self._index - self._seen) % self._num_shards, len(block), self._num_shards)
        passed = self._seen
        marks = self._marker.after(
            block.advance, len(kept), lambda row, state: {"passed": passed + int(kept[row]), "input": state}, kept
        )
        self._seen += len(block)
        if len(kept) < len(block):
            block = block.select(kept)
        block.advance = block.advance.with_marks(marks)
        return block


def rows_before(mark: Mark, num_shards: int, index: int) -> int:
    """How many elements a shard has in front of a mark, also if another shard of the same input wrote it.

    Args:
        mark: What `ShardStage` wrote; None: the beginning.
        num_shards: Of the shard that is to begin there.
        index: Of it.
    """
    return 0 if mark is None else -(-(mark["passed"] - index) // num_shards)


class AssertCardinalityStage(Stage):
    """Passes on as many elements as were announced; one more, or the end before, is an error.

    Args:
        context: What every stage is given.
        upstream: The input.
        count: How many there must be; negative: no end.
    """

    def __init__(self, context: StageContext, upstream: Stage, count: int) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._count = count
        self._marker = Marker(follows=True)

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._marker.begin(mark["passed"] + mark["skip"], mark["input"])

    async def _pull(self, limit: int) -> Block | None:
        passed = self._marker.rows
        left = self._count - passed if self._count >= 0 else limit
        block = await self._upstream.pull(max(1, min(limit, left)))
        if block is None:
            if left > 0:
                announced = _announced(self._count)
                raise PipelineError(f"{announced}, there are {passed}", stage=self.label)
            return None
        if left == 0 and len(block):
            block.release()
            raise PipelineError(f"{_announced(self._count)}, there are more", stage=self.label)
        return self._marker.mark(block, lambda row, state: {"passed": passed + row, "input": state})


def _announced(count: int) -> str:
    if count < 0:
        return "infinitely many elements were announced"
    return f"{counted(count, 'element was', 'elements were')} announced"
