"""However an iteration is left, nothing stays: no task, thread, process, descriptor or shared memory.

The check itself is the autouse fixture's; here without its garbage collection, for the mapping must go with its last
view and not when a collector happens to run.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.testing import check, settle_async, snapshot
from tests.integration.shards import write_shards
from tests.patience import LIMIT_S

EXECUTORS = ("inline", "thread", "process", "async")


class _BoomError(Exception):
    pass


def widen(x: int) -> Any:
    """A map function with something to carry."""
    return np.full(100, x)


async def widen_async(x: int) -> Any:
    """The same, awaited."""
    await asyncio.sleep(0)
    return np.full(100, x)


def explode(x: int) -> Any:
    """Fails in the middle."""
    if x == 70:
        raise _BoomError("user code")
    return np.full(100, x)


async def explode_async(x: int) -> Any:
    """Fails in the middle, too."""
    return explode(x)


def mapped(dataset: ad.Dataset, executor: str, plain: Callable[..., Any], awaited: Callable[..., Any]) -> ad.Dataset:
    """The dataset with a function mapped over it, in one of the places where it may run."""
    if executor == "async":
        return dataset.map(awaited, num_parallel_calls=4)
    return dataset.map(plain, num_parallel_calls=None if executor == "inline" else 2, executor=executor)


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Some local shards."""
    return write_shards(tmp_path, 4, 200, 300)


def pipeline(executor: str) -> ad.Dataset:
    """A pipeline with a bit of everything."""
    return mapped(ad.Dataset.range(200), executor, widen, widen_async).shuffle(20, seed=1).batch(8).prefetch(2)


@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS)
def test_after_the_end_nothing_is_left_at_once(executor: str, gone: Callable[[], None]) -> None:
    """When the last element was delivered, everything has ended; no collection is needed."""
    assert len(list(pipeline(executor))) == 25
    gone()


@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_bare_break_leaves_nothing_within_two_seconds(executor: str, gone: Callable[[], None]) -> None:
    """Dropping a half-read iterator puts everything back by itself."""
    for batch in pipeline(executor):
        assert batch.shape == (8, 100)
        break
    del batch
    gone()


@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_in_the_loop_body_leaves_nothing(executor: str, gone: Callable[[], None]) -> None:
    """The caller's own exception passes through untouched."""

    def run() -> None:
        for number, _ in enumerate(pipeline(executor)):
            if number == 3:
                raise _BoomError("in the body")

    with pytest.raises(_BoomError, match="in the body") as caught:
        run()
    del caught
    gone()


@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_of_user_code_leaves_nothing(executor: str, gone: Callable[[], None]) -> None:
    """It keeps its type, and everything is closed when it is raised."""
    dataset = mapped(ad.Dataset.range(200), executor, explode, explode_async).batch(8)
    with pytest.raises(Exception, match="user code") as caught:
        list(dataset)
    assert type(caught.value).__name__ == "_BoomError"
    assert any("element 70 of range" in note for note in caught.value.__notes__)
    del caught
    gone()


@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit, asyncio.CancelledError])
def test_user_code_cannot_end_more_than_its_pipeline(
    executor: str, kind: type[BaseException], gone: Callable[[], None]
) -> None:
    """``sys.exit`` and the like in a map function are one error of the pipeline: no exit, no silent end."""

    def leave(x: int) -> int:
        if x == 5:
            raise kind("from the map function")
        return x

    async def leave_async(x: int) -> int:
        return leave(x)

    with pytest.raises(Exception, match=kind.__name__) as caught:
        list(mapped(ad.Dataset.range(20), executor, leave, leave_async))
    assert not isinstance(caught.value, kind)
    assert any("element 5 of range" in note for note in caught.value.__notes__)
    del caught
    gone()


@pytest.mark.sampled
@pytest.mark.parametrize("executor", EXECUTORS)
def test_close_at_every_step(executor: str, gone: Callable[[], None], samples: Callable[[int, int], int]) -> None:
    """``close`` returns when all is gone, whatever was read before; afterwards the iterator says it is closed."""
    for steps in range(0, 26, samples(12, 1)):
        before = snapshot()
        iterator = pipeline(executor).iterator()
        for _ in range(steps):
            next(iterator)
        iterator.close()
        assert not check(before)
        iterator.close()
        with pytest.raises(ad.PipelineClosedError):
            next(iterator)
        del iterator
    gone()


def test_with_leaves_nothing(shards: list[str], gone: Callable[[], None]) -> None:
    """The block's end closes; the elements read before stay."""
    with ad.TFRecordDataset(shards).batch(10).iterator() as iterator:
        first = next(iterator)
    assert len(first) == 10
    assert first[0].startswith(b"0:0;")
    del first
    gone()


def test_with_keeps_the_error_of_its_body(shards: list[str], gone: Callable[[], None]) -> None:
    """What the block raised is what the caller sees."""

    def fail() -> None:
        with ad.TFRecordDataset(shards).iterator() as iterator:
            next(iterator)
            raise _BoomError

    with pytest.raises(_BoomError):
        fail()
    gone()


def test_a_generator_around_a_dataset_left_half_read(shards: list[str], gone: Callable[[], None]) -> None:
    """Collecting the generator is as good as a break."""

    def elements() -> Iterator[Any]:
        yield from ad.TFRecordDataset(shards).batch(7)

    generator = elements()
    next(generator)
    next(generator)
    del generator
    gone()


def test_a_cycle_of_garbage_may_hold_a_half_read_iterator(shards: list[str], gone: Callable[[], None]) -> None:
    """The finalizer may run inside the collector, in any thread."""

    class Holder:
        pass

    for _ in range(5):
        holder = Holder()
        holder.itself = holder  # type: ignore[attr-defined]  # the cycle
        holder.iterator = iter(ad.TFRecordDataset(shards).batch(7))  # type: ignore[attr-defined]  # likewise
        next(holder.iterator)  # type: ignore[attr-defined]  # likewise
        del holder
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join()
    gone()


async def test_async_for_left_by_break_return_and_error(shards: list[str]) -> None:
    """Leaving an ``async for`` signals without blocking the loop."""
    before = snapshot()

    async def first() -> Any:
        async for batch in ad.TFRecordDataset(shards).batch(5):
            return batch[0]
        return None

    assert (await first()).startswith(b"0:0;")

    async for batch in ad.TFRecordDataset(shards).batch(5):
        assert len(batch) == 5
        break
    del batch

    async def fail() -> None:
        async for _ in ad.TFRecordDataset(shards).batch(5):
            raise _BoomError

    with pytest.raises(_BoomError):
        await fail()
    assert not await settle_async(before, settle_s=LIMIT_S, only=("thread", "process", "descriptor", "shared memory"))


@pytest.mark.sampled
async def test_async_with_and_aclose_return_when_all_is_gone(shards: list[str]) -> None:
    """No settling is needed after ``async with``."""
    before = snapshot()
    async with ad.TFRecordDataset(shards).map(len, num_parallel_calls=2).iterator() as iterator:
        assert await anext(iterator) == 300
    assert not check(before)
    await iterator.aclose()
    with pytest.raises(ad.PipelineClosedError):
        await anext(iterator)


def test_closing_a_runtime_ends_its_iterators(shards: list[str], gone: Callable[[], None]) -> None:
    """An iterator whose Runtime went says so, after what it had is delivered."""
    with ad.Runtime():
        iterator = iter(ad.TFRecordDataset(shards).repeat().batch(3))
        next(iterator)

    def drain(iterator: Iterator[Any]) -> None:
        for _ in range(10_000):
            next(iterator)

    with pytest.raises(ad.PipelineClosedError, match="Runtime was closed"):
        drain(iterator)
    del iterator
    gone()


def test_iterators_are_not_copied() -> None:
    """Two of them would share what one owns."""
    with ad.Dataset.range(3).iterator() as iterator:
        for take in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                take(iterator)


def test_what_user_code_left_on_the_loop_ends_with_it(gone: Callable[[], None]) -> None:
    """Tasks and threads that an async map function started and forgot are the Runtime's to end."""
    kept: list[object] = []

    async def forgetful(x: int) -> int:
        kept.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))
        return await asyncio.to_thread(int, x)

    assert list(ad.Dataset.range(10).map(forgetful, num_parallel_calls=3)) == list(range(10))
    kept.clear()
    gone()


def test_a_plan_that_cannot_start_leaves_nothing(gone: Callable[[], None]) -> None:
    """Neither an unpicklable function nor a failing memory limit keeps loops alive."""
    lock = threading.Lock()

    def locked(x: int) -> int:
        with lock:
            return x

    dataset = ad.Dataset.range(5).map(locked, num_parallel_calls=2, executor="process")
    with pytest.raises(ad.FunctionTransferError, match="locked"):
        list(dataset)
    gone()
