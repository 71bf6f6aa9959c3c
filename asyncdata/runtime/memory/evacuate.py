"""Frees slabs that a buffer of references keeps alive for a few rows.

A slab lives as long as any row points into it. A shuffle buffer holds rows of many slabs, most of whose rows it has
already passed on. Without this module it would pin several times the bytes that it needs. From time to time the rows
left in sparsely used slabs are copied together into a new one: slabs that are less than an eighth full when all buffers
pin a quarter of the memory limit, and slabs that are less than three quarters full when they pin half of it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Rows
from asyncdata.memory.arena import GRANULE
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import CHECKSUM_BYTES
from asyncdata.memory.wire import ALIGN
from asyncdata.runtime.memory.budget import Budget

_SHORT: Final = 1 / 2
_THIN: Final = ((_SHORT, 3 / 4), (1 / 4, 1 / 8))
"""Beyond which part of the limit slabs are thin that are live to less than which part; the shorter memory is, the more
copying is worth."""
_MOST_BYTES: Final = 4 << 20
_MOST_MOVES: Final = 8
"""Slabs that are filled at a look, where memory is short; one otherwise."""
_TOGETHER_PART: Final = 64
_MANY_ALIKE: Final = 16
_SMALL_BYTES: Final = 1024
"""So many small rows of one size are copied faster together than one by one."""
_LEAST_TOGETHER: Final = 8 * GRANULE


def most_together(limit: int) -> int:
    """Bytes of rows that share a slab, unless they are one row's: few enough that a row pins little beside itself."""
    return max(_LEAST_TOGETHER, min(_MOST_BYTES, limit // _TOGETHER_PART))


class Evacuator:
    """See the module's docstring.

    Args:
        budget: For slabs.
        account: The buffer's account, charged with the new slabs.
    """

    def __init__(self, budget: Budget, account: Account) -> None:
        self._budget = budget
        self._account = account
        self.copied_bytes = 0

    async def __call__(self, columns: list[RefColumn]) -> None:
        """Moves rows of these columns, which belong to the caller and do not change meanwhile."""
        movable = [column for column in columns if column.leaf is None or column.leaf.kind != "table"]
        for _ in range(_MOST_MOVES):
            pinned = self._budget.collected_bytes / self._budget.limit
            thin = next((part for beyond, part in _THIN if pinned >= beyond), None)
            if thin is None:
                return
            moved = [self._evacuate(column, thin) for column in movable]
            if pinned < _SHORT or not any(moved):
                return

    def _evacuate(self, column: RefColumn, part: float) -> bool:
        slabs = self._budget.slabs
        owners = slabs.of_rows(column.rows[:, 0])
        sizes = spaces(column)
        live = np.bincount(owners, weights=sizes)
        rows_here = np.bincount(owners)
        thin = [
            index
            for index in np.flatnonzero(live).tolist()
            if live[index] < part * slabs.slab(index).nbytes
            # Others (a reader, a task, a batch) would keep the slab alive all the same.
            and slabs.holds(slabs.slab(index)) == rows_here[index]
        ]
        # Whole slabs, those first that are freed for the least; half as many where so much is not to be had.
        thin.sort(key=lambda index: float(live[index]))
        most = most_together(self._budget.limit)
        count = max(1, int(np.searchsorted(np.cumsum(live[thin]), most, side="right")))
        while thin and count:
            chosen = np.flatnonzero(np.isin(owners, thin[:count]))
            nbytes = int(sizes[chosen].sum())
            if self._budget.charge(nbytes) >= sum(slabs.slab(index).nbytes for index in thin[:count]):
                return False
            slab = self._budget.take_now(self._account, nbytes)
            if slab is not None:
                move_rows(column, chosen, sizes[chosen], slab.offset)
                slabs.drop(slab)
                self.copied_bytes += nbytes
                return True
            count //= 2
        return False


def move_rows(column: RefColumn, chosen: Rows, sizes: Rows, at: int) -> int:
    """Copies some rows, of these `spaces`, to where there is room for them; returns where more may begin."""
    slabs = column.slabs
    arena = slabs.arena.array
    ends = np.cumsum(sizes) + at
    old = column.rows[chosen, 0]
    new = ends - sizes
    lengths = np.minimum(_lengths(column, chosen), sizes)
    kinds = np.unique(lengths)
    if len(chosen) < _MANY_ALIKE * len(kinds) or kinds[-1] > _SMALL_BYTES:
        for source, target, length in zip(old.tolist(), new.tolist(), lengths.tolist(), strict=True):
            arena[target : target + length] = arena[source : source + length]
    else:
        for length in kinds[kinds > 0].tolist():
            alike = lengths == length
            places: npt.NDArray[np.void] = np.ndarray(len(arena) - length + 1, f"V{length}", arena, strides=1)
            places[new[alike]] = places[old[alike]]
    column.rows[chosen, 0] = new
    slabs.hold_rows(new)
    slabs.drop_rows(old)
    return int(ends[-1])


def _lengths(column: RefColumn, chosen: Rows) -> Rows:
    """Bytes to copy of some rows: behind the last one the arena may end."""
    leaf = column.leaf
    is_unchecked = [column.leaf_at(row).unchecked for row in chosen.tolist()] if leaf is None else leaf.unchecked
    lengths: Rows = column.rows[chosen, 1] + CHECKSUM_BYTES * np.asarray(is_unchecked)
    return lengths


def spaces(column: RefColumn) -> Rows:
    """Bytes that each row occupies where rows are packed: a checksum behind it, or the gap in front of the next one."""
    leaf = column.leaf
    if leaf is None or leaf.kind in ("array", "table"):
        steps: Rows = -(-np.maximum(column.rows[:, 1], 1) // ALIGN) * ALIGN
        return steps
    return np.maximum(column.rows[:, 1] + CHECKSUM_BYTES * leaf.unchecked, 1)
