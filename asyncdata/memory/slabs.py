"""Slabs: spans of the arena, each with a count of its users.

A slab is alive while anything holds it: its writer (a read in flight, a worker task) or rows that point into it. Rows
have no handle of their own. The count is kept per slab and changed for a whole block at a time: an offset leads to its
slab through the granule table, and one ``bincount`` per block does the rest. When the count reaches zero, the span goes
back to the allocator, still resident and warm, and its bytes go back to the account that was charged.

Not thread-safe: only the stage loop's thread calls this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.spans import SpanAllocator

_SHIFT: Final = GRANULE.bit_length() - 1


class Slab:
    """One span in use.

    Attributes:
        offset: Where it begins in the arena.
        nbytes: Its whole size, which is what its account is charged with.
        account: The account that is charged now; the charge moves downstream with the rows.
        is_new: It had no pages when it was taken.
    """

    __slots__ = ("account", "index", "is_new", "nbytes", "offset")

    def __init__(self, index: int, offset: int, nbytes: int, account: Any, is_new: bool) -> None:
        self.index = index
        self.offset = offset
        self.nbytes = nbytes
        self.account = account
        self.is_new = is_new

    def __repr__(self) -> str:
        return f"Slab({self.nbytes} bytes at {self.offset:#x})"


class Slabs:
    """All slabs of one arena.

    Args:
        arena: Where the bytes lie.
        allocator: Decides which span is taken, and which cached ones go back to the system for it.
        freed: Called with each slab whose count has reached zero, before its span is reused.
    """

    def __init__(self, arena: Arena, allocator: SpanAllocator, freed: Callable[[Slab], None]) -> None:
        self.arena = arena
        self._allocator = allocator
        self._freed = freed
        self._owner = np.zeros(arena.nbytes >> _SHIFT, np.int32)
        self._holds = np.zeros(64, np.int64)
        self._slabs: list[Slab | None] = [None] * 64
        self._unused = list(range(63, -1, -1))

    def __repr__(self) -> str:
        return f"Slabs({len(self)} alive, {self._allocator.used_bytes} bytes used)"

    def __len__(self) -> int:
        return len(self._slabs) - len(self._unused)

    def close(self) -> None:
        """Lets go of the owner, so that the mapping ends with its last view, not with a garbage collection."""
        self._freed = _ignore

    def alive(self) -> list[Slab]:
        """Every slab in use, for tests and reports."""
        return [slab for slab in self._slabs if slab is not None]

    def take(self, nbytes: int, account: Any) -> Slab:
        """A slab of at least `nbytes`, held once by the caller, who has been granted the bytes already.

        Raises:
            OSError: The shared memory file system is full; nothing was taken.
        """
        taken = self._allocator.take(nbytes)
        if taken is None:
            raise AssertionError(f"the ledger granted {nbytes} bytes that the arena does not have")
        for offset, size in taken.punch:
            self.arena.punch(offset, size)
        span = taken.span
        try:
            self.arena.prepare(span.offset, span.nbytes)
        except OSError:
            self._allocator.give(span.offset)
            raise
        if not self._unused:
            self._grow()
        index = self._unused.pop()
        slab = Slab(index, span.offset, span.nbytes, account, taken.is_new)
        self._slabs[index] = slab
        self._holds[index] = 1
        self._owner[span.offset >> _SHIFT : (span.offset + span.nbytes) >> _SHIFT] = index
        return slab

    def _grow(self) -> None:
        n = len(self._slabs)
        self._unused.extend(range(2 * n - 1, n - 1, -1))
        self._slabs.extend([None] * n)
        self._holds = np.concatenate((self._holds, np.zeros(n, np.int64)))

    def hold(self, slab: Slab) -> None:
        """One more holder."""
        self._holds[slab.index] += 1

    def drop(self, slab: Slab) -> None:
        """One holder less."""
        self._subtract(slab.index, 1)

    def drop_each(self, slabs: Sequence[Slab]) -> None:
        """One holder less of each."""
        for slab in slabs:
            self._subtract(slab.index, 1)

    def holds(self, slab: Slab) -> int:
        """How many holders a slab has."""
        return int(self._holds[slab.index])

    def holds_by_index(self) -> npt.NDArray[np.int64]:
        """How many holders each slab has, for reading only."""
        return self._holds

    def at(self, offset: int) -> Slab:
        """The slab that an offset lies in."""
        slab = self._slabs[int(self._owner[offset >> _SHIFT])]
        if slab is None or not slab.offset <= offset < slab.offset + slab.nbytes:
            raise AssertionError(f"offset {offset:#x} lies in no slab in use")
        return slab

    def hold_rows(self, offsets: Rows) -> None:
        """One more holder per row."""
        for index, count in self.holds_of(offsets):
            self._holds[index] += count

    def drop_rows(self, offsets: Rows) -> None:
        """One holder less per row."""
        for index, count in self.holds_of(offsets):
            self._subtract(index, count)

    def claim(self, holds: list[tuple[int, int]]) -> None:
        """Turns the holds of rows, from `holds_of`, into one hold per slab, for a holder that drops them together."""
        for index, count in holds:
            self._holds[index] -= count - 1

    def of_rows(self, offsets: Rows) -> npt.NDArray[np.int32]:
        """The index of each row's slab; `slab(index)` gives the slab itself."""
        owners: npt.NDArray[np.int32] = self._owner[offsets >> _SHIFT]
        return owners

    def slab(self, index: int) -> Slab:
        """The slab with this index."""
        slab = self._slabs[index]
        if slab is None:
            raise AssertionError(f"slab {index} is not in use")
        return slab

    def by_index(self, indices: Sequence[int]) -> list[Slab]:
        """The slabs with these indices."""
        known = self._slabs
        found = [slab for index in indices if (slab := known[index]) is not None]
        if len(found) < len(indices):
            raise AssertionError(f"of slabs {indices} some are not in use")
        return found

    def holds_of(self, offsets: Rows) -> list[tuple[int, int]]:
        """The indices of the slabs that these rows lie in, ascending, and how many rows lie in each."""
        if not len(offsets):
            return []
        owners = self.of_rows(offsets)
        first = int(owners[0])
        if first == owners[-1] and (owners == first).all():
            return [(first, len(owners))]
        counts = np.bincount(owners)
        present = np.flatnonzero(counts)
        return list(zip(present.tolist(), counts[present].tolist(), strict=True))

    def _subtract(self, index: int, count: int) -> None:
        left = int(self._holds[index]) - count
        slab = self._slabs[index]
        if left < 0 or slab is None:
            raise AssertionError(f"slab {index} was released more often than held")
        self._holds[index] = left
        if left == 0:
            self._slabs[index] = None
            self._unused.append(index)
            self._allocator.give(slab.offset)
            self._freed(slab)


def _ignore(slab: Slab) -> None:
    """Nobody is charged any more."""
