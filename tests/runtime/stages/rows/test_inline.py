"""`map` and `filter` on the loop: early delivery, async calls, setup and errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncdata.runtime.stage import BLOCK_ROWS, Stage
from asyncdata.runtime.stages.rows.inline import AsyncMapStage, InlineMapStage
from asyncdata.runtime.stages.rows.selection import FilterStage
from asyncdata.runtime.stages.sources.arrays import RangeStage
from tests.runtime.stages.laws import Bench, Make, Scripted, check_any_blocking, check_closing, guard, script, whole


def numbers(bench: Bench, count: int) -> RangeStage:
    return RangeStage(bench.context("range"), range(count), "<i8")


def awaited(function: Any, count: int, *, parallelism: int = 3, ordered: bool = True, **options: Any) -> Make:
    return lambda bench: AsyncMapStage(
        bench.context("map(f)", ordered=ordered),
        numbers(bench, count),
        function,
        parallelism=parallelism,
        **options,
    )


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@pytest.mark.parametrize("make", [InlineMapStage, FilterStage])
def test_slow_functions_deliver_early_and_leave_the_loop_to_others(make: Callable[..., Stage]) -> None:
    """With calls of milliseconds the first element comes after a few of them, and other tasks run in between."""
    turns = 0

    def slow(x: int) -> bool:
        spin(0.003)
        return True

    async def run() -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        bench = Bench()
        stage = make(bench.context("f"), numbers(bench, 20), slow)
        sizes = []
        while (block := await stage.pull(BLOCK_ROWS)) is not None:
            sizes.append(len(block))
        assert sum(sizes) == 20
        assert max(sizes) < 5
        assert turns > 5
        other.cancel()
        await stage.aclose()
        bench._check()

    asyncio.run(run())


def test_a_filter_that_drops_everything_leaves_the_loop_to_others() -> None:
    """Going through a long input without a result does not hold the loop."""
    turns = 0

    async def run() -> None:
        nonlocal turns
        bench = Bench()
        stage = FilterStage(bench.context("f"), numbers(bench, 40_000), lambda _: False)

        async def drain() -> None:
            while await stage.pull(BLOCK_ROWS) is not None:
                pass

        task = asyncio.create_task(drain())
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        await stage.aclose()
        bench._check()

    asyncio.run(run())
    assert turns > 3


def test_calls_are_awaited_side_by_side_up_to_the_limit() -> None:
    """As many calls as the parallelism are under way at a time, never more, and results keep the order."""
    running = 0
    most = 0

    async def function(x: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(int(x) % 3 + 1):
            await asyncio.sleep(0)
        running -= 1
        return int(x) * 2

    assert whole(awaited(function, 30, parallelism=4)).elements == [2 * x for x in range(30)]
    assert most == 4


def test_any_order_delivers_what_is_ready() -> None:
    """Without order a call that waits holds up nobody else's result."""
    gate: list[asyncio.Event] = []

    async def function(x: int) -> int:
        if x == 0:
            gate.append(asyncio.Event())
            await gate[0].wait()
        if x == 9:
            gate[0].set()
        return int(x)

    found = whole(awaited(function, 10, parallelism=2, ordered=False)).elements
    assert sorted(found) == list(range(10))
    assert found.index(0) >= 8


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("error", [ValueError, StopIteration, asyncio.CancelledError, KeyError])
def test_an_error_comes_in_its_turn(ordered: bool, error: type[BaseException]) -> None:
    """The results before it are delivered; a cancellation of the function's own making is an error, too."""

    async def function(x: int) -> int:
        await asyncio.sleep(0)
        if x == 4:
            raise error("four")
        return int(x)

    trace = whole(awaited(function, 9, ordered=ordered))
    assert trace.error is not None
    assert trace.elements[:4] == [0, 1, 2, 3] if ordered else 4 not in trace.elements


def test_setup_is_entered_once_and_left_at_the_end() -> None:
    """What the context manager gives is the last argument of every call; it is left on the same loop."""
    events: list[Any] = []

    @asynccontextmanager
    async def session() -> AsyncIterator[str]:
        events.append("in")
        yield "session"
        events.append("out")

    async def function(x: int, resource: str) -> str:
        return f"{resource} {x}"

    trace = whole(awaited(function, 3, setup=session))
    assert trace.elements == ["session 0", "session 1", "session 2"]
    assert events == ["in", "out"]


@pytest.mark.parametrize("where", ["making", "entering"])
def test_a_setup_that_fails_is_the_error(where: str) -> None:
    """Nothing is called, and nothing is left that was not entered."""

    @asynccontextmanager
    async def session() -> AsyncIterator[str]:
        if where == "entering":
            raise OSError("no session")
        yield "session"

    def make() -> Any:
        if where == "making":
            raise OSError("no session")
        return session()

    async def function(x: int, resource: str) -> str:
        raise AssertionError("called")

    trace = whole(awaited(function, 3, setup=make))
    assert trace.error == "OSError: no session"


def test_generators_are_keyed_by_the_element() -> None:
    """With a key every call gets a generator that depends on its element alone, also out of order."""

    async def function(x: int, rng: Any) -> tuple[int, float]:
        for _ in range(int(x) % 3):
            await asyncio.sleep(0)
        return int(x), rng.random()

    one = whole(awaited(function, 12, parallelism=5, keys=(1, 2))).elements
    two = whole(awaited(function, 12, parallelism=2, ordered=False, keys=(1, 2))).elements
    assert sorted(two) == one
    assert len({value for _, value in one}) == 12


def refusing(value: Any) -> bool:
    if int(value) in (0, 4, 5, 23):
        raise ValueError(f"no {value}")
    return int(value) % 3 != 1


async def refusing_later(value: Any) -> bool:
    await asyncio.sleep(0)
    return refusing(value)


def leaving_out(kind: str, **policy: Any) -> Make:
    """A stage of 24 elements, of which the function refuses some."""

    def make(bench: Bench) -> Stage:
        source, context = Scripted(bench, script(24)), bench.context("f", guard=guard(bench, **policy))
        if kind == "async":
            return AsyncMapStage(context, source, refusing_later, parallelism=3)
        stage: Callable[..., Stage] = InlineMapStage if kind == "inline" else FilterStage
        return stage(context, source, refusing)

    return make


@pytest.mark.parametrize("kind", ["inline", "filter", "async"])
def test_elements_that_fail_are_left_out_and_stay_used_up(kind: str) -> None:
    """With a policy: the others remain in their order, states and used rows as for a filter, however blocks are cut."""
    trace = check_any_blocking(leaving_out(kind), seeds=range(4))
    good = [value for value in range(24) if value not in (0, 4, 5, 23)]
    kept = [value for value in good if value % 3 != 1] if kind == "filter" else good
    assert [origin[1] for origin in trace.origins] == kept
    assert trace.error is None
    assert sorted(trace.used_up) == sorted(whole(lambda bench: Scripted(bench, script(24))).used_up)
    check_closing(leaving_out(kind), seed=3)


@pytest.mark.parametrize("kind", ["inline", "filter", "async"])
def test_one_too_many_is_raised_at_its_place(kind: str) -> None:
    """What comes before the element that exceeds the quota is delivered, whatever the cuts."""
    trace = check_any_blocking(leaving_out(kind, max_skipped=2), seeds=range(4))
    assert [origin[1] for origin in trace.origins] == ([2, 3] if kind == "filter" else [1, 2, 3])
    assert "TooManyErrorsError: 3 failed" in str(trace.error)
