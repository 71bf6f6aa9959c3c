"""Kept elements are read again by the pipeline that made them, in any process, and refused to every other."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncdata as ad
from asyncdata.planner.digests import parts_of
from asyncdata.planner.recipe import Recipe
from asyncdata.runtime.stages.store import freshness
from fake_gcs import FakeGCS
from tests.integration.shards import BUCKET, gs_storage, put_shards
from tests.patience import LIMIT_S

pytestmark = pytest.mark.sampled

D = ad.Dataset
INLINE = ad.Options(num_workers=0)

PROGRAM = """
import dataclasses
import functools
import json
import re
import sys

import numpy as np

import asyncdata as ad
import settings

D = ad.Dataset
folder = sys.argv[1]
RATE = 2
SIZES = {"width": 3, "names": {"a", "b", "c"}}
TABLE = np.arange(5)


def helper(x):
    return x * RATE


def uses_helper(x, offset=1, *, more=0):
    def inner(y):
        return helper(y) + offset + more
    return inner(int(x))


def imports_inside(x):
    import late
    from late import NAMES as names
    return int(x) + late.SIZE + len(names)


def closing_over(value):
    return lambda x: int(x) + value


def decorated(function):
    @functools.wraps(function)
    def call(x):
        return function(x)
    return call


@decorated
def wrapped(x):
    return int(x) + 10


@functools.lru_cache
def remembered(x):
    return x + 20


class Decoder:
    factor = 30

    def __init__(self, bias):
        self.bias = bias

    def __call__(self, x):
        return self.apply(int(x))

    def apply(self, x):
        return x * self.factor + self.bias


@dataclasses.dataclass(frozen=True)
class Config:
    depth: int = 40
    pattern: re.Pattern = re.compile("a+")


CONFIG = Config()
rng = np.random.default_rng()
numbers = D.range(4)
shuffled = D.range(4).shuffle(4, reshuffle_each_iteration=False)

CASES = {
    "constant": lambda: numbers.map(lambda x: int(x) + 100),
    "in a set": lambda: numbers.map(lambda x: str(int(x)) in {"1", "2", "0"}),
    "global": lambda: numbers.map(helper),
    "function of a function": lambda: numbers.map(uses_helper),
    "container": lambda: numbers.map(lambda x: int(x) + SIZES["width"] + len(SIZES["names"])),
    "array": lambda: numbers.map(lambda x: int(TABLE[x])),
    "module": lambda: numbers.map(lambda x: int(x) + settings.SIZE + len(settings.NAMES)),
    "module as a value": lambda: numbers.map(lambda x: int(x) + getattr(settings, "SIZE")),
    "import": lambda: numbers.map(imports_inside),
    "closure": lambda: numbers.map(closing_over(50)),
    "partial": lambda: numbers.map(functools.partial(uses_helper, more=60)),
    "decorated": lambda: numbers.map(wrapped),
    "lru_cache": lambda: numbers.map(lambda x: remembered(int(x))),
    "object": lambda: numbers.map(Decoder(70)),
    "bound method": lambda: numbers.map(Decoder(80).apply),
    "dataclass": lambda: numbers.map(lambda x: int(x) + CONFIG.depth + len(CONFIG.pattern.pattern)),
    "random": lambda: numbers.map(lambda x: int(x) + int(rng.integers(1))),
    "ufunc": lambda: numbers.map(np.square),
    "builtin": lambda: numbers.map(abs),
    "filter": lambda: numbers.filter(lambda x: x < 3),
    "generator": lambda: D.from_generator(lambda: iter([1, 2, 3]), output_types=np.int32),
    "inner": lambda: numbers.flat_map(lambda x: D.range(int(x)).map(lambda y: y + 90)),
    "window": lambda: numbers.group_by_window(lambda x: x % 2, lambda key, w: w.batch(2), 2).map(lambda x: x.sum()),
    "source": lambda: D.from_tensor_slices([1, 2, 3, 4]),
    "setting": lambda: numbers.batch(2).map(lambda x: x.sum()),
    "parser": lambda: D.from_tensors(ad.serialize_example({"a": 1, "b": 5})).map(
        ad.parse_example({"a": ad.FixedLenFeature((), np.int64)})).map(lambda x: sum(x.values())),
    "unseeded": lambda: numbers.shuffle(4).map(lambda x: int(x) * 0),
    "dataset in a function": lambda: D.range(1).flat_map(lambda _: shuffled).map(lambda x: int(x) * 0),
    "steps": lambda: numbers.take(3),
    "nothing": lambda: numbers.map(lambda x: (x, str(x))[0]),
}


def answer(ds):
    try:
        return [int(x) for x in ds]
    except ad.StaleDataError as error:
        return str(error)


if __name__ == "__main__":
    with ad.Runtime(ad.Options(num_workers=0)):
        answers = {name: answer(make().snapshot(folder + "/" + name)) for name, make in CASES.items()}
        cached = {name: answer(make().cache(folder + "/" + name + ".cache")) for name, make in CASES.items()}
    assert [str(a)[:7] for a in answers.values()] == [str(a)[:7] for a in cached.values()], (answers, cached)
    print(json.dumps(answers))
"""

SETTINGS = "SIZE = 7\nNAMES = {'x', 'y', 'z'}\n"

CHANGES: dict[str, tuple[str, str, str]] = {
    "constant": ("+ 100", "+ 101", "code of <lambda> has changed in step 2, map"),
    "in a set": ('{"1", "2", "0"}', '{"1", "2", "9"}', "code of <lambda>"),
    "global": ("RATE = 2", "RATE = 3", "RATE in helper has changed in step 2, map"),
    "function of a function": ("RATE = 2", "RATE = 3", "RATE in helper"),
    "container": ('"width": 3', '"width": 4', "SIZES in <lambda>"),
    "array": ("np.arange(5)", "np.arange(5) * 2", "TABLE in <lambda>"),
    "module": ("", "", "settings.SIZE in <lambda>"),
    "module as a value": ("", "", "module settings has changed in step 2, map"),
    "import": ("", "", "module late has changed in step 2, map"),
    "closure": ("closing_over(50)", "closing_over(51)", "value in <lambda>"),
    "partial": ("more=60", "more=61", "function has changed"),
    "decorated": ("+ 10\n", "+ 11\n", "code of wrapped"),
    "lru_cache": ("x + 20", "x + 21", "code of remembered"),
    "object": ("factor = 30", "factor = 31", "factor of Decoder"),
    "bound method": ("Decoder(80)", "Decoder(81)", "function has changed"),
    "dataclass": ("depth: int = 40", "depth: int = 41", "CONFIG.depth in <lambda>"),
    "ufunc": ("np.square", "np.negative", "function has changed"),
    "builtin": ("map(abs)", "map(int)", "function has changed"),
    "filter": ("x < 3", "x < 2", "step 2, filter"),
    "generator": ("[1, 2, 3])", "[1, 2, 4])", "step 1, from_generator"),
    "inner": ("y + 90", "y + 91", "code of <lambda>"),
    "window": ("w.batch(2), 2", "w.batch(2), 3", "step 2, group_by_window"),
    "source": ("[1, 2, 3, 4]", "[1, 2, 3, 5]", "arrays has changed in step 1, from_tensor_slices"),
    "setting": ("batch(2).map", "batch(3).map", "size of step 2, batch was 2 and is 3"),
    "parser": ('{"a": ad.', '{"b": ad.', "step 2, map"),
    "steps": ("numbers.take(3)", "numbers.skip(3)", "step 2 was take and is skip"),
}
"""By case what is replaced, and the difference that is named."""


def run(program: str, settings: str, where: Path, kept: Path, hash_seed: int) -> dict[str, Any]:
    """What another process answers."""
    where.mkdir()
    (where / "program.py").write_text(program)
    for name in ("settings", "late"):
        (where / f"{name}.py").write_text(settings)
    root = Path(__file__).parents[4]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": f"{root}:{where}"}
    command = [sys.executable, "-W", "error", str(where / "program.py"), str(kept)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_other_processes(tmp_path: Path) -> None:
    """The same program reads what it kept, also with other lines, folders and hash seeds; a changed one is refused."""
    kept = tmp_path / "kept"
    first = run(PROGRAM, SETTINGS, tmp_path / "one", kept, 1)
    assert all(isinstance(elements, list) for elements in first.values()), first
    moved = "# A line more.\n" + PROGRAM.replace("\n\n\ndef ", "\n\n\n\n\ndef ").replace("D.range(4)", "D . range( 4 )")
    assert run(moved, SETTINGS, tmp_path / "two", kept, 2) == first
    changed = PROGRAM
    for old, new, _ in CHANGES.values():
        assert not old or old in PROGRAM, old
        changed = changed.replace(old, new) if old else changed
    third = run(changed, SETTINGS.replace("7", "8"), tmp_path / "three", kept, 3)
    for name, elements in first.items():
        if name in CHANGES:
            assert CHANGES[name][2] in third[name], name
            assert "delete the directory" in third[name]
        else:
            assert third[name] == elements, name


def kept_by(ds: ad.Dataset, path: Path) -> list[Any]:
    """The elements, by way of a snapshot and of a cache in a file."""
    found = [list(ds.snapshot(path / "snapshot")), list(ds.cache(path / "cache"))]
    assert np.array_equal(found[0], found[1])
    return found[0]


def test_what_changes_no_element_does_not_count(tmp_path: Path) -> None:
    """Parallelism, executors, prefetching, memory, isolation, caches in memory, packing and names of handles."""

    def ds(step: Callable[[ad.Dataset], ad.Dataset], parallel: int | None = None) -> ad.Dataset:
        return step(D.range(6)).map(lambda x: x + 1, parallel).batch(2)

    expected = np.array(kept_by(ds(lambda x: x), tmp_path))
    for other in (
        ds(lambda x: x.prefetch(2).cache()),
        ds(lambda x: x, 2).with_options(INLINE),
        ds(lambda x: x.with_options(ad.Options(memory_limit_bytes=64 << 20, seed=5, deterministic=False))),
        ds(lambda x: x).with_options(ad.Options(isolate=True, num_workers=0)),
    ):
        assert np.array_equal(kept_by(other, tmp_path), expected)
    assert np.array_equal(list(ds(lambda x: x).snapshot(tmp_path / "snapshot", compression="GZIP")), expected)


def test_seeds_and_errors_count_where_they_matter(tmp_path: Path) -> None:
    """The seed of the options where something is drawn without one; that elements may be left out, everywhere."""
    ds = D.range(6).shuffle(6).snapshot(tmp_path / "a")
    list(ds.with_options(ad.Options(seed=1)))
    with pytest.raises(ad.StaleDataError, match="seed of options was 1 and is 2"):
        list(ds.with_options(ad.Options(seed=2)))
    ds = D.range(6).snapshot(tmp_path / "b")
    list(ds.with_options(ad.Options(errors=ad.ErrorPolicy())))
    with pytest.raises(ad.StaleDataError, match="skips errors"):
        list(ds)


def test_boundaries_of_buckets_count(tmp_path: Path) -> None:
    """Elements in buckets of other boundaries are others, also if there are as many."""
    ds = D.range(12).map(lambda x: np.zeros(x % 6 + 1))
    list(ds.bucket_by_sequence_length(len, [3], [2, 2]).snapshot(tmp_path / "kept"))
    list(ds.bucket_by_sequence_length(len, [3], [2, 2]).snapshot(tmp_path / "kept"))
    with pytest.raises(ad.StaleDataError, match=r"key\._boundaries has changed"):
        list(ds.bucket_by_sequence_length(len, [5], [2, 2]).snapshot(tmp_path / "kept"))


def write(path: Path, numbers: range) -> str:
    """A file of records."""
    with ad.TFRecordWriter(path) as writer:
        writer.write_many([b"%d" % i for i in numbers])
    return str(path)


SOURCES: dict[str, Callable[[Path], ad.Dataset]] = {
    "listed": lambda path: D.list_files(f"{path}/*.rec", shuffle=False).interleave(ad.TFRecordDataset),
    "manifest": lambda path: D.from_manifest(f"{path}/list", shuffle=False).interleave(ad.TFRecordDataset),
    "manifest of names": lambda path: D.from_manifest(f"{path}/names", shuffle=False).interleave(ad.TFRecordDataset),
    "named": lambda path: ad.TFRecordDataset([f"{path}/a.rec", f"{path}/b.rec"]),
    "in a function": lambda path: D.from_tensor_slices(["a", "b"]).flat_map(
        lambda name: ad.TFRecordDataset(f"{path}/{name}.rec")
    ),
    "behind another snapshot": lambda path: (
        D.from_tensor_slices(["a", "b"])
        .flat_map(lambda name: ad.TFRecordDataset(f"{path}/{name}.rec"))
        .snapshot(path / "before")
        .map(bytes)
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_files_that_change(name: str, tmp_path: Path) -> None:
    """A source that was replaced or removed is named; one that is new too, where files are listed."""
    path = tmp_path / "data"
    path.mkdir()
    write(path / "a.rec", range(3))
    write(path / "b.rec", range(3, 5))
    ad.write_manifest(f"{path}/*.rec", path / "list")
    (path / "names").write_text("".join(f'{{"url": "{path}/{name}.rec"}}\n' for name in "ab"))
    ds = SOURCES[name](path).snapshot(tmp_path / "kept")
    with ad.Runtime(INLINE):
        expected = sorted(ds)
        assert sorted(ds) == expected
        before = (path / "b.rec").read_bytes()
        write(path / "b.rec", range(3, 6))
        ad.write_manifest(f"{path}/*.rec", path / "list")
        with pytest.raises(ad.StaleDataError, match=r"b\.rec has changed"):
            list(ds)
        (path / "b.rec").write_bytes(before)
        (path / "b.rec").rename(path / "b")
        if name in ("listed", "manifest"):
            ad.write_manifest(f"{path}/*.rec", path / "list")
            with pytest.raises(ad.StaleDataError, match=r"b\.rec is gone"):
                list(ds)
            write(path / "c.rec", range(1))
            write(path / "b.rec", range(3, 5))
            ad.write_manifest(f"{path}/*.rec", path / "list")
            with pytest.raises(ad.StaleDataError, match=r"[bc]\.rec (is new|has changed)"):
                list(ds)
        else:
            with pytest.raises(ad.StaleDataError, match=r"b\.rec is gone"):
                list(ds)


MEMORY: dict[str, Callable[[Path], ad.Dataset]] = {
    "named": lambda path: ad.TFRecordDataset(f"{path}/a.rec"),
    "listed": lambda path: D.list_files(f"{path}/*.rec", shuffle=False).interleave(ad.TFRecordDataset),
    "listed inside": lambda path: D.range(1).flat_map(
        lambda _: D.list_files(f"{path}/*.rec", shuffle=False).interleave(ad.TFRecordDataset)
    ),
    "two in memory": lambda path: ad.TFRecordDataset(f"{path}/a.rec").cache().map(bytes),
}


@pytest.mark.parametrize("name", MEMORY)
def test_files_behind_a_memory_that_was_filled_before(name: str, tmp_path: Path) -> None:
    """What is kept in a file is of the files that were read into memory, as they were then."""
    write(tmp_path / "a.rec", range(3))
    with ad.Runtime(INLINE):
        remembered, same = MEMORY[name](tmp_path).cache(), MEMORY[name](tmp_path).cache()
        before = list(remembered)
        for number, behind in enumerate((remembered, remembered.cache())):
            list(behind.map(bytes).cache(tmp_path / f"same{number}"))
            assert list(same.map(bytes).cache(tmp_path / f"same{number}")) == before
        write(tmp_path / "a.rec", range(4))
        for number, behind in enumerate((remembered, remembered.cache())):
            assert list(behind.map(bytes).cache(tmp_path / f"other{number}")) == before
            with pytest.raises(ad.StaleDataError, match=r"a\.rec has changed"):
                list(MEMORY[name](tmp_path).cache().map(bytes).cache(tmp_path / f"other{number}"))


def write_table(path: Path, rows: int) -> None:
    """A Parquet file in the place of another."""
    pq.write_table(pa.table({"x": range(rows)}), f"{path}.new")
    os.replace(f"{path}.new", path)


REPLACED: dict[str, tuple[Callable[[Path, int], Any], Callable[[str], ad.Dataset]]] = {
    "records": (lambda path, rows: write(path, range(rows)), ad.TFRecordDataset),
    "rows": (write_table, lambda path: ad.ParquetDataset(path).map(lambda row: row["x"])),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_file_that_is_replaced_while_it_is_read(name: str, tmp_path: Path) -> None:
    """What is kept is of the file that was read, not of the one that was there at the end."""
    put, make = REPLACED[name]
    put(tmp_path / "file", 4)
    kept = make(f"{tmp_path}/file").cache(tmp_path / "kept").with_options(INLINE)
    with closing(iter(kept)) as elements:
        next(elements)
        put(tmp_path / "file", 5)
        assert len(list(elements)) == 3
    with pytest.raises(ad.StaleDataError, match="file has changed"):
        list(kept)


INNER: dict[str, Callable[[str], ad.Dataset]] = {
    "flat_map": lambda place: (
        D.from_tensor_slices([f"{place}/*.rec"])
        .flat_map(lambda pattern: D.list_files(pattern, shuffle=False))
        .interleave(ad.TFRecordDataset)
    ),
    "interleave": lambda place: (
        D.range(1).interleave(lambda _: D.list_files(f"{place}/*.rec", shuffle=False)).interleave(ad.TFRecordDataset)
    ),
    "inner of inner": lambda place: D.range(1).flat_map(
        lambda _: D.range(1).flat_map(
            lambda _: D.list_files(f"{place}/*.rec", shuffle=False).interleave(ad.TFRecordDataset)
        )
    ),
    "window": lambda place: D.range(2).group_by_window(
        lambda i: i, lambda key, _: D.list_files(f"{place}/*.rec").take(key * 9).interleave(ad.TFRecordDataset), 1
    ),
    "names only": lambda place: D.range(1).flat_map(lambda _: D.list_files(f"{place}/*.rec", shuffle=False)),
    "manifest": lambda place: (
        D.range(1).flat_map(lambda _: D.from_manifest(f"{place}/list", shuffle=False)).interleave(ad.TFRecordDataset)
    ),
}
"""By the step whose function lists files in the folder."""

STORES: dict[str, Callable[[ad.Dataset, Path], ad.Dataset]] = {
    "cache": lambda ds, path: ds.cache(path / "cache"),
    "snapshot": lambda ds, path: ds.snapshot(path / "kept"),
    "behind another": lambda ds, path: ds.snapshot(path / "before").map(lambda x: x).cache(path / "cache"),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", INNER)
def test_files_that_inner_datasets_list(name: str, store: str, tmp_path: Path) -> None:
    """What functions list while they run is listed again: new, changed and missing files are named."""
    path = tmp_path / "data"
    path.mkdir()
    kept = STORES[store](INNER[name](str(path)), tmp_path).with_options(INLINE)

    def put(number: str, count: int) -> None:
        write(path / f"{number}.rec", range(count))
        ad.write_manifest(f"{path}/*.rec", path / "list")

    put("a", 3)
    put("b", 2)
    expected = list(kept)
    assert list(kept) == expected
    put("c", 4)
    with pytest.raises(ad.StaleDataError, match=r"c\.rec is new"):
        list(kept)
    (path / "c.rec").unlink()
    ad.write_manifest(f"{path}/*.rec", path / "list")
    assert list(kept) == expected
    before = (path / "b.rec").stat()
    put("b", 5)
    with pytest.raises(ad.StaleDataError, match=r"b\.rec has changed"):
        list(kept)
    assert before != (path / "b.rec").stat()
    for file in path.iterdir():
        file.unlink()
    if name != "manifest":
        with pytest.raises(ad.StaleDataError, match=r"a\.rec is gone"):
            list(kept)


def test_listings_of_an_inner_cache_that_was_complete(tmp_path: Path) -> None:
    """What a complete cache inside has listed when it was filled is listed again for the cache around it."""
    write(tmp_path / "a.rec", range(3))

    def inner() -> ad.Dataset:
        files = D.list_files(f"{tmp_path}/*.rec", shuffle=False)
        return files.interleave(ad.TFRecordDataset).cache(tmp_path / "inner")

    outer = D.range(1).flat_map(lambda _: inner()).cache(tmp_path / "outer").with_options(INLINE)
    expected = list(inner().with_options(INLINE))
    assert list(outer) == expected
    assert list(outer) == expected
    write(tmp_path / "b.rec", range(2))
    with pytest.raises(ad.StaleDataError, match=r"b\.rec is new"):
        list(outer)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("store", STORES)
def test_objects_that_inner_datasets_list(store: str, isolate: bool, tmp_path: Path) -> None:
    """Objects in a bucket, also in a process of their own; with storage options around the function."""
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, 2, 5, 100)
        ds = D.range(2).flat_map(lambda _: D.list_files(f"gs://{BUCKET}/**")).interleave(ad.TFRecordDataset)
        kept = STORES[store](ds, tmp_path).with_options(
            ad.Options(num_workers=0, storage=gs_storage(server), isolate=isolate)
        )
        assert len(list(kept)) == len(list(kept)) == 20
        server.put(BUCKET, "shard-009.tfrecord", server.read(BUCKET, "shard-000.tfrecord"))
        with pytest.raises(ad.StaleDataError, match=r"gs://.*/shard-009\.tfrecord is new"):
            list(kept)


def test_inner_listings_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More patterns than are kept are warned of; what earlier versions wrote has none, and is read."""
    monkeypatch.setattr(freshness, "_MOST_PATTERNS", 2)
    monkeypatch.setattr(freshness, "_MOST_LISTED", 3)
    for i in range(3):
        (tmp_path / str(i)).mkdir()
        for name in "abc":
            (tmp_path / str(i) / name).write_text(name)
    ds = D.range(3).flat_map(lambda i: D.list_files(f"{tmp_path}/{i}/*", shuffle=False)).snapshot(tmp_path / "kept")
    for _ in range(2):
        with pytest.warns(UserWarning, match="the files of 1 listings of inner datasets"):
            assert len(list(ds)) == 9
    path = tmp_path / "kept" / "snapshot.json"
    whole = json.loads(path.read_text())
    assert len(whole["made_of"]["patterns"]) == len(whole["made_of"]["listed_inside"]) == 2
    (tmp_path / "1" / "d").write_text("d")
    with pytest.raises(ad.StaleDataError, match="1/ has changed"):
        list(ds)
    for name in ("patterns", "listed_inside", "uncompared"):
        del whole["made_of"][name]
    path.write_text(json.dumps(whole))
    assert len(list(ds)) == 9
    broken: list[Any] = [[[]], [[""]], 3]
    for damaged in broken:
        path.write_text(json.dumps(whole | {"made_of": whole["made_of"] | {"patterns": damaged}}))
        with pytest.raises(ad.DataError, match="cannot be read"):
            list(ds)


def test_inner_storage_options(tmp_path: Path) -> None:
    """What a function lists with storage options that it gives itself cannot be listed again; that is said."""
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, 2, 5, 100)
        options = ad.Options(storage=gs_storage(server))
        ds = D.range(1).flat_map(lambda _: D.list_files(f"gs://{BUCKET}/**").with_options(options))
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"cannot notice changes of .*the files of gs://.*storage options"):
                assert len(list(ds.snapshot(tmp_path / "kept"))) == 2


def test_long_listings_are_kept_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a difference is named then."""
    monkeypatch.setattr(freshness, "_MOST_LISTED", 3)
    for folder in ("x", "y"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for name in "abc":
            (tmp_path / "data" / folder / name).write_text(name)
    ds = D.list_files(f"{tmp_path}/data/*/*", shuffle=False).snapshot(tmp_path / "kept")
    assert list(ds) == list(ds)
    assert len(json.loads((tmp_path / "kept" / "snapshot.json").read_text())["made_of"]["listed"]) == 2
    (tmp_path / "data" / "y" / "c").write_text("more")
    with pytest.raises(ad.StaleDataError, match="data/y/ has changed"):
        list(ds)


def test_objects_that_change(tmp_path: Path) -> None:
    """Generations of listed and of opened objects are the same, and replaced objects are noticed."""
    with FakeGCS(buckets=[BUCKET]) as server:
        urls = put_shards(server, 2, 5, 100)
        options = ad.Options(num_workers=0, storage=gs_storage(server))
        listed = D.list_files(f"gs://{BUCKET}/**", shuffle=False).interleave(ad.TFRecordDataset)
        named = ad.TFRecordDataset(urls)
        with ad.Runtime(options):
            for name, ds in (("listed", listed), ("named", named)):
                kept = ds.snapshot(tmp_path / name)
                assert len(list(kept)) == len(list(kept)) == 10
            put_shards(server, 1, 6, 100)
            for name, ds in (("listed", listed), ("named", named)):
                with pytest.raises(ad.StaleDataError, match="has changed"):
                    list(ds.snapshot(tmp_path / name))


class Lock:
    """What cannot be pickled, and is no part of what is kept."""

    def __reduce__(self) -> Any:
        raise TypeError("no")


def test_what_cannot_be_compared_is_warned_of_once(tmp_path: Path) -> None:
    """By name, when elements are kept and when they are read, and the elements are given; also what a run changes."""
    lock, seen = Lock(), []

    def function(x: Any) -> int:
        assert lock is not None
        seen.append(int(x))
        return int(x)

    ds = D.range(3).map(function)
    for _ in range(2):
        with pytest.warns(
            UserWarning, match=r"cannot notice changes of lock in .*function.*, seen in .*function"
        ) as told:
            assert list(ds.snapshot(tmp_path)) == [0, 1, 2]
        assert len(told) == 1
    assert seen == [0, 1, 2]


class Loading:
    """A function that keeps what it makes first."""

    @functools.cached_property
    def rate(self) -> int:
        """A property that is computed once."""
        return 2

    def __call__(self, x: Any) -> int:
        if not hasattr(self, "model"):
            self.model = 1
        return int(x) * self.rate + self.model


def loading(x: Any) -> int:
    """A function that makes a global when it needs it."""
    names = globals()
    names.setdefault("MODEL", 1)
    return int(x) * 2 + int(MODEL)  # type: ignore[name-defined]  # noqa: F821 -- see above


@pytest.mark.filterwarnings("ignore:.* cannot notice changes")
@pytest.mark.parametrize("make", [Loading, lambda: loading], ids=["attributes", "a global"])
def test_what_a_run_makes_is_no_difference(make: Callable[[], Any], tmp_path: Path) -> None:
    """What a function has made when it has run is there in one process and not yet in another."""
    function = make()
    for each in (function, function):
        assert list(D.range(3).map(each).cache(tmp_path / "kept").with_options(INLINE)) == [1, 3, 5]
    globals().pop("MODEL", None)
    assert list(D.range(3).map(make()).cache(tmp_path / "kept").with_options(INLINE)) == [1, 3, 5]


def test_other_versions(tmp_path: Path) -> None:
    """Code that another Python compiled is not compared, and that is said; what earlier versions wrote is refused."""
    ds = D.range(3).map(lambda x: int(x) + 1)
    path = tmp_path / "snapshot.json"
    assert list(ds.snapshot(tmp_path)) == [1, 2, 3]
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"made_of": whole["made_of"] | {"python": "cpython-399"}}))
    other = D.range(3).map(lambda x: int(x) + 2).snapshot(tmp_path)
    with pytest.warns(UserWarning, match="the functions, because cpython-399 wrote it"):
        assert list(other) == [1, 2, 3]
    with pytest.raises(ad.StaleDataError, match="stop of step 1, range was 3 and is 4"):
        list(D.range(4).map(lambda x: int(x) + 1).snapshot(tmp_path))
    path.write_text(json.dumps({"version": 1, "files": whole["files"]}))
    with pytest.raises(ad.StaleDataError, match="earlier version"):
        list(ds.snapshot(tmp_path))
    path.write_text(json.dumps(whole | {"made_of": whole["made_of"] | {"version": 2}}))
    with pytest.raises(ad.StaleDataError, match="another version"):
        list(ds.snapshot(tmp_path))


@pytest.mark.parametrize("urls", [["https://host/a"], [f"https://host/{n}" for n in range(20)], ["x://" + "a" * 3000]])
def test_secrets_of_urls_are_not_kept(urls: list[str]) -> None:
    """Signatures of URLs are left out, also of many or long ones, and another one is no difference."""
    steps = [
        Recipe(ad.TFRecordDataset([f"{url}?Signature={signature}" for url in urls])._node, INLINE).steps()
        for signature in ("hidden", "other")
    ]
    assert steps[0] == steps[1]
    assert "hidden" not in json.dumps(steps)
    others = Recipe(ad.TFRecordDataset([f"{url}b?Signature=hidden" for url in urls])._node, INLINE).steps()
    assert steps[0] != others


def test_long_settings_without_secrets_count_as_they_are() -> None:
    """What is no URL, or has nothing to hide, has the digest of the whole."""
    for texts in (("gs://bucket/a",) * 20, ("a?Signature=hidden",) * 20):
        listed = Recipe(D.list_files(list(texts))._node, INLINE).steps()[-1]
        assert listed["parts"]["patterns"] == parts_of([("patterns", texts)], str)["patterns"]
