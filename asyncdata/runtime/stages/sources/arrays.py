"""Sources whose elements are in memory already: `range`, `from_tensor_slices`, `from_tensors`, lists of URLs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Advance, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn
from asyncdata.memory.structure import LEAF, Structure, flatten
from asyncdata.runtime.stage import BLOCK_BYTES, Stage, row_marks


def source_origin(source: int, start: int, count: int) -> Rows:
    """Provenance of consecutive elements of a source that is counted, not read."""
    origin = np.zeros((count, 4), np.int64)
    origin[:, 0] = source
    origin[:, 1] = np.arange(start, start + count)
    return origin


def source_advance(origin: Rows, start: int) -> Advance:
    """The advance of such elements; the position is all the state there is."""
    marks = tuple((row, {"at": start + row}) for row in row_marks(start, len(origin)))
    return Advance(len(origin), origin, None, marks)


class RangeStage(Stage):
    """Consecutive integers as one array column per block."""

    def __init__(self, label: str, source: int, values: range, dtype: str) -> None:
        super().__init__(label)
        self._source = source
        self._values = values
        self._dtype = np.dtype(dtype)
        self._at = 0

    async def pull(self, limit: int) -> Block | None:
        return self.pull_ready(limit)

    def pull_ready(self, limit: int) -> Block | None:
        """The next elements: all are at hand."""
        part = self._values[self._at : self._at + limit]
        if not part:
            return None
        origin = source_origin(self._source, self._at, len(part))
        advance = source_advance(origin, self._at)
        self._at += len(part)
        array = np.arange(part.start, part.stop, part.step, dtype=np.int64).astype(self._dtype, copy=False)
        return Block(LEAF, (ArrayColumn(array),), origin, advance)

    @property
    def draining(self) -> bool:
        """Integers need no preparation."""
        return True


class SlicesStage(Stage):
    """Rows of arrays, as many at a time as take no more than some bytes: what is made of them may be copies."""

    def __init__(
        self,
        label: str,
        source: int,
        arrays: tuple[npt.NDArray[Any], ...],
        structure: Structure,
        most_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(label)
        self._source = source
        self._arrays = arrays
        self._structure = structure
        self._rows = len(arrays[0])
        self._most = max(1, most_bytes * self._rows // max(sum(array.nbytes for array in arrays), 1))
        self._at = 0

    async def pull(self, limit: int) -> Block | None:
        return self.pull_ready(limit)

    def pull_ready(self, limit: int) -> Block | None:
        """The next elements: all are at hand."""
        count = min(limit, self._most, self._rows - self._at)
        if count <= 0:
            return None
        origin = source_origin(self._source, self._at, count)
        advance = source_advance(origin, self._at)
        rows = slice(self._at, self._at + count)
        columns: list[Column] = []
        for array in self._arrays:
            part = array[rows]
            columns.append(ObjectColumn(list(part)) if part.dtype == object else ArrayColumn(part))
        self._at += count
        return Block(self._structure, tuple(columns), origin, advance)

    @property
    def draining(self) -> bool:
        """Nothing to prepare."""
        return True


class ItemsStage(Stage):
    """A sequence of elements kept as Python objects."""

    def __init__(self, label: str, source: int, items: tuple[Any, ...]) -> None:
        super().__init__(label)
        self._source = source
        self._items = items
        self._at = 0

    async def pull(self, limit: int) -> Block | None:
        return self.pull_ready(limit)

    def pull_ready(self, limit: int) -> Block | None:
        """The next elements: all are at hand."""
        part = self._items[self._at : self._at + limit]
        if not part:
            return None
        origin = source_origin(self._source, self._at, len(part))
        advance = source_advance(origin, self._at)
        self._at += len(part)
        return block_of_elements(list(part), origin, advance)

    @property
    def draining(self) -> bool:
        """Nothing to prepare."""
        return True


def block_of_elements(elements: list[Any], origin: Rows, advance: Advance) -> Block:
    """A block of Python objects; elements of different structure keep theirs as a bare object."""
    if not elements:
        return Block.empty(advance)
    first, structure = flatten(elements[0])
    if structure is LEAF:
        return Block(LEAF, (ObjectColumn(elements),), origin, advance)
    columns: list[list[Any]] = [[leaf] for leaf in first]
    for element in elements[1:]:
        leaves, found = flatten(element)
        if found != structure:
            return Block(LEAF, (ObjectColumn(elements),), origin, advance)
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    return Block(structure, tuple(ObjectColumn(column) for column in columns), origin, advance)
