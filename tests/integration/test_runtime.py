"""One Runtime for many iterations: what is started once stays started, and one limit holds for all."""

from __future__ import annotations

import asyncio
import contextvars
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.life import runtime as runtime_module
from asyncdata.testing import check, procfs, settle, snapshot
from fake_gcs import FakeGCS
from tests.integration.shards import BUCKET, gs_storage, put_shards, records, write_shards
from tests.patience import LIMIT_S, wait_until

MIB = 1 << 20


def pid_of(x: int) -> tuple[int, int]:
    """Which process a function runs in."""
    return os.getpid(), x


def widen(x: int) -> Any:
    """32 KiB."""
    return np.full(4096, x, np.int64)


@pytest.fixture
def server() -> Iterator[FakeGCS]:
    """A bucket."""
    with FakeGCS(buckets=[BUCKET]) as server:
        yield server


def connections(server: FakeGCS) -> set[int]:
    """Numbers of the connections that were used so far."""
    return {entry.connection for entry in server.journal}


def children() -> set[int]:
    """Worker processes of this one."""
    return {process.pid for process in procfs.processes() if process.parent == os.getpid() and process.state != "Z"}


def test_the_next_epoch_starts_no_process() -> None:
    """The same workers serve every iteration inside one Runtime, and end with it."""
    before = children()
    with ad.Runtime(ad.Options(num_workers=2)):
        seen = [{pid for pid, _ in ad.Dataset.range(400).map(pid_of, num_parallel_calls=4)} for _ in range(3)]
        workers = children() - before
        assert len(workers) == 2
        assert all(pids <= workers for pids in seen)
    assert children() == before


def test_the_next_epoch_opens_no_connection(server: FakeGCS) -> None:
    """Connections to storage are kept from one iteration to the next."""
    urls = put_shards(server, 6, 50, 1000)
    dataset = ad.TFRecordDataset(urls, num_parallel_reads=3).batch(10)
    with ad.Runtime(ad.Options(storage=gs_storage(server))):
        first = list(dataset)
        opened = connections(server)
        for _ in range(4):
            assert [list(batch) for batch in dataset] == [list(batch) for batch in first]
        assert connections(server) == opened


def test_without_a_runtime_every_iteration_has_its_own(server: FakeGCS) -> None:
    """Its options come from the dataset, and nothing is kept."""
    urls = put_shards(server, 2, 20, 100)
    dataset = ad.TFRecordDataset(urls).with_options(ad.Options(storage=gs_storage(server)))
    before = snapshot()
    for _ in range(2):
        assert list(dataset) == records(0, 20, 100) + records(1, 20, 100)
        # The server lives in this process and closes its ends a moment later.
        assert not settle(before, settle_s=LIMIT_S, only=("thread", "process", "descriptor"))


def test_repeat_opens_the_next_epochs_shards_before_this_one_ends(server: FakeGCS) -> None:
    """The first byte of the next epoch is asked for while the last shard of this one is still being read."""
    urls = put_shards(server, 3, 400, 1000)
    options = ad.Options(storage=gs_storage(server), chunk_bytes=64 << 10, memory_limit_bytes=16 * MIB)
    dataset = ad.TFRecordDataset(urls).repeat(2).with_options(options)
    assert list(dataset) == [record for _ in range(2) for shard in range(3) for record in records(shard, 400, 1000)]
    reads = [entry for entry in server.journal if entry.range or "alt=media" in entry.target]
    first = f"{BUCKET}/shard-000.tfrecord"
    last = f"{BUCKET}/shard-002.tfrecord"
    again = [entry.number for entry in reads if f"{entry.bucket}/{entry.object}" == first]
    ends = [entry.number for entry in reads if f"{entry.bucket}/{entry.object}" == last]
    chunks = len(ends) // 2
    second_epoch = again[len(again) // 2]
    assert second_epoch < ends[chunks - 1] or second_epoch < ends[chunks], (again, ends)


def test_two_pipelines_share_the_limit() -> None:
    """Training and evaluation side by side never take more than the one limit of their Runtime."""
    limit = 24 * MIB
    with ad.Runtime(ad.Options(memory_limit_bytes=limit, num_workers=2), pipelines=2) as runtime:
        train = ad.Dataset.range(2000).map(widen, 2).batch(16).iterator()
        evaluation = ad.Dataset.range(2000).map(widen).batch(16).prefetch(4).iterator()
        for number, (one, other) in enumerate(zip(train, evaluation, strict=True)):
            assert (one == other).all()
            assert one[0, 0] == 16 * number
            assert runtime.budgets.used_bytes <= limit
        assert number == 124


def test_pipelines_in_threads() -> None:
    """Any thread may start and read a pipeline of the same Runtime."""
    results: dict[int, list[int]] = {}

    def read(runtime_number: int) -> None:
        dataset = ad.Dataset.range(1000 * runtime_number, 1000 * runtime_number + 500).map(int, 2, executor="thread")
        results[runtime_number] = list(dataset)

    with ad.Runtime(ad.Options(memory_limit_bytes=256 * MIB), pipelines=4):
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(read, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {number: list(range(1000 * number, 1000 * number + 500)) for number in range(4)}


async def test_pipelines_in_tasks() -> None:
    """And any task; the Runtime as an asynchronous context manager."""
    async with ad.Runtime(ad.Options(memory_limit_bytes=64 * MIB), pipelines=5):

        async def total(count: int) -> int:
            return sum([int(x) async for x in ad.Dataset.range(count).map(int, 2, executor="thread")])

        totals = await asyncio.gather(*(total(100 * count) for count in range(5)))
    assert totals == [sum(range(100 * count)) for count in range(5)]


def test_runtimes_nest() -> None:
    """The innermost one is used; leaving it brings the outer one back."""

    def limit() -> int:
        with ad.Dataset.range(2).iterator() as iterator:
            next(iterator)
            return iterator.stats().limit_bytes

    with ad.Runtime(ad.Options(num_workers=1, memory_limit_bytes=128 * MIB), pipelines=1):
        assert limit() == 128 * MIB
        with ad.Runtime(ad.Options(num_workers=1, memory_limit_bytes=64 * MIB), pipelines=1):
            assert limit() == 64 * MIB
        assert limit() == 128 * MIB
        assert list(ad.Dataset.range(2)) == [0, 1]


def test_a_closed_runtime_stays_closed() -> None:
    """It can be closed again, but not used."""
    runtime = ad.Runtime()
    with runtime:
        iterator = iter(ad.Dataset.range(5).repeat())
        next(iterator)
    runtime.close()
    with pytest.raises(ad.PipelineClosedError), runtime:
        pass
    never = ad.Runtime()
    never.close()
    with pytest.raises(ad.PipelineClosedError):
        never.start()


def test_an_error_leaves_the_runtime_usable(tmp_path: Path) -> None:
    """A pipeline that failed, or was left, gives everything back to its Runtime."""

    def explode(x: int) -> int:
        raise ValueError(x)

    paths = write_shards(tmp_path, 4, 100, 1000)
    with ad.Runtime(ad.Options(memory_limit_bytes=16 * MIB, num_workers=2), pipelines=1) as runtime:
        for executor in ("inline", "thread", "process"):
            for _ in range(3):
                parallel = None if executor == "inline" else 2
                with pytest.raises(ValueError, match="0"):
                    list(ad.Dataset.range(100).map(explode, parallel, executor=executor))
                batch = next(iter(ad.TFRecordDataset(paths).map(len, parallel, executor=executor).batch(7)))
                assert batch[0] == 1000
                del batch
        with pytest.raises(ad.ObjectNotFoundError):
            list(ad.TFRecordDataset(str(tmp_path / "missing")))
        assert len(list(ad.TFRecordDataset(paths))) == 400
        _assert_nothing_is_charged(runtime)


def _assert_nothing_is_charged(runtime: ad.Runtime) -> None:
    async def used() -> tuple[int, int]:
        return runtime.budgets.used_bytes, runtime.budgets.slabs_in_use

    wait_until(lambda: runtime.submit(used()).result() == (0, 0), lambda: runtime.budgets)


def test_a_stuck_thread_is_reported_and_the_runtime_goes_on() -> None:
    """Closing one iterator of a shared Runtime reports the thread; others are not affected."""
    release, entered = threading.Event(), threading.Event()

    def stuck_in_the_user_function(x: int) -> int:
        entered.set()
        release.wait()
        return x

    with ad.Runtime(ad.Options(close_timeout_s=0.3, num_threads=2)):
        iterator = ad.Dataset.range(3).map(stuck_in_the_user_function, 1, executor="thread").iterator()
        entered.wait()
        try:
            with pytest.raises(ad.CloseTimeoutError, match="stuck_in_the_user_function"):
                iterator.close()
            assert list(ad.Dataset.range(3).map(int, 1, executor="thread")) == [0, 1, 2]
        finally:
            release.set()


def test_what_never_ends_keeps_no_other_pipeline_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that does not return keeps its pipeline's place; the next pipeline gets an error, or can be closed."""
    monkeypatch.setattr(runtime_module, "KILL_S", 0.3)
    release, entered = threading.Event(), threading.Event()

    def stuck(x: int) -> int:
        entered.set()
        release.wait()
        return x

    with ad.Runtime(ad.Options(close_timeout_s=0.3, num_threads=1), pipelines=1):
        iterator = ad.Dataset.range(3).map(stuck, 1, executor="thread").iterator()
        entered.wait()
        try:
            with pytest.raises(ad.CloseTimeoutError):
                iterator.close()
            with pytest.raises(ad.PipelineError, match="held by a function that does not return"):
                list(ad.Dataset.range(3))
            ad.Dataset.range(3).iterator().close()
        finally:
            release.set()
        wait_until(_can_run)


def _can_run() -> bool:
    try:
        return list(ad.Dataset.range(3)) == [0, 1, 2]
    except ad.PipelineError:
        return False


def test_closing_from_inside_is_refused() -> None:
    """Code that a Runtime runs cannot wait for that Runtime's end."""
    with ad.Runtime() as runtime:

        def close(x: int) -> int:
            runtime.close()
            return x

        with pytest.raises(RuntimeError, match="code that it runs"):
            list(ad.Dataset.range(3).map(close))
        assert list(ad.Dataset.range(3)) == [0, 1, 2]


def test_a_start_that_fails_leaves_nothing() -> None:
    """Out of descriptors in the middle of starting: what was started is ended again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = snapshot()
    used = len(procfs.descriptors())
    try:
        for spare in range(2, 20, 2):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
            try:
                list(ad.Dataset.range(3))
            except (OSError, RuntimeError, MemoryError):
                continue
            break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not check(before)


def test_a_paused_pipeline_does_not_starve_another() -> None:
    """A training iterator that is open and not consumed leaves the evaluation its own part of the memory."""
    options = ad.Options(memory_limit_bytes=16 * MIB, num_workers=1)

    def make() -> ad.Dataset:
        wide = ad.Dataset.range(400).map(lambda x: np.full(10_000, int(x)), 2)
        return wide.shuffle(20, seed=1).batch(4).prefetch(8)

    with ad.Runtime(options), make().iterator() as training:
        next(training)
        assert sum(len(batch) for batch in make()) == 400
        assert sum(len(batch) for batch in training) == 396


def test_more_pipelines_than_agreed_is_an_error_that_says_what_to_do() -> None:
    """The third pipeline of a Runtime for two is refused; one that was just left makes room."""
    with ad.Runtime(ad.Options(num_workers=0), pipelines=2):
        for _ in range(6):
            next(iter(ad.Dataset.range(100).batch(7)))  # left at once, each of them
        with ad.Dataset.range(10**7).iterator() as one, ad.Dataset.range(10**7).iterator() as other:
            assert next(one) == next(other)
            with pytest.raises(ad.PipelineError, match="pipelines=3"):
                list(ad.Dataset.range(3))
        assert len(list(ad.Dataset.range(3))) == 3


def test_a_consumer_that_leaves_does_not_wait_for_what_its_pipeline_waits_for() -> None:
    """Closing one iterator cancels its async functions, though the Runtime goes on."""
    waits = threading.Semaphore(0)

    async def never(x: int) -> int:
        waits.release()
        await asyncio.Event().wait()
        return x

    def close(iterator: ad.PipelineIterator) -> None:
        waits.acquire()
        iterator.close()

    with ad.Runtime(pipelines=1):
        for _ in range(3):
            iterator = ad.Dataset.range(1).map(never, num_parallel_calls=1).iterator()
            closing = threading.Thread(target=close, args=(iterator,))
            closing.start()
            with pytest.raises(ad.PipelineClosedError):
                next(iterator)
            closing.join()
        assert list(ad.Dataset.range(3)) == [0, 1, 2]
