"""Slabs that consumers hold of one part of the memory: of the pipeline that uses it now, and of those before it.

A batch may outlive the iterator it came from. The next iterator has to make do with what its consumers leave, so what
each of them may hold is counted together.
"""

from __future__ import annotations

from asyncdata.memory.slabs import Slab


class Kept:
    """How often each slab was lent to a consumer. Stage loop only.

    Attributes:
        nbytes: Bytes of slabs that consumers hold.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.nbytes = 0

    def __contains__(self, index: int) -> bool:
        return index in self._counts

    def add(self, slab: Slab) -> bool:
        """Lends a slab once more; says whether this is the first time."""
        count = self._counts.get(slab.index, 0)
        self._counts[slab.index] = count + 1
        if not count:
            self.nbytes += slab.nbytes
        return not count

    def drop(self, slab: Slab) -> None:
        """A consumer has let go of it."""
        left = self._counts[slab.index] - 1
        if left:
            self._counts[slab.index] = left
        else:
            del self._counts[slab.index]
            self.nbytes -= slab.nbytes
