"""`from_generator`: threads and tasks around what users yield."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.arguments import is_async_generator
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.sources.generator import (
    AsyncGeneratorStage,
    GeneratorStage,
    OwnState,
)
from tests.patience import LIMIT_S
from tests.runtime.stages.laws import Bench, Make, check_any_blocking, whole


def plain(function: Callable[..., Any], *args: Any) -> Make:
    return lambda bench: GeneratorStage(bench.context("gen"), function, args)


def later(function: Callable[..., Any], *args: Any) -> Make:
    return lambda bench: AsyncGeneratorStage(bench.context("gen"), function, args)


def test_any_iterable_will_do() -> None:
    """Functions that return lists, iterators or generators, with arguments."""
    assert whole(plain(lambda n: list(range(n)), 5)).elements == [0, 1, 2, 3, 4]
    assert whole(plain(iter, "abc")).elements == ["a", "b", "c"]
    assert whole(plain(lambda: (x for x in (1, (2, 3))))).elements == [1, [2, 3]]
    assert whole(plain(list)).elements == []


def test_thousands_of_elements() -> None:
    """A fast generator is read many elements at a time."""
    trace = whole(plain(range, 5000))
    assert trace.elements == list(range(5000))
    assert trace.pulls < 2500


def test_an_element_does_not_wait_for_the_next_one() -> None:
    """What was yielded is delivered while the generator is still busy with what follows."""
    delivered = threading.Event()

    def waiting() -> Iterator[int]:
        for i in range(5):
            yield i
            assert delivered.wait(LIMIT_S), "the element was kept until the next one came"
            delivered.clear()

    with ad.Dataset.from_generator(waiting).iterator() as elements:
        for i, element in enumerate(elements):
            assert element == i
            delivered.set()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
def test_an_error_comes_behind_the_elements_before_it(asynchronous: bool, error: type[BaseException]) -> None:
    """What was yielded is delivered first; whatever was raised, the end is an error and not silence."""

    def failing() -> Iterator[int]:
        yield from range(3)
        raise error("three")

    async def failing_later() -> AsyncIterator[int]:
        for i in range(3):
            yield i
        raise error("three")

    trace = whole(later(failing_later) if asynchronous else plain(failing))
    assert trace.elements == [0, 1, 2]
    assert trace.error is not None


def test_a_function_that_fails_at_once() -> None:
    """An error in making the iterator is an error of the stage; so is what cannot be iterated."""

    def broken() -> list[int]:
        raise StopIteration

    assert whole(plain(broken)).error is not None
    assert "TypeError" in (whole(plain(lambda: 5)).error or "")
    assert "TypeError" in (whole(later(lambda: 5)).error or "")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_generators_are_closed_half_way(asynchronous: bool) -> None:
    """Closing the stage runs the generator's ``finally``, in a thread or on the loop it runs on."""
    closed: list[str] = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    async def endless_later() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.append("loop")

    make = later(endless_later) if asynchronous else plain(endless)
    asyncio.run(Bench().observe(make, pulls=2))
    assert len(closed) == 1
    assert closed[0] == "loop" if asynchronous else closed[0] != threading.main_thread().name


def test_an_async_generator_runs_only_while_it_is_asked() -> None:
    """Nobody asking, it is at most one element ahead, so that nothing piles up."""
    made = 0

    async def counting() -> AsyncIterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    async def run() -> None:
        seen = 0

        def make(bench: Bench) -> Stage:
            stage = later(counting)(bench)
            pull = stage.pull

            async def look(limit: int) -> Any:
                nonlocal seen
                block = await pull(5)
                assert block is not None
                seen += len(block)
                for _ in range(20):
                    await asyncio.sleep(0)
                assert made <= seen + 1
                return block

            stage.pull = look  # type: ignore[method-assign]  # looks at what passes
            return stage

        await Bench().observe(make, pulls=5)
        assert seen >= 5

    asyncio.run(run())


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_marks_do_not_depend_on_blocks(every: int) -> None:
    """What the generator told behind an element is the mark in front of the next one, however blocks are cut."""

    def make(bench: Bench) -> Stage:
        made = 0

        def counting() -> Iterator[int]:
            nonlocal made
            while made < 60:
                made += 1
                yield made

        own = OwnState("gen", lambda: [made], print, every, set())
        return GeneratorStage(bench.context("gen"), counting, (), own)

    trace = check_any_blocking(make, seeds=range(8))
    for row, (mark, skip) in enumerate(trace.states):
        at = row // every * every
        assert (mark, skip) == ({"at": at, "value": [at]} if at else {"at": 0}, row - at + 1)


def test_which_functions_are_asynchronous() -> None:
    """Async generator functions, and objects that are called like one."""

    async def agen() -> AsyncIterator[int]:
        yield 1

    class Source:
        async def __call__(self) -> AsyncIterator[int]:
            yield 1

    assert is_async_generator(agen)
    assert is_async_generator(Source())
    assert not is_async_generator(range)
    assert not is_async_generator(agen())  # type: ignore[arg-type]  # what it returns is no function
