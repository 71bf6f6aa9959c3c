"""What the rows of a shuffle's buffer have beside their elements: provenance, and what they use up, as columns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, alike, merge
from asyncdata.memory.used import NO_PAIRS, PAIR_WIDTH, Used


def history_of(used: Used | None, count: int) -> Column:
    """What each of so many rows uses up of tracks.

    An array of as many pairs for each row, or, where the numbers differ, objects: an array of pairs each.
    """
    if used is None:
        return ArrayColumn(np.empty((count, 0, PAIR_WIDTH), np.int64))
    if used.ends is None:
        return ArrayColumn(used.pairs.reshape(-1, 1, PAIR_WIDTH))
    return ObjectColumn([used.pairs[a:b] for a, b in pairwise((0, *used.ends.tolist()))])


def with_history(block: Block) -> list[Column]:
    """The block's columns, then its provenance, then `history_of` its rows."""
    return [*block.columns, ArrayColumn(block.origin), history_of(block.advance.used, len(block))]


def used_of(history: Column) -> Used | None:
    """What rows use up of tracks; the inverse of `history_of`."""
    if isinstance(history, ObjectColumn):
        parts = [pairs.reshape(-1, PAIR_WIDTH) for pairs in history.items]
        counts = np.array([len(part) for part in parts], np.int64)
        # However blocks were cut, the same is said in the same way.
        ends = None if (counts == 1).all() else np.cumsum(counts)
        return Used(np.concatenate([NO_PAIRS, *parts]), ends)
    assert isinstance(history, ArrayColumn)
    return Used(history.array.reshape(-1, PAIR_WIDTH)) if history.array.shape[1] else None


def replaced(held: Column, fresh: Column, slots: Rows) -> Column:
    """The rows of a buffer, when the first fresh ones have taken the places of some, one after the other."""
    if isinstance(held, ArrayColumn) and isinstance(fresh, ArrayColumn) and not held.array.size + fresh.array.size:
        return held
    source = np.arange(len(held))
    source[slots] = len(held) + np.arange(len(slots))
    return merge(*alike(held, fresh), source)
