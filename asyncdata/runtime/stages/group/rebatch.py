"""`rebatch` with several sizes: how many rows the next batch takes, and how they are stacked.

One size alone is `unbatch` and `batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata.errors import UnbatchableError
from asyncdata.memory.accounts import Foreseen
from asyncdata.memory.advance import Fold
from asyncdata.memory.block import Block
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import Structure, leaf_names
from asyncdata.runtime.stage import BLOCK_ROWS, Pause, Stage
from asyncdata.runtime.stages.group.collecting import Collected
from asyncdata.runtime.stages.group.uneven import Loose, Part, Plan, Stack, Stored, strings_part
from asyncdata.runtime.stages.group.values import Numbers, StringArrays, StringLists, Strings, Values


class Cycle:
    """Collects rows for one batch at a time, of the sizes in turn.

    Args:
        upstream: Gives single rows.
        sizes: Of the batches.
        drop_remainder: Whether a last batch that is smaller than its size is left out.
    """

    def __init__(self, upstream: Stage, sizes: Sequence[int], *, drop_remainder: bool) -> None:
        self._upstream = upstream
        self._sizes = sizes
        self._drop = drop_remainder
        self._parts: list[Block] = []
        self._rows = 0
        self._ended = False
        self._fold = Fold()
        self._batches = 0
        self._pause = Pause()

    async def collect(self, most: int) -> Collected | None:
        """See `stages.collecting.Collector.collect`; gives one batch however many are asked for."""
        del most
        size = self._sizes[self._batches % len(self._sizes)]
        while self._rows < size and not self._ended:
            await self._pause()
            block = await self._upstream.pull(min(size - self._rows, BLOCK_ROWS))
            if block is None:
                self._ended = True
            else:
                self._parts.append(block)
                self._rows += len(block)
        if not self._parts:
            return None
        joined, self._parts = Block.concat(self._parts), []
        rows, self._rows = self._rows, 0
        if not rows or (rows < size and self._drop):
            return Collected(joined.select(np.empty(0, np.int64)), [], ())
        mark = {"batch": self._batches, "input": self._fold.state}
        self._fold.feed(joined.advance)
        self._batches += 1
        return Collected(joined, [rows], ((0, mark),))

    def foresee(self) -> Foreseen:
        """Elements of the largest batch, rows that wait, and their bytes."""
        nbytes = sum(part.payload_bytes(len(part)) for part in self._parts)
        return Foreseen(max(self._sizes), self._rows, nbytes, max(self._sizes))

    def release(self) -> None:
        """Gives back what has been collected."""
        for part in self._parts:
            part.release()
        self._parts = []
        self._rows = 0


def stacked(structure: Structure, values: Sequence[Values]) -> Plan:
    """Lays a batch of elements out that are all alike.

    Raises:
        UnbatchableError: An element is not like the first one.
    """
    parts: list[Part] = []
    for leaf, name in zip(values, leaf_names(structure), strict=True):
        if isinstance(leaf, Strings):
            parts.append(strings_part(leaf))
            continue
        arrays = leaf.arrays if isinstance(leaf, Numbers) else _texts(leaf)
        shape = arrays[0].shape
        if not isinstance(arrays, np.ndarray) and any(array.shape != shape for array in arrays):
            raise UnbatchableError(
                "elements of one batch differ in shape; use padded_batch or ragged_batch", leaf=name or None
            )
        if isinstance(leaf, Numbers):
            parts.append(Stored(Leaf("array", leaf.dtype.str, (len(arrays), *shape)), Stack(leaf)))
        else:
            parts.append(Loose(np.stack(list(arrays))))
    return Plan(structure, parts)


def _texts(values: StringLists | StringArrays) -> list[npt.NDArray[Any]]:
    """Byte strings, or texts, of each element as an array of objects, which their batch is too."""
    if isinstance(values, StringArrays):
        return values.arrays
    arrays = [np.empty(len(items), object) for items in values.lists]
    for array, items in zip(arrays, values.lists, strict=True):
        array[:] = items
    return arrays
