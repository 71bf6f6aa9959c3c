"""Real slabs for tests of what points into them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import BYTES, Leaf
from asyncdata.memory.slabs import Slab, Slabs
from asyncdata.memory.spans import SpanAllocator

LIMIT = 16 * GRANULE


class Place:
    """An arena with slabs, and a count of those that were freed.

    Attributes:
        slabs: The slabs.
        freed: Every slab whose count has reached zero.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.freed: list[Slab] = []
        self.slabs = Slabs(arena, SpanAllocator(arena.nbytes, LIMIT, GRANULE), self.freed.append)

    def column(self, payloads: Sequence[bytes], leaf: Leaf = BYTES, *, per_slab: int = 2) -> RefColumn:
        """Rows in slabs of their own, `per_slab` of them in each."""
        rows = np.empty((len(payloads), 2), np.int64)
        for start in range(0, len(payloads), per_slab):
            part = payloads[start : start + per_slab]
            slab = self.slabs.take(sum(map(len, part)) + 1, None)
            at = slab.offset
            for row, payload in enumerate(part, start):
                self.arena.view[at : at + len(payload)] = payload
                rows[row] = at, len(payload)
                self.slabs.hold(slab)
                at += len(payload)
            self.slabs.drop(slab)
        return RefColumn(self.slabs, rows, leaf)


@contextmanager
def place() -> Iterator[Place]:
    """A place in which nothing is held any more at the end."""
    arena = Arena(4 * LIMIT)
    try:
        found = Place(arena)
        yield found
        assert found.slabs.alive() == []
    finally:
        arena.close()
