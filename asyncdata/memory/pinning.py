"""When byte strings that lie in records are handed on as references to them, and when they are copied.

A reference costs nothing, but as long as it lives its slab cannot be used again, with all the records in it.
"""

from __future__ import annotations

from typing import Final

from asyncdata.memory.advance import Rows

MOST_PINNED: Final = 2.4
"""References may keep so many times the memory that they refer to."""


def is_small_part(strings: int, records: int) -> bool:
    """Whether byte strings are copied, by how many bytes they and their records take."""
    return 0 < strings * MOST_PINNED < records


def inside(places: Rows, records: Rows) -> Rows:
    """The places of byte strings, as rows that hold the slabs of their records.

    An empty one at the end of a record may lie behind its slab; it is said to lie where its record begins, or the first
    one, where there is not one of each.
    """
    empty = places[:, 1] == 0
    if not empty.any():
        return places
    places = places.copy()
    places[empty, 0] = records[empty, 0] if len(places) == len(records) else records[0, 0]
    return places
