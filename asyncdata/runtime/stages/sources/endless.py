"""Sources without an end: `counter` and `random`."""

from __future__ import annotations

import numpy as np

from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.randomness import words
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.arrays import source_advance, source_origin


class CounterStage(Stage):
    """``start, start + step, …``; numbers wrap around as the dtype does."""

    def __init__(self, label: str, source: int, start: int, step: int, dtype: str) -> None:
        super().__init__(label)
        self._source = source
        self._start = start
        self._step = step
        self._dtype = np.dtype(dtype)
        self._at = 0

    async def pull(self, limit: int) -> Block | None:
        origin = source_origin(self._source, self._at, limit)
        numbers = self._start + self._step * origin[:, 1]
        advance = source_advance(origin, self._at)
        self._at += limit
        return Block(LEAF, (ArrayColumn(numbers.astype(self._dtype, copy=False)),), origin, advance)

    @property
    def draining(self) -> bool:
        """Integers need no preparation."""
        return True


class RandomStage(Stage):
    """``int64`` numbers from 0 to 2**32 - 1, each a function of the key and its position."""

    def __init__(self, label: str, source: int, key: tuple[int, int]) -> None:
        super().__init__(label)
        self._source = source
        self._key = key
        self._at = 0

    async def pull(self, limit: int) -> Block | None:
        origin = source_origin(self._source, self._at, limit)
        numbers = (words(self._key, self._at, limit) >> np.uint64(32)).astype(np.int64)
        advance = source_advance(origin, self._at)
        self._at += limit
        return Block(LEAF, (ArrayColumn(numbers),), origin, advance)

    @property
    def draining(self) -> bool:
        """Draws need no preparation."""
        return True
