"""Functions of users that fail, return what cannot be used, or cannot be sent: one clear error and a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from tests.integration.test_bad_input import PLACES, error_of, small_options


def mapped(function: Callable[[Any], Any], place: str, count: int = 20) -> ad.Dataset:
    """A function over numbers."""
    dataset = ad.Dataset.range(count).map(function, None if place == "inline" else 2, executor=place)
    return dataset.with_options(small_options(num_workers=int(place == "process")))


UNBATCHABLE: dict[str, Callable[[int], Any]] = {
    "shapes": lambda x: np.zeros(3 if x < 5 else 4),
    "dtypes": lambda x: np.zeros(3, np.int32 if x < 5 else np.float32),
    "structures": lambda x: {"a": x} if x < 5 else {"b": x},
    "lengths of tuples": lambda x: (x, x) if x < 5 else (x, x, x),
    "none": lambda x: None if x == 5 else np.zeros(3),
    "kinds": lambda x: b"bytes" if x < 5 else "text",
    "numbers and arrays": lambda x: 1 if x < 5 else np.zeros(3),
}


@pytest.mark.sampled
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", list(UNBATCHABLE))
def test_elements_that_cannot_be_batched(place: str, case: str) -> None:
    """One error that names the stage, and what differs."""
    error = error_of(mapped(UNBATCHABLE[case], place).batch(10), ad.UnbatchableError)
    # Rows of different structures cannot even leave the stage that made them.
    assert "batch(10)" in error.stage or ("structure" in case or "tuples" in case)
    assert "batch" in error.message


@pytest.mark.parametrize("place", PLACES)
def test_elements_that_differ_are_fine_without_a_batch(place: str) -> None:
    """Shapes need not agree as long as nobody stacks them."""
    found = list(mapped(lambda x: np.zeros(int(x) % 3), place, 9))
    assert [len(array) for array in found] == [0, 1, 2] * 3


def test_a_function_that_cannot_be_pickled() -> None:
    """Named with what is in the way, before any process is started."""
    lock = threading.Lock()

    def locked(x: int) -> int:
        with lock:
            return x

    error = error_of(mapped(locked, "process"), ad.FunctionTransferError)
    assert "locked" in str(error)
    assert "'lock'" in str(error)
    assert "locked)" in (error.stage or "")


def test_results_that_cannot_be_sent_back() -> None:
    """What a worker returns and pickle refuses is one error with the element."""
    error = error_of(mapped(lambda x: (threading.Lock(), x), "process"), Exception)
    assert "lock" in str(error)


def test_an_interleave_function_that_returns_no_dataset() -> None:
    """Said in words."""
    dataset = ad.Dataset.range(3).interleave(lambda x: x)
    error = error_of(dataset, TypeError)
    assert "must return a Dataset" in str(error)


def test_a_function_that_asks_for_the_next_element_of_its_own_pipeline() -> None:
    """It would wait for itself."""
    numbers: Iterator[Any] = ad.Dataset.range(5).map(lambda _: next(numbers)).iterator()
    with pytest.raises(RuntimeError, match="outside of the function"):
        next(numbers)


def test_a_function_that_asks_for_the_next_element_of_a_pipeline_on_the_same_loop() -> None:
    """Its error leaves the other pipeline as it was; what that one has ahead can be taken, in one call all of it."""
    with ad.Runtime(), ad.Dataset.range(1 << 40).map(float).iterator() as numbers:
        assert next(numbers) == 0
        with pytest.raises(RuntimeError, match="outside of the function"):
            list(ad.Dataset.range(1).map(lambda _: [next(numbers) for _ in range(1 << 40)]))
        assert next(numbers) == numbers.position - 1


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda ds: ds.scan(0, lambda state, x: (state, x) if x < 3 else x), id="scan"),
        pytest.param(lambda ds: ds.rejection_resample(lambda x: x, [0.2, 0.4, 0.4]), id="class out of range"),
        pytest.param(lambda ds: ds.rejection_resample(lambda x: 0 if x < 3 else "a", [0.5, 0.5]), id="no class"),
    ],
)
def test_answers_that_a_step_cannot_use(wrong: Callable[[ad.Dataset], ad.Dataset]) -> None:
    """The error names the element, as an error of the function itself does."""
    error = error_of(wrong(ad.Dataset.range(5)), (TypeError, ValueError))
    assert any("element 3 of range" in note for note in error.__notes__), error


def cancel_here(x: Any) -> Any:
    """A function that cancels the task in which it runs, at one element."""
    task = asyncio.current_task()
    if x == 5 and task is not None:
        task.cancel()
    return x


def cancel_all(x: Any) -> Any:
    """A function that cancels all tasks of its loop, at one element."""
    for task in asyncio.all_tasks() if x == 5 else ():
        task.cancel()
    return x


async def cancel_and_wait(x: Any) -> Any:
    """The same, awaited."""
    cancel_here(x)
    await asyncio.sleep(0)
    return x


async def numbers_until_cancelled() -> AsyncIterator[int]:
    """A generator that does it."""
    for x in range(10):
        yield await cancel_and_wait(x)


@contextlib.asynccontextmanager
async def cancelled_setup() -> AsyncIterator[int]:
    """What is to be entered before the first call does it."""
    yield await cancel_and_wait(5)


async def timed_out_before(x: Any) -> None:
    """A timeout that does not take its cancellation back, and something that was cancelled by others later."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()
    cancelled = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    await cancelled


async def first_of_two(x: Any, _resource: int = 0) -> Any:
    """A function that may be given something."""
    return x


@pytest.mark.parametrize(
    ("cancelled", "before"),
    [
        pytest.param(lambda ds: ds.map(cancel_and_wait, num_parallel_calls=3), 5, id="async"),
        pytest.param(
            lambda ds: ds.map(cancel_and_wait, num_parallel_calls=3, deterministic=False), None, id="in any order"
        ),
        pytest.param(lambda ds: ds.map(timed_out_before), 0, id="of a timeout"),
        pytest.param(lambda _: ad.Dataset.from_generator(numbers_until_cancelled), 5, id="generator"),
        pytest.param(lambda ds: ds.map(first_of_two, setup=cancelled_setup), 0, id="setup"),
        pytest.param(lambda ds: ds.repeat().map(cancel_here), None, id="plain"),
        pytest.param(lambda ds: ds.repeat().map(cancel_all), None, id="all tasks"),
        pytest.param(lambda ds: ds.map(cancel_here).prefetch(2), None, id="behind prefetch"),
        pytest.param(
            lambda ds: ds.map(cancel_here).map(abs, num_parallel_calls=2, executor="thread"), None, id="behind threads"
        ),
    ],
)
def test_a_function_that_cancels_its_task(cancelled: Callable[[ad.Dataset], ad.Dataset], before: int | None) -> None:
    """An error like any other: no end of the elements, no wait for what never comes; and the Runtime goes on."""
    found: list[Any] = []
    with ad.Runtime():
        with cancelled(ad.Dataset.range(10)).iterator() as numbers:
            with pytest.raises(ad.UserFunctionError, match="cancelled the task in which it runs"):
                found.extend(numbers)
            assert before is None or found == list(range(before))
        assert len(list(ad.Dataset.range(10).map(first_of_two, num_parallel_calls=2))) == 10


def test_a_function_that_stops_its_loop() -> None:
    """The loop goes on; it is not the function's to stop."""

    async def stop(x: Any) -> Any:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return x

    assert list(ad.Dataset.range(10).map(stop, num_parallel_calls=2)) == list(range(10))


def test_exceptions_with_odd_constructors() -> None:
    """An exception class that cannot be rebuilt elsewhere arrives in words all the same."""

    class OddError(Exception):
        def __init__(self, one: int, *, two: int) -> None:
            super().__init__(f"odd {one} {two}")

    def explode(x: int) -> int:
        raise OddError(1, two=int(x))

    error = error_of(mapped(explode, "process"), Exception)
    assert "odd 1 0" in str(error)


class HugeError(Exception):
    """Makes its text when it is asked for it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)

    def __str__(self) -> str:
        return "<" + "x" * int(self.args[0]) + ">"


def _text(size: int) -> None:
    raise KeyError("<" + "x" * size + ">")


def _bytes(size: int) -> None:
    raise ValueError(b"x" * size)


def _system(size: int) -> None:
    raise OSError(5, "<" + "x" * size + ">")


def _own(size: int) -> None:
    raise HugeError(size)


def _cause(size: int) -> None:
    try:
        raise ValueError("<" + "x" * size + ">")
    except ValueError as error:
        raise LookupError("short") from error


def _note(size: int) -> None:
    error = ValueError("short")
    error.add_note("<" + "x" * size + ">")
    raise error


def _group(size: int) -> None:
    raise ExceptionGroup("several", [ValueError("<" + "x" * size + ">")])


HUGE = {
    "text": (_text, KeyError),
    "bytes": (_bytes, ValueError),
    "system": (_system, OSError),
    "own": (_own, ad.AsyncdataError),
    "cause": (_cause, LookupError),
    "note": (_note, ValueError),
    "group": (_group, ExceptionGroup),
}


@pytest.mark.sampled
@pytest.mark.parametrize("place", [*PLACES, "isolate"])
def test_a_huge_text_of_an_exception_is_cut(place: str, samples: Callable[[int, int], int]) -> None:
    """Whatever holds it, and wherever the function ran: the error keeps its type, both ends, and can be printed."""
    size = samples(5_000_000, 200_000_000)
    with ad.Runtime(small_options(num_workers=int(place == "process"), isolate=place == "isolate")):
        for name, (function, kind) in HUGE.items():
            numbers = ad.Dataset.from_tensors(size)
            if place in ("inline", "isolate"):
                dataset = numbers.map(lambda n, function=function: function(int(n)))
            else:
                dataset = numbers.map(lambda n, function=function: function(int(n)), 1, executor=place)
            with pytest.raises(kind) as caught:
                list(dataset)
            shown = "".join(traceback.format_exception(caught.value))
            assert len(shown) < 200_000, name
            assert name == "bytes" or ("x>" in shown and "characters omitted" in shown), name
