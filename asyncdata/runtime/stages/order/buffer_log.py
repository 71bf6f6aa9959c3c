"""`BufferLog`: what a shuffle's buffer held at any of the last rows, without a copy for each of them.

    base    slots 0 … n                  copied once for as many rows as the buffer has
    taken   [slots, rows] [slots, rows]  references, of each block that has come since

Most marks are never looked at. What one of them says of the buffer is put together when somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.memory.columns import Column
from asyncdata.runtime.stages.order.history_columns import replaced


class _Taken(NamedTuple):
    """Rows that have taken slots, one after the other.

    Attributes:
        slots: Which.
        known: What the rows are known by.
        history: What they use up of tracks.
    """

    slots: Rows
    known: Sequence[Rows]
    history: Column


class BufferLog:
    """See the module's docstring. Rows are only added, so that any thread may ask.

    Args:
        known: What the rows of the buffer are known by, by slot.
        history: What they use up of tracks.

    Attributes:
        rows: That have come since.
    """

    __slots__ = ("_history", "_known", "_taken", "rows")

    def __init__(self, known: Sequence[Rows], history: Column) -> None:
        self._known = [each.copy() for each in known]
        self._history = history.gather(np.arange(len(history)))
        self._taken: list[_Taken] = []
        self.rows = 0

    def take(self, slots: Rows, known: Sequence[Rows], history: Column) -> None:
        """The rows of the next block have taken these slots."""
        self._taken.append(_Taken(slots, known, history))
        self.rows += len(slots)

    def at(self, rows: int) -> tuple[list[Rows], Column]:
        """What the buffer held when so many rows had come: what these are known by, and what they use up of tracks."""
        known, history = [each.copy() for each in self._known], self._history
        for slots, fresh_known, fresh_history in self._taken:
            count = min(rows, len(slots))
            for each, fresh in zip(known, fresh_known, strict=True):
                each[slots[:count]] = fresh[:count]
            history = replaced(history, fresh_history, slots[:count])
            rows -= count
            if not rows:
                break
        return known, history
