"""`BufferLog`: what a shuffle's buffer held at the rows of its marks, without a copy for each of them.

    base    slots 0 … n                  one copy: the buffer as it was some rows ago
    taken   [slots, rows] [slots, rows]  references, of each block that has come since

Most marks are never looked at. What one of them says of the buffer is put together when somebody asks. Rows in front of
the oldest `BufferMoment` to which there is a reference become a part of the base, so that there is never a second copy.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.memory.columns import Column, concat
from asyncdata.runtime.stages.order.history_columns import replaced

_SETTLE_PART: Final = 4
"""Of the buffer: when so many rows can become a part of the base, they do."""


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


class BufferMoment:
    """The buffer after a number of rows; while anybody refers to it, the log keeps what it takes to answer."""

    __slots__ = ("__weakref__", "_log", "rows")

    def __init__(self, log: BufferLog, rows: int) -> None:
        self._log = log
        self.rows = rows

    def held(self) -> tuple[list[Rows], Column]:
        """What the buffer held: what its rows are known by, and what they use up of tracks, by slot."""
        return self._log.at(self.rows)


class BufferLog:
    """See the module's docstring. One thread adds rows, any thread may ask.

    Args:
        known: What the rows of the buffer are known by, by slot.
        history: What they use up of tracks.

    Attributes:
        rows: That have come since.
    """

    __slots__ = ("_history", "_known", "_moments", "_since", "rows")

    def __init__(self, known: Sequence[Rows], history: Column) -> None:
        self._known = [each.copy() for each in known]
        self._history = history.gather(np.arange(len(history)))
        # After how many rows the base was taken, and the blocks since. One assignment replaces both, for other threads.
        self._since: tuple[int, list[_Taken]] = (0, [])
        self._moments: deque[weakref.ref[BufferMoment]] = deque()
        self.rows = 0

    @property
    def kept_rows(self) -> int:
        """That are kept beside the base."""
        return self.rows - self._since[0]

    def take(self, slots: Rows, known: Sequence[Rows], history: Column) -> None:
        """The rows of the next block have taken these slots."""
        self._settle()
        self._since[1].append(_Taken(slots, known, history))
        self.rows += len(slots)

    def moment(self, rows: int) -> BufferMoment:
        """When so many rows had come: among those of the last block, and not in front of the last moment."""
        moment = BufferMoment(self, rows)
        self._moments.append(weakref.ref(moment))
        return moment

    def at(self, rows: int) -> tuple[list[Rows], Column]:
        """What the buffer held when so many rows had come, which no `_settle` may have passed.

        See `BufferMoment.held`.
        """
        # In this order: the base may already have some of these rows, and gets them once more.
        begin, taken = self._since
        known, history = [each.copy() for each in self._known], self._history
        slots, fresh_known, fresh_history = _joined(taken, rows - begin)
        for each, fresh in zip(known, fresh_known, strict=False):
            each[slots] = fresh
        return known, history if fresh_history is None else replaced(history, fresh_history, slots)

    def _settle(self) -> None:
        """What no moment needs to be told from the base becomes a part of it."""
        while self._moments and (oldest := self._moments[0]()) is None:
            self._moments.popleft()
        until = oldest.rows if self._moments and oldest is not None else self.rows
        begin, taken = self._since
        if until - begin < max(1, len(self._history) // _SETTLE_PART):
            return
        count, end = 0, begin
        while count < len(taken) and end + len(taken[count].slots) <= until:
            end += len(taken[count].slots)
            count += 1
        slots, fresh_known, fresh_history = _joined(taken[:count], end - begin)
        for each, fresh in zip(self._known, fresh_known, strict=False):
            each[slots] = fresh
        if fresh_history is not None:
            self._history = replaced(self._history, fresh_history, slots)
        self._since = end, taken[count:]


def _joined(taken: Sequence[_Taken], rows: int) -> tuple[Rows, list[Rows], Column | None]:
    """The first rows of all blocks; the last of those that took the same slot counts."""
    parts: list[_Taken] = []
    for slots, known, history in taken:
        if rows <= 0:
            break
        count = min(rows, len(slots))
        parts.append(_Taken(slots[:count], [each[:count] for each in known], history.pick(np.arange(count))))
        rows -= count
    if not parts:
        return np.empty(0, np.int64), [], None
    slots = np.concatenate([part.slots for part in parts])
    known = [np.concatenate(each) for each in zip(*(part.known for part in parts), strict=True)]
    return slots, known, concat([part.history for part in parts])
