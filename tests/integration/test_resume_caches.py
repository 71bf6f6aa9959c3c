"""A cache in memory that another run had filled has the same elements behind a state, in a process that begins anew."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.state.document import with_checksum
from tests.samples import SOAK

D = ad.Dataset


def noisy(x: Any, rng: np.random.Generator) -> Any:
    return (int(x), int(rng.integers(1000)))


MAKES: dict[str, Callable[[], ad.Dataset]] = {
    "shuffled": lambda: D.range(20).shuffle(7, seed=1).cache(),
    "shuffled without a seed": lambda: D.range(20).shuffle(7).cache(),
    "random numbers": lambda: D.range(20).map(noisy, rng=True).cache().batch(3),
    "repeated": lambda: D.range(9).shuffle(7).cache().repeat(3),
    "read in another order": lambda: D.range(20).shuffle(7).cache().shuffle(5).batch(2),
    "two": lambda: D.zip((D.range(12).shuffle(5).cache(), D.range(12).map(noisy, rng=True).cache())),
    "long": lambda: D.range(2500).shuffle(100).cache().batch(100),
}


def of_a_closure(read: Callable[[ad.Dataset, ad.Dataset], ad.Dataset]) -> ad.Dataset:
    """A dataset of two that are made once, outside of the functions that return them."""
    return read(D.range(5).shuffle(5, seed=1).cache(), D.range(5).map(noisy, rng=True).cache())


INSIDE: dict[str, Callable[[], ad.Dataset]] = {
    "made of an element": lambda: D.range(2).flat_map(lambda _: D.range(6).shuffle(3, seed=5).cache().repeat(2)),
    "in turn": lambda: D.range(4).interleave(lambda x: D.range(int(x) + 2).shuffle(3).cache().repeat(2), 2),
    "in turn, in blocks": lambda: D.range(4).interleave(
        lambda x: D.range(int(x) + 2).shuffle(3, seed=5).cache().repeat(3), 3, block_length=2
    ),
    "random numbers": lambda: D.range(2).flat_map(lambda _: D.range(3).map(noisy, rng=True).cache().repeat(2)),
    "batches": lambda: D.range(2).flat_map(lambda _: D.range(7).shuffle(7).cache().batch(3).repeat(2)),
    "shuffled again": lambda: D.range(2).flat_map(lambda _: D.range(7).shuffle(7).cache().shuffle(3).repeat(2)),
    "zipped": lambda: D.range(2).flat_map(
        lambda _: D.zip((D.range(5).shuffle(5).cache(), D.range(5).map(noisy, rng=True).cache())).repeat(2)
    ),
    "filtered": lambda: D.range(2).flat_map(
        lambda _: D.range(9).shuffle(9).cache().filter(lambda x: x % 2 > 0).repeat(2)
    ),
    "never complete": lambda: D.range(2).flat_map(lambda _: D.range(9).shuffle(9).cache().take(3).repeat(3)),
    "long": lambda: D.range(2).flat_map(lambda _: D.range(1100).shuffle(50).cache().repeat(2).batch(150)),
    "twice inside": lambda: D.range(2).flat_map(
        lambda _: D.range(2).flat_map(lambda _: D.range(3).shuffle(3).cache().repeat(2)).repeat(2)
    ),
    "of a closure": lambda: of_a_closure(lambda c, _: D.range(3).flat_map(lambda _: c)),
    "of a closure, repeated": lambda: of_a_closure(lambda c, _: D.range(3).flat_map(lambda _: c.repeat(2))),
    "of a closure, in part": lambda: of_a_closure(
        lambda c, _: D.range(3).flat_map(lambda x: c.take(2) if x == 1 else c)
    ),
    "of a closure, batches": lambda: of_a_closure(lambda _, c: D.range(3).flat_map(lambda _: c.batch(2))),
    "of a closure, zipped": lambda: of_a_closure(
        lambda c, other: D.range(3).flat_map(lambda _: D.zip((c.shuffle(3), other)))
    ),
    "of a closure, in turn": lambda: of_a_closure(lambda _, c: D.range(3).interleave(lambda _: c, 2)),
}
"""Of inner datasets, of which a state in front of their first element knows no more than the step around them."""


def plain(elements: list[Any]) -> str:
    return json.dumps(elements, default=lambda value: value.tolist())


ALIKE = ("shuffled", "shuffled without a seed", "random numbers", "two")
"""Those that read the cache in the same order in every epoch."""


@pytest.mark.sampled
@pytest.mark.parametrize("name", MAKES)
def test_a_cache_is_filled_as_it_was(name: str) -> None:
    """Behind states of the epoch that fills it and of the next one, taken in front of the first element, too."""
    with ad.Runtime(ad.Options(num_workers=0)):
        dataset = MAKES[name]()
        for _ in range(2):
            elements, states = taken(dataset)
            for position in {0, 1, len(elements) // 2, len(elements)} if not SOAK else range(len(states)):
                again = MAKES[name]()
                with again.iterator(state=states[position]) as it:
                    assert plain(list(it)) == plain(elements[position:]), position
                if name in ALIKE:
                    assert plain(list(again)) == plain(list(dataset)), "the next epoch"


@pytest.mark.sampled
@pytest.mark.parametrize("name", INSIDE)
def test_caches_of_inner_datasets_are_filled_as_they_were(name: str) -> None:
    """At every state, and at some that a resumed run takes."""
    with ad.Runtime(ad.Options(num_workers=0)):
        elements, states = taken(INSIDE[name]())
        for position, state in enumerate(states):
            rest, later = taken(INSIDE[name](), state)
            assert plain(rest) == plain(elements[position:]), position
            for second in range(position % 7, len(later), 1 if SOAK else 7):
                with INSIDE[name]().iterator(state=later[second]) as it:
                    assert plain(list(it)) == plain(elements[position + second :]), (position, second)


def test_a_cache_that_another_run_filled_is_not_read() -> None:
    """The state is right, not what is in memory here; the next epochs read that again."""
    dataset, other = MAKES["shuffled without a seed"](), MAKES["shuffled without a seed"]()
    with ad.Runtime(ad.Options(num_workers=0)):
        here = plain(list(other))
        list(dataset)
        elements, states = taken(dataset)
        assert here != plain(elements)
        with other.iterator(state=states[5]) as it:
            assert plain(list(it)) == plain(elements[5:])
        assert plain(list(other)) == here


def test_a_state_that_is_refused_leaves_the_cache_alone() -> None:
    """It is filled as if nobody had tried."""

    def make(seed: int) -> ad.Dataset:
        return D.range(20).shuffle(20).cache().with_options(ad.Options(seed=seed))

    with ad.Runtime(ad.Options(num_workers=0)):
        other = make(2)
        list(other.iterator(epoch=0))
        _, states = taken(other)
        dataset = make(1)
        with pytest.raises(ad.StateError, match="seed=1 here, 2 in the state"):
            dataset.iterator(state=states[1])
        assert plain(list(dataset.iterator(epoch=0))) == plain(list(make(1).iterator(epoch=0)))


@pytest.mark.parametrize("repeats", [1, 2], ids=["filling", "kept"])
def test_a_state_that_is_refused_late_leaves_the_cache_alone(repeats: int) -> None:
    """By a step that finds out when it is to begin at it: the next run fills the cache as if nothing had been."""

    def make() -> ad.Dataset:
        kept = ad.Dataset.range(20).shuffle(20).cache()
        return ad.Dataset.zip((kept.repeat(repeats), ad.Dataset.from_generator(lambda: iter(range(40)))))

    with make().with_options(ad.Options(seed=1)).iterator() as it:
        for _ in range(20 * repeats - 5):
            next(it)
        state = json.loads(json.dumps(it.state_dict()))
    state["state"]["mark"]["inputs"][1] = {"~": "state", "mark": {"value": 3}, "skip": 0}
    dataset = make()
    with pytest.raises(ad.StateError, match="needs state="):
        list(dataset.iterator(state=with_checksum(state)))
    seeded = ad.Options(seed=2)
    assert list(dataset.with_options(seeded).iterator(epoch=0)) == list(make().with_options(seeded).iterator(epoch=0))


def test_a_run_that_was_overtaken_is_resumed_as_itself() -> None:
    """Another run has filled the cache while this one made its own elements, in its own order."""
    with ad.Runtime(ad.Options(num_workers=0)):
        dataset = D.range(20_000).shuffle(50).cache()
        with dataset.iterator(epoch=0) as it:
            first = [next(it) for _ in range(5)]
            with dataset.iterator(epoch=1) as faster:
                kept = list(faster)
            first += [next(it) for _ in range(15_000)]
            state = json.loads(json.dumps(it.state_dict()))
            rest = list(it)
        assert sorted(first + rest) == sorted(kept)
        assert list(dataset) == kept
        for here in (dataset, D.range(20_000).shuffle(50).cache()):
            with here.iterator(state=state) as it:
                assert list(it) == rest


def test_a_run_that_waits_does_not_read_what_another_one_keeps_meanwhile() -> None:
    """The state names its run, and the cache was empty when the pipeline was made."""
    waits, goes_on = threading.Event(), threading.Event()
    goes_on.set()

    def wait(x: Any) -> Any:
        waits.set()
        assert goes_on.wait(60)
        return x

    def beside_another(cached: ad.Dataset) -> ad.Dataset:
        return D.zip((D.range(20_000).map(wait, 1, executor="thread"), cached))

    def make() -> ad.Dataset:
        return D.range(20_000).shuffle(50, seed=3).cache()

    with ad.Runtime(ad.Options(num_workers=0)):
        with beside_another(make()).iterator(epoch=0) as it:
            next(it)
            state = json.loads(json.dumps(it.state_dict()))
            rest = plain(list(it))
        cached = make()
        with cached.iterator(epoch=1) as other:
            next(other)
            waits.clear()
            goes_on.clear()
            with beside_another(cached).iterator(state=state) as it:
                assert waits.wait(60)
                list(other)
                goes_on.set()
                assert plain(list(it)) == rest


def zipped() -> ad.Dataset:
    """Two that fill one cache at the same time, each in its own order."""
    dataset = D.range(12).shuffle(4).cache()
    return D.zip((dataset, dataset)).repeat(2)


@pytest.mark.sampled
@pytest.mark.parametrize("make", [*MAKES.values(), zipped], ids=[*MAKES, "zipped"])
def test_what_is_in_memory_makes_no_difference(make: Callable[[], ad.Dataset]) -> None:
    """The cache is full by now, or another run has filled it."""
    with ad.Runtime(ad.Options(num_workers=0)):
        dataset, other = make(), make()
        list(other)
        for epoch in range(2):
            elements, states = taken(dataset)
            for position in sorted({0, 1, len(elements) // 2, len(elements) - 2}):
                for here in (dataset, other, make()):
                    with here.iterator(state=states[position]) as it:
                        assert plain(list(it)) == plain(elements[position:]), (epoch, position)


def test_an_isolated_loader_fills_it_as_it_was() -> None:
    """There the cache is in the loader's memory, and the state is made here."""
    with ad.Runtime(ad.Options(isolate=True, num_workers=0)):
        elements, states = taken(MAKES["repeated"]())
        for position in (13, 25):
            with MAKES["repeated"]().iterator(state=states[position]) as it:
                assert plain(list(it)) == plain(elements[position:])


def test_the_run_is_named() -> None:
    """`describe` says in which epoch, and in which repetition of it, the cache is filled again."""
    dataset = MAKES["shuffled"]()
    list(dataset.iterator(epoch=4))
    for position in (0, 7):
        _, states = taken(dataset)
        assert "a cache that is not complete is filled again, under epoch 4" in str(ad.state.describe(states[position]))
    _, states = taken(MAKES["repeated"]())
    assert "under epoch 0, repetition 0" in str(ad.state.describe(states[20]))


@pytest.mark.parametrize("wrong", [3, [3], [[1, 2, 3]], [["1", [0], []]], [[1, [0.5], []]]])
def test_damaged_runs_are_refused(wrong: Any) -> None:
    """With an error of one kind."""
    _, states = taken(MAKES["shuffled"]())
    with pytest.raises(ad.StateError, match="damaged"):
        MAKES["shuffled"]().iterator(state=with_checksum({**states[1], "caches": wrong}))


def taken(dataset: ad.Dataset, state: Any = None) -> tuple[list[Any], list[Any]]:
    """The elements of an epoch, or those behind a state, and the state in front of each and behind the last one."""
    with dataset.iterator(state=state) as it:
        elements, states = [], [it.state_dict()]
        for element in it:
            elements.append(element)
            states.append(it.state_dict())
    return elements, json.loads(json.dumps(states))


def used(read: Callable[[ad.Dataset], ad.Dataset], where: str) -> ad.Dataset:
    """Uses of one dataset with a cache, in which a shuffle without a seed and random numbers stand."""
    cached = D.range(12).shuffle(5).map(noisy, rng=True).cache(where).map(again, rng=True)
    return read(cached).with_options(ad.Options(seed=7))


def again(x: Any, number: Any, rng: np.random.Generator) -> Any:
    return (int(x), int(number), int(rng.integers(1_000_000)))


USES: dict[str, Callable[[ad.Dataset], ad.Dataset]] = {
    "zipped": lambda ds: D.zip((ds, ds)),
    "zipped with a part": lambda ds: D.zip((ds.take(5), ds.prefetch(9))),
    "one behind the other": lambda ds: ds.concatenate(ds),
    "one behind a part": lambda ds: ds.take(5).concatenate(ds),
    "chosen": lambda ds: D.sample_from_datasets([ds, ds.prefetch(20)], [0.6, 0.4], seed=3),
    "in turn": lambda ds: D.range(5).interleave(lambda _: ds, 2),
    "in turn, ahead": lambda ds: D.range(5).interleave(lambda x: ds.skip(x).prefetch(3), 3, num_parallel_calls=3),
    "one of the two alone": lambda ds: D.zip((D.range(9), ds)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kept", ["memory", "file"])
@pytest.mark.parametrize("name", USES)
def test_uses_of_one_cache_have_the_same_elements_in_every_run(name: str, kept: str, tmp_path: Path) -> None:
    """Whichever is complete first, whether the cache was filled before, by which pipeline, and behind every state."""

    def make(number: int) -> ad.Dataset:
        return used(USES[name], str(tmp_path / f"kept {number}") if kept == "file" else "")

    with ad.Runtime(ad.Options(num_workers=0)):
        dataset = make(0)
        elements, states = taken(dataset)
        assert plain(list(dataset.iterator(epoch=0))) == plain(elements)
        for number in range(1, 4):
            assert plain(list(make(number).iterator(epoch=0))) == plain(elements)
        for number, position in enumerate(range(0, len(elements), 3), 10):
            for here in (dataset, make(number)):
                with here.iterator(state=states[position]) as it:
                    assert plain(list(it)) == plain(elements[position:]), position


def test_uses_of_one_cache_have_random_numbers_of_their_own() -> None:
    """The elements and what was drawn in front of the cache are the same, what is drawn behind it is not."""
    with ad.Runtime(ad.Options(num_workers=0)):
        dataset = used(USES["zipped"], "")
        for _ in range(2):
            for one, other in dataset.iterator(epoch=0):
                assert [int(x) for x in one[:2]] == [int(x) for x in other[:2]]
                assert int(one[2]) != int(other[2])


def failing(text: bytes) -> bytes:
    """Knows one of them."""
    if text == b"three":
        raise ValueError("not this one")
    return text


def test_an_error_behind_a_cache_names_the_file_in_every_use(tmp_path: Path) -> None:
    """In the run that fills it, where the file is known."""
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")
    cached = ad.TextLineDataset(str(tmp_path / "lines")).cache().map(failing)
    for dataset in (cached, D.zip((D.range(9), cached))):
        with pytest.raises(ValueError, match="not this one") as caught:
            list(dataset)
        assert f"record 2 of {tmp_path}/lines" in str(caught.value.__notes__)


@pytest.mark.sampled
@pytest.mark.parametrize("links", [True, False])
def test_a_run_that_ends_later_leaves_the_file_to_its_readers(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs fill one file, and a third reads what the first of them has put there while the second ends."""
    if not links:  # as on some network file systems
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "kept"
    dataset = D.range(30).map(lambda x: np.full(150_000, x)).cache(str(path))
    with ad.Runtime(ad.Options(num_workers=0)), dataset.iterator() as late:
        assert next(late)[0] == 0
        assert len(list(dataset)) == 30
        with dataset.iterator() as reader:
            assert next(reader)[0] == 0
            first = path.stat()
            assert [int(array[0]) for array in late] == list(range(1, 30))
            assert [int(array[0]) for array in reader] == list(range(1, 30))
    assert path.stat().st_ino == first.st_ino
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def refuse(*_names: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))
