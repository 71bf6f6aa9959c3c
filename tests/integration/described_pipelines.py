"""Pipelines of the whole vocabulary as data, and how they are built.

A description is one of `tests.referee.pipelines`, with more that TensorFlow has not: other formats, random numbers,
datasets of elements that are pipelines themselves, elements that are kept in memory and in files, functions that fail.
JSON can hold it, so that another process can build the same pipeline.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

import asyncdata as ad
from tests.referee import pipelines
from tests.referee.pipelines import Plan, measure, whole

D = ad.Dataset


def text(element: Any) -> str:
    """An element in a form that can be compared."""
    return json.dumps(pipelines.plain(element), sort_keys=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """What is around a pipeline that is built.

    Attributes:
        folder: Where elements are kept.
        element: Of which the dataset is made, if it is an inner one.
        outer: A dataset that was made once, for all inner ones.
        handles: Datasets that are used twice, by number.
    """

    folder: str
    element: Any = None
    outer: ad.Dataset | None = None
    handles: dict[int, ad.Dataset] = dataclasses.field(default_factory=dict)

    def path(self, name: str) -> str:
        """Where a step keeps elements: those of different inner datasets in different places."""
        return f"{self.folder}/{name}-{zlib.crc32(text(self.element).encode()) if self.element is not None else 0}"


def noisy(*x: Any, rng: np.random.Generator) -> Any:
    """The element and a random number."""
    return whole(x), rng.integers(1000)


async def noisy_later(*x: Any, rng: np.random.Generator) -> Any:
    """The same, later."""
    await asyncio.sleep(0)
    return noisy(*x, rng=rng)


async def later(*x: Any) -> Any:
    """The element, others first now and then."""
    for _ in range(int(measure(whole(x))) % 3):
        await asyncio.sleep(0)
    return whole(x)


def picky(*x: Any) -> Any:
    """The element; one in five fails."""
    if measure(whole(x)) % 5 == 2:
        raise ValueError(measure(whole(x)))
    return whole(x)


def choosy(*x: Any) -> bool:
    """Whether it is kept; one in seven fails."""
    if measure(whole(x)) % 7 == 3:
        raise KeyError(measure(whole(x)))
    return bool(measure(whole(x)) % 4)


def class_of(*x: Any) -> Any:
    """One of three classes."""
    return measure(whole(x)) % 3


class Numbers:
    """A generator that tells where it is."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.next = self.begin = start

    def get(self) -> int:
        """Behind the last element."""
        return self.next

    def set(self, value: int) -> None:
        """Begins there."""
        self.begin = value

    def __call__(self) -> Iterator[int]:
        begin, self.begin = self.begin, self.start
        for number in range(begin, self.stop):
            self.next = number + 1
            yield number


async def numbers_later(start: int, stop: int) -> AsyncIterator[int]:
    """An async generator."""
    for number in range(start, stop):
        await asyncio.sleep(0)
        yield number


def generated(plan: Plan, start: int = 0) -> ad.Dataset:
    """A generator of some kind."""
    stop = start + plan["count"]
    if plan["every"]:
        source = Numbers(start, stop)
        return D.from_generator(source, np.int64, (), state=(source.get, source.set), every=plan["every"])
    function = numbers_later if plan["is_async"] else range
    return D.from_generator(function, np.int64, (), args=(start, stop))


def of_element(plan: Plan, around: Around) -> ad.Dataset:
    """The source of an inner dataset."""
    number = int(measure(around.element))
    if plan["what"] == "count":
        return D.range(number, number + number % 6)
    if plan["what"] == "repeated":
        return D.from_tensors(around.element).repeat(number % 4)
    if plan["what"] == "file":
        return ad.TFRecordDataset(plan["files"][number % len(plan["files"])])
    if plan["what"] == "generated":
        return generated(plan, number)
    assert around.outer is not None
    return around.outer


def listed(dataset: ad.Dataset, plan: Plan) -> ad.Dataset:
    """The records of files that are listed."""
    return dataset.interleave(ad.TFRecordDataset, cycle_length=plan["cycle"], block_length=plan["block"])


Source: TypeAlias = Callable[[Plan, Around], ad.Dataset]

SOURCES: dict[str, Source] = {
    "csv": lambda p, _: ad.CsvDataset(
        p["files"], [np.int64, bytes][: p["columns"]], select_cols=[0, 1][: p["columns"]], num_parallel_reads=p["reads"]
    ),
    "json": lambda p, _: ad.JsonLinesDataset(
        p["files"], num_parallel_reads=p["reads"], num_parallel_calls=p["parallel"]
    ),
    "tar": lambda p, _: ad.TarDataset(p["files"], num_parallel_reads=p["reads"]),
    "parquet": lambda p, _: ad.ParquetDataset(
        p["files"], p["columns"], filters=[("n", "!=", p["without"])], num_parallel_reads=p["reads"]
    ),
    "gz": lambda p, _: ad.TextLineDataset(p["files"], "GZIP", num_parallel_reads=p["reads"]),
    "damaged": lambda p, _: ad.TFRecordDataset(p["files"], num_parallel_reads=p["reads"]),
    "whole": lambda p, _: ad.FileDataset(p["files"], with_url=p["with_url"]),
    "listed": lambda p, _: listed(D.list_files(p["files"], p["shuffle"], p["seed"]), p),
    "manifest": lambda p, _: listed(D.from_manifest(p["files"], p["shuffle"], p["seed"]), p),
    "directory": lambda p, _: ad.text_dataset_from_directory(
        p["files"], batch_size=p["size"], shuffle=p["shuffle"], seed=p["seed"], verbose=False
    ),
    "generator": lambda p, _: generated(p),
    "random": lambda p, _: D.random(p["seed"], p["again"]).take(p["count"]).map(lambda x: x.astype(np.int64)),
    "element": of_element,
}
"""Those that the referee has not."""


def inside(ds: ad.Dataset, p: Plan, around: Around) -> ad.Dataset:
    """Datasets of elements, each a pipeline of its own."""
    outer = build(p["outer"], around) if p["outer"] else None

    def make(*x: Any) -> ad.Dataset:
        return build(p["inner"], Around(around.folder, whole(x), outer))

    if p["how"] == "flat_map":
        return ds.flat_map(make)
    if p["how"] == "parallel_interleave":
        return ds.parallel_interleave(make, p["cycle"], p["block"], sloppy=p.get("unordered", False))
    deterministic = False if p.get("unordered") else None
    return ds.interleave(make, p["cycle"], p["block"], num_parallel_calls=2, deterministic=deterministic)


def in_turn(shards: ad.Dataset) -> ad.Dataset:
    """A snapshot's shards, one after the other."""
    return shards.flat_map(lambda shard: shard)


def read_shuffled(shards: ad.Dataset) -> ad.Dataset:
    """A snapshot's shards in turn, in another order in every epoch."""
    return shards.interleave(lambda shard: shard, 2).shuffle(4)


Step: TypeAlias = Callable[[ad.Dataset, Plan, Around], ad.Dataset]

STEPS: dict[str, Step] = {
    "noisy": lambda ds, p, _: ds.map(
        noisy_later if p["executor"] == "async" else noisy,
        p["parallel"],
        rng=True,
        executor=None if p["executor"] == "async" else p["executor"],
        deterministic=False if p.get("unordered") else None,
    ),
    "later": lambda ds, p, _: ds.map(later, p["parallel"], deterministic=False if p.get("unordered") else None),
    "vectorized": lambda ds, _, __: ds.map(lambda x: x * 2, vectorized=True),
    "picky": lambda ds, p, _: ds.map(picky, p["parallel"]),
    "choosy": lambda ds, _, __: ds.filter(choosy),
    "inside": inside,
    "store": lambda ds, p, around: ds.cache(around.path(p["name"])),
    "snapshot": lambda ds, p, around: ds.snapshot(
        around.path(p["name"]),
        p["compression"],
        {None: None, "in turn": in_turn, "shuffled": read_shuffled}[p["reader"]],
        class_of if p["shards"] else None,
    ),
    "rejection_resample": lambda ds, p, _: ds.rejection_resample(class_of, p["target"], p["initial"], p["seed"]),
    "mixed": lambda ds, p, _: ds.shuffle(p["size"], p["seed"], p["reshuffle"]),
    "shuffle_and_repeat": lambda ds, p, _: ds.shuffle_and_repeat(p["size"], p["count"], p["seed"]),
    "map_and_batch": lambda ds, p, _: ds.map_and_batch(
        lambda *x: whole(x), p["size"], drop_remainder=p["drop"], num_parallel_calls=p["parallel"]
    ),
    "by_key": lambda ds, p, _: ds.group_by_window(
        class_of, lambda key, window: window.take(int(key) + 2), window_size_func=lambda key: key + p["size"]
    ),
    "bucket_by_length": lambda ds, p, _: ds.bucket_by_sequence_length(
        lambda *x: measure(whole(x)) % 5, [2, 3], [2, 1, 3], drop_remainder=p["drop"]
    ),
    "dense": lambda ds, _, __: ds.map(lambda x: x.to_dense(0)),
    "declared": lambda ds, p, _: ds.concatenate(D.range(12)).take(12).assert_cardinality(p["count"]),
}
"""Those that the referee has not."""


def build(plan: Plan, around: Around) -> ad.Dataset:
    """The dataset of a description."""
    if (handle := plan.get("handle")) is None:
        return built(plan, around)
    if handle not in around.handles:
        around.handles[handle] = built({key: value for key, value in plan.items() if key != "handle"}, around)
    return around.handles[handle]


def built(plan: Plan, around: Around) -> ad.Dataset:
    """The dataset of a description, made anew."""
    op = plan["op"]
    if op in SOURCES:
        return SOURCES[op](plan, around)
    if op in pipelines.SOURCES:
        return pipelines.SOURCES[op](plan)
    if "inputs" not in plan:
        ds = build(plan["input"], around)
        return STEPS[op](ds, plan, around) if op in STEPS else pipelines.stepped(ds, plan)
    datasets = [build(each, around) for each in plan["inputs"]]
    if op == "drawn from":
        weights = D.from_tensors(np.array(plan["weights"])).repeat() if plan["by_dataset"] else plan["weights"]
        return D.sample_from_datasets(datasets, weights, plan["seed"], plan["stop"], plan["again"])
    return pipelines.joined(plan, datasets)


MOST = 60


def dataset_of(case: Plan, folder: str, server: str) -> ad.Dataset:
    """The dataset of a case: a description and options; its first elements if there may be many.

    Args:
        case: What was drawn.
        folder: Where its steps keep elements.
        server: URL of the server that has the objects that change.
    """
    given = {"storage": {"gs": {"endpoint_url": server, "token": "anon"}}, **case["options"]}
    if given.get("errors"):
        given["errors"] = ad.ErrorPolicy(**given["errors"])
    dataset = build(case["plan"], Around(folder))
    return (dataset.take(MOST) if case["cut"] else dataset).with_options(ad.Options(**given))


def in_order(plan: Any) -> Any:
    """The same pipeline, whose steps keep their order."""
    if isinstance(plan, list):
        return [in_order(each) for each in plan]
    if isinstance(plan, dict):
        return {key: in_order(value) for key, value in plan.items() if key != "unordered"}
    return plan
