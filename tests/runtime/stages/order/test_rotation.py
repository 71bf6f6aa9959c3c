"""Whose turn it is: planned in bulk, equal to taking one row after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.runtime.stages.order.rotation import Turn, next_turn, plan_rows, recorded_rows, runs_of
from asyncdata.runtime.state.choices import Choices, pack


def one_by_one(
    available: list[int], vacant: list[bool], turn: Turn, block_length: int, limit: int
) -> tuple[list[int], Turn]:
    """Rows taken singly until a slot that is asked has none, or all slots are vacant."""
    left = list(available)
    slot, taken = turn
    out: list[int] = []
    while len(out) < limit and not all(vacant):
        if vacant[slot]:
            slot, taken = (slot + 1) % len(left), 0
            continue
        if not left[slot]:
            break
        left[slot] -= 1
        out.append(slot)
        taken += 1
        if taken == block_length:
            slot, taken = (slot + 1) % len(left), 0
    return out, Turn(slot, taken)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(0, 60),
)
def test_a_plan_is_what_taking_single_rows_gives(
    slots: list[tuple[int, bool]], slot: int, taken: int, block_length: int, limit: int
) -> None:
    """Rows and the turn afterwards are those of the plain loop, for every state of the slots."""
    available = [0 if vacant else rows for rows, vacant in slots]
    vacant = [is_vacant for _, is_vacant in slots]
    turn = Turn(slot % len(slots), min(taken, block_length - 1))
    plan = plan_rows(available, vacant, turn, block_length, limit)
    rows, after = one_by_one(available, vacant, turn, block_length, limit)
    assert plan.slots.tolist() == rows
    if rows and not all(vacant):
        # Behind the last row both may stand in front of vacant slots that the other has passed already.
        assert _at_a_slot(plan.turn, vacant) == _at_a_slot(after, vacant)


def _at_a_slot(turn: Turn, vacant: list[bool]) -> Turn:
    while vacant[turn.slot]:
        turn = next_turn(turn, len(vacant))
    return turn


def test_the_next_turn_begins_anew() -> None:
    """Passing the turn on starts a block of rows at the next slot, in a circle."""
    assert next_turn(Turn(0, 3), 2) == Turn(1, 0)
    assert next_turn(Turn(1, 0), 2) == Turn(0, 0)


def test_nothing_at_hand_plans_nothing() -> None:
    """Without rows, or without slots to be asked, the plan is empty and ends."""
    assert len(plan_rows([0, 5], [False, False], Turn(0, 0), 2, 10).slots) == 0
    assert len(plan_rows([0, 0], [True, True], Turn(0, 0), 2, 10).slots) == 0
    assert plan_rows([0, 5], [True, False], Turn(0, 1), 2, 3).slots.tolist() == [1, 1, 1]


def test_a_recorded_order_is_repeated() -> None:
    """From whatever slots the datasets have got, as far as rows are available."""
    order = np.array([0, 0, 1, 0, 2, 2, 2])
    runs = runs_of(order, [7, 3, 9])
    assert runs.tolist() == [[7, 2], [3, 1], [7, 1], [9, 3]]
    choices = Choices(1, None, [pack(runs)])
    assert recorded_rows([1, 9, 5], [9, None, 7], choices, 100).tolist() == [2, 2]
    assert recorded_rows([1, 9, 5], [9, 3, 7], choices, 3).tolist() == [1, 2, 0]
    assert choices.wanted == (9, 2)
    assert recorded_rows([0, 0, 0], [9, 3, 7], choices, 3).tolist() == []
    assert runs_of(np.empty(0, np.int64), [None, None]).tolist() == []
