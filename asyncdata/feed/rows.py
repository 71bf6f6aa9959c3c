"""Which rows of a batch a process needs, when devices of several processes hold parts of one array.

Processes whose devices hold copies of the same rows, as replicas of a model that is divided do, need the same data. So
a process's rank follows from its rows and not from its number.

    devices   0 1 │ 2 3     process 0 │ process 1
    P("d")    a b │ c d     ranks 0 and 1 of 2
    P(None)   a a │ a a     rank 0 of 1, twice
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from asyncdata.errors import PipelineError

Rows: TypeAlias = frozenset[tuple[int, int]]
"""Intervals of rows, one for each part into which they are cut."""


class Share(NamedTuple):
    """What a process has of the rows of every batch.

    Attributes:
        rank: Its place among those that need different rows.
        world: How many of these there are.
        parts: Into how many parts its own rows are cut.
    """

    rank: int
    world: int
    parts: int


def share_of(process: int, rows_of: Mapping[int, Iterable[tuple[int, int]]]) -> Share:
    """The share of a process.

    Args:
        process: Its number.
        rows_of: The intervals that the devices of each process hold, of any number of rows that divides evenly.

    Raises:
        PipelineError: Rows of this process are cut in another way elsewhere.
    """
    rows: dict[int, Rows] = {number: frozenset(intervals) for number, intervals in rows_of.items()}
    different = sorted(set(rows.values()), key=min)
    whole = frozenset().union(*different)
    if sum(map(len, different)) != len(whole) or len({len(each) for each in different}) > 1:
        raise PipelineError(
            "the sharding gives processes rows that overlap in part: each process must have the same rows as another "
            "one or none in common, and all of them as many"
        )
    if process not in rows:
        raise PipelineError(f"the sharding has no device of this process ({process}), so it has no rows of a batch")
    return Share(different.index(rows[process]), len(different), len(rows[process]))
