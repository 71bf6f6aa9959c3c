"""A function or generator may fill the same memory again for its next element, wherever it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from tests.integration.test_executors_agree import plain


@pytest.fixture(autouse=True)
def runtime() -> Iterator[ad.Runtime]:
    """A worker process for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=1, memory_limit_bytes=64 << 20, seed=1)) as runtime:
        yield runtime


class Refilled:
    """Gives the same object for every element, with other contents, as code does that saves allocations."""

    def __init__(self, kind: str) -> None:
        self._array = np.zeros(3, np.int64)
        self._bytes = bytearray(3)
        self._list = [0, "a"]
        self._dict: dict[str, Any] = {"a": np.zeros(3, np.int64)}
        self._of: Callable[[], Any] = {
            "array": lambda: self._array,
            "part of an array": lambda: self._array[1:],
            "nest": lambda: {"a": self._array, "b": (self._array, 1)},
            "dict": lambda: self._dict,
            "list": lambda: self._list,
            "list of arrays": lambda: [self._array, "a"],
            "array of objects": lambda: np.array([self._list, None], object),
            "bytearray": lambda: self._bytes,
            "view": lambda: memoryview(self._bytes),
            "bytes of a view": lambda: np.frombuffer(self._bytes, np.uint8),
        }[kind]

    def __call__(self, number: int) -> Any:
        """The object of an element."""
        self._array[:] = self._bytes[0] = self._list[0] = self._dict["a"][1] = int(number)
        return self._of()


@pytest.mark.parametrize(
    "kind",
    [
        "array",
        "part of an array",
        "nest",
        "dict",
        "list",
        "list of arrays",
        "array of objects",
        "bytearray",
        "view",
        "bytes of a view",
    ],
)
def test_what_is_filled_again_for_the_next_element_is_another_element(kind: str) -> None:
    """A function or generator may use its memory again, wherever it runs and whoever collects its elements."""
    awaited_again = Refilled(kind)

    async def awaited(number: int) -> Any:
        return awaited_again(number)

    def made_anew(number: int) -> Any:
        return Refilled(kind)(number)

    def generated() -> Iterator[Any]:
        refilled = Refilled(kind)
        yield from map(refilled, range(8))

    async def generated_async() -> AsyncIterator[Any]:
        refilled = Refilled(kind)
        for number in range(8):
            yield refilled(number)

    numbers = ad.Dataset.range(8)
    mapped_anew = numbers.map(made_anew, executor="inline")
    yielded_anew = ad.Dataset.from_generator(lambda: map(made_anew, range(8)))
    datasets = {
        "inline": (mapped_anew, numbers.map(Refilled(kind), executor="inline")),
        "thread": (mapped_anew, numbers.map(Refilled(kind), 1, executor="thread")),
        "process": (mapped_anew, numbers.map(Refilled(kind), 1, executor="process")),
        "async": (mapped_anew, numbers.map(awaited, 1)),
        "generator": (yielded_anew, ad.Dataset.from_generator(generated)),
        "async generator": (yielded_anew, ad.Dataset.from_generator(generated_async)),
    }
    for name, (anew, again) in datasets.items():
        for behind in (ad.Dataset.cache, lambda ds: ds.prefetch(5), lambda ds: ds.shuffle(4, seed=1), lambda ds: ds):
            assert [plain(x) for x in list(behind(again))] == [plain(x) for x in list(behind(anew))], name


def test_a_vectorized_function_may_fill_its_result_again() -> None:
    """For the elements of its next call."""
    made = np.zeros(64, np.int64)

    def added(numbers: Any) -> Any:
        return np.add(numbers, 1, out=made[: len(numbers)])

    ds = ad.Dataset.range(50).batch(5).unbatch().map(added, vectorized=True)
    assert [int(x) for x in list(ds.prefetch(50))] == list(range(1, 51))
    assert [int(x) for x in ds.batch(50).get_single_element()] == list(range(1, 51))
