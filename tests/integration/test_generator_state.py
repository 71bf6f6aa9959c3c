"""Generators that tell where they are go on from there; others are replayed."""

from __future__ import annotations

import copy
import functools
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncdata as ad

D = ad.Dataset
COUNT = 40


class Numbers:
    """A generator function that can begin anywhere, and tells how many elements it made."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count
        self.made = 0
        self.given: list[Any] = []
        self._next: dict[str, Any] = {"next": 0}

    def get(self) -> dict[str, Any]:
        """Its state; the same object every time, which it changes."""
        return self._next

    def set(self, value: dict[str, Any]) -> None:
        """Begins there, once."""
        self.given.append(value["next"])
        self._next = value

    def begin(self) -> range:
        """What is left."""
        begin = self._next["next"] if self.given and not self.made else 0
        return range(begin, self.count)

    def __call__(self) -> Iterator[int]:
        for number in self.begin():
            self._next["next"] = number + 1
            self.made += 1
            yield number


class NumbersLater(Numbers):
    """The same as an async generator function."""

    async def __call__(self) -> AsyncIterator[int]:  # type: ignore[override]  # what the tests do with it is the same
        for number in self.begin():
            self._next["next"] = number + 1
            self.made += 1
            yield number


def dataset(source: Numbers, every: int = 3) -> ad.Dataset:
    """The dataset of a generator that tells where it is."""
    return D.from_generator(source, state=(source.get, source.set), every=every)


def states_of(it: ad.PipelineIterator) -> tuple[list[Any], list[Any]]:
    """All elements, and the state in front of each and behind the last one, as text."""
    elements: list[Any] = []
    states = [json.dumps(it.state_dict())]
    for element in it:
        elements.append(element if isinstance(element, int) else np.asarray(element).tolist())
        states.append(json.dumps(it.state_dict()))
    return elements, states


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [Numbers, NumbersLater])
@pytest.mark.parametrize("every", [1, 3, 1000])
def test_restored_at_every_step(kind: type[Numbers], every: int) -> None:
    """A new generator goes on behind the state, and makes again at most what came behind its last own state."""
    with dataset(kind(), every).iterator() as it:
        elements, states = states_of(it)
    assert elements == list(range(COUNT))
    for position, state in enumerate(states):
        source = kind()
        with dataset(source, every).iterator(state=json.loads(state)) as it:
            rest, later = states_of(it)
        assert rest == elements[position:]
        # The state in front of a row is that of the newest mark before it.
        base = max(position - 1, 0) // every * every
        assert source.given == ([base] if base else [])
        assert source.made == COUNT - base
        # And from there once more.
        middle = len(later) // 2
        with dataset(kind(), every).iterator(state=json.loads(later[middle])) as it:
            assert states_of(it)[0] == elements[position + middle :]


@pytest.mark.parametrize("every", [1, 7])
def test_behind_and_inside_other_steps(every: int) -> None:
    """Shuffles, batches, filters, declared types and repetitions do not see a difference."""

    def made(source: Numbers) -> ad.Dataset:
        typed = D.from_generator(
            source, output_types=np.int32, output_shapes=(), state=(source.get, source.set), every=every
        )
        return typed.filter(lambda x: x % 5 != 2).shuffle(6, seed=3).batch(3).repeat(2)

    with made(Numbers()).iterator() as it:
        elements, states = states_of(it)
    for position in range(0, len(states), 3):
        with made(Numbers()).iterator(state=json.loads(states[position])) as it:
            assert states_of(it)[0] == elements[position:]


def test_an_isolated_loader() -> None:
    """The generator and its two functions go there together, as one object."""
    with ad.Runtime(ad.Options(isolate=True)):
        with dataset(Numbers()).iterator() as it:
            taken = [next(it) for _ in range(17)]
            state = it.state_dict()
        with dataset(Numbers()).iterator(state=state) as it:
            assert taken + list(it) == list(range(COUNT))


def test_part_of_a_generator_several_times() -> None:
    """A repetition begins when the one before it is closed, so that one object serves both."""
    source = Numbers()
    assert list(dataset(source).take(5).repeat(3)) == [*range(5)] * 3
    assert list(dataset(source).repeat(2)) == [*range(COUNT)] * 2


def test_functions_run_where_the_generator_runs() -> None:
    """In a thread of the Runtime, and not in the thread of the training loop."""
    threads: list[str] = []

    def note(what: Any) -> Any:
        threads.append(threading.current_thread().name)
        return what

    def generator() -> Iterator[int]:
        note(None)
        yield from range(5)

    made = D.from_generator(generator, state=(lambda: note(1), note), every=2)
    with made.iterator() as it:
        for _ in range(4):
            next(it)
        state = it.state_dict()
    with made.iterator(state=state) as it:
        next(it)
    assert len(threads) >= 5
    assert not {threading.main_thread().name, threading.current_thread().name} & set(threads)


def test_every_generator_of_an_interleave_has_its_own_state() -> None:
    """Where the function makes an object per element; functions that several generators share are refused by name."""

    def made() -> ad.Dataset:
        return D.range(4).interleave(lambda n: dataset(Numbers(7 + int(n))).map(lambda x: x + n * 100), cycle_length=3)

    with made().iterator() as it:
        elements, states = states_of(it)
    for position in range(0, len(states), 4):
        with made().iterator(state=json.loads(states[position])) as it:
            assert states_of(it)[0] == elements[position:]
    shared = Numbers()
    with pytest.raises(ad.StateError, match=r"already.*object of its own.*from_generator\(Numbers\)"):
        list(D.range(4).interleave(lambda _: dataset(shared), cycle_length=3))
    with pytest.raises(ad.StateError, match="already"):
        list(D.zip((dataset(shared), dataset(shared))))
    with pytest.raises(ad.StateError, match="reads several times at once, as rejection_resample"):
        list(dataset(Numbers()).rejection_resample(lambda n: int(n) % 2, [0.5, 0.5], seed=1))


def test_without_a_state_it_is_replayed_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """In the log, when a state is loaded; a state that was told needs a function that takes it."""
    plain = D.range(4).flat_map(lambda _: D.from_generator(lambda: iter(range(20))))
    both = D.zip((plain, D.from_generator(lambda: iter(range(60)))))
    with both.iterator() as it:
        taken = [next(it) for _ in range(30)]
        state = it.state_dict()
        rest = list(it)
    assert not caplog.records
    with caplog.at_level(logging.WARNING), both.iterator(state=state) as it:
        assert list(it) == rest
    assert len(taken) == 30
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "elements are made again" in caplog.text
    assert "state=(get, set)" in caplog.text
    caplog.clear()
    source = Numbers()
    with dataset(source).iterator() as it:
        next(it)
        begun = it.state_dict()
        for _ in range(9):
            next(it)
        state = it.state_dict()
    with dataset(Numbers()).iterator(state=begun) as it:
        assert next(it) == 1
    assert not caplog.records
    with pytest.raises(ad.StateError, match=r"from_generator\(Numbers\).*state=\(get, set\)"):
        list(D.from_generator(source).iterator(state=state))


def failing(error: Exception) -> Callable[..., Any]:
    """A function that fails."""

    def function(*_: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("kind", [Numbers, NumbersLater])
def test_errors_of_the_functions(kind: type[Numbers]) -> None:
    """They come behind the elements before them, keep their type, and say what was called and in which step."""
    made = D.from_generator(kind(), state=(failing(KeyError("no")), print), every=4)
    taken: list[int] = []
    with pytest.raises(KeyError) as caught, made.iterator() as it:
        taken.extend(it)
    assert taken == [0, 1, 2, 3]
    notes = "\n".join(caught.value.__notes__)
    assert f"from_generator({kind.__name__}), after element 4" in notes
    assert "get()" in notes
    source = kind()
    with dataset(source).iterator() as it:
        for _ in range(10):
            next(it)
        state = it.state_dict()
    broken = D.from_generator(source, state=(source.get, failing(ValueError("off"))), every=4)
    with pytest.raises(ValueError, match="off") as wrong:
        list(broken.iterator(state=state))
    notes = "\n".join(wrong.value.__notes__)
    assert "set()" in notes
    assert "after element 9" in notes


@pytest.mark.parametrize("value", [object(), {1}, [Numbers()], np.array([object()])])
def test_values_that_cannot_be_saved(value: Any) -> None:
    """Their type is named, and the step, when the generator tells them and not when somebody asks for a state."""
    made = D.from_generator(lambda: iter(range(10)), state=(lambda: value, print), every=2)
    with pytest.raises(ad.StateError, match=r"(object|set|Numbers|ndarray) is part of the state") as caught:
        list(made)
    assert "from_generator" in str(caught.value.stage)


async def never() -> None:
    """A function that has to be awaited."""


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ({"state": (print,)}, "state must be"),
        ({"state": print}, "state must be"),
        ({"state": (print, 3)}, "state must be"),
        ({"state": (never, print)}, "must be a plain function"),
        ({"state": (print, print), "every": 0}, "every"),
        ({"state": (print, print), "every": 1.5}, "every"),
    ],
)
def test_arguments_are_checked(named: dict[str, Any], error: str) -> None:
    """Where they are written."""
    with pytest.raises((TypeError, ValueError), match=error):
        D.from_generator(lambda: iter(()), **named)


def test_values_of_all_kinds() -> None:
    """Tuples, byte strings, arrays and floats come back as they were; `every` may be another one than the state's."""
    values: list[Any] = [(1, "x"), b"\0", np.arange(3), float("inf"), {"~": 1}, {2: None}]
    given: list[Any] = []
    for value in values:
        get = functools.partial(copy.copy, value)
        made = D.from_generator(lambda: iter(range(9)), state=(get, given.append), every=2)
        with made.iterator() as it:
            for _ in range(5):
                next(it)
            state = json.loads(json.dumps(it.state_dict()))
        other = D.from_generator(lambda: iter(range(9)), state=(get, given.append), every=3)
        with other.iterator(state=state) as it:
            # The generator begins at its beginning: it does not do what it was told.
            assert next(it) == 1
    for value, found in zip(values, given, strict=True):
        assert type(value) is type(found)
        assert np.array_equal(value, found) if isinstance(value, np.ndarray) else value == found
