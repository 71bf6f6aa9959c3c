"""Closing while user code runs: it is waited for, reported when it is stuck, and heard when it fails.

Its functions share events with the tests, and its logs are those of this process: all run here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import asyncdata as ad
from asyncdata.testing import snapshot
from tests.integration.going import wait_until_gone


class _BoomError(Exception):
    pass


def test_a_thread_stuck_in_user_code_is_reported_and_left() -> None:
    """``close`` raises after the time limit, with the thread's name and its stack."""
    release, entered = threading.Event(), threading.Event()

    def stuck_in_the_user_function(x: int) -> int:
        entered.set()
        release.wait()
        return x

    options = ad.Options(close_timeout_s=0.2, num_threads=2)
    dataset = ad.Dataset.range(5).map(stuck_in_the_user_function, 2, executor="thread").with_options(options)
    iterator = dataset.iterator()
    entered.wait()
    try:
        with pytest.raises(ad.CloseTimeoutError) as caught:
            iterator.close()
    finally:
        release.set()
    assert "asyncdata-map-" in str(caught.value)
    assert "stuck_in_the_user_function" in str(caught.value)


def test_the_stage_thread_stuck_in_inline_user_code_is_reported_and_left() -> None:
    """The same for a function that runs on the pipeline's own loop."""
    release, entered = threading.Event(), threading.Event()

    def stuck_in_the_user_function(x: int) -> int:
        entered.set()
        release.wait()
        return x

    dataset = ad.Dataset.range(5).map(stuck_in_the_user_function)
    iterator = dataset.with_options(ad.Options(close_timeout_s=0.2)).iterator()
    entered.wait()
    try:
        with pytest.raises(ad.CloseTimeoutError) as caught:
            iterator.close()
    finally:
        release.set()
    assert "asyncdata-stages" in str(caught.value)
    assert "stuck_in_the_user_function" in str(caught.value)


def test_an_async_function_that_refuses_to_be_cancelled_is_reported() -> None:
    """A coroutine that swallows its cancellation cannot make ``close`` hang."""
    gates: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    entered = threading.Event()

    async def stubborn(x: int) -> int:
        gate = asyncio.Event()
        gates.append((asyncio.get_running_loop(), gate))
        entered.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return x

    dataset = ad.Dataset.range(1).map(stubborn, num_parallel_calls=1)
    iterator = dataset.with_options(ad.Options(close_timeout_s=0.2)).iterator()
    entered.wait()
    try:
        with pytest.raises(ad.CloseTimeoutError) as caught:
            iterator.close()
    finally:
        for loop, gate in gates:
            loop.call_soon_threadsafe(gate.set)
    assert "stubborn" in str(caught.value)


@pytest.mark.parametrize("executor", ["inline", "thread"])
def test_an_iterator_closed_by_its_own_function_ends(executor: str, gone: Callable[[], None]) -> None:
    """It cannot wait for itself, and says so at once; all is put back nevertheless."""
    holder: list[ad.PipelineIterator] = []
    held, errors = threading.Event(), []

    def close_it(x: int) -> int:
        held.wait()
        try:
            holder[0].close()
        except RuntimeError as error:
            errors.append(str(error))
        return x

    parallel = None if executor == "inline" else 2
    dataset = ad.Dataset.range(3).map(close_it, parallel, executor=executor)
    holder.append(dataset.with_options(ad.Options(close_timeout_s=1000)).iterator())
    held.set()
    with pytest.raises(ad.PipelineClosedError):
        list(holder[0])
    gone()
    assert errors
    assert "code that it runs" in errors[0]


@pytest.mark.parametrize("step", ["generator", "async", "filter"])
def test_any_other_function_may_close_its_iterator(step: str, gone: Callable[[], None]) -> None:
    """Inside a Runtime that goes on, too: nobody waits for himself."""
    holder: list[ad.PipelineIterator] = []
    held = threading.Event()

    def close_it(x: int) -> int:
        held.wait()
        with contextlib.suppress(RuntimeError):
            holder[0].close()
        return x

    async def close_it_async(x: int) -> int:
        await asyncio.to_thread(held.wait)
        await holder[0].aclose()
        return x

    datasets = {
        "generator": ad.Dataset.from_generator(lambda: map(close_it, range(3))),
        "async": ad.Dataset.range(3).map(close_it_async, 2),
        "filter": ad.Dataset.range(3).filter(close_it),
    }
    limits = ad.Options(close_timeout_s=1000)
    for runtime in (contextlib.nullcontext(), ad.Runtime(limits)):
        with runtime:
            held.clear()
            holder[:] = [datasets[step].with_options(limits).iterator()]
            held.set()
            with pytest.raises(ad.PipelineClosedError):
                list(holder[0])
    gone()


@pytest.mark.parametrize("leave", ["break", "close"])
def test_what_a_generator_raises_as_it_is_closed_is_logged(leave: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is there to hear it."""

    def numbers() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            raise _BoomError("while leaving")

    before = snapshot()
    iterator = ad.Dataset.from_generator(numbers).iterator()
    next(iterator)
    if leave == "close":
        iterator.close()
    del iterator
    wait_until_gone(before)
    assert any("while leaving" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("leave", ["break", "close", "runtime"])
@pytest.mark.parametrize("waiting", [True, False])
def test_what_an_async_generator_raises_as_it_is_closed_is_logged(
    leave: str, waiting: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it waits for something of its own then, or to be asked for more; once."""

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 0
            if waiting:
                await asyncio.Event().wait()
            for number in itertools.count(1):
                yield number
        finally:
            raise _BoomError("while leaving")

    before = snapshot()
    with ad.Runtime() if leave == "runtime" else contextlib.nullcontext():
        iterator = ad.Dataset.from_generator(numbers).iterator()
        next(iterator)
        if leave == "close":
            iterator.close()
        elif leave == "break":
            del iterator
            wait_until_gone(before)
    wait_until_gone(before)
    assert sum("while leaving" in record.getMessage() for record in caplog.records) == 1
