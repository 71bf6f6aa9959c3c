"""The consumer's waits: sums and quantiles."""

from __future__ import annotations

import pytest

import asyncdata as ad
from asyncdata.observe import stopwatch
from asyncdata.observe.timeline import Arrivals
from asyncdata.runtime.consumer import waits
from asyncdata.runtime.consumer.waits import Waits


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until it is told otherwise."""
    moment = [1000.0]
    for module in (stopwatch, waits):
        monkeypatch.setattr(module, "clock", lambda: moment[0])
    return moment


def test_quantiles_count_elements_that_came_at_once(now: list[float]) -> None:
    """Of a hundred elements behind the first one, eighty were ready; a quantile is within a fifth of the truth."""
    counted = Waits()
    for seconds in [5.0, *[0.010] * 15, *[0.300] * 5]:
        with counted.waiting():
            now[0] += seconds
        counted.received(1)
        now[0] += 0.1
    stats = counted.stats(101)
    assert stats.wait_s == pytest.approx(5 + 0.15 + 1.5)
    assert stats.step_s == pytest.approx(2.1)
    assert stats.first_wait_s == 5.0
    assert stats.median_wait_s == 0
    assert stats.p90_wait_s == pytest.approx(0.010, rel=0.2)
    assert stats.p99_wait_s == pytest.approx(0.300, rel=0.2)


def test_the_only_wait_is_the_first_wait() -> None:
    """To the last bit, on a clock that goes on between any two readings."""
    counted = Waits()
    with counted.waiting():
        pass
    stats = counted.stats(1)
    assert stats.wait_s == stats.first_wait_s > 0


def test_a_consumer_that_never_waits(now: list[float]) -> None:
    """All was ready when it first asked, long after the start: it worked all the time."""
    counted = Waits()
    now[0] += 30
    for _ in range(3):
        counted.received(1)
        now[0] += 2
    with counted.waiting():
        now[0] += 1
    stats = counted.stats(3)
    assert (stats.step_s, stats.wait_s, stats.first_wait_s) == (6, 1, 0)


def test_waits_for_the_first_element_that_were_given_up_are_part_of_it(now: list[float]) -> None:
    """As by ``asyncio.wait_for``, again and again."""
    counted = Waits()
    for _ in range(3):
        with counted.waiting():
            now[0] += 2
    counted.received(1)
    assert counted.stats(1).first_wait_s == 6


def test_consumers_that_wait_side_by_side_do_not_wait_for_longer_than_time_goes_by(now: list[float]) -> None:
    """Else the rate would be a fraction of what they got."""
    counted = Waits()
    with counted.waiting(), counted.waiting(), counted.waiting():
        now[0] += 5
        assert counted.stats(0).wait_s == 5
    stats = counted.stats(1)
    assert (stats.wait_s, stats.first_wait_s, stats.step_s) == (5, 5, 0)


def test_the_present_wait_counts_and_the_end_stays(now: list[float]) -> None:
    """Somebody looks in the middle of it, and much later."""
    counted = Waits()
    assert counted.stats(0).wait_s == 0
    with counted.waiting():
        now[0] += 3
        assert counted.stats(0).wait_s == 3
    now[0] += 2
    counted.end()
    now[0] += 1000
    assert (counted.stats(1).wait_s, counted.stats(1).step_s) == (3, 2)


@pytest.mark.parametrize("isolate", [False, True])
def test_an_iterator_tells_them_wherever_its_pipeline_runs(isolate: bool) -> None:
    """With the steps and a verdict; also when it is closed, and the same then as later."""
    ds = ad.Dataset.range(100).batch(10).with_options(ad.Options(isolate=isolate, memory_limit_bytes=32 << 20))
    with ds.iterator() as batches:
        assert len(list(batches)) == 10
        stats = batches.stats()
    assert stats.consumer.wait_s >= stats.consumer.first_wait_s >= 0
    assert stats.consumer.wait_s > 0 or not isolate  # what runs here may have been ready at once
    assert [step.elements for step in stats.steps] == [10, 100]
    assert [step.bytes for step in stats.steps] == [800, 800]
    assert stats.verdict.sentence
    assert batches.stats().consumer == stats.consumer


async def test_tasks_that_share_an_iterator_may_all_wait() -> None:
    """Nothing is lost, whatever the order in which they come back."""
    async with ad.Dataset.range(50).iterator() as numbers:
        found = [int(number) async for number in numbers]
    assert found == list(range(50))
    assert numbers.stats().consumer.wait_s > 0


def test_who_begins_in_the_middle_hears_of_nothing_before(now: list[float]) -> None:
    """The first arrival that is noted is a step of its own, not all since the iteration began."""
    counted = Waits()
    for recorded in (False, True):
        if recorded:
            counted.record(Arrivals())
        with counted.waiting():
            now[0] += 3.0
        counted.received(1)
        now[0] += 100.0 if not recorded else 2.0
    assert counted.arrivals is not None
    (only,) = counted.arrivals.all()
    assert (only.step_s, only.wait_s, only.longest_wait_s) == (0.0, 3.0, 3.0)
