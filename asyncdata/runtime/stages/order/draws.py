"""The draws of `shuffle`, as pure functions: which slot each output leaves, and which row it is then."""

from __future__ import annotations

from typing import Final

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.runtime.randomness import below

_SHORT: Final = 1 << 16
_LOOKED_AHEAD: Final = 4
"""Draws for each slot that are looked at: of fifty slots one is not among them."""
_FEW: Final = 1 << 16
"""So many draws are looked at together, or the above for each slot if that is more."""


def exchange(slots: Rows, size: int) -> tuple[Rows, Rows, Rows]:
    """Resolves one block of draws.

    Args:
        slots: ``int64[n]``: the slot drawn for each input of the block.
        size: Slots in the buffer.

    Returns:
        ``source``: ``int64[n]``, for each output its slot (below `size`), or ``size + j`` for input j of this block;
        ``written``: the slots that change, ascending; ``last``: for each of those the input that ends up in it.
    """
    count = len(slots)
    # Small numbers are sorted by their digits, which is several times faster.
    order = np.argsort(slots.astype(np.uint16) if size <= _SHORT else slots, kind="stable")
    ordered = slots.take(order)
    again = np.empty(count, bool)
    again[:1] = False
    again[1:] = ordered[1:] == ordered[:-1]
    sources = ordered.copy()
    later = np.flatnonzero(again)
    sources[later] = size + order.take(later - 1)
    source = np.empty(count, np.int64)
    source[order] = sources
    ends = np.empty(count, bool)
    ends[-1:] = True
    ends[:-1] = ~again[1:]
    return source, ordered[ends], order[ends]


def swapped(key: tuple[int, int], drawn: int, size: int, count: int) -> Rows:
    """The slots that so many inputs take in a full buffer, behind so many draws."""
    return below(key, drawn, np.full(count, size, np.int64))


def drained(key: tuple[int, int], drawn: int, size: int, count: int) -> Rows:
    """The places from which a buffer of so many rows that is not filled up any more is emptied."""
    return below(key, drawn, np.arange(size, size - count, -1, dtype=np.int64))


def pop(places: list[int], draws: Rows) -> Rows:
    """Takes what was drawn out of a list, whose last entry takes its place each time."""
    gone = np.empty(len(draws), np.int64)
    for row, slot in enumerate(draws.tolist()):
        gone[row] = places[slot]
        places[slot] = places[-1]
        places.pop()
    return gone


def turns(key: tuple[int, int], drawn: int, size: int, *, full: bool, least: int = 0) -> Rows:
    """``int64[size]``: how many outputs leave before each slot is drawn for the first time.

    Args:
        key: Of the draws.
        drawn: Outputs so far.
        size: Slots.
        full: Whether inputs still come; else the buffer is emptied.
        least: So many outputs are looked at, or more.
    """
    count = max(_LOOKED_AHEAD * size, least)
    found = np.full(size, count, np.int64)
    if not full:
        found[pop(list(range(size)), drained(key, drawn, size, size))] = np.arange(size)
        return found
    # A few draws at a time: long before all that are to be looked at, every slot has been drawn.
    together = max(_LOOKED_AHEAD * size, _FEW)
    for begin in range(0, count, together):
        slots = swapped(key, drawn + begin, size, min(together, count - begin))
        first = np.full(size, count, np.int64)
        # Of several numbers that are put into one place, the last one stays.
        first[slots[::-1]] = np.arange(begin, begin + len(slots))[::-1]
        np.minimum(found, first, out=found)
        if int(found.max()) < begin + len(slots):
            break
    return found
