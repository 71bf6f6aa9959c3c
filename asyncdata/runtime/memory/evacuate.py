"""Frees slabs that a buffer of references keeps alive for a few rows.

A slab lives as long as any row points into it. A shuffle buffer holds rows of many slabs, most of which it has passed
on already: without this it would pin several times the bytes it needs. Now and then the rows left in thinly used slabs
are copied together into a new one: those that are live to less than an eighth once all buffers pin a quarter of the
memory limit, or to less than three quarters once they pin half of it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Rows
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import CHECKSUM_BYTES
from asyncdata.runtime.memory.budget import Budget

_SHORT: Final = 1 / 2
_THIN: Final = ((_SHORT, 3 / 4), (1 / 4, 1 / 8))
"""Beyond which part of the limit slabs are thin that are live to less than which part; the shorter memory is, the more
copying is worth."""
_MOST_BYTES: Final = 4 << 20
_MOST_MOVES: Final = 8
"""Of so many bytes, where memory is short; one otherwise."""


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
        sizes = _spaces(column)
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
        count = max(1, int(np.searchsorted(np.cumsum(live[thin]), _MOST_BYTES, side="right")))
        while thin and count:
            chosen = np.flatnonzero(np.isin(owners, thin[:count]))
            if self._move(column, chosen, sizes[chosen]):
                return True
            count //= 2
        return False

    def _move(self, column: RefColumn, chosen: Rows, sizes: npt.NDArray[np.int64]) -> bool:
        slabs = self._budget.slabs
        ends = np.cumsum(sizes)
        slab = self._budget.take_now(self._account, int(ends[-1]))
        if slab is None:
            return False
        arena = slabs.arena.array
        old = column.rows[chosen, 0].copy()
        new = slab.offset + ends - sizes
        for source, target, size in zip(old.tolist(), new.tolist(), sizes.tolist(), strict=True):
            arena[target : target + size] = arena[source : source + size]
        column.rows[chosen, 0] = new
        slabs.hold_rows(new)
        slabs.drop_rows(old)
        slabs.drop(slab)
        self.copied_bytes += int(ends[-1])
        return True


def _spaces(column: RefColumn) -> npt.NDArray[np.int64]:
    """Bytes each row occupies, a checksum behind it included."""
    unchecked = column.leaf is not None and column.leaf.unchecked
    return np.maximum(column.rows[:, 1] + CHECKSUM_BYTES * unchecked, 1)
