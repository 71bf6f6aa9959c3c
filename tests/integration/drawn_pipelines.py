"""Pipelines of the whole vocabulary, drawn as data: any source, any steps around and inside of others, any options.

A description is what `tests.referee.pipelines` draws, and more that TensorFlow has not: other formats, random numbers,
datasets of elements that are pipelines themselves, elements that are kept in memory and in files, functions that fail.
JSON can hold it, so that another process can build the same pipeline.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

import asyncdata as ad
from tests.referee import pipelines
from tests.referee.pipelines import BYTES, INT, Draw, Kind, Plan, kinds_of, measure, whole

D = ad.Dataset
Files: TypeAlias = dict[str, Any]
"""What each source can read, by its name."""

TEXT: Kind = ("text", ())


def text(element: Any) -> str:
    """An element in a form that can be compared."""
    return json.dumps(pipelines.plain(element), sort_keys=True)


# --- files -----------------------------------------------------------------------------------------------------------


def write_files(folder: Path, counts: tuple[int, ...]) -> Files:
    """Files of all formats, each one per count of records."""
    written: Files = dict(pipelines.write_files(folder, counts))
    kinds = ("csv", "json", "gz", "tar", "parquet", "damaged")
    written |= {kind: [str(folder / f"{i}.{kind}") for i in range(len(counts))] for kind in kinds}
    for i, count in enumerate(counts):
        numbers = range(10 * i, 10 * i + count)
        for kind in ("csv", "json", "gz", "tar", "parquet"):
            Path(written[kind][i]).write_bytes(rows_of(f".{kind}", numbers))
        data = bytearray(Path(written["records"][i]).read_bytes())
        for place in range(14, len(data), 131):
            data[place] ^= 1
        Path(written["damaged"][i]).write_bytes(data)
    written["damaged"].append(str(folder / "missing"))
    written["whole"] = written["lines"] + written["csv"]
    written["listed"] = str(folder / "*.tfrecord")
    written["manifest"] = str(folder / "manifest.jsonl")
    ad.write_manifest(written["listed"], written["manifest"])
    written["directory"] = str(folder / "directory")
    for i in range(9):
        place = folder / "directory" / "ab"[i % 2] / f"{i}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("x" * i)
    return written


def rows_of(name: str, numbers: range, version: int = 0, pad: int = 0) -> bytes:
    """A file of rows. Those of another version lie elsewhere and have the same values."""
    if name.endswith("records"):
        file = io.BytesIO()
        with ad.TFRecordWriter(file) as writer:
            writer.write_many([b"%d" % n + b"r" * pad for n in numbers])
        return file.getvalue()
    if name.endswith("tar"):
        return tar_of(numbers)
    if name.endswith("parquet"):
        return parquet_of(numbers, 7 + version)
    if name.endswith("csv"):
        number = (b"%d", b'"%d"', b'"00%d"')[version]
        rows = [number % n + b',"t ""%d%s"""' % (n % 7, b"c" * pad) for n in numbers]
    elif name.endswith("json"):
        rows = [b'{"n": %s%d, "t": "%s"}' % (b" " * version, n, b"j" * (n % 4 + pad)) for n in numbers]
    else:
        rows = [b"%d" % n * (n % 4) + b"l" * pad + b"\r" * version for n in numbers]
    data = b"".join(row + b"\n" for row in rows)
    return gzip.compress(data, 1 + version, mtime=0) if name.endswith("gz") else data


CHANGING = [f"{i}.{kind}" for i in range(2) for kind in ("csv", "json", "gz", "tar", "parquet", "lines", "records")]
"""Objects that are replaced while they are read, by the same rows that lie elsewhere."""


def changing(name: str, version: int) -> bytes:
    """A version of one of them."""
    return rows_of(name, range(int(name[0]) * 1000, int(name[0]) * 1000 + 200), version, 100)


def tar_of(numbers: range) -> bytes:
    """A sample of two members for each number."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for n in numbers:
            for extension, content in (("cls", b"%d" % (n % 5)), ("txt", b"x" * (n % 4))):
                member = tarfile.TarInfo(f"{n:04d}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def parquet_of(numbers: range, group: int) -> bytes:
    """A table in row groups of so many rows."""
    table = {"n": list(numbers), "t": ["t" * (n % 3) for n in numbers], "v": [[n] * (n % 3) for n in numbers]}
    schema = pa.schema([("n", pa.int64()), ("t", pa.string()), ("v", pa.list_(pa.int64()))])
    file = io.BytesIO()
    pq.write_table(pa.table(table, schema), file, row_group_size=group)
    return file.getvalue()


# --- building --------------------------------------------------------------------------------------------------------


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
        self.next, self.stop = start, stop
        self.begin = start

    def get(self) -> int:
        """Behind the last element."""
        return self.next

    def set(self, value: int) -> None:
        """Begins there."""
        self.begin = value

    def __call__(self) -> Iterator[int]:
        begin, self.begin = self.begin, 0
        for number in range(begin, self.stop):
            self.next = number + 1
            yield number


async def numbers_later(start: int, stop: int) -> Any:
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


# --- drawing ---------------------------------------------------------------------------------------------------------

SEED = st.sampled_from([None, 1, 2])
SIZE = st.integers(1, 4)
COUNT = st.sampled_from([25, 9, 40, 3, 1, 0])
PARALLEL = st.sampled_from([None, 2])
AHEAD = {"prefetch", "map", "noisy", "later", "picky", "inside", "interleave", "map_and_batch"}
"""Steps that work ahead of what is taken from them, or in another order."""
ANY_ORDER = ("vectorized", "picky", "choosy", "mixed", "shuffle_and_repeat", "ignore_errors")
"""Steps that make the same of elements in whatever order they come."""


class Drawing:
    """Draws one pipeline.

    Args:
        draw: Of hypothesis.
        files: What sources can read.
        fixed: Whether files stay as they are, and none are written.

    Attributes:
        stores: How many of its steps keep elements in files.
        changes: Whether objects are replaced while it reads them.
        ops: Every source and step that was drawn.
    """

    def __init__(self, draw: Draw, files: Files, *, fixed: bool = False) -> None:
        self._draw = draw
        self._fixed = fixed
        self._files = files
        self._handles = 0
        self._may_store = not fixed
        self.stores = 0
        self.changes = False
        self.ops: list[str] = []

    def one_of(self, *values: Any) -> Any:
        """One of them."""
        return self._draw(st.sampled_from(values))

    # --- sources

    def source(self) -> tuple[Plan, Kind]:
        """A source of any kind."""
        op = self.one_of(
            "referee's",
            "referee's",
            *["changing"] * (not self._fixed),
            *(name for name in SOURCES if name != "element"),
        )
        if op == "referee's":
            plan, kind = pipelines.sources(self._draw, self._files)
        elif op == "changing":
            self.changes = True
            op = self.one_of("csv", "json", "gz", "tar", "parquet", "lines", "records")
            plan, kind = self.of_files(op, [f"gs://changing/{i}.{op}" for i in self.one_of([0], [0, 1], [1, 1])])
        else:
            plan, kind = self._own_source(op)
        self.ops.append(plan["op"])
        return plan, kind

    def _own_source(self, op: str) -> tuple[Plan, Kind]:
        draw = self._draw
        if op == "generator":
            every = self.one_of(None, 1, 3, 1000)
            return {"op": op, "count": draw(COUNT), "every": every, "is_async": draw(st.booleans())}, INT
        if op == "random":
            return {"op": op, "count": draw(COUNT), "seed": draw(SEED), "again": self.one_of(None, True)}, INT
        if op in ("listed", "manifest", "directory"):
            plan = {"op": op, "files": self._files[op], "shuffle": draw(st.booleans()), "seed": draw(SEED)}
            if op == "directory":
                size = self.one_of(None, 2, 5)
                kind: Kind = ["tuple", [BYTES, INT]]
                seed = self.one_of(1, 2)  # without it, every process has another order
                return {**plan, "size": size, "seed": seed}, pipelines.stacked(kind) if size else kind
            return {**plan, "cycle": draw(SIZE), "block": draw(SIZE)}, BYTES
        chosen = [self._files[op][i] for i in draw(st.lists(st.sampled_from([0, 3, 2, 1, -1]), min_size=1, max_size=4))]
        return self.of_files(op, chosen)

    def of_files(self, op: str, chosen: list[str]) -> tuple[Plan, Kind]:
        """The source of some files."""
        draw = self._draw
        plan: Plan = {"op": op, "files": chosen}
        if op == "whole":
            with_url = draw(st.booleans())
            return {**plan, "with_url": with_url}, ["tuple", [TEXT, BYTES]] if with_url else BYTES
        plan["reads"] = self.one_of(None, 1, 2, 3)
        if op == "csv":
            count = self.one_of(2, 1)
            return {**plan, "columns": count}, ["tuple", [INT, BYTES][:count]]
        if op == "json":
            return {**plan, "parallel": draw(PARALLEL)}, ["dict", {"n": INT, "t": TEXT}]
        if op == "tar":
            return plan, ["dict", {"__key__": TEXT, "cls": BYTES, "txt": BYTES}]
        if op == "parquet":
            kinds = {"n": INT, "t": TEXT, "v": ("int", (None,))}
            columns = self.one_of(None, ["v", "n"], ["t"], ["v"])
            kind = ["dict", {name: kinds[name] for name in columns or kinds}]
            return {**plan, "columns": columns, "without": draw(st.integers(0, 30))}, kind
        return plan, BYTES

    def _of_element(self, kind: Kind, outer: Kind | None) -> tuple[Plan, Kind]:
        """The source of an inner dataset: of the element, or any other."""
        whats = ["count", "repeated", "file", "generated", "any"] + ["outer"] * (outer is not None)
        what = self.one_of(*whats)
        if what == "any":
            return self.source()
        plan: Plan = {"op": "element", "what": what}
        if what == "file":
            return {**plan, "files": self._files["records"]}, BYTES
        if what == "generated":
            return {**plan, "count": self._draw(COUNT), "every": self.one_of(None, 2), "is_async": False}, INT
        return plan, {"count": INT, "repeated": kind, "outer": outer}[what]

    # --- steps

    def step(self, plan: Plan, kind: Kind) -> tuple[Plan, Kind]:
        """One step more."""
        names = [*STEPS, "ragged_batch", "drawn from", "zip", "concatenate", "choose", "ignore_errors"]
        fitting = [name for name in names if self._fits(name, kind)]
        if self._draw(st.booleans()):
            op = self.one_of(*fitting)
            self.ops.append(op)
            return self._own_step(op, plan, kind)
        while True:
            out, after = pipelines.step(self._draw, plan, kind, self._files)
            if out["op"] not in ("zip", "concatenate", "choose"):  # they are drawn here
                self.ops.append(out["op"])
                return out, after

    def _fits(self, op: str, kind: Kind) -> bool:
        if op in ("store", "snapshot"):
            return self._may_store
        parts = kinds_of(kind)
        if op in ("vectorized", "declared"):
            return bool(kind == INT)
        if op == "dense":
            return pipelines.is_leaf(kind) and kind[0] == "ragged" and len(kind[1]) == 1
        if op in ("ragged_batch", "bucket_by_length"):
            return all(leaf[0] != "ragged" for leaf in parts)
        return True

    def _own_step(self, op: str, plan: Plan, kind: Kind) -> tuple[Plan, Kind]:  # noqa: C901, PLR0911, PLR0912 -- each
        draw = self._draw
        out: Plan = {"op": op, "input": plan}
        if op in ("noisy", "later", "picky"):
            out["parallel"] = draw(PARALLEL)
            if op != "noisy":
                return out, kind
            places = ["async", "thread", "process"] if out["parallel"] else ["async", None]
            return {**out, "executor": self.one_of(*places)}, ["tuple", [kind, INT]]
        if op in ("store", "snapshot"):
            self.stores += 1
            out["name"] = f"{op}{self.stores}"
            if op == "store":
                return out, kind
            reader = self.one_of(None, None, "in turn", "shuffled")
            out |= {"reader": reader, "shards": draw(st.booleans()), "compression": self.one_of(None, "GZIP")}
            return out, kind
        if op == "inside":
            return self._inside(out, kind)
        if op in ("drawn from", "zip", "concatenate", "choose"):
            return self._joined(op, plan, kind)
        if op == "rejection_resample":
            initial = self.one_of(None, [0.4, 0.3, 0.3])
            out |= {"target": self.one_of([0.2, 0.3, 0.5], [0.0, 0.5, 0.5]), "initial": initial, "seed": draw(SEED)}
            return out, ["tuple", [INT, kind]]
        if op in ("mixed", "shuffle_and_repeat"):
            out |= {"size": draw(st.integers(1, 20)), "seed": draw(SEED)}
            out |= {"reshuffle": self.one_of(None, False)} if op == "mixed" else {"count": self.one_of(2, 3)}
            return out, kind
        if op == "map_and_batch":
            out |= {"size": draw(SIZE), "drop": draw(st.booleans()), "parallel": draw(PARALLEL)}
            return out, pipelines.stacked(kind)
        if op == "ragged_batch":
            out |= {"batch_size": draw(SIZE), "drop_remainder": draw(st.booleans())}
            return out, pipelines.changed(kind, lambda leaf: ("ragged" if leaf[1] else leaf[0], (None,)))
        if op == "declared":
            return {**out, "count": self.one_of(12, 12, 12, 11, 13)}, kind
        if op == "bucket_by_length":
            return {**out, "drop": draw(st.booleans())}, pipelines.RESULTS["padded_batch"](kind)
        if op == "by_key":
            return {**out, "size": draw(SIZE)}, kind
        if op == "dense":
            return out, ("int", (None, None))
        return out, kind

    def _inside(self, out: Plan, kind: Kind) -> tuple[Plan, Kind]:
        draw = self._draw
        out |= {"how": self.one_of("flat_map", "interleave", "parallel_interleave"), "outer": None}
        out |= {"cycle": draw(SIZE), "block": draw(SIZE)}
        outer_kind = None
        if draw(st.booleans()):
            out["outer"], outer_kind = self.pipeline(2)
        may_store, self._may_store = self._may_store, self._may_store and out["how"] == "flat_map"
        inner, after = self._of_element(kind, outer_kind)
        for _ in range(draw(st.integers(0, 3))):
            inner, after = self.step(inner, after)
        self._may_store = may_store
        return {**out, "inner": inner}, after

    def _joined(self, op: str, plan: Plan, kind: Kind) -> tuple[Plan, Kind]:
        """The pipeline joined with others, of its own kind where it must be, also with itself."""
        draw = self._draw
        inputs = [plan]
        for _ in range(1 if op in ("zip", "concatenate") else draw(st.integers(1, 2))):
            how = self.one_of("itself", "twin", "other")
            if how == "other" and op == "zip":
                other, after = self.pipeline(2)
                return {"op": op, "inputs": [plan, other], "as_dict": False}, ["tuple", [kind, after]]
            if how == "other" and kind in (INT, BYTES):
                inputs.append(pipelines.sources(draw, self._files, only=kind)[0])
            elif how == "itself":
                if "handle" not in inputs[0]:
                    self._handles += 1
                    inputs[0] = {**plan, "handle": self._handles}
                inputs.append({"op": "skip", "input": inputs[0], "count": draw(st.integers(0, 3))})
            else:
                inputs.append({"op": "skip", "input": self._twin(plan), "count": draw(st.integers(0, 3))})
        out: Plan = {"op": op, "inputs": inputs}
        if op == "zip":
            return {**out, "as_dict": True}, ["dict", {"b": kind, "a": kind}]
        if op == "concatenate":
            return out, kind
        if op == "choose":
            choices = draw(st.lists(st.integers(0, len(inputs) - 1), min_size=1, max_size=12))
            return {**out, "choices": choices, "stop": draw(st.booleans())}, kind
        weights = [0.5, 0.3, 0.2][: len(inputs)]
        out |= {"weights": weights, "by_dataset": draw(st.booleans()), "seed": draw(SEED), "stop": draw(st.booleans())}
        return {**out, "again": self.one_of(None, True)}, kind

    def _twin(self, plan: Any) -> Any:
        """The same pipeline, which keeps its elements elsewhere."""
        if isinstance(plan, list):
            return [self._twin(each) for each in plan]
        if not isinstance(plan, dict):
            return plan
        twin = {key: self._twin(value) for key, value in plan.items() if key != "handle"}
        if "name" in twin:
            self.stores += 1
            twin["name"] = f"twin{self.stores}"
        return twin

    def pipeline(self, depth: int) -> tuple[Plan, Kind]:
        """A source and up to so many steps."""
        plan, kind = self.source()
        for _ in range(self.one_of(*range(depth, 0, -1))):
            plan, kind = self.step(plan, kind)
        return plan, kind

    def case(self, depth: int = 5) -> Plan:
        """A pipeline with options."""
        plan, _ = self.pipeline(depth)
        options: dict[str, Any] = {"seed": self.one_of(None, 7)}
        if self.one_of("no", "chunks") == "chunks":
            options["chunk_bytes"] = 4096
        if {"picky", "choosy", "damaged"} & set(self.ops):
            # Of what works ahead, how much is skipped before the end is a matter of time.
            quota = None if AHEAD & set(self.ops) else self.one_of(None, 2, 9)
            options["errors"] = self.one_of({"max_skipped": quota}, {"max_skipped": quota}, None)
        if self.changes:
            options["on_change"] = "restart"
        epoch = self.one_of(0, 0, 1)
        stores, changes = self.stores, self.changes
        return {"plan": plan, "options": options, "cut": True, "stores": stores, "changes": changes, "epoch": epoch}

    def unordered_case(self) -> Plan:
        """A pipeline some of whose steps pass elements on as they are ready, before steps that do not mind."""
        plan, kind = self.pipeline(2)
        mixing = ("noisy", "later", "inside")
        for name in (self.one_of(*mixing), *self._draw(st.lists(st.sampled_from([*mixing, *ANY_ORDER]), max_size=3))):
            if self._fits(name, kind):
                self.ops.append(name)
                plan, kind = self._own_step(name, plan, kind)
            if name in mixing and plan.get("how") != "flat_map":
                plan["unordered"] = True
        options = {"seed": 7, "errors": {"max_skipped": None}}
        epoch = self.one_of(0, 0, 1)
        return {"plan": plan, "options": options, "cut": False, "stores": 0, "changes": False, "epoch": epoch}


@st.composite
def cases(draw: Draw, files: Files) -> Plan:
    """A pipeline of any kind, with options."""
    return Drawing(draw, files).case()


@st.composite
def unordered_cases(draw: Draw, files: Files) -> Plan:
    """A pipeline without a fixed order, with options."""
    return Drawing(draw, files, fixed=True).unordered_case()
