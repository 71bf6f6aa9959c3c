"""Whole objects: one record, which is everything, the empty object included."""

from __future__ import annotations

import numpy as np

from asyncdata.formats.framing import NOWHERE, Frames, Place, Refs, Values
from asyncdata.memory.structure import LEAF, Structure, TupleOf


class WholeFramer:
    """See the module's docstring.

    Args:
        url: Given in front of the bytes as the first of a pair, if not None.
    """

    in_thread = False

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self.structure: Structure = LEAF if url is None else TupleOf((LEAF, LEAF))

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`."""
        del view, limit
        size = stop - start
        if not last:
            return Frames(starts=NOWHERE, values=self._values(None), stop=start, need=remaining or 0)
        if not size and place.offset:
            return Frames(starts=NOWHERE, values=self._values(None), stop=stop)
        content: Values = Refs(np.array([[start, size]], np.int64)) if size else [b""]
        return Frames(starts=np.array([start], np.int64), values=self._values(content), stop=stop)

    def _values(self, content: Values | None) -> tuple[Values, ...]:
        found: Values = [] if content is None else content
        return (found,) if self._url is None else ([] if content is None else [self._url], found)
