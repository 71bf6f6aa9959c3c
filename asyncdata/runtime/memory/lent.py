"""Slabs that consumers hold of one part of the memory: of the pipeline that uses it now, and of those before it.

A batch may outlive the iterator it came from. The next iterator has to make do with what its consumers leave, so what
each of them may hold is counted together.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncdata.memory.slabs import Slab


class LentSlabs:
    """How often each slab was lent to a consumer. Stage loop only.

    Attributes:
        counts: By the slab's index.
        nbytes: Bytes of slabs that consumers hold.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.nbytes = 0

    def lend(self, slabs: Sequence[Slab]) -> list[Slab]:
        """Lends each slab once more; returns those that no consumer held before."""
        counts = self.counts
        fresh = []
        for slab in slabs:
            index = slab.index
            if index in counts:
                counts[index] += 1
            else:
                counts[index] = 1
                self.nbytes += slab.nbytes
                fresh.append(slab)
        return fresh

    def take_back(self, slabs: Sequence[Slab]) -> None:
        """A consumer has let go of what `lend` gave it."""
        counts = self.counts
        for slab in slabs:
            index = slab.index
            left = counts[index] - 1
            if left:
                counts[index] = left
            else:
                del counts[index]
                self.nbytes -= slab.nbytes
