"""A parser whose place AUTOTUNE finds gives the same wherever it runs, whenever it moves, and whatever goes wrong."""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.observe.parts import KnobStats
from asyncdata.planner.placement import LOOP, WORKERS
from asyncdata.runtime.consumer import pipeline
from asyncdata.runtime.stages.work import placed
from asyncdata.runtime.tuning import knob
from tests.integration.drawn_functions import FUNCTIONS, PARSERS, same_element
from tests.integration.drawn_sources import SOURCES
from tests.integration.drawn_steps import BEFORE, BEHIND
from tests.integration.test_executors_agree import outcome, plain
from tests.patience import LIMIT_S
from tests.runtime.stages.restless import Restless
from tests.samples import samples

MIB: Final = 1 << 20
PART: Final = 12
"""Pipelines of one test."""
ENOUGH: Final = 20
"""Of so many places that are drawn, not all are the same."""
DENSE: Final = sorted(name for name in PARSERS if getattr(FUNCTIONS[f"parse_example {name}"], "dense", False))
RECORDS: Final = [name for name in SOURCES if "example" in name] + ["bytes", "numbers", "objects"]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where blocks were worked on, each time that a place begins."""
    seen: list[int] = []
    begin = placed.PlacedStage._begin

    def noted(self: placed.PlacedStage) -> Any:
        begun = begin(self)
        seen.append(self._at)
        return begun

    monkeypatch.setattr(placed.PlacedStage, "_begin", noted)
    return seen


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Turns on that parsers change their places at random, at every block, and that blocks are short; or off."""

    def turn(on: bool) -> None:
        monkeypatch.setattr(knob, "Knob", Restless if on else Settled)
        monkeypatch.setattr(pipeline, "BLOCK_ROWS", 2 if on else 4096)

    return turn


Settled: Final = knob.Knob


@pytest.fixture
def runtime() -> Iterator[ad.Runtime]:
    """Two workers that have started."""
    with ad.Runtime(ad.Options(num_workers=2, memory_limit_bytes=64 * MIB, seed=1)) as runtime:
        list(ad.Dataset.range(8).map(same_element, 2))
        yield runtime


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the shards."""
    return tmp_path_factory.mktemp("shards")


@pytest.mark.parametrize("part", range(samples(1, 250)))
def test_elements_and_errors_are_those_of_either_place(
    part: int, folder: Path, runtime: ad.Runtime, restless: Callable[[bool], None], places: list[int]
) -> None:
    """Every kind of leaf, right or wrong for the parser, whatever comes before it and behind it."""
    for seed in range(PART * part, PART * part + PART):
        rng = random.Random(seed)
        before, behind, source = (rng.choice(sorted(names)) for names in (BEFORE, BEHIND, RECORDS))
        name, zero_copy = rng.choice(DENSE), rng.random() < 0.3
        options = ad.Options(errors=rng.choice([None, None, ad.ErrorPolicy(max_skipped=None)]))
        records = BEFORE[before](SOURCES[source](folder)).repeat(rng.choice([1, 3]))
        parse = functools.partial(records.map, FUNCTIONS[f"parse_example {name}"], zero_copy=zero_copy)

        def found(parsed: ad.Dataset, behind: str = behind, options: ad.Options = options) -> tuple[list[Any], Any]:
            return outcome(BEHIND[behind](parsed).with_options(options))

        restless(False)
        inline = found(parse(executor="inline"))
        process = found(parse(executor="process", num_parallel_calls=2))
        restless(True)
        either = found(parse(num_parallel_calls=ad.AUTOTUNE))
        case = seed, source, before, name, behind
        assert either[0] == inline[0] == process[0], case
        if ad.UnbatchableError not in (either[1], inline[1], process[1]):
            assert either[1] == inline[1] == process[1], case
    assert {LOOP, WORKERS} <= set(places)


SPEC: Final[dict[str, Any]] = {
    "id": ad.FixedLenFeature((), int),
    "word": ad.FixedLenFeature((), bytes),
    "reals": ad.FixedLenFeature((30,), np.float32),
}
FILES, COUNT = 5, 60


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of Examples, some of them larger than others."""
    folder = tmp_path_factory.mktemp("examples")
    paths = [str(folder / f"{number}.tfrecord") for number in range(FILES)]
    for number, path in enumerate(paths):
        with ad.TFRecordWriter(path) as writer:
            writer.write_many(
                ad.serialize_example(
                    {"id": number * COUNT + n, "word": b"w" * (n * 37 % 900), "reals": np.full(30, n, np.float32)}
                )
                for n in range(COUNT)
            )
    return paths


def drawn(rng: random.Random, shards: list[str], **where: Any) -> ad.Dataset:
    """A pipeline around the parser."""
    cycle, block = rng.randint(1, 5), rng.randint(1, 3)
    ds = ad.Dataset.from_tensor_slices(shards).interleave(ad.TFRecordDataset, cycle_length=cycle, block_length=block)
    if rng.random() < 0.5:
        ds = ds.shuffle(rng.randint(1, 30), seed=2)
    size, batched = rng.randint(1, 9), rng.random() < 0.5
    ds = ds.batch(size).map(ad.parse_example(SPEC), **where) if batched else ds.map(ad.parse_example(SPEC), **where)
    if rng.random() < 0.5:
        ds = ds.map(same_element, num_parallel_calls=2)
    ds = ds.unbatch().batch(3) if batched else ds.batch(size)
    return ds.prefetch(ad.AUTOTUNE) if rng.random() < 0.5 else ds


def drained(ds: ad.Dataset, states_at: tuple[int, ...] = (), each: Callable[[], None] | None = None) -> Any:
    """The elements, and states between them."""
    elements, states = [], {}
    with ds.iterator(epoch=0) as it:
        for element in it:
            elements.append(plain(element))
            if it.position in states_at:
                states[it.position] = it.state_dict()
            if each is not None:
                each()
    return elements, states


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(2, 500)))
def test_states_of_one_place_go_on_at_another(
    seed: int, shards: list[str], runtime: ad.Runtime, restless: Callable[[bool], None], places: list[int]
) -> None:
    """States that are taken while places change are the same as those of fixed places, and go on anywhere."""
    at = (1, 7, 20)
    inline = drawn(random.Random(seed), shards, executor="inline")
    process = drawn(random.Random(seed), shards, executor="process", num_parallel_calls=2)
    either = drawn(random.Random(seed), shards, num_parallel_calls=ad.AUTOTUNE)
    elements, states = drained(inline, at)
    assert drained(process)[0] == elements
    restless(True)
    found, its_states = drained(either, at)
    assert found == elements
    for position, state in states.items():
        with either.iterator(state=state) as it:
            assert [plain(element) for element in it] == elements[position:]
    restless(False)
    for position, state in its_states.items():
        for ds in (inline, process):
            with ds.iterator(state=state) as it:
                assert [plain(element) for element in it] == elements[position:]
    assert {LOOP, WORKERS} <= set(places) or len(places) < ENOUGH


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(2, 200)))
def test_workers_that_die_change_nothing(
    seed: int, shards: list[str], runtime: ad.Runtime, restless: Callable[[bool], None]
) -> None:
    """Killed in the middle of anything: the loop, or the worker that comes after it, does what it was doing."""
    elements, _ = drained(drawn(random.Random(seed), shards, executor="inline"))
    rng = random.Random(seed)
    at = rng.randrange(len(elements))
    count = itertools.count()

    def kill() -> None:
        if next(count) == at:
            os.kill(rng.choice(runtime.pool.stats().workers).pid, signal.SIGKILL)

    restless(True)
    assert drained(drawn(random.Random(seed), shards, num_parallel_calls=ad.AUTOTUNE), each=kill)[0] == elements


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(2, 300)))
def test_what_fits_in_one_place_fits_while_it_changes(
    seed: int, shards: list[str], restless: Callable[[bool], None]
) -> None:
    """Close to the smallest memory limit with which both fixed places come to the end, so does one that changes.

    It has tasks of both places at once while it changes, and so may need more. It comes to the end, or the error says
    a limit with which it does; how many tasks come together then is chance, so that may take two errors.
    """
    limit = next(
        limit
        for limit in (MIB << step for step in range(8))
        if all(
            _needed(drawn(random.Random(seed), shards, executor=place, num_parallel_calls=2), limit) is None
            for place in ("inline", "process")
        )
    )
    restless(True)
    moving = drawn(random.Random(seed), shards, num_parallel_calls=ad.AUTOTUNE)
    advised = _needed(moving, limit)
    if advised is not None:
        assert limit < advised <= 4 * limit
        again = _needed(moving, advised)
        assert again is None or (advised < again <= 4 * limit and _needed(moving, again) is None)


def _needed(ds: ad.Dataset, limit_bytes: int) -> int | None:
    """The limit that an error asks for; None where this one does."""
    count = 0
    options = ad.Options(num_workers=1, memory_limit_bytes=limit_bytes, seed=1)
    with ad.Runtime(options, pipelines=1) as runtime:
        try:
            list(ad.Dataset.range(8).map(same_element, 2))
            for _ in ds:
                count += 1
                # A result that is larger than what was foreseen is a debt for a moment.
                assert runtime.budgets.used_bytes <= 1.1 * limit_bytes
        except ad.MemoryLimitError as error:
            return int(re.findall(r"at least (\d+)", str(error))[-1])
    assert count
    return None


def moved(ds: ad.Dataset) -> tuple[KnobStats, ad.PipelineStats]:
    """Iterates until the parser works in processes; what was found then."""
    with ds.iterator() as it:
        for number, _ in enumerate(it):
            if number % 64:
                continue  # statistics take time: a consumer that makes them for each batch is the bottleneck itself
            stats = it.stats()
            (found,) = stats.knobs
            # On a busy machine the first trial may have been taken back before the parser has left the workers.
            is_there = next(step for step in stats.steps if step.kind == "map").runs == "process"
            if is_there and found.value == WORKERS:
                return found, stats
    raise AssertionError("it ended before")


def test_a_busy_loop_hands_its_parser_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves while a real pipeline runs, and statistics say where to and why."""
    monkeypatch.setattr("asyncdata.formats.example.parser._LIGHT", 40)  # it begins on the loop
    spec = {f"n{number}": ad.FixedLenFeature((), int) for number in range(40)}
    records = [ad.serialize_example({name: number + row for number, name in enumerate(spec)}) for row in range(256)]
    ds = ad.Dataset.from_tensor_slices(records).repeat().batch(64).map(ad.parse_example(spec), ad.AUTOTUNE)
    ds = ds.take(int(LIMIT_S * 10_000))
    with ad.Runtime(ad.Options(num_workers=2, memory_limit_bytes=64 * MIB)):
        found, stats = moved(ds)
        assert (found.counts, found.value, found.default) == ("place", WORKERS, LOOP)
        assert str(found).startswith("map(ExampleParser): in workers (it is ")
        assert f"Found by AUTOTUNE: {found}." in str(stats)


def test_no_worker_starts_for_a_parser_that_the_loop_has_room_for(shards: list[str]) -> None:
    """A pipeline whose consumer never waits for long needs none."""
    with ad.Runtime(ad.Options(num_workers=2, memory_limit_bytes=64 * MIB)):
        light = {name: SPEC[name] for name in ("id", "word")}
        ds = ad.TFRecordDataset(shards).batch(16).map(ad.parse_example(light), num_parallel_calls=ad.AUTOTUNE)
        with ds.iterator() as it:
            assert len(list(it)) == -(-FILES * COUNT // 16)
            stats = it.stats()
    assert stats.workers is None
    assert stats.cpu.workers_s == 0
    (step,) = (step for step in stats.steps if step.kind == "map")
    assert step.runs == "loop"
    assert step.calls_s > 0
