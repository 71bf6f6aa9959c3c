"""`Used`: the elements of tracks that rows use up, where it is tracked which elements were delivered.

An element of a track is a pair, (track, position); see `asyncdata.runtime.state.tracks`. A row may use up several, and
rows that a filter dropped leave theirs behind: they are used up with the next row. What follows the last row is the
tail. Like an advance, all of this can be divided and joined at any row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

_Ints: TypeAlias = npt.NDArray[np.int64]

PAIR_WIDTH: Final = 2
NO_PAIRS: Final = np.empty((0, PAIR_WIDTH), np.int64)
NO_PAIRS.flags.writeable = False


class Used:
    """See the module's docstring.

    Attributes:
        pairs: ``int64[m, 2]`` (track, position), in the order of the rows.
        ends: ``int64[rows]``: once row i is consumed, ``pairs[:ends[i]]`` are used up. None: one each, and no tail.
    """

    __slots__ = ("ends", "pairs")

    def __init__(self, pairs: _Ints, ends: _Ints | None = None) -> None:
        self.pairs = pairs
        self.ends = ends

    @classmethod
    def nothing(cls, rows: int) -> Used:
        """That of rows which use up nothing."""
        return cls(NO_PAIRS, np.zeros(rows, np.int64))

    def end(self, row: int) -> int:
        """How many pairs are used up after `row` rows; the tail never is."""
        if row == 0:
            return 0
        return row if self.ends is None else int(self.ends[row - 1])

    def by_row(self) -> tuple[list[_Ints], _Ints]:
        """What each row uses up, and the tail."""
        *parts, tail = np.split(self.pairs, self._all_ends())
        return parts, tail

    def split(self, row: int) -> tuple[Used, Used]:
        """That of the first `row` rows and of the rest, with the tail."""
        cut = self.end(row)
        if self.ends is None:
            return Used(self.pairs[:cut]), Used(self.pairs[cut:])
        return Used(self.pairs[:cut], self.ends[:row]), Used(self.pairs[cut:], self.ends[row:] - cut)

    def select(self, kept: _Ints) -> Used:
        """That of these rows (ascending indices); what the others use up is used up with the next one."""
        return Used(self.pairs, self._all_ends()[kept])

    def reorder(self, order: _Ints) -> Used:
        """That of the rows in another order (a permutation); each takes its own along, and the tail stays."""
        if self.ends is None:
            return Used(self.pairs.take(order, axis=0))
        counts = np.diff(self.ends, prepend=0)[order]
        ends = np.cumsum(counts)
        shift = (self.ends[order] - ends).repeat(counts)
        index = np.arange(len(self.pairs))
        index[: len(shift)] += shift
        return Used(self.pairs.take(index, axis=0), ends)

    def pick(self, rows: _Ints) -> Used:
        """That of some rows, in any order, without the tail."""
        if self.ends is None:
            return Used(self.pairs.take(rows, axis=0))
        begins = np.where(rows > 0, self.ends[rows - 1], 0)
        counts = self.ends[rows] - begins
        ends = np.cumsum(counts)
        index = (begins - ends + counts).repeat(counts) + np.arange(counts.sum())
        return Used(self.pairs.take(index, axis=0), ends)

    def adding(self, pairs: _Ints) -> Used:
        """That of rows each of which also uses up one of these, in front of its own last one."""
        ends = self._all_ends()
        at = np.where(np.diff(ends, prepend=0) > 0, ends - 1, ends)  # a row that used up nothing has no last one
        return Used(np.insert(self.pairs, at, pairs, axis=0), ends + np.arange(1, len(ends) + 1))

    def group(self, stops: Sequence[int]) -> Used:
        """That of outputs each of which is made of the rows up to one of these."""
        return Used(self.pairs, np.array([self.end(stop) for stop in stops], np.int64))

    def _all_ends(self) -> _Ints:
        return np.arange(1, len(self.pairs) + 1, dtype=np.int64) if self.ends is None else self.ends

    @staticmethod
    def concat(parts: Sequence[Used]) -> Used:
        """That of rows joined end to end; a part's tail is used up with the next row that follows."""
        pairs = np.concatenate([part.pairs for part in parts])
        if all(part.ends is None for part in parts):
            return Used(pairs)
        ends, before = [], 0
        for part in parts:
            ends.append(part._all_ends() + before)  # noqa: SLF001 -- of this class
            before += len(part.pairs)
        return Used(pairs, np.concatenate(ends))

    @staticmethod
    def side_by_side(parts: Sequence[Used]) -> Used:
        """That of rows made of one row of each part: what all of them use up, in their order."""
        if all(part.ends is None for part in parts):
            width = len(parts)
            pairs = np.stack([part.pairs for part in parts], axis=1).reshape(-1, PAIR_WIDTH)
            return Used(pairs, np.arange(width, len(pairs) + 1, width, dtype=np.int64))
        all_ends = [part._all_ends() for part in parts]  # noqa: SLF001 -- of this class
        total: _Ints = np.stack(all_ends).sum(axis=0, dtype=np.int64)
        pairs = np.empty((int(total[-1]) if len(total) else 0, PAIR_WIDTH), np.int64)
        before = np.concatenate((np.zeros(1, np.int64), total))[: len(total)]
        for part, ends in zip(parts, all_ends, strict=True):
            counts = np.diff(ends, prepend=0)
            places = np.repeat(before - (ends - counts), counts) + np.arange(counts.sum())
            pairs[places] = part.pairs[: len(places)]
            before = before + counts
        return Used(pairs, total)
