"""Whose turn it is in an interleave: pure arithmetic on row counts.

The order is tf.data's: `block_length` elements from the slot whose turn it is, then the next slot, in a circle. A slot
whose dataset ends in the middle of its turn passes the turn on. Or it is the order that another run has recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncdata.memory.advance import Rows
from asyncdata.runtime.state.choices import Choices


class Turn(NamedTuple):
    """Whose turn it is: slot `slot`, of whose block `taken` elements have been taken."""

    slot: int
    taken: int


class RotationPlan(NamedTuple):
    """Rows that can leave without asking any slot for more.

    Attributes:
        slots: ``int64[n]``: the slot of each output row.
        turn: Whose turn it is afterwards.
    """

    slots: Rows
    turn: Turn


def next_turn(turn: Turn, cycle: int) -> Turn:
    """The turn passes to the next slot."""
    return Turn((turn.slot + 1) % cycle, 0)


def plan_rows(
    available: Sequence[int], vacant: Sequence[bool], turn: Turn, block_length: int, limit: int
) -> RotationPlan:
    """Which slots the next rows come from, until one must be asked for more, or `limit` is reached.

    Args:
        available: Rows available per slot.
        vacant: Slots that will never have rows again; the turn passes over them.
        turn: Whose turn it is.
        block_length: Elements per turn.
        limit: Rows at the most.
    """
    cycle = len(available)
    if cycle == 1:  # `flat_map`, which asks for every inner dataset, however small
        count = 0 if vacant[0] else min(available[0], limit)
        taken = 0 if vacant[0] else (turn.taken + count) % block_length
        return RotationPlan(np.zeros(count, np.int64), Turn(0, taken))
    left = list(available)
    whole: list[Rows] = []
    runs: list[int] = []
    lengths: list[int] = []
    room = limit
    slot, taken = turn
    passed = 0
    has_rounds = True
    while room and passed <= cycle:
        if vacant[slot]:
            slot, taken, passed = (slot + 1) % cycle, 0, passed + 1
            continue
        passed = 0
        if taken == 0 and has_rounds:
            # All that there are at once: behind them one slot, or the room, does not suffice for another.
            has_rounds = False
            ring = [s for s in (*range(slot, cycle), *range(slot)) if not vacant[s]]
            rounds = min(min(map(left.__getitem__, ring)) // block_length, room // (block_length * len(ring)))
            if rounds:
                whole += (_repeated(runs, lengths), np.tile(_repeated(ring, block_length), rounds))
                runs, lengths = [], []
                room -= rounds * block_length * len(ring)
                for s in ring:
                    left[s] -= rounds * block_length
                continue
        count = min(block_length - taken, left[slot], room)
        if not count:
            break
        runs.append(slot)
        lengths.append(count)
        left[slot] -= count
        room -= count
        taken += count
        if taken < block_length:
            break
        slot, taken = (slot + 1) % cycle, 0
    return RotationPlan(np.concatenate((*whole, _repeated(runs, lengths))), Turn(slot, taken))


def _repeated(slots: list[int], counts: int | list[int]) -> Rows:
    return np.repeat(np.array(slots, np.int64), counts)


def recorded_rows(available: Sequence[int], made_of: Sequence[int | None], choices: Choices, limit: int) -> Rows:
    """The slots of the next rows in a recorded order, until one of them has no more rows available.

    Args:
        available: Rows available per slot.
        made_of: The input row that each slot's dataset is made of; None for a free slot.
        choices: The recorded order, of which the rows are taken.
        limit: Rows at the most.
    """
    slot_of = {row: slot for slot, row in enumerate(made_of) if row is not None}
    left = list(available)
    slots: list[int] = []
    counts: list[int] = []
    while limit and (wanted := choices.wanted) is not None and wanted[0] in slot_of:
        slot = slot_of[wanted[0]]
        count = min(wanted[1], left[slot], limit)
        if not count:
            break
        slots.append(slot)
        counts.append(count)
        left[slot] -= count
        limit -= count
        choices.took(count)
    return np.repeat(np.array(slots, np.int64), counts)


def runs_of(order: Rows, made_of: Sequence[int | None]) -> Rows:
    """What `recorded_rows` repeats: for each run of rows of one slot, what its dataset is made of, and how many."""
    starts = np.flatnonzero(np.diff(order, prepend=-1))
    rows = np.array([-1 if row is None else row for row in made_of], np.int64)
    return np.stack((rows[order[starts]], np.diff(starts, append=len(order))), axis=1)
