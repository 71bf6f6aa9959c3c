"""Pipelines with one known cause each: the verdict names the cause and the step.

Causes are ten times stronger than anything else in their pipelines, because the machine may be busy. Nothing is said
about times.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.observe.snapshot import PipelineStats
from fake_gcs import FakeGCS, Fault, Latency, Profile, Rule

LIMIT_BYTES = 64 << 20


def read(ds: ad.Dataset, *, step: Any = None, most: int | None = None, **options: Any) -> PipelineStats:
    """The statistics at the end of one iteration.

    Args:
        ds: Iterated once.
        step: Called with every element.
        most: Elements after which it is left.
        options: Of the pipeline.
    """
    named = {"memory_limit_bytes": LIMIT_BYTES, "num_workers": 2, **options}
    with ds.with_options(ad.Options(**named)).iterator() as elements:
        for count, element in enumerate(elements, 1):
            if step is not None:
                step(element)
            if count == most:
                break
    return elements.stats()


def rest(_element: Any, seconds: float = 0.02) -> int:
    """Waits without a processor."""
    threading.Event().wait(seconds)
    return 0


def compute(_element: Any) -> int:
    """Keeps a processor, and the interpreter, for 10 ms of CPU time."""
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass
    return 0


async def rest_async(_element: Any) -> int:
    """Lets others run meanwhile."""
    await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.02)
    return 0


async def rest_blocking(_element: Any) -> int:
    """Does not."""
    return rest(_element)


def slowly() -> Iterator[int]:
    """A slow generator."""
    for number in range(20):
        rest(number)
        yield number


async def slowly_async() -> AsyncIterator[int]:
    """A slow async generator."""
    for number in range(20):
        yield await rest_async(number)


async def slowly_blocking() -> AsyncIterator[int]:
    """One that lets nothing else run meanwhile."""
    for number in range(20):
        yield rest(number)


NUMBERS = ad.Dataset.range(60)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("cause", "ds", "step"),
    [
        pytest.param("loop", NUMBERS.map(rest).batch(4).prefetch(2), "map(rest)", id="inline"),
        pytest.param("loop", NUMBERS.shuffle(8).map(rest).batch(4), "map(rest)", id="behind a small shuffle"),
        pytest.param("calls", NUMBERS.map(rest_async, 2).batch(4).prefetch(2), "map(rest_async)", id="coroutines"),
        pytest.param("calls", NUMBERS.map(rest, 2, executor="thread"), "map(rest)", id="threads"),
        pytest.param("blocked_loop", NUMBERS.map(rest_blocking, 4).batch(2), "map(rest_blocking)", id="blocked"),
        pytest.param(
            "blocked_loop", NUMBERS.map(rest_blocking).batch(4), "map(rest_blocking)", id="blocked one by one"
        ),
        pytest.param("calls", NUMBERS.map(rest_async).batch(4), "map(rest_async)", id="coroutines one by one"),
        pytest.param("generator", ad.Dataset.from_generator(slowly).batch(2), "from_generator(slowly)", id="generator"),
        pytest.param(
            "generator", ad.Dataset.from_generator(slowly_async).batch(2), "from_generator(slowly_async)", id="async"
        ),
        pytest.param(
            *("blocked_loop", ad.Dataset.from_generator(slowly_blocking).batch(2), "from_generator(slowly_blocking)"),
            id="async generator that blocks",
        ),
        pytest.param("interpreter", NUMBERS.map(compute, 4, executor="thread"), "map(compute)", id="threads compute"),
    ],
)
def test_a_slow_function_is_found(cause: str, ds: ad.Dataset, step: str) -> None:
    """Wherever it runs, and whatever it does."""
    stats = read(ds)
    verdict = stats.verdict
    assert (verdict.cause, verdict.step) == (cause, step), stats
    assert verdict.wait_share > 0.5
    assert 1.2 * verdict.rate < verdict.faster_rate <= 2 * verdict.rate


def quick(_element: Any) -> int:
    """A tenth of what `compute` takes."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    return 0


def shared(name: str) -> ad.Dataset:
    """Steps that share the loop, each of which could go on while another one has it."""
    slow = ad.Dataset.range(60).map(compute).prefetch(10)
    if name == "behind":
        return slow.map(quick).prefetch(10).batch(10)
    other = ad.Dataset.range(60).map(quick).prefetch(3)
    return ad.Dataset.zip((other, slow)).prefetch(2).batch(3)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["behind", "beside"])
def test_a_step_that_waits_for_the_loop_is_not_blamed(name: str) -> None:
    """The loop is one thread: steps work no more on it than there was time, and the one that keeps it is named."""
    stats = read(shared(name))
    assert sum(step.working_s for step in stats.steps) <= 1.02 * stats.window_s
    assert stats.verdict.step == "map(compute)"


def test_generators_that_wait_for_threads_are_found() -> None:
    """Four of them, for which there is one thread; more generators would not help."""
    generators = ad.Dataset.range(4).interleave(lambda _: ad.Dataset.from_generator(slowly), 4, deterministic=False)
    stats = read(generators, most=20, num_threads=1)
    assert (stats.verdict.cause, stats.verdict.step) == ("generator", "from_generator(slowly)"), stats
    assert "num_threads" in stats.verdict.action, stats


def test_workers_that_wait_are_told_from_workers_that_compute() -> None:
    """Both are named; other programs may have the processors that the second one needs."""
    with ad.Runtime(ad.Options(memory_limit_bytes=LIMIT_BYTES, num_workers=2)):
        assert list(ad.Dataset.range(8).map(bytes, ad.AUTOTUNE))  # the workers run
        verdicts = []
        for function in (rest, compute):
            with ad.Dataset.range(200).map(function, ad.AUTOTUNE).batch(4).iterator() as batches:
                assert len(list(batches)) == 50
            verdicts.append(batches.stats().verdict)
    waiting, computing = verdicts
    assert (waiting.cause, waiting.step) == ("calls", "map(rest).batch(4)")
    assert "async def" in waiting.action
    assert computing.cause in ("workers", "machine")
    assert computing.step == "map(compute).batch(4)"


def test_the_start_of_workers_is_no_fault_of_the_function() -> None:
    """A few quick elements, for which interpreters had to be started."""
    stats = read(ad.Dataset.range(4).map(bytes, 2))
    assert stats.verdict.cause == "startup", stats
    assert "Runtime" in stats.verdict.action


def test_a_slow_consumer_is_told_that_nothing_need_be_done() -> None:
    """It hardly waits."""
    stats = read(NUMBERS.batch(2).prefetch(2), step=rest)
    assert (stats.verdict.cause, stats.verdict.action) == ("consumer", ""), stats


def records(server: FakeGCS, files: int, size: int) -> None:
    """Files of one record."""
    for number in range(files):
        server.put("bucket", f"{number:03d}.bin", bytes(size))


def from_bucket(server: FakeGCS, cycle_length: int, size: int, files: int, **options: Any) -> PipelineStats:
    """So many files, read; nothing has to be listed."""
    storage = {"gs": {"endpoint_url": server.url, "token": "anon"}}
    names = ad.Dataset.from_tensor_slices([f"gs://bucket/{number:03d}.bin" for number in range(files)])
    ds = names.interleave(lambda name: ad.FixedLengthRecordDataset(name, size), cycle_length)
    return read(ds, storage=storage, **options)


def test_too_few_files_at_a_time_are_found() -> None:
    """A far server, small files, one after the other: hardly a read is under way."""
    profile = Profile(latency=Latency(kind="fixed", median_s=0.1))
    with FakeGCS(buckets=["bucket"], profile=profile) as server:
        records(server, 30, 1000)
        stats = from_bucket(server, 1, 1000, files=30, memory_limit_bytes=4 * LIMIT_BYTES)
    assert stats.verdict.cause == "parallelism", stats
    assert "cycle_length" in stats.verdict.action


def test_a_slow_listing_is_found() -> None:
    """Pages of names take long, and there is one small file."""
    profile = Profile(latency=Latency(kind="fixed", median_s=0.3))
    with FakeGCS(buckets=["bucket"], profile=profile) as server:
        records(server, 1, 1000)
        storage = {"gs": {"endpoint_url": server.url, "token": "anon"}}
        stats = read(ad.Dataset.list_files("gs://bucket/*.bin"), storage=storage)
    assert (stats.verdict.cause, stats.verdict.step) == ("listing", "list_files"), stats


def test_a_narrow_link_is_found() -> None:
    """As many reads as are allowed, and still hardly a byte comes."""
    with FakeGCS(buckets=["bucket"], profile=Profile(total_bytes_per_s=2e6)) as server:
        records(server, 24, 100_000)
        stats = from_bucket(server, 8, 100_000, files=24, max_requests_in_flight=4)
    assert stats.verdict.cause == "link", stats
    assert "Store less" in stats.verdict.action, stats


def test_too_few_requests_at_a_time_are_found() -> None:
    """As many as are allowed, each of which mostly waits for its first byte."""
    profile = Profile(latency=Latency(kind="fixed", median_s=0.1))
    with FakeGCS(buckets=["bucket"], profile=profile) as server:
        records(server, 40, 1000)
        stats = from_bucket(server, 16, 1000, files=40, max_requests_in_flight=2)
    assert stats.verdict.cause == "link", stats
    assert "max_requests_in_flight=8" in stats.verdict.action, stats


def test_a_server_that_refuses_is_found() -> None:
    """Every other request is one too many."""
    profile = Profile(rules=(Rule(fault=Fault(kind="status", status=429), every=2),))
    with FakeGCS(buckets=["bucket"], profile=profile) as server:
        records(server, 24, 1000)
        stats = from_bucket(server, 4, 1000, files=24)
    assert stats.verdict.cause == "throttled", stats


def test_a_server_that_fails_is_found() -> None:
    """Every other request is answered with an error; reading more files at a time would not help."""
    profile = Profile(rules=(Rule(fault=Fault(kind="status", status=503), every=2),))
    with FakeGCS(buckets=["bucket"], profile=profile) as server:
        records(server, 24, 1000)
        stats = from_bucket(server, 4, 1000, files=24)
    assert stats.verdict.cause == "failing", stats


def test_a_small_memory_limit_is_found() -> None:
    """Nothing can be read ahead from a far server."""
    profile = Profile(latency=Latency(kind="fixed", median_s=0.1))
    with FakeGCS(buckets=["bucket"], profile=profile) as server:
        records(server, 4, 4 << 20)
        stats = from_bucket(server, 4, 1 << 16, files=4, memory_limit_bytes=4 << 20)
    assert stats.verdict.cause == "memory", stats
    assert "memory_limit_bytes" in stats.verdict.action


def test_decompression_in_one_thread_is_found(tmp_path: Path) -> None:
    """A local file, which is there at once, takes long to decompress."""
    text = random.Random(1).randbytes(1 << 20).hex().encode()
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text * 24, 1))
    stats = read(ad.FixedLengthRecordDataset(str(path), 1 << 20, compression_type="GZIP"))
    assert stats.verdict.cause == "decompression", stats
    assert "cycle_length" in stats.verdict.action


@pytest.mark.sampled
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("options", [{}, {"on_change": "restart"}, {"errors": ad.ErrorPolicy()}], ids=str)
def test_every_element_is_counted_once(tmp_path: Path, deterministic: bool, options: dict[str, Any]) -> None:
    """By each step, wherever it gets its elements from: pulled, available, read again, or guarded."""
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number} {line}\n" for line in range(number * 300)))
    names = ad.Dataset.list_files(str(tmp_path / "*.txt"))
    ds = names.interleave(ad.TextLineDataset, 4, deterministic=deterministic).filter(bool).shuffle(50).batch(100)
    stats = read(ds, **options)
    counts = {step.kind: step.elements for step in stats.steps}
    lines = sum(number * 300 for number in range(12))
    assert counts["list_files"] == 12
    assert counts["TextLineDataset"] == counts["interleave"] == counts["filter"] == counts["shuffle"] == lines
    assert counts["batch"] == stats.elements == lines // 100


def test_the_times_of_every_step_add_up_to_the_window() -> None:
    """Of steps of any kind, with and without copies, tasks of their own, and inner datasets."""
    inner = ad.Dataset.range(3).interleave(lambda n: ad.Dataset.range(n).map(rest_async, 2), 2)
    ds = NUMBERS.map(rest, 2).batch(4).prefetch(2).zip(inner.repeat().shuffle(4)).repeat(2).take(20)
    stats = read(ds)
    assert len(stats.steps) >= 9
    for step in stats.steps:
        assert step.asked_s + step.consumer_s == pytest.approx(stats.window_s, rel=0.02), step
        assert min(step.working_s, step.input_s, step.memory_s, step.workers_s, step.consumer_s) >= 0
