"""Settings are found while real pipelines run, are told, and are known to the next iteration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.observe.parts import KnobStats
from tests.patience import LIMIT_S


async def fetch(x: Any) -> Any:
    """Waits for somebody else, as a request does."""
    await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.03)
    return x


def len_of(x: Any) -> int:
    """Anything that runs in threads."""
    return len(str(x))


@pytest.fixture
def runtime() -> Iterator[ad.Runtime]:
    """One for all iterations of a test."""
    with ad.Runtime(ad.Options(memory_limit_bytes=64 << 20)) as runtime:
        yield runtime


def calls(stats: ad.PipelineStats) -> KnobStats:
    """That of the map."""
    (found,) = (knob for knob in stats.knobs if knob.counts == "calls")
    return found


def found(ds: ad.Dataset, least: int) -> ad.PipelineStats:
    """Iterates until so many calls at a time were found."""
    with ds.iterator() as it:
        for _ in it:
            stats = it.stats()
            if calls(stats).value >= least:
                return stats
    raise AssertionError("it ended before")


def fetched() -> ad.Dataset:
    """More elements than anybody waits for."""
    return ad.Dataset.range(int(LIMIT_S * 10_000)).map(fetch, num_parallel_calls=ad.AUTOTUNE).batch(16)


def test_a_function_that_waits_gets_more_calls_at_a_time(runtime: ad.Runtime) -> None:
    """AUTOTUNE finds that more than sixteen calls pay, and says so; a number stays what it is."""
    stats = found(fetched().prefetch(ad.AUTOTUNE), 64)
    assert calls(stats).default == 16
    assert str(calls(stats)).startswith(f"map(fetch): {calls(stats).value} calls at a time, default 16 (")
    assert f"Found by AUTOTUNE: {calls(stats)}." in str(stats)
    assert next(step for step in stats.steps if step.kind == "map").parallel == calls(stats).value
    with ad.Dataset.range(20).map(fetch, num_parallel_calls=3).iterator() as it:
        assert len(list(it)) == 20
        assert it.stats().knobs == ()


@pytest.mark.parametrize("workers", [0, 2])
def test_tasks_of_threads_are_as_many_as_threads(workers: int) -> None:
    """All threads that there may be have a task, whatever the number of worker processes."""
    ds = ad.Dataset.range(20).map(len_of, num_parallel_calls=ad.AUTOTUNE, executor="thread")
    options = ad.Options(memory_limit_bytes=64 << 20, num_workers=workers, num_threads=12)
    with ds.with_options(options).iterator() as it:
        assert len(list(it)) == 20
        assert calls(it.stats()).default == 12


def test_the_next_iteration_begins_with_what_was_found(runtime: ad.Runtime) -> None:
    """Of the same dataset, in the same Runtime; other datasets begin with the defaults."""
    ds = fetched()
    least = calls(found(ds, 64)).value
    with ds.iterator() as it:
        next(it)
        assert calls(it.stats()).value >= least // 2
        assert calls(it.stats()).value > 16
    with ds.batch(2).iterator() as it:
        next(it)
        assert calls(it.stats()).value == 16


def test_repeated_epochs_share_what_was_found(runtime: ad.Runtime) -> None:
    """Each epoch of `repeat` has a stage of its own, and all of them one setting."""
    ds = ad.Dataset.range(200).map(fetch, num_parallel_calls=ad.AUTOTUNE).repeat()
    assert calls(found(ds, 64)).value >= 64


def test_an_isolated_loader_tells_its_settings() -> None:
    """What was found in the loader process is in the statistics of the iterator."""
    with ad.Runtime(ad.Options(memory_limit_bytes=64 << 20, isolate=True)):
        assert calls(found(fetched(), 64)).value >= 64
