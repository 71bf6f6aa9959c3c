"""There are as many workers as tasks need, and their number changes nothing but the rate."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.planner.autotune import Autotuner, Interval
from asyncdata.runtime.life import runtime as runtime_module
from asyncdata.runtime.tuning.worker_count import WORKERS
from asyncdata.workers.pool import WorkerPool
from tests.patience import wait_until
from tests.samples import samples

CPUS = 4


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[ad.Runtime]:
    """On a machine with four processors."""
    monkeypatch.setattr(runtime_module, "usable_cpus", lambda: CPUS)
    with ad.Runtime(ad.Options(memory_limit_bytes=64 << 20)) as runtime:
        yield runtime


def processes(runtime: ad.Runtime) -> int:
    """Alive now."""
    stats = runtime.pool_stats()
    return 0 if stats is None else len(stats.workers)


def same(x: Any) -> Any:
    """Anything that runs in workers."""
    return x


def long(x: Any) -> Any:
    """Takes so long that tasks meet."""
    return sum(range(100_000)) * 0 + x


def test_few_calls_at_a_time_start_few_workers(runtime: ad.Runtime) -> None:
    """Two before there are tasks, and no more where no task needs one; a map that uses all of them gets all."""
    assert list(ad.Dataset.range(50).map(same, 2)) == list(range(50))
    assert processes(runtime) == 2
    with ad.Dataset.range(1 << 40).map(long, ad.AUTOTUNE).iterator() as numbers:
        for number in numbers:
            if processes(runtime) == CPUS:
                break
            assert number < 100_000
        assert {knob.counts: knob.default for knob in numbers.stats().knobs}[WORKERS] == CPUS


def test_a_given_number_is_kept() -> None:
    """All start at once, and no setting changes it."""
    with ad.Runtime(ad.Options(memory_limit_bytes=64 << 20, num_workers=3)) as runtime:
        with ad.Dataset.range(3).map(same, 1).iterator() as numbers:
            assert list(numbers) == [0, 1, 2]
            assert numbers.stats().knobs == ()
        wait_until(lambda: processes(runtime) == 3)


def test_pipelines_get_together_what_each_of_them_asks_for(
    runtime: ad.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more than there may be; when the last one ends, the number stays."""
    limits: list[int] = []
    monkeypatch.setattr(WorkerPool, "limit", lambda _pool, most: limits.append(most))

    async def ask() -> None:
        for pipeline, count in (("a", 1), ("b", 2), ("a", 4), ("b", 0), ("a", 0)):
            runtime.ask_for_workers(pipeline, count)

    runtime.submit(ask()).result()
    assert limits == [1, 3, 4, 4]


@pytest.mark.parametrize("seed", range(samples(1, 60)))
def test_elements_order_and_states_do_not_depend_on_it(
    seed: int, runtime: ad.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever number is asked for, and when."""
    rng = random.Random(seed)
    shuffled = ad.Dataset.range(400).shuffle(50, seed=seed)
    expected = [int(x) for x in shuffled.iterator(epoch=0)]
    ds = shuffled.map(long, ad.AUTOTUNE).batch(7).map(same, ad.AUTOTUNE).unbatch().prefetch(3)
    monkeypatch.setattr("asyncdata.runtime.tuning.knob.EVERY_S", 0.1)
    seen = []

    def decide(_self: Autotuner, interval: Interval) -> dict[str, int]:
        seen.append(processes(runtime))
        return {WORKERS: rng.randint(1, CPUS)} if WORKERS in interval.uses else {}

    monkeypatch.setattr(Autotuner, "decide", decide)
    with ds.iterator(epoch=0) as numbers:
        found = [int(next(numbers)) for _ in range(150)]
        state = numbers.state_dict()
        found += [int(x) for x in numbers]
    assert found == expected
    with ds.iterator(state=state) as numbers:
        assert [int(x) for x in numbers] == expected[150:]
    assert len(set(seen)) > 1
    pool = runtime.pool_stats()
    assert pool is not None
    assert pool.deaths == 0


def test_what_workers_used_that_are_gone_is_not_forgotten(runtime: ad.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU time of a pipeline does not shrink with its workers."""
    asked = asyncio.Event()

    def decide(_self: Autotuner, interval: Interval) -> dict[str, int]:
        if interval.uses.get(WORKERS) is None or processes(runtime) < CPUS or asked.is_set():
            return {}
        asked.set()
        return {WORKERS: 1}

    monkeypatch.setattr(Autotuner, "decide", decide)
    with ad.Dataset.range(1 << 40).map(long, ad.AUTOTUNE).batch(10).iterator() as numbers:
        for _ in numbers:
            if asked.is_set():
                break
        before = numbers.stats().cpu
        for _ in numbers:
            if processes(runtime) == 1:
                break
        after = numbers.stats().cpu
    assert after.workers_s >= before.workers_s > 0
    assert after.workers_ready_s >= before.workers_ready_s >= before.workers_busy_s * 0.5
