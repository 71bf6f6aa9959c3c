"""Who takes the elements: any task on any loop, any thread, one after the other or together; nothing is lost.

The pipelines here end in small blocks, so that deliveries of one and of many elements both occur.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from tests.integration.shards import records, write_shards
from tests.patience import LIMIT_S, turns


async def slow_enough(x: int) -> int:
    """Makes the consumer wait now and then."""
    if x % 7 == 0:
        await asyncio.to_thread(int)
    return x


def trickle(count: int) -> ad.Dataset:
    """Numbers that come in small pieces."""
    return ad.Dataset.range(count).map(slow_enough, num_parallel_calls=3)


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Some local shards."""
    return write_shards(tmp_path, 3, 100, 100)


async def test_a_cancelled_anext_loses_nothing(samples: Callable[[int, int], int]) -> None:
    """Whatever moment the cancellation hits, the next call continues where the last one left off."""
    rng = random.Random(5)
    for _ in range(samples(3, 100)):
        seen: list[int] = []
        iterator = trickle(200).iterator()
        while True:
            task = asyncio.ensure_future(anext(iterator, None))
            await turns(rng.randrange(4))
            if rng.random() < 0.5:
                await turns(rng.randrange(100))
            task.cancel()
            try:
                element = await task
            except asyncio.CancelledError:
                continue
            if element is None:
                break
            seen.append(element)
        assert seen == list(range(200))


async def test_a_cancelled_anext_loses_no_error() -> None:
    """An error is raised to whoever asks next, even if those who asked before gave up while all was being closed."""

    def explode(x: int) -> int:
        if x == 10:
            raise ValueError("user code")
        return x

    for first in range(12):
        patience = first
        iterator = ad.Dataset.range(20).map(explode, num_parallel_calls=2, executor="thread").iterator()
        outcomes: list[Any] = []
        while not outcomes or not isinstance(outcomes[-1], BaseException | str):
            task = asyncio.ensure_future(anext(iterator, "end"))
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            try:
                outcomes.append(await task)
            except asyncio.CancelledError:
                patience += 1
            except ValueError as error:
                outcomes.append(error)
        assert isinstance(outcomes[-1], ValueError), outcomes
        assert outcomes[:-1] == list(range(len(outcomes) - 1))
        with pytest.raises(ad.PipelineClosedError, match="ValueError: user code"):
            await anext(iterator)


async def test_wait_for_may_time_out_again_and_again() -> None:
    """A time limit that passes costs nothing, and leaves no trace in the iterator."""
    gate = threading.Event()

    async def hold(x: int) -> int:
        if x == 3:
            await asyncio.to_thread(gate.wait)
        return x

    async with ad.Dataset.range(6).map(hold, num_parallel_calls=1).iterator() as iterator:
        seen = [await anext(iterator) for _ in range(3)]
        for _ in range(50):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(iterator), 0.001)
        gate.set()
        seen += [x async for x in iterator]
    assert seen == list(range(6))


async def test_two_tasks_share_an_iterator() -> None:
    """Every element goes to exactly one of them, each sees its own in order."""

    async def take(iterator: ad.PipelineIterator) -> list[int]:
        seen = []
        async for x in iterator:
            seen.append(x)
            await asyncio.sleep(0)
        return seen

    for dataset in (trickle(300), ad.Dataset.range(300)):
        iterator = dataset.iterator()
        parts = await asyncio.gather(*(take(iterator) for _ in range(4)))
        assert Counter(x for part in parts for x in part) == Counter(range(300))
        assert all(part == sorted(part) for part in parts)


def test_threads_share_an_iterator() -> None:
    """The same for threads in plain loops."""
    for dataset in (trickle(300), ad.Dataset.range(5000)):
        iterator = dataset.iterator()
        parts: list[list[int]] = [[] for _ in range(4)]

        def take(part: list[int], iterator: ad.PipelineIterator = iterator) -> None:
            part.extend(iterator)

        threads = [threading.Thread(target=take, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = [x for part in parts for x in part]
        assert sorted(seen) == list(range(len(seen)))
        assert len(seen) in {300, 5000}
        assert all(part == sorted(part) for part in parts)


def test_an_iterator_goes_on_in_a_second_loop() -> None:
    """``asyncio.run`` may be called again with the same iterator: it belongs to no loop of the consumer's."""
    iterator = trickle(90).iterator()

    async def take(count: int) -> list[int]:
        return [await anext(iterator) for _ in range(count)]

    seen = asyncio.run(take(30))
    seen += asyncio.run(take(30))
    seen += list(iterator)
    assert seen == list(range(90))


def test_a_loop_closed_while_it_waited_takes_nothing_with_it() -> None:
    """A wait that died with its loop leaves the element for the next one."""
    gate = threading.Event()

    async def hold(x: int) -> int:
        if x == 2:
            await asyncio.to_thread(gate.wait)
        return x

    iterator = ad.Dataset.range(5).map(hold, num_parallel_calls=1).iterator()
    assert [next(iterator), next(iterator)] == [0, 1]
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(iterator.__anext__())
    loop.run_until_complete(turns(20))
    assert not waiting.done()
    waiting.cancel()
    loop.close()  # the cancellation is never delivered
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # as intended here
    gate.set()
    assert list(iterator) == [2, 3, 4]


def test_an_iterator_made_in_one_thread_is_used_in_another() -> None:
    """It belongs to no thread either."""
    iterator = trickle(50).iterator()
    seen = [next(iterator)]

    def rest() -> None:
        seen.extend(iterator)

    thread = threading.Thread(target=rest)
    thread.start()
    thread.join()
    assert seen == list(range(50))


async def test_a_plain_loop_inside_a_running_loop(shards: list[str]) -> None:
    """As in a notebook cell: a plain ``for`` where a loop already runs."""
    assert list(ad.TFRecordDataset(shards[0])) == records(0, 100, 100)
    assert list(ad.Dataset.range(5).map(slow_enough, num_parallel_calls=2)) == list(range(5))


@pytest.mark.sampled
def test_a_pipeline_inside_user_code_of_another(shards: list[str]) -> None:
    """Functions may read datasets of their own, inside a Runtime too, on the very loop that would have to run them."""

    def count(x: int) -> int:
        return int(x) + len(list(ad.Dataset.range(3)))

    dataset = ad.Dataset.range(4)
    for shared in (False, True):
        with ad.Runtime() if shared else threading.Lock():
            assert list(dataset.map(count)) == [3, 4, 5, 6]
            assert list(dataset.map(count, num_parallel_calls=2, executor="thread")) == [3, 4, 5, 6]


async def test_the_consumers_loop_is_never_held() -> None:
    """While a pipeline is waited for, fails and is closed, the consumer's loop goes on."""
    entered, released = threading.Event(), threading.Event()
    stood_still: list[int] = []

    def held_failure(x: int) -> int:
        entered.set()
        if not released.wait(LIMIT_S):  # what only the consumer's loop can do
            stood_still.append(x)
        raise ValueError(x)

    async def release() -> None:
        await asyncio.to_thread(entered.wait)
        for _ in range(20):
            await asyncio.sleep(0)
        released.set()

    def failing() -> ad.PipelineIterator:
        return ad.Dataset.range(5).map(held_failure, num_parallel_calls=4, executor="thread").iterator()

    releasing = asyncio.ensure_future(release())
    with pytest.raises(ValueError, match="0"):
        await anext(failing())
    await releasing
    entered.clear()
    released.clear()
    iterator = failing()
    first = asyncio.ensure_future(anext(iterator))
    await asyncio.to_thread(entered.wait)
    closing = asyncio.ensure_future(iterator.aclose())
    await release()
    await closing
    with pytest.raises((ValueError, ad.PipelineClosedError)):
        await first
    assert not stood_still, "the loop stood still while user code was awaited"


@pytest.mark.sampled
async def test_many_iterators_at_once() -> None:
    """Several pipelines in one task group, each with its own Runtime."""

    async def total(count: int) -> int:
        return sum([x async for x in trickle(count)])

    totals = await asyncio.gather(*(total(count) for count in range(0, 100, 10)))
    assert totals == [sum(range(count)) for count in range(0, 100, 10)]


async def test_closing_while_another_task_waits() -> None:
    """Whoever waits for an element that will not come is told so."""
    gate = threading.Event()

    def hold(x: int) -> int:
        gate.wait()
        return x

    iterator = ad.Dataset.range(5).map(hold, num_parallel_calls=1, executor="thread").iterator()
    waiting = asyncio.ensure_future(anext(iterator))
    await turns(20)
    closing = asyncio.ensure_future(iterator.aclose())
    with pytest.raises(ad.PipelineClosedError):
        await waiting
    gate.set()
    await closing


def test_the_end_is_the_end() -> None:
    """After the last element every further call says so again."""
    iterator = ad.Dataset.range(2).iterator()
    assert list(iterator) == [0, 1]
    for _ in range(3):
        assert list(iterator) == []
    assert asyncio.run(anext(iterator, "end")) == "end"


def refuse_three(x: int) -> int:
    """A user's function that fails for one element."""
    if x == 3:
        raise ValueError("not this one")
    return x


FAILING: dict[str, Callable[[], ad.Dataset]] = {
    "inline": lambda: ad.Dataset.range(9).map(refuse_three),
    "thread": lambda: ad.Dataset.range(9).map(refuse_three, 2, executor="thread"),
    "process": lambda: ad.Dataset.range(9).map(refuse_three, 2),
    "awaited": lambda: trickle(9).map(refuse_three),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", FAILING)
def test_a_failed_iterator_says_so_again(kind: str) -> None:
    """A loop that catches errors and continues does not take the failure for the end of the epoch."""
    iterator = FAILING[kind]().iterator()
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="not this one"):
        next(iterator)
    assert "failed" in repr(iterator)
    for _ in range(3):
        with pytest.raises(ad.PipelineClosedError, match=r"ValueError: not this one.*ErrorPolicy"):
            next(iterator)
    with pytest.raises(ad.PipelineClosedError, match="ValueError: not this one"):
        asyncio.run(anext(iterator))
    iterator.close()
    with pytest.raises(ad.PipelineClosedError, match="ValueError: not this one"):
        list(iterator)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", FAILING)
async def test_a_failed_iterator_says_so_again_to_asyncio(kind: str) -> None:
    """As for plain loops."""
    iterator = FAILING[kind]().iterator()
    with pytest.raises(ValueError, match="not this one"):
        _ = [x async for x in iterator]
    for _ in range(2):
        with pytest.raises(ad.PipelineClosedError, match=r"ValueError: not this one.*ErrorPolicy"):
            await anext(iterator)


class Unwilling:
    """Cannot be made again from its pickle."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["number"] == 1:
            raise ValueError("not this one")
        vars(self).update(state)


def test_an_element_that_cannot_be_made_is_not_passed_over() -> None:
    """The iteration ends with the error of the element's own class, and says so again."""
    iterator = ad.Dataset.range(3).map(Unwilling, 1).iterator()
    assert next(iterator).number == 0
    with pytest.raises(ValueError, match="not this one"):
        next(iterator)
    with pytest.raises(ad.PipelineClosedError, match="ValueError: not this one"):
        next(iterator)
