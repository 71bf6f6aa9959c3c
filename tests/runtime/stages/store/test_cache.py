"""`cache` and `snapshot`: what is kept, when, and what it costs; and the laws of stages for them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import errno
import itertools
import json
import os
import pickle
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.errors import BrokenFrameError, DataError, MemoryLimitError, PipelineError, SystemResourceError
from asyncdata.memory.accounts import Kind
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.store import snapshot_directory
from asyncdata.runtime.stages.store.cache import CacheStage
from asyncdata.runtime.stages.store.snapshot_directory import SnapshotStage
from asyncdata.runtime.stages.store.stored import Charges, MemoryCell, MemoryStore
from tests.faults.programs import program
from tests.runtime.stages.laws import (
    Bench,
    Kinds,
    Scripted,
    check_any_blocking,
    check_cancelling,
    check_closing,
    plain,
    script,
)
from tests.runtime.stages.test_laws import number
from tests.samples import samples

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 -- users write it so
COUNT = 41


class Cached(CacheStage):
    """A cache that ends its pipeline's charge when it is closed."""

    def __init__(self, bench: Bench, kind: Kinds, cell: MemoryCell) -> None:
        self._bench = bench
        self._account = bench.budget.open("cell", rank=1, kind=Kind.ASSEMBLER)
        self._charges = Charges()
        context = bench.context("cache")
        accounts = {"kept": self._account, "tasks": bench.tasks}
        context = dataclasses.replace(context, account=accounts.__getitem__)
        store = MemoryStore(context, cell, self._charges, COUNT)
        super().__init__(context, store, lambda: Scripted(bench, script(COUNT), kind), image_bytes=300)

    async def aclose(self) -> None:
        await super().aclose()
        self._charges.give(self._bench.budget)
        self._bench.budget.close(self._account)


def filled(kind: Kinds) -> MemoryCell:
    cell = MemoryCell()
    asyncio.run(Bench().observe(lambda bench: Cached(bench, kind, cell)))
    assert cell.images is not None
    assert len(cell.images) > 1
    return cell


def reading(kind: Kinds, cell: MemoryCell) -> Callable[[Bench], Stage]:
    return lambda bench: Cached(bench, kind, cell)


CACHES: dict[str, Callable[[Kinds], Callable[[Bench], Stage]]] = {
    "first run": lambda kind: lambda bench: Cached(bench, kind, MemoryCell()),
    "later run": lambda kind: reading(kind, filled(kind)),
}
KINDS: tuple[Kinds, ...] = ("array", "objects", "refs", "twice", "nests", "mixed")


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES.keys())
def test_laws(make: Callable[[Kinds], Callable[[Bench], Stage]], kind: Kinds) -> None:
    """Any blocking and leases, while the cache is filled and while it is read."""
    stage = make(kind)
    trace = check_any_blocking(stage, seeds=range(samples(3, 100)))
    plainly = asyncio.run(Bench().observe(lambda bench: Scripted(bench, script(COUNT), kind)))
    assert trace.elements == plainly.elements
    assert trace.origins == plainly.origins
    check_closing(stage)
    check_cancelling(stage, steps=range(0, 40, samples(8, 1)))


@pytest.mark.parametrize("kind", ["array", "nests"])
def test_laws_of_a_snapshot_that_is_written(kind: Kinds, tmp_path: Path) -> None:
    """Any blocking and leases while shards are written; what is given up leaves no file."""
    numbers = itertools.count()

    def make(bench: Bench) -> Stage:
        return SnapshotStage(
            bench.context("snapshot"),
            str(tmp_path / str(next(numbers))),
            lambda *element: number(element) % 3,
            lambda: Scripted(bench, script(COUNT), kind),
            lambda _files: pytest.fail("nothing is read"),
            300,
        )

    trace = check_any_blocking(make, seeds=range(samples(2, 50)))
    plainly = asyncio.run(Bench().observe(lambda bench: Scripted(bench, script(COUNT), kind)))
    assert trace.elements == plainly.elements
    check_closing(make)
    check_cancelling(make, steps=range(0, 40, samples(8, 1)))
    complete = [path for path in tmp_path.iterdir() if (path / "snapshot.json").exists()]
    assert len(complete) >= 3
    assert all(len(list(path.iterdir())) == 4 for path in complete)
    assert not list(tmp_path.rglob("*.partial"))


def test_a_part_of_a_snapshot_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other parts are removed and the input is closed before the error is raised."""
    unlink = Path.unlink
    left: list[Any] = []

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if "shard-0" in path.name:
            raise PermissionError(errno.EACCES, "not allowed", str(path))
        unlink(path, missing_ok=missing_ok)

    class Closing(SnapshotStage):
        async def aclose(self) -> None:
            try:
                await super().aclose()
            except PermissionError:
                left.append({path.name.split("-")[1] for path in (tmp_path / "s").iterdir()})
                left.extend(source._slab for source in self.inputs if isinstance(source, Scripted))

    def make(bench: Bench) -> Stage:
        return Closing(
            bench.context("snapshot"),
            str(tmp_path / "s"),
            lambda *element: number(element) % 3,
            lambda: Scripted(bench, script(COUNT), "refs"),
            lambda _files: pytest.fail("nothing is read"),
            300,
        )

    monkeypatch.setattr(Path, "unlink", refuse)
    asyncio.run(Bench().observe(make, pulls=1))
    assert left == [{"0"}, None]


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    """What the system says about the place is raised as it is."""
    (tmp_path / "file").write_bytes(b"")
    for ds in (
        ad.Dataset.range(3).cache(tmp_path / "file" / "c"),
        ad.Dataset.range(3).snapshot(tmp_path / "file" / "s"),
    ):
        with pytest.raises(OSError, match="file"):
            list(ds)


def elements() -> list[Any]:
    """One of every kind of leaf, in a nest."""
    return [
        {
            "int": i,
            "none": None,
            "bytes": b"\x00" * i,
            "str": "ä" * i,
            "array": np.arange(i * 2, dtype=">i2").reshape(2, i),
            "scalar": np.float32(i / 3),
            "point": Point((i, b""), np.datetime64("2020-01-01") + np.timedelta64(i, "D")),
            "texts": ad.BytesArray.from_items(["a", "", "ü"] * i),
            "ragged": ad.RaggedArray.from_rows([[1.5] * i, [], [2.5]]),
        }
        for i in range(1, 5)
    ]


class Calls:
    """How often a generator was begun; what it counts is no part of what is kept."""

    def __init__(self) -> None:
        self.count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Calls, ()


def source(calls: Calls) -> ad.Dataset:
    def generate() -> Any:
        calls.count += 1
        yield from elements()

    return ad.Dataset.from_generator(generate)


def shown(items: Any) -> Any:
    return plain([{**item, "ragged": item["ragged"].to_list(), "point": tuple(item["point"])} for item in items])


@pytest.mark.parametrize("where", ["memory", "file", "snapshot"])
def test_what_was_delivered_is_delivered_again(where: str, tmp_path: Path) -> None:
    """Later runs give the same elements, types included, and do not run the input."""
    calls = Calls()
    ds = source(calls)
    ds = ds.snapshot(tmp_path / "s") if where == "snapshot" else ds.cache(tmp_path / "c" if where == "file" else "")
    first = list(ds)
    again = [*ds, *ds.repeat(2)]
    assert shown(first) == shown(elements())
    assert shown(again) == shown(elements() * 3)
    assert calls.count == 1
    assert [type(leaf) for leaf in again[0].values()][:6] == [int, type(None), bytes, str, np.ndarray, np.float32]
    assert again[3]["array"].dtype == ">i2"
    assert again[0]["point"].y == again[0]["point"][1]
    again[0]["array"][...] = 7
    assert shown(ds) == shown(elements())


@pytest.mark.parametrize("where", ["memory", "file", "snapshot"])
def test_only_a_complete_run_is_kept(where: str, tmp_path: Path) -> None:
    """A run that is broken off keeps nothing, and leaves no file behind."""
    calls = Calls()
    ds = source(calls)
    path = tmp_path / "d" / "x"
    ds = ds.snapshot(path) if where == "snapshot" else ds.cache(path if where == "file" else "")
    list(ds.take(4))
    iterator = iter(ds)
    next(iterator)
    iterator.close()
    assert calls.count == 2
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == []
    list(ds)
    list(ds)
    assert calls.count == 3


def test_a_batch_in_a_file(tmp_path: Path) -> None:
    """Batches of byte strings, whose payloads lie elsewhere, come back whole; also several in one image."""
    items = [b"x" * i for i in range(300)]
    ds = ad.Dataset.from_generator(lambda: iter(items)).batch(7).cache(tmp_path / "c")
    for _ in range(3):
        assert [item for batch in ds for item in batch] == items


def test_the_cache_stands_in_one_pipeline_twice() -> None:
    """Two readers of one cache are charged once, and epochs overlap."""
    ds = ad.Dataset.range(1000).map(lambda x: bytes([x % 256]) * 1000).cache()
    options = ad.Options(memory_limit_bytes=8 << 20, num_workers=0)
    assert sum(1 for _ in ds.with_options(options)) == 1000
    both = ad.Dataset.range(6).interleave(lambda _: ds, cycle_length=3).with_options(options)
    assert [int(x[0]) for x in both][: 3 * 256 : 3] == [i % 256 for i in range(256)]


def test_too_much_for_the_memory() -> None:
    """A cache that does not fit is an error that names it; a smaller limit than it was filled under, too."""
    ds = ad.Dataset.range(40).map(lambda _: bytes(1 << 18)).cache()
    small = ad.Options(memory_limit_bytes=8 << 20, num_workers=0)
    for _ in range(2):
        with pytest.raises(MemoryLimitError, match="cache"):
            list(ds.with_options(small))
    assert len(list(ds)) == 40
    with pytest.raises(MemoryLimitError, match="cache"):
        list(ds.with_options(small))
    assert len(list(ds)) == 40


def test_objects_stay_in_memory(tmp_path: Path) -> None:
    """Python objects are kept in memory as they are, and refused by files in words."""
    ds = ad.Dataset.range(3).map(lambda x: {int(x)})
    kept = ds.cache()
    assert [*kept, *kept] == [{0}, {1}, {2}] * 2
    for written in (ds.cache(tmp_path / "c"), ds.snapshot(tmp_path / "s")):
        with pytest.raises(PipelineError, match="an object of set cannot be written"):
            list(written)
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == []


def test_a_cache_where_no_file_can_be(tmp_path: Path) -> None:
    """It would read its input in every epoch, and nobody would notice."""
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "p")
    for name, words in (("d", "is a directory"), ("p", "no regular file")):
        calls = Calls()
        with pytest.raises(SystemResourceError, match=words) as caught:
            list(source(calls).cache(tmp_path / name))
        assert str(caught.value.url) == str(tmp_path / name)
        assert calls.count == 0


def test_a_link_to_where_a_cache_will_be(tmp_path: Path) -> None:
    """It stays, and the file comes into being where it leads to."""
    (tmp_path / "link").symlink_to(tmp_path / "far" / "c")
    calls = Calls()
    ds = source(calls).cache(tmp_path / "link")
    assert shown([*ds, *ds]) == shown(elements() * 2)
    assert calls.count == 1
    assert (tmp_path / "link").is_symlink()
    assert [found.name for found in (tmp_path / "far").iterdir()] == ["c"]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["cache", "snapshot"])
def test_what_a_killed_run_left_is_removed_by_the_next_one(kind: str, tmp_path: Path) -> None:
    """It may be as large as the whole cache. What a living run writes stays."""
    body = f"""
rows = ad.Dataset.range(1000).map(lambda x: np.full(200_000, x))
rows = rows.cache({str(tmp_path / "x")!r}) if {kind!r} == "cache" else rows.snapshot({str(tmp_path)!r})
iterator = iter(rows.with_options(ad.Options(memory_limit_bytes=16 << 20)))
next(iterator)
say("writing")
threading.Event().wait()
"""

    def partials() -> set[str]:
        return {found.name for found in tmp_path.iterdir() if found.name.endswith(".partial")}

    rows = ad.Dataset.range(3).map(lambda x: np.full(200_000, x))
    with program(body) as killed:
        killed.expect("writing")
        killed.popen.kill()
        killed.popen.wait()
    left = partials()
    with program(body) as living:
        living.expect("writing")
        (stays,) = partials()
        assert stays not in left
        assert len(list(rows.cache(tmp_path / "x") if kind == "cache" else rows.snapshot(tmp_path))) == 3
        assert partials() == {stays}
        living.popen.kill()
    assert len(left) == 1


@pytest.mark.parametrize("written", [False, True])
def test_a_snapshot_that_fails_at_its_end(written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves no shard that nobody could read, or else a disk that is full would stay full."""
    write = snapshot_directory.write_manifest

    def fail(*arguments: Any) -> None:
        if written:
            write(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    ds = ad.Dataset.range(9).snapshot(tmp_path, shard_func=lambda x: x % 3)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot_directory, "write_manifest", fail)
        with pytest.raises(OSError, match="No space"):
            list(ds)
    assert len(list(tmp_path.iterdir())) == (4 if written else 0)
    assert sorted(map(int, [*ds, *ds])) == sorted([*range(9)] * 2)


class Half(tuple):  # type: ignore[type-arg]  # as users write it
    """Has fields, but is no namedtuple."""

    __slots__ = ()
    _fields = ("_whole", "half")

    def __new__(cls, *parts: int) -> Self:
        return super().__new__(cls, parts)


def nested(depth: int) -> Any:
    return (nested(depth - 1),) if depth else 1


@pytest.mark.parametrize(
    ("element", "why"),
    [
        (nested(65), "more than 64 nests"),
        (Half(1, 2), "a tuple of Half cannot be written"),
        ({10**9999: 1}, "digits"),
        (np.zeros(1, [("a", "i4")]), r"an array of \[\('a', '<i4'\)\] cannot be written"),
        (np.array(["a"]), "an array of <U1 cannot be written"),
        ("\ud800", "surrogates"),
    ],
    ids=["deep", "fields", "key", "structured", "texts", "surrogates"],
)
def test_what_could_not_be_read_is_not_written(element: Any, why: str, tmp_path: Path) -> None:
    """The run that would write it fails, in words, and not the one that reads it."""
    ds = ad.Dataset.from_generator(lambda: iter([element])).cache(tmp_path / "c")
    for _ in range(2):
        with pytest.raises(PipelineError, match=why):
            list(ds)
    assert list(tmp_path.iterdir()) == []


UNLIKE: list[Any] = [
    {"a": 1},
    {"a": 2, "b": b"x"},
    {"b": b"y", "a": 3},
    (4, None),
    (5,),
    (6, (7,)),
    8,
    "ä",
    Point(9, None),
    {"a": ()},
]


@pytest.mark.parametrize("where", ["memory", "file", "snapshot"])
@pytest.mark.parametrize("parallel", [None, 2])
def test_elements_may_nest_differently(where: str, parallel: int | None, tmp_path: Path) -> None:
    """Whether they come in one block or one by one, from here or from workers."""
    source = ad.Dataset.range(len(UNLIKE) * 5).map(lambda i: UNLIKE[int(i) // 5], parallel)
    ds = {
        "memory": source.cache(),
        "file": source.cache(tmp_path / "c"),
        "snapshot": source.snapshot(tmp_path / "s"),
    }[where]
    expected = [each for each in UNLIKE for _ in range(5)]
    written, read = list(ds), list(ds)
    assert list(map(repr, written)) == list(map(repr, read)) == list(map(repr, source))
    assert read == expected
    with ds.iterator() as it:
        first = [next(it) for _ in range(17)]
        state = it.state_dict()
    with ds.iterator(state=state) as it:
        assert [*first, *it] == expected


def test_plain_numbers_in_a_file(tmp_path: Path) -> None:
    """Of all sizes, and complex; and the deepest nest that there may be."""

    def numbers() -> list[Any]:
        return [2**63, -(10**9999), 1 - 2j, complex("nan+infj"), True, None, -0.0]

    items, ds = numbers(), ad.Dataset.from_generator(lambda: iter(numbers())).cache(tmp_path / "c")
    for _ in range(2):
        found = list(ds)
        assert list(map(type, found)) == list(map(type, items))
        assert found[:3] == items[:3]
        assert list(map(repr, found[3:])) == list(map(repr, items[3:]))
    deep = ad.Dataset.from_generator(lambda: iter([nested(64)])).cache(tmp_path / "d")
    assert [*deep, *deep] == [nested(64)] * 2


def test_namedtuples_in_a_file(tmp_path: Path) -> None:
    """They can do what namedtuples can, are of one class in all images, and are equal when copied or pickled."""
    renamed = namedtuple("renamed", ["x", "def", "x"], rename=True)  # noqa: PYI024 -- users do
    ds = ad.Dataset.range(9000).map(lambda i: {"p": Point(i, b"y"), "r": renamed(1, 2, 3)}).cache(tmp_path / "c")
    written, read = list(ds), list(ds)
    assert read == written
    assert len({type(element["p"]) for element in read}) == 1
    point = read[7]["p"]
    assert point._replace(x=1)._asdict() == {"x": 1, "y": b"y"}
    assert type(point)._make("ab") == Point("a", "b")
    for copied in (pickle.loads(pickle.dumps(point)), copy.copy(point), copy.deepcopy(point)):
        assert copied == point
        assert type(copied) is type(point)
    assert read[0]["r"]._fields == ("x", "_1", "_2")
    loaded = ds.shuffle(10, seed=1).with_options(ad.Options(isolate=True, num_workers=1))
    assert sorted(element["p"].x for element in loaded) == list(range(9000))


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    """Whatever byte is wrong, and wherever the file ends, reading raises a typed error or gives what was written."""
    path = tmp_path / "c"
    ds = ad.Dataset.from_generator(lambda: iter(elements()[:2])).cache(path)
    expected = shown(ds)
    good = path.read_bytes()
    options = ad.Options(num_workers=0)
    with ad.Runtime(options):
        for position in range(0, len(good), samples(37, 1)):
            path.write_bytes(good[:position] + bytes([good[position] ^ 0x41]) + good[position + 1 :])
            try:
                found = shown(ds)
            except DataError as error:
                found = expected if str(path) in str(error) else error
            assert found == expected, position
        for end in (0, 1, 64, 127, 128, len(good) // 2, len(good) - 1):
            path.write_bytes(good[:end])
            with pytest.raises(BrokenFrameError):
                list(ds)


def test_shards(tmp_path: Path) -> None:
    """Elements go to the shard that is named; what reads them is the user's choice, and may change."""
    ds = ad.Dataset.range(10).snapshot(tmp_path, shard_func=lambda x: x % 3)
    assert [int(x) for x in ds] == list(range(10))
    assert [int(x) for x in ds.repeat(2)] == list(range(10)) * 2
    read = ad.Dataset.range(10).snapshot(
        tmp_path, shard_func=lambda x: x % 3, reader_func=lambda shards: shards.flat_map(lambda shard: shard)
    )
    assert [int(x) for x in read] == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
    large = ad.Dataset.range(4).snapshot(tmp_path / "large", shard_func=lambda x: (-1) ** int(x) * 2**70)
    assert [int(x) for ds in (large, large) for x in ds] == [0, 1, 2, 3, 1, 0, 3, 2]


def test_a_snapshot_that_is_none(tmp_path: Path) -> None:
    """A list of shards that is damaged, or leads elsewhere, is an error; a shard that is gone, too."""
    ds = ad.Dataset.range(3).snapshot(tmp_path)
    assert len(list(ds)) == 3
    good = json.loads((tmp_path / "snapshot.json").read_text())
    texts = ["", "{", "[]", json.dumps(good | {"version": 3}), json.dumps(good | {"files": ["../x"]})]
    odd: tuple[Any, ...] = ([], {}, "x", 7)
    texts += [json.dumps(good | {"made_of": made_of}) for made_of in odd]
    odd = ({"steps": {}}, {"steps": [1]}, {"steps": None}, {"listed": 7}, {"read": {"x": [1]}})
    texts += [json.dumps(good | {"made_of": good["made_of"] | changed}) for changed in odd]
    for text in texts:
        (tmp_path / "snapshot.json").write_text(text)
        with pytest.raises((DataError, ad.StaleDataError)):
            list(ds)
    (tmp_path / "snapshot.json").write_text(json.dumps(good | {"files": ["x"]}))
    with pytest.raises(ad.ObjectNotFoundError, match="shard"):
        list(ds)


def test_arguments(tmp_path: Path) -> None:
    """Places that cannot be written to and compressions that are not there are refused at once."""
    with pytest.raises(ad.UnsupportedURLError, match="local"):
        ad.Dataset.range(3).cache("gs://b/x")
    with pytest.raises(ad.UnsupportedURLError, match="local"):
        ad.Dataset.range(3).snapshot("gs://b/x")
    with pytest.raises(ValueError, match="compression"):
        ad.Dataset.range(3).snapshot(tmp_path, compression="SNAPPY")


def test_random_numbers_do_not_change() -> None:
    """What is read back has the provenance that it had, which random numbers are keyed by."""

    def draw(x: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(1 << 40))

    cached = ad.Dataset.range(50).shuffle(50, seed=1).cache()
    options = ad.Options(seed=3, num_workers=0)
    ds = cached.map(draw, rng=True).with_options(options)
    first = [*ds.iterator(epoch=5)]
    assert first == [*ds.iterator(epoch=5)]


@pytest.mark.sampled
@pytest.mark.parametrize("codec", ["GZIP", "ZSTD"])
def test_a_packed_snapshot_gives_what_was_written(codec: str, tmp_path: Path) -> None:
    """Arrays, byte strings, texts and numbers come back; the files are smaller; damage is found."""

    def make(i: Any) -> Any:
        return {"a": np.arange(i % 5), "s": b"x" * (1000 * int(i)), "t": "é", "i": i}

    ds = ad.Dataset.range(40).map(make).batch(1).unbatch()
    plain = list(ds.snapshot(tmp_path / "plain"))
    written = list(ds.snapshot(tmp_path / codec, compression=codec))
    read = list(ds.snapshot(tmp_path / codec))
    for one, two, three in zip(plain, written, read, strict=True):
        assert one["a"].tolist() == two["a"].tolist() == three["a"].tolist()
        assert (one["s"], one["t"], one["i"]) == (three["s"], three["t"], three["i"])
    sizes = {name: sum(f.stat().st_size for f in (tmp_path / name).glob("*.blocks")) for name in ("plain", codec)}
    assert sizes[codec] < sizes["plain"] / 10
    (file,) = (tmp_path / codec).glob("*.blocks")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ad.errors.DataError):
        list(ds.snapshot(tmp_path / codec))
