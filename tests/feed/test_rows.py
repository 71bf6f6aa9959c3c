"""Rows: processes that hold the same rows are one rank, whatever their numbers."""

from __future__ import annotations

import pytest

from asyncdata.errors import PipelineError
from asyncdata.feed.rows import share_of


@pytest.mark.parametrize(
    ("rows_of", "shares"),
    [
        ({0: [(0, 1), (1, 2)], 1: [(2, 3), (3, 4)]}, [(0, 2, 2), (1, 2, 2)]),
        ({0: [(0, 4)], 1: [(0, 4)]}, [(0, 1, 1), (0, 1, 1)]),
        ({0: [(2, 4)], 1: [(0, 2)], 2: [(2, 4)], 3: [(0, 2)]}, [(1, 2, 1), (0, 2, 1), (1, 2, 1), (0, 2, 1)]),
        ({0: [(0, 1), (2, 3)], 1: [(1, 2), (3, 4)]}, [(0, 2, 2), (1, 2, 2)]),
        ({0: [(0, 2), (0, 2)]}, [(0, 1, 1)]),
    ],
)
def test_a_rank_is_a_set_of_rows(rows_of: dict[int, list[tuple[int, int]]], shares: list[tuple[int, int, int]]) -> None:
    """In the order of the rows; replicas share a rank."""
    assert [share_of(process, rows_of) for process in rows_of] == shares


@pytest.mark.parametrize(
    ("rows_of", "message"),
    [
        ({0: [(0, 2)], 1: [(0, 2), (2, 4)]}, "overlap in part"),
        ({0: [(0, 2), (2, 4)], 1: [(4, 8)]}, "overlap in part"),
        ({1: [(0, 2)]}, "no device of this process"),
    ],
)
def test_rows_that_make_no_ranks_are_refused(rows_of: dict[int, list[tuple[int, int]]], message: str) -> None:
    """With what is wrong with them."""
    with pytest.raises(PipelineError, match=message):
        share_of(0, rows_of)
