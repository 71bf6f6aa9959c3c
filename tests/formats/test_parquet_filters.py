from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pytest

from asyncdata.formats.parquet_filters import Bounds, checked_filters, columns_of, may_pass

KNOWN = {
    "x": Bounds(3, 7, all_null=False),
    "n": Bounds(None, None, all_null=True),
    "u": Bounds(None, None, all_null=False),
}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (("x", "==", 3), True),
        (("x", "=", 7), True),
        (("x", "==", 2), False),
        (("x", "==", 8), False),
        (("x", "!=", 5), True),
        (("x", "<", 3), False),
        (("x", "<", 4), True),
        (("x", "<=", 3), True),
        (("x", "<=", 2), False),
        (("x", ">", 7), False),
        (("x", ">", 6), True),
        (("x", ">=", 7), True),
        (("x", ">=", 8), False),
        (("x", "in", [1, 9]), False),
        (("x", "in", [1, 5]), True),
        (("x", "in", []), False),
        (("x", "in", [1, None]), True),
        (("x", "in", [1, math.nan]), True),
        (("x", "in", [np.float32("nan")]), True),
        (("x", "not in", [3, 4, 5, 6, 7]), True),
        (("x", "==", "text"), True),
        (("x", "<", datetime.date(2020, 1, 1)), True),
        (("n", "==", 1), False),
        (("n", "!=", 1), True),
        (("n", "not in", [1]), True),
        (("u", "<", 1), True),
        (("elsewhere", "<", 1), True),
    ],
)
def test_a_row_group_is_ruled_out_only_if_no_row_can_pass(condition: tuple[str, str, Any], expected: bool) -> None:
    """What the bounds exclude is ruled out; what is unknown or cannot be compared is not."""
    assert may_pass(checked_filters([condition]), KNOWN) is expected


def test_alternatives_and_conjunctions() -> None:
    """All conditions of one alternative must be possible."""
    filters = checked_filters([[("x", ">", 5), ("x", "<", 2)], [("x", "==", 4), ("y", "==", 1)]])
    assert may_pass(filters, KNOWN)
    assert not may_pass(filters[:1], KNOWN)
    assert columns_of(filters) == ["x", "y"]
    assert may_pass((), KNOWN)
    assert checked_filters(None) == checked_filters([]) == ()


@pytest.mark.parametrize(
    "filters",
    [
        ["x > 1"],
        [("x", ">")],
        [("x", "~", 1)],
        [[("x", ">", 1), "y"]],
        [[("x", "like", 1)]],
        [[]],
        [[("x", ">", 1)], []],
    ],
)
def test_other_forms_are_refused(filters: Any) -> None:
    """Texts, short tuples, unknown operators, and alternatives without a condition are refused at once."""
    with pytest.raises(ValueError, match=r"filter"):
        checked_filters(filters)


@pytest.mark.parametrize("operator", ["in", "not in"])
@pytest.mark.parametrize("value", ["12", b"12", 5, None])
def test_what_values_must_be_in_is_a_list(operator: str, value: Any) -> None:
    """A text is not taken for the list of its characters."""
    with pytest.raises(TypeError, match=f"the value of '{operator}' in filters must be a list"):
        checked_filters([("x", operator, value)])
