"""How many workers there are to be."""

from __future__ import annotations

from random import Random

import pytest

from asyncdata.workers.demand import Demand
from tests.samples import samples


def test_there_is_one_for_each_call_up_to_the_limit() -> None:
    """Calls that end leave the number what it is; only the limit lowers it."""
    demand = Demand(4)
    demand.expect(2)
    grows = [demand.begin() for _ in range(6)]
    assert (grows, demand.wanted) == ([False, False, True, True, False, False], 4)
    assert demand.short.open == 1
    for _ in range(6):
        demand.end()
    assert (demand.wanted, demand.short.open) == (4, 0)
    assert not demand.limit(1)
    assert demand.wanted == 1
    assert [demand.begin(), demand.begin()] == [False, False]
    assert demand.short.open == 1
    assert demand.limit(8)
    assert (demand.wanted, demand.short.open) == (2, 0)


@pytest.mark.parametrize("seed", range(samples(20, 300)))
def test_calls_are_short_of_workers_only_where_there_may_not_be_more(seed: int) -> None:
    """Whatever happens: never more than the limit, and as many as calls below it."""
    rng = Random(seed)
    demand, calls = Demand(5), 0
    demand.expect(rng.randint(1, 3))
    for _ in range(300):
        before = demand.wanted
        what = rng.choice(["begin", "end", "limit"])
        grows = False
        if what == "limit":
            grows = demand.limit(rng.randint(1, 9))
        elif what == "begin":
            calls, grows = calls + 1, demand.begin()
        elif calls:
            calls -= 1
            demand.end()
        assert demand.wanted <= demand.most
        assert demand.wanted >= min(calls, demand.most)
        assert demand.short.open == (calls > demand.wanted)
        assert grows == (demand.wanted > min(before, demand.most))
