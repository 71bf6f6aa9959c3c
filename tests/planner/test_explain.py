"""Explanations say what runs, and nothing runs for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.errors import AsyncdataError
from asyncdata.plan.node import Node, walk
from asyncdata.planner import explain
from asyncdata.runtime.lower import registry
from asyncdata.runtime.state.resume import again, passed_on


def double(number: Any) -> Any:
    """A function of the user."""
    return 2 * number


async def double_later(number: Any) -> Any:
    """An async one."""
    return 2 * number


def some() -> Iterator[int]:
    """A generator."""
    yield 1


async def some_later() -> AsyncIterator[int]:
    """An async one."""
    yield 1


NUMBERS = ad.Dataset.range(100)
SPEC = {"x": ad.FixedLenFeature((), bytes)}
TWO = ad.Options(num_workers=2)


@pytest.mark.parametrize(
    ("ds", "runs", "because"),
    [
        (NUMBERS.map(double), "on the stage loop", "num_parallel_calls is not given"),
        (NUMBERS.map(double, 4), "in worker processes", "num_parallel_calls is given"),
        (NUMBERS.map(double, executor="thread"), "in threads", "executor='thread' is given; AUTOTUNE finds how many"),
        (NUMBERS.map(double, 4, executor="thread"), "in threads", "executor='thread' is given"),
        (NUMBERS.map(double, 4).with_options(ad.Options(num_workers=0)), "in threads", "num_workers=0"),
        (NUMBERS.map(double_later, 4), "as coroutines", "its function is async"),
        (NUMBERS.map(double_later, ad.AUTOTUNE), "as coroutines", "AUTOTUNE begins with 16 calls at a time"),
        (NUMBERS.map(double, ad.AUTOTUNE), "in worker processes", "AUTOTUNE begins with two tasks per worker"),
        (NUMBERS.prefetch(ad.AUTOTUNE), "on the stage loop", "AUTOTUNE finds how many elements"),
        (NUMBERS.map(double, executor="inline"), "on the stage loop", "executor='inline' is given"),
        (
            ad.TFRecordDataset("a").map(ad.parse_example(SPEC), ad.AUTOTUNE),
            "on the stage loop, or in workers",
            "on the loop",
        ),
        (
            NUMBERS.map(double, 4).map(double, 4).batch(3),
            "in worker processes",
            "joined: tasks write",
        ),
        (ad.Dataset.from_generator(some), "in a thread", ""),
        (ad.Dataset.from_generator(some_later), "as a coroutine", ""),
        (ad.TFRecordDataset("a", "GZIP"), "in a thread per file, which decompresses", ""),
        (ad.TFRecordDataset("a"), "on the I/O loop and the stage loop", ""),
        (ad.CsvDataset("a", [int]), "on the I/O loop and in a thread per file, which parses", ""),
        (ad.JsonLinesDataset("a"), "on the I/O loop and in a thread per file, which parses", ""),
        (ad.JsonLinesDataset("a", "GZIP"), "in a thread per file, which decompresses and parses", ""),
        (ad.ParquetDataset("a"), "on the I/O loop and in a thread per file, which decodes", ""),
        (ad.CsvDataset(["a", "b"], [int]), "on the stage loop", "its files: on the I/O loop and in a thread per file"),
    ],
)
def test_it_says_where_a_step_runs_and_why(ds: ad.Dataset, runs: str, because: str) -> None:
    """Every executor, for every reason."""
    found = ds.explain().steps[-1]
    assert runs in found.runs
    assert because in found.because


@pytest.mark.sampled
@pytest.mark.parametrize(
    "ds",
    [
        NUMBERS.shuffle(10).map(double, 2).map(double, 2).batch(8, drop_remainder=True).prefetch(2),
        NUMBERS.map(double).filter(bool).batch(4).unbatch().take(5),
        NUMBERS.map(double_later, 2).repeat(2).enumerate(),
        NUMBERS.map(double, executor="thread").padded_batch(4).prefetch(1),
    ],
    ids=repr,
)
def test_steps_and_their_memory_are_those_of_the_running_pipeline(ds: ad.Dataset) -> None:
    """Names in the same order as in the statistics; nothing is reserved that is not."""
    plan = ds.with_options(TWO).explain()
    with ds.with_options(TWO).iterator() as elements:
        next(elements)
        stats = elements.stats()
    ran = [step.name for step in reversed(stats.steps)]
    assert [step.name for step in plan.steps] == ran
    reserved = {stage.name: stage.reserved_bytes for stage in stats.stages}
    assert plan.consumer_bytes == reserved["consumer"]
    for step in plan.steps:
        assert step.reserved_bytes <= reserved.get(step.name, 0), step


def test_within_a_runtime_its_limit_counts() -> None:
    """Each pipeline has its part."""
    with ad.Runtime(ad.Options(memory_limit_bytes=64 << 20), pipelines=4):
        assert NUMBERS.batch(2).explain().limit_bytes == 16 << 20


SHAPES = [
    NUMBERS.unique().filter(bool).shuffle(7).batch(2).cache(),
    NUMBERS.group_by_window(lambda x: x % 2, lambda _key, window: window.batch(2), 3),
    ad.Dataset.zip((NUMBERS, NUMBERS.repeat(2))).concatenate(NUMBERS.map(lambda x: (x, x))),
    ad.TarDataset("a.tar").interleave(lambda _x: NUMBERS, 2),
    ad.Dataset.list_files("b*").interleave(ad.TextLineDataset, 2),
    ad.ParquetDataset("a.parquet"),
    ad.Dataset.from_generator(some),
]


def test_what_starts_from_the_beginning_is_said_to() -> None:
    """The text agrees with the rule by which the step is brought back to a state, for every kind of step."""
    nodes: list[Node] = [node for ds in SHAPES for node in walk(ds._node)]
    assert len({type(node) for node in nodes}) > 12
    for node in nodes:
        rule = registry.rule_of(node)
        text = explain.repeats(node)
        if rule is again:
            assert text == explain.EVERYTHING, node
        elif rule is passed_on:
            assert text == explain.NOTHING, node


def test_what_a_resume_repeats_is_what_the_documentation_says() -> None:
    """Of plain files it is little; of small datasets in memory still less."""
    for ds in (ad.TarDataset("a.tar"), ad.TFRecordDataset("a"), ad.CsvDataset("a", [int])):
        assert explain.repeats(ds._node) == "up to 1,024 elements or 256 KiB"
    assert explain.repeats(ad.TarDataset("a.tar", "GZIP")._node) == "the file, from its beginning"
    assert "about 32" in explain.repeats(NUMBERS.flat_map(lambda _x: NUMBERS.take(2))._node)
    assert "about 32" not in explain.repeats(ad.TFRecordDataset(["a", "b"])._node)


def test_isolation_is_mentioned() -> None:
    """Where there is any."""
    assert "isolate=True" in str(NUMBERS.with_options(ad.Options(isolate=True)).explain())
    assert "isolate" not in str(NUMBERS.explain())


def test_generators_repeat_what_they_do_not_tell() -> None:
    """With a state of their own, at most as much as lies between two of them."""
    told = ad.Dataset.from_generator(some, state=(lambda: 1, lambda _value: None), every=50)
    assert explain.repeats(told._node) == "at most 50 elements"
    assert explain.repeats(ad.Dataset.from_generator(some)._node) == explain.EVERYTHING


def test_a_buffer_that_lies_in_files_is_read_there() -> None:
    """As far as that is known before files are opened."""
    files = ad.Dataset.list_files("x*", shuffle=False).interleave(ad.TFRecordDataset).repeat()
    assert "from where they lie" in explain.repeats(files.shuffle(9)._node)
    for other in (NUMBERS, files.batch(2), files.map(some, rng=True).repeat()):
        assert "from the oldest of the 9 elements" in explain.repeats(other.shuffle(9)._node)


def test_orders_that_differ_are_named() -> None:
    """And whether there are states."""
    sloppy = NUMBERS.interleave(ad.Dataset.range, 4, deterministic=False)
    assert "a state says which were delivered" in sloppy.explain().order
    assert "No state can be taken" in sloppy.window(2).explain().order
    assert "same in every run" in NUMBERS.explain().order


def test_nothing_is_read_and_pages_are_small_and_escaped() -> None:
    """Files that are not there, names like code, and plans of any size."""
    ds = ad.TFRecordDataset("<script>.rec").batch(2)
    for number in range(300):
        ds = ds.take(number)
    html = ds._repr_html_()
    assert "<script" not in html
    assert "&lt;script" in html
    assert len(html) < 20_000
    assert str(ds.explain()).startswith("Written: TFRecordDataset(")


def test_a_dataset_that_cannot_run_is_shown_all_the_same() -> None:
    """With the reason."""
    ds = NUMBERS.interleave(ad.Dataset.range, 4096).with_options(ad.Options(memory_limit_bytes=1 << 20))
    with pytest.raises(AsyncdataError):
        ds.explain()
    assert "too small" in ds._repr_html_()


def test_branches_are_numbered() -> None:
    """A step says which steps it reads, unless it is the one before."""
    text = str(ad.Dataset.zip((NUMBERS, NUMBERS.take(3))).explain())
    assert "zip of " in text
    assert "range of" not in text
