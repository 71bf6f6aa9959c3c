"""The strings of tables as rows of their own, which may be moved like others.

    table   |offset, length|offset, length|offset, length|
    column  |  string 0    |   string 1   |   string 2   |   moved elsewhere ─▶ the table is written again

A batch of strings is one row: a table of where they lie. Tables are shared as rows are, by holding their slab. Whoever
writes a table again must know all who read it, so only tables count whose slab nobody holds but rows that may be moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import Rows
from asyncdata.memory.columns import RefColumn, read_table, read_tables
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.slabs import Slabs


class TableStrings:
    """See the module's docstring.

    Args:
        tables: Whose rows are tables of equal length.
        places: Those of its rows that are meant.
        count: Strings of each.

    Attributes:
        column: The strings. Their holds are those of the tables.
    """

    def __init__(self, tables: RefColumn, places: Rows, count: int) -> None:
        slabs = tables.slabs
        self._tables = tables
        self._places = places
        self._count = count
        unchecked = tables.leaf_at(int(places[0])).unchecked
        offsets, arena = tables.rows[places, 0], slabs.arena.array
        strings = read_tables(arena, offsets, count) if len(places) > 1 else read_table(arena, offsets[0], count).copy()
        self.column = RefColumn(slabs, strings, Leaf("bytes", unchecked=unchecked))

    def write_tables(self) -> None:
        """The tables, wherever they are now, say where the strings are."""
        arena, rows = self._tables.slabs.arena.array, self.column.rows.reshape(-1, self._count, 2)
        for offset, strings in zip(self._tables.rows[self._places, 0].tolist(), rows, strict=True):
            read_table(arena, offset, self._count)[...] = strings


def strings_of_tables(columns: Sequence[RefColumn], slabs: Slabs) -> list[TableStrings]:
    """The strings of all tables that only these columns have, which are all whose rows may be moved.

    Where two rows are one table, its strings are there twice. All of a slab is moved to one other slab, so either copy
    may be what the table says: as many rows hold the slab of both.
    """
    rows = np.bincount(slabs.of_rows(np.concatenate([column.rows[:, 0] for column in columns])))
    theirs: npt.NDArray[np.bool_] = slabs.holds_by_index()[: len(rows)] == rows
    found = []
    for column in columns:
        for tables, count in _tables_of(column):
            places = tables[theirs[slabs.of_rows(column.rows[tables, 0])]]
            if len(places):
                found.append(TableStrings(column, places, count))
    return found


def _tables_of(column: RefColumn) -> Iterator[tuple[Rows, int]]:
    """Which rows are tables that are not empty, by their length."""
    by_leaf: dict[Leaf, Any] = {}
    if column.leaf is not None:
        by_leaf[column.leaf] = range(len(column))
    elif column.leaves is not None:
        for place, leaf in enumerate(column.leaves):
            by_leaf.setdefault(leaf, []).append(place)
    for leaf, places in by_leaf.items():
        if leaf.kind == "table" and leaf.shape[0]:
            yield np.array(places, np.int64), leaf.shape[0]
