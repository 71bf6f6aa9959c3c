"""Every kind of step obeys the law of restoring; see ``restoring``."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import pkgutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

import asyncdata as ad
from asyncdata import plan
from asyncdata.plan import combining, files, flat, grouping, sequence, sources, transformations
from asyncdata.plan.node import Node
from asyncdata.planner import unordered
from tests.formats.test_parquet import stored
from tests.formats.test_tar import archive
from tests.runtime.stages.restoring import Scripts, brought_back, check_once, check_restoring, mark_often
from tests.runtime.stages.test_laws import doubled, doubled_later, failing, number, odd
from tests.samples import samples

__all__ = ["brought_back", "mark_often"]

pytestmark = pytest.mark.usefixtures("runtime", "mark_often")

D = ad.Dataset

Make: TypeAlias = Callable[[Scripts, "Files"], ad.Dataset]


class Files:
    """A folder with a few files of each format."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self.records = [self._write_records(i, count) for i, count in enumerate((9, 0, 14, 1, 12))]
        damaged = bytearray(Path(self.records[2]).read_bytes())
        damaged[14] ^= 1
        self.damaged = self._write("damaged", damaged)
        self.packed = self._write("packed.gz", b"")
        with ad.TFRecordWriter(self.packed, "GZIP") as writer:
            writer.write_many([b"packed %d" % n for n in range(20)])
        self.lines = self._write("lines.txt", b"".join(b"line %d\n" % n * (n % 3) for n in range(20)))
        self.table = self._write("table.csv", b"".join(b'%d,"a,\n"\n' % n for n in range(20)))
        self.fixed = self._write("fixed.bin", b"hh" + bytes(range(60)) + b"f")
        self.values = self._write("values.jsonl", b"".join(json.dumps({"n": n}).encode() + b"\n" for n in range(20)))
        self.tar = self._write(
            "samples.tar", archive([(f"{n:02d}.{kind}", b"%d" % n) for n in range(14) for kind in ("txt", "cls")])
        )
        rows = pa.table({"n": np.arange(30), "text": [f"row {n}" for n in range(30)]})
        self.parquet = self._write("rows.parquet", stored(rows, row_group_size=8))
        self.manifest = str(folder / "manifest.jsonl")
        ad.write_manifest(str(folder / "*.rec"), self.manifest)

    def _write(self, name: str, data: bytes | bytearray) -> str:
        path = self._folder / name
        path.write_bytes(data)
        return str(path)

    def _write_records(self, number: int, count: int) -> str:
        path = self._write(f"{number}.rec", b"")
        with ad.TFRecordWriter(path) as writer:
            writer.write_many([b"%d" % (100 * number + n) * (1 + n % 3) for n in range(count)])
        return path

    def glob(self) -> str:
        """The pattern of some files."""
        return str(self._folder / "*.rec")

    def new(self) -> str:
        """A name that nothing has."""
        return self.named(str(next(self._numbers)))

    def named(self, name: str) -> str:
        """A name that is the same every time."""
        return str(self._folder / f"kept-{name}")


@pytest.fixture(scope="module")
def stored_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """See `Files`."""
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def runtime() -> Iterator[None]:
    """For all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=0, num_threads=3, memory_limit_bytes=256 << 20)):
        yield


# --- functions --------------------------------------------------------------------------------------------------------


def few(*parts: Any) -> ad.Dataset:
    """None to five numbers."""
    first = 100 * number(parts)
    return D.range(first, first + number(parts) % 6)


async def later(*parts: Any) -> int:
    """The number, after others or before."""
    for _ in range(number(parts) * 7 % 5):
        await asyncio.sleep(0)
    return number(parts)


def noisy(*parts: Any, rng: np.random.Generator) -> tuple[int, int]:
    """Random numbers by provenance."""
    return number(parts), int(rng.integers(1000))


def example(n: Any) -> bytes:
    """For a parser."""
    return ad.serialize_example({"n": int(n), "few": [int(n)] * (int(n) % 3 + 1)})


PARSE_DENSE = ad.parse_example({"n": ad.FixedLenFeature((), np.int64)})
PARSE = ad.parse_example({"n": ad.FixedLenFeature((), np.int64), "few": ad.VarLenFeature(np.int64)})


def total(state: Any, *parts: Any) -> Any:
    """A scan that changes its state in place."""
    state.append(number(parts))
    return state, (sum(state), len(state))


def counted(state: Any, *parts: Any) -> Any:
    """A scan whose outputs are the same in every order."""
    return state + 1, (state, number(parts))


def numbers() -> Iterator[Any]:
    """Of several kinds."""
    yield from range(17)
    yield (1, 2)
    yield from "abcdef"


async def numbers_later() -> AsyncIterator[int]:
    """Some of them late."""
    for n in range(23):
        if n % 5 == 3:
            await asyncio.sleep(0)
        yield n


class Told:
    """A generator that tells where it is."""

    def __init__(self) -> None:
        self.next = 0

    def get(self) -> int:
        """Where."""
        return self.next

    def set(self, value: int) -> None:
        """Begins there."""
        self.next = value

    def __call__(self) -> Iterator[int]:
        while self.next < 27:
            self.next += 1
            yield self.next - 1


def told() -> ad.Dataset:
    """Its dataset."""
    source = Told()
    return D.from_generator(source, state=(source.get, source.set), every=4)


def interleaved(scripts: Scripts, count: int = 13, cycle: int = 3, block: int = 2, **named: Any) -> ad.Dataset:
    """Of scripts."""

    def inner(*parts: Any) -> ad.Dataset:
        return scripts(number(parts) % 6, 100 * number(parts), kind="refs")

    return scripts(count, kind="objects").interleave(inner, cycle, block, **named)


def grouped(dataset: ad.Dataset, **named: Any) -> ad.Dataset:
    """Groups of equal remainders."""
    return dataset.group_by_window(
        lambda *parts: number(parts) % 3, lambda _, window: window.batch(3), window_size=4, **named
    )


# --- in a fixed order -------------------------------------------------------------------------------------------------

WEIGHTS = np.array([[1.0, 0.0] if i % 3 else [0.25, 0.75] for i in range(50)])

ORDERED: dict[type[Node], dict[str, Make]] = {
    # What chooses elements, or puts them in another order.
    transformations.Filter: {
        "": lambda s, _: s(kind="refs").filter(odd),
        "none": lambda s, _: s().filter(lambda *_: False),
        "fails": lambda s, _: s().filter(failing),
    },
    transformations.Take: {
        "": lambda s, _: s(kind="twice").take(17),
        "more": lambda s, _: s().take(99),
        "all": lambda s, _: s().take(-1),
        "of filter": lambda s, _: s().filter(odd).take(9),
    },
    transformations.Skip: {
        "": lambda s, _: s(kind="twice").skip(17),
        "more": lambda s, _: s().skip(99),
        "all": lambda s, _: s().skip(-1),
        "of filter": lambda s, _: s().filter(odd).skip(9),
    },
    transformations.Shuffle: {
        "": lambda s, _: s(kind="nests").shuffle(7, seed=3),
        "one": lambda s, _: s().shuffle(1, seed=3),
        "all": lambda s, _: s(kind="mixed").shuffle(90, seed=3),
        "drawn": lambda s, _: s().shuffle(7, reshuffle_each_iteration=False),
        "of filter": lambda s, _: s().filter(odd).shuffle(5),
    },
    transformations.Interleave: {
        "": lambda s, _: interleaved(s),
        "one": lambda s, _: interleaved(s, cycle=1, block=1),
        "wide": lambda s, _: interleaved(s, cycle=20, block=3),
        "ranges": lambda s, _: s(kind="mixed").interleave(few, 4, 1, num_parallel_calls=4),
        "fails": lambda s, _: s().interleave(lambda x: s(3, 100 * int(x), fail=x == 5), 2),
        "whole files": lambda _, f: ad.FileDataset(f.records * 5, with_url=True),
    },
    transformations.Repeat: {
        "": lambda s, _: s(11).repeat(3),
        "for ever": lambda s, _: s(11).repeat().take(50),
        "of shuffle": lambda s, _: s(11).shuffle(4).repeat(3),
        "of nothing": lambda s, _: s(0).repeat(),
        "of a few": lambda _s, _f: D.zip(D.range(3).repeat(40), D.from_tensors(np.arange(2)).repeat()),
        "for choices": lambda s, _: D.choose_from_datasets([s(20), s(25, 100)], D.range(2).repeat()),
    },
    transformations.Prefetch: {
        "": lambda s, _: s(kind="nests").prefetch(5),
        "of filter": lambda s, _: s().filter(odd).prefetch(ad.AUTOTUNE),
    },
    sequence.Enumerate: {
        "": lambda s, _: s(kind="mixed").enumerate(5),
        "of filter": lambda s, _: s().filter(odd).enumerate(),
    },
    sequence.Shard: {
        "": lambda s, _: s(kind="refs").shard(3, 1),
        "none": lambda s, _: s(4).shard(9, 5),
        "of filter": lambda s, _: s().filter(odd).shard(2, 0),
        "mixed": lambda s, _: s().shard(2, 1).shuffle(4).interleave(few, 3).batch(4),
    },
    sequence.TakeWhile: {
        "": lambda s, _: s(kind="refs").take_while(lambda *parts: number(parts) != 17),
        "of filter": lambda s, _: s().filter(odd).take_while(lambda x: x < 30),
    },
    sequence.Unique: {"": lambda s, _: s(20).concatenate(s(30)).unique()},
    sequence.AssertCardinality: {
        "": lambda s, _: s(11).assert_cardinality(11),
        "fails": lambda s, _: s(11).assert_cardinality(9),
    },
    sequence.RejectionResample: {
        "": lambda s, _: s().rejection_resample(lambda x: x % 3, [0.6, 0.3, 0.1], seed=4),
        "given": lambda s, _: s().rejection_resample(lambda x: x % 3, [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]),
    },
    # What calls functions.
    transformations.Map: {
        "inline": lambda s, _: s(kind="nests").map(doubled),
        "random": lambda s, _: s(kind="mixed").map(noisy, rng=True),
        "async": lambda s, _: s(kind="refs").map(doubled_later, 3),
        "threads": lambda s, _: s(kind="refs").map(doubled, 3, executor="thread"),
        "vectorized": lambda s, _: s().map(lambda x: x * 2, vectorized=True),
        "parses": lambda s, _: s().map(example).map(PARSE),
        "parses anywhere": lambda s, _: s().map(example).map(PARSE_DENSE, ad.AUTOTUNE),
        "fails": lambda s, _: s().map(failing),
    },
    transformations.MapBatch: {
        "": lambda s, _: s(kind="refs").map(number, 2, executor="thread").batch(3),
        "drop": lambda s, _: s().map(number, 2, executor="thread").map(abs, 2, executor="thread").batch(7, True),
        "of filter": lambda s, _: s().filter(odd).map(number, 2, executor="thread").batch(3),
        "ignores errors": lambda s, _: s().map(failing, 2, executor="thread").batch(3).ignore_errors(),
    },
    sequence.Scan: {
        "": lambda s, _: s(kind="mixed").scan([], total),
        "of filter": lambda s, _: s().filter(odd).scan(0, counted),
    },
    transformations.IgnoreErrors: {
        "of map": lambda s, _: s().map(failing).ignore_errors(),
        "of filter": lambda s, _: s().filter(failing).ignore_errors(),
        "of async map": lambda s, _: s().map(failing, 1, executor="thread").ignore_errors(),
        "of batch": lambda s, _: s().map(failing).batch(3).ignore_errors(),
    },
    transformations.WithOptions: {"": lambda s, _: s().with_options(ad.Options(state_history=50))},
    # What groups elements.
    transformations.Batch: {
        "": lambda s, _: s().batch(4),
        "drop": lambda s, _: s(kind="twice").batch(3, drop_remainder=True),
        "large": lambda s, _: s(kind="refs").batch(9),
        "of filter": lambda s, _: s().filter(odd).batch(3),
    },
    grouping.PaddedBatch: {
        "": lambda s, _: s().map(lambda x: np.arange(x % 5)).padded_batch(3),
        "of filter": lambda s, _: s().filter(odd).padded_batch(4, drop_remainder=True),
    },
    grouping.RaggedBatch: {
        "": lambda s, _: s().map(lambda x: np.arange(x % 5)).ragged_batch(3),
        "of filter": lambda s, _: s().filter(odd).ragged_batch(4),
    },
    grouping.Unbatch: {
        "": lambda s, _: s().batch(4).unbatch(),
        "uneven": lambda s, _: s().map(lambda x: np.arange(x % 4)).unbatch(),
    },
    grouping.Rebatch: {
        "": lambda s, _: s().batch(4).rebatch(3),
        "several": lambda s, _: s().batch(4).rebatch([5, 1, 2]),
        "uneven": lambda s, _: s().map(lambda x: np.arange(x % 4)).rebatch([3, 2], drop_remainder=True),
        "of filter": lambda s, _: s().filter(odd).batch(3).rebatch([2, 7]),
    },
    grouping.Window: {
        "": lambda s, _: s(kind="refs").window(4).flat_map(lambda w: w.batch(4)),
        "apart": lambda s, _: s().window(3, 5, 2).flat_map(lambda w: w.batch(9)),
        "over": lambda s, _: s().window(5, 2, 1, drop_remainder=True).flat_map(lambda w: w),
        "of filter": lambda s, _: s().filter(odd).window(3).map(lambda w: [int(x) for x in w]),
    },
    grouping.Contents: {
        "": lambda s, _: s(kind="refs").window(12).flat_map(lambda w: w.map(doubled)),
        "of nests": lambda s, _: s(kind="twice").window(7, 3).interleave(lambda one, two: D.zip((two, one)), 2),
    },
    grouping.GroupByWindow: {
        "": lambda s, _: grouped(s()),
        "of filter": lambda s, _: grouped(s().filter(odd)),
        "contents": lambda s, _: s().group_by_window(lambda x: x % 3, lambda _, w: w, window_size_func=lambda k: k + 2),
        "by length": lambda s, _: s().map(lambda x: np.arange(x % 7)).bucket_by_sequence_length(len, [3, 5], [2, 3, 2]),
    },
    # What reads several inputs.
    combining.Zip: {
        "": lambda s, _: D.zip((s(30), s(21, 1000, kind="refs"), s(25, 2000, kind="mixed"))),
        "of filter": lambda s, _: D.zip({"a": s().filter(odd), "b": s(18, 1000).batch(1)}),
        "fails": lambda s, _: D.zip((s(30), s(9, 1000, fail=True))),
    },
    combining.Concatenate: {
        "": lambda s, _: s(7).concatenate(s(0)).concatenate(s(1, 100)).concatenate(s(20, 200, kind="refs")),
        "of filter": lambda s, _: s(13).filter(odd).concatenate(s(20, 200).shuffle(3)),
        "fails": lambda s, _: s(7).concatenate(s(9, 100, fail=True)),
    },
    combining.SampleFrom: {
        "": lambda s, _: D.sample_from_datasets([s(20), s(9, 100), s(0)], [1.0, 2.0, 3.0], seed=5),
        "stops": lambda s, _: D.sample_from_datasets([s(20), s(9, 100)], seed=5, stop_on_empty_dataset=True),
        "varying": lambda s, _: D.sample_from_datasets([s(20), s(9, 100)], D.from_tensor_slices(WEIGHTS), seed=5),
        "of filter": lambda s, _: D.sample_from_datasets([s().filter(odd), s(9, 100).shuffle(4)]),
    },
    combining.ChooseFrom: {
        "": lambda s, _: D.choose_from_datasets([s(20), s(9, 100), s(30, 200)], s().map(lambda x: x % 3)),
        "goes on": lambda s, _: D.choose_from_datasets(
            [s(5), s(9, 100), s(30, 200).filter(odd)], s().map(lambda x: x * 7 % 3), stop_on_empty_dataset=False
        ),
    },
    # What is kept.
    grouping.Cache: {
        "": lambda s, _: s(kind="nests").cache(),
        "read": lambda s, _: s(13).shuffle(4).cache().repeat(3),
        "of random numbers": lambda s, _: s(13).map(noisy, rng=True).cache().shuffle(5).repeat(2),
        "never whole": lambda s, _: s(13).shuffle(4).cache().take(9).repeat(3),
        "file": lambda s, f: s(13, kind="refs").shuffle(4).cache(f.new()).repeat(2),
        "file that is there": lambda s, f: s(13, kind="refs").shuffle(4).cache(f.named("cache")).repeat(2),
    },
    grouping.Snapshot: {
        "": lambda s, f: s(13, kind="refs").shuffle(4).snapshot(f.new()).repeat(2),
        "that is there": lambda s, f: s(13, kind="refs").shuffle(4).snapshot(f.named("snapshot")).repeat(2),
        "in shards": lambda s, f: s(13).shuffle(4).snapshot(f.new(), shard_func=lambda x: x % 3),
        "in shards that are there": lambda s, f: (
            s(13).shuffle(4).snapshot(f.named("shards"), shard_func=lambda x: x % 3).repeat(2)
        ),
        "reader": lambda s, f: (
            s(13).snapshot(f.named("reader"), reader_func=lambda d: d.flat_map(lambda x: x)).repeat(2)
        ),
    },
    # Sources.
    sources.Range: {"": lambda *_: D.range(3, 70, 2)},
    sources.TensorSlices: {
        "": lambda *_: D.from_tensor_slices((np.arange(60).reshape(20, 3), list(map(str, range(20)))))
    },
    sources.Items: {
        "": lambda *_: D.from_tensors((1, b"b")),
        "several": lambda *_: ad.Dataset(sources.Items(items=(1, "b", (1, 2), b"c", 3.5, 6, 7, 8, 9))),
    },
    sources.Generator: {
        "": lambda *_: D.from_generator(numbers),
        "later": lambda *_: D.from_generator(numbers_later),
        "told": lambda *_: told(),
    },
    sequence.Counter: {"": lambda *_: D.counter(5, -2).take(23)},
    sequence.Random: {
        "": lambda *_: D.random(seed=4).take(23),
        "anew": lambda *_: D.random(rerandomize_each_iteration=True).take(23),
    },
    sources.ListFiles: {
        "": lambda _, f: D.list_files(f.glob(), shuffle=False),
        "shuffled": lambda _, f: D.list_files(f.glob()),
    },
    sources.ManifestFile: {"": lambda _, f: D.from_manifest(f.manifest)},
    sources.TFRecordFile: {
        "": lambda _, f: ad.TFRecordDataset(f.records[2]),
        "compressed": lambda _, f: ad.TFRecordDataset(f.packed, "GZIP"),
        "of which some are damaged": lambda _, f: ad.TFRecordDataset(f.damaged).ignore_errors(),
        "begun again": lambda _, f: ad.TFRecordDataset(f.records[2]).with_options(ad.Options(on_change="restart")),
        "several": lambda _, f: ad.TFRecordDataset(f.records, num_parallel_reads=3).map(lambda record: record),
    },
    files.FramedFile: {
        "lines": lambda _, f: ad.TextLineDataset(f.lines),
        "csv": lambda _, f: ad.CsvDataset(f.table, [np.int64, bytes]),
        "fixed": lambda _, f: ad.FixedLengthRecordDataset(f.fixed, 4, 2, 1),
        "json": lambda _, f: ad.JsonLinesDataset(f.values),
    },
    files.WholeFile: {"": lambda _, f: ad.Dataset.from_tensor_slices(list(f.records)).interleave(ad.FileDataset, 3)},
    files.TarSamples: {"": lambda _, f: ad.TarDataset(f.tar)},
    files.ParquetRows: {
        "": lambda _, f: ad.ParquetDataset(f.parquet),
        "filters": lambda _, f: ad.ParquetDataset(f.parquet, filters=[("n", ">", 10)]),
    },
    sequence.EnumeratePicked: {"": lambda _, f: ad.TFRecordDataset(f.records).enumerate().shuffle(7)},
    files.PickedRows: {
        "": lambda _, f: ad.TFRecordDataset(f.records).shuffle(7),
        "of filter": lambda _, f: ad.TFRecordDataset(f.records, num_parallel_reads=3).filter(len).shuffle(9).batch(3),
        "of map": lambda _, f: ad.TFRecordDataset(f.records[2]).map(noisy, rng=True).shuffle(5),
        "of repeat": lambda _, f: ad.TFRecordDataset(f.records).shuffle(7).repeat(2),
        "of lines": lambda _, f: ad.TextLineDataset(f.lines).shuffle(7),
        "of shard": lambda _, f: ad.TFRecordDataset(f.records).shard(2, 1).shuffle(7),
    },
    grouping.StoredFile: {
        "": lambda s, f: s(23).snapshot(f.named("stored"), shard_func=lambda x: x % 3).repeat(3),
    },
}

KEPT = {grouping.Cache, grouping.Snapshot, grouping.StoredFile}
"""What they find is part of their states."""

FEW = 4
SHORT = {"Filter none", "Skip more", "Skip all", "Repeat of nothing", "Shard none", "Items"}
"""Those with hardly any elements."""

NEVER_LOWERED = {flat.Hole}
"""Stands for an input while a plan is pickled."""


def every_kind() -> set[type[Node]]:
    """All kinds of steps."""
    for module in pkgutil.iter_modules(plan.__path__, f"{plan.__name__}."):
        importlib.import_module(module.name)

    def below(kind: type[Node]) -> Iterator[type[Node]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    # Without those that dataclasses have put others with slots in the place of.
    kinds = {kind for kind in below(Node) if kind.__module__.startswith(f"{plan.__name__}.")}
    return {kind for kind in kinds if getattr(sys.modules[kind.__module__], kind.__name__) is kind}


def cases(table: dict[type[Node], dict[str, Make]]) -> pytest.MarkDecorator:
    """Each of a table, by name."""
    params = [
        pytest.param(kind, make, id=f"{kind.__name__} {name}".rstrip())
        for kind, makes in table.items()
        for name, make in makes.items()
    ]
    return pytest.mark.parametrize(("kind", "make"), params)


def test_there_is_a_case_for_every_kind_of_step() -> None:
    """A step that comes to the vocabulary comes to the law."""
    assert set(ORDERED) == every_kind() - NEVER_LOWERED
    assert set(UNORDERED) == set(unordered._RESUMABLE)


@pytest.mark.sampled
@cases(ORDERED)
def test_a_step_goes_on_where_it_was(
    kind: type[Node], make: Make, stored_files: Files, brought_back: set[type[Node]], request: pytest.FixtureRequest
) -> None:
    """Restore at every step, and once more from there."""
    name = request.node.callspec.id
    found = check_restoring(
        lambda scripts: make(scripts, stored_files),
        seeds=range(samples(1, 5)),
        places=samples(2, 100),
        kept=kind in KEPT,
    )
    assert (found.error is not None) == name.endswith("fails")
    assert len(found.elements) > FEW or name in SHORT
    assert kind in brought_back or name in SHORT


# --- without one ------------------------------------------------------------------------------------------------------


def mixed(scripts: Scripts, count: int = 30, first: int = 0) -> ad.Dataset:
    """Numbers as they are ready."""
    return scripts(count, first, kind="refs" if first else "array").map(later, 3, deterministic=False)


UNORDERED: dict[type[Node], dict[str, Make]] = {
    transformations.Map: {
        "async": lambda s, _: mixed(s),
        "threads": lambda s, _: s(kind="nests").map(doubled, 3, executor="thread", deterministic=False),
        "behind": lambda s, _: mixed(s).map(doubled),
        "twice": lambda s, _: mixed(s).map(later, 2, deterministic=False),
    },
    transformations.Interleave: {
        "": lambda s, _: interleaved(s, num_parallel_calls=3, deterministic=False),
        "of the same": lambda s, _: s(9).interleave(lambda x: mixed(s, int(x), 100 * int(x)), 3, deterministic=False),
        "behind": lambda s, _: mixed(s).interleave(few, 3),
        "files": lambda _, f: D.from_tensor_slices(f.records).interleave(
            ad.TFRecordDataset, 3, num_parallel_calls=3, deterministic=False
        ),
    },
    transformations.Shuffle: {
        "": lambda s, _: mixed(s).shuffle(7),
        "all": lambda s, _: mixed(s).shuffle(70),
        "files": lambda _, f: (
            D.from_tensor_slices(f.records)
            .interleave(ad.TFRecordDataset, 3, num_parallel_calls=3, deterministic=False)
            .shuffle(9)
        ),
    },
    transformations.Filter: {"": lambda s, _: mixed(s).filter(odd)},
    transformations.IgnoreErrors: {"": lambda s, _: mixed(s).map(failing).ignore_errors()},
    transformations.Prefetch: {"": lambda s, _: mixed(s).prefetch(5)},
    transformations.WithOptions: {"": lambda s, _: mixed(s).with_options(ad.Options(state_history=50))},
    transformations.Repeat: {
        "": lambda s, _: mixed(s, 9).repeat(3),
        "for ever": lambda s, _: mixed(s, 9).repeat().take(27),
    },
    transformations.Take: {"": lambda s, _: mixed(s).take(17), "more": lambda s, _: mixed(s).take(99)},
    transformations.Skip: {"": lambda s, _: mixed(s).skip(9)},
    transformations.Batch: {"": lambda s, _: mixed(s).batch(4), "drop": lambda s, _: mixed(s).batch(5, True)},
    transformations.MapBatch: {
        "": lambda s, _: mixed(s).map(number, 2, executor="thread").batch(4),
        "itself": lambda s, _: s(kind="refs").map(number, 2, executor="thread", deterministic=False).batch(3),
    },
    grouping.PaddedBatch: {"": lambda s, _: mixed(s).padded_batch(4)},
    grouping.RaggedBatch: {"": lambda s, _: mixed(s).ragged_batch(4)},
    combining.Concatenate: {
        "": lambda s, _: mixed(s, 13).concatenate(mixed(s, 9, 100)),
        "with order": lambda s, _: mixed(s, 13).concatenate(s(9, 100)).concatenate(mixed(s, 5, 200)),
    },
    combining.Zip: {
        "": lambda s, _: D.zip((mixed(s), mixed(s, 30, 100))),
        "with order": lambda s, _: D.zip((s(30), mixed(s, 30, 100))),
    },
    sequence.Enumerate: {"": lambda s, _: mixed(s).enumerate(5)},
    sequence.Scan: {
        "": lambda s, _: mixed(s).scan(0, counted),
        "batch": lambda s, _: mixed(s).scan(0, counted).batch(4),
    },
    sequence.Unique: {"": lambda s, _: mixed(s, 20).concatenate(mixed(s, 30)).unique()},
}
COUNTED = {transformations.Take, transformations.Skip}
"""Which elements these give is another matter in every run."""


@pytest.mark.sampled
@cases(UNORDERED)
def test_every_element_comes_once(
    kind: type[Node], make: Make, stored_files: Files, brought_back: set[type[Node]]
) -> None:
    """What was delivered and what comes behind the state are all elements, and so once more."""
    found = check_once(
        lambda scripts: make(scripts, stored_files),
        seeds=range(samples(1, 5)),
        places=samples(2, 100),
        count=kind in COUNTED,
    )
    assert found.error is None
    assert len(found.elements) > FEW
    assert kind in brought_back
