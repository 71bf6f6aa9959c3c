"""Packs rows that are scattered over the arena into one piece of memory: a slab, or a private array.

    arena     |..row 0..|.......|..row 2..|....|..row 1..|
    packed    |row 0|row 1|row 2|table: where the items lie|

A batch that was shuffled refers to every slab from which its records came. A packed batch needs only its own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.memory.columns import read_table, read_tables
from asyncdata.memory.leaf import Leaf

ALIGNMENT: Final = 64
"""Of every row; the items of a table lie one behind the other."""


@dataclass(frozen=True, slots=True)
class RefLeaf:
    """One leaf in the arena (or in a packed copy of it): where each row lies and what it is.

    Attributes:
        rows: ``int64[n, 2]``: offset and length.
        leaf: What every row is, or None when `leaves` says it row by row.
        leaves: See `leaf`.
    """

    rows: Rows
    leaf: Leaf | None
    leaves: npt.NDArray[np.object_] | None

    def leaf_at(self, row: int) -> Leaf:
        """What one row is."""
        if self.leaf is not None:
            return self.leaf
        assert self.leaves is not None
        leaf: Leaf = self.leaves[row]
        return leaf


class Packer:
    """See the module's docstring: `add` plans, `write` copies.

    Args:
        arena: Where the rows lie.

    Attributes:
        nbytes: What they need together.
    """

    def __init__(self, arena: npt.NDArray[np.uint8]) -> None:
        self._arena = arena
        self.nbytes = 0
        self._columns: list[RefLeaf] = []
        self._moves: list[tuple[Rows, Rows]] = []
        self._tables: list[tuple[int, Rows]] = []

    def add(self, column: RefLeaf) -> None:
        """Plans for the rows of one leaf."""
        offsets = column.rows[:, 0]
        rows = column.rows.copy()
        rows[:, 0] = self._place(column.rows, ALIGNMENT)
        self._columns.append(RefLeaf(rows, column.leaf, column.leaves))
        if column.leaf is not None:
            if column.leaf.kind == "table" and len(rows):
                self._add_tables(rows[:, 0], offsets, column.leaf.shape[0])
            return
        for row in range(len(rows)):
            leaf = column.leaf_at(row)
            if leaf.kind == "table":
                self._add_tables(rows[row : row + 1, 0], offsets[row : row + 1], leaf.shape[0])

    def _add_tables(self, starts: Rows, offsets: Rows, count: int) -> None:
        """The items of tables of `count` each; the tables are written anew."""
        if len(offsets) == 1:
            items = read_table(self._arena, int(offsets[0]), count).copy()
        else:
            items = read_tables(self._arena, offsets, count)
        items[:, 0] = self._place(items, 1)
        self._tables += [(start, items[row * count : (row + 1) * count]) for row, start in enumerate(starts.tolist())]

    def _place(self, rows: Rows, alignment: int) -> Rows:
        """Where these rows will begin."""
        if not len(rows):
            return rows[:, 0]
        ends = np.cumsum(-(-rows[:, 1] // alignment) * alignment) + self.nbytes
        starts: Rows = np.concatenate(([self.nbytes], ends[:-1]))
        # An empty row behind a full slab would lie in the next one.
        starts[rows[:, 1] == 0] = 0
        self.nbytes = max(-(-int(ends[-1]) // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        self._moves.append((starts, rows.copy()))
        return starts

    def write(self, view: memoryview, at: int) -> tuple[RefLeaf, ...]:
        """Copies everything to ``view[at : at + nbytes]``; returns the leaves, whose offsets are those in `view`."""
        arena = self._arena.data
        for starts, rows in self._moves:
            for start, (offset, length) in zip((starts + at).tolist(), rows.tolist(), strict=True):
                view[start : start + length] = arena[offset : offset + length]
        for start, items in self._tables:
            items[:, 0] += at
            view[at + start : at + start + items.nbytes] = items.tobytes()
        for column in self._columns:
            column.rows[:, 0] += at
        return tuple(self._columns)

    def write_apart(self) -> tuple[npt.NDArray[np.uint8], tuple[RefLeaf, ...]]:
        """Copies everything into an array of its own."""
        out = np.empty(self.nbytes + ALIGNMENT, np.uint8)
        skip = -out.ctypes.data % ALIGNMENT
        base = out[skip : skip + self.nbytes]
        return base, self.write(base.data, 0)
