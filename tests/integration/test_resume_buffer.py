"""A shuffle's buffer is read again from where its elements lie in files: exactly, and little else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import io
import json
import random
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.runtime.stages.order.lying import LyingBuffer
from fake_gcs import FakeGCS
from tests.integration.resumed_reads import read_after_resume, resumed_often
from tests.integration.shards import BUCKET, gs_storage, put_shards, record, records, shard_bytes
from tests.patience import wait_until
from tests.samples import samples

pytestmark = pytest.mark.sampled

D = ad.Dataset


@pytest.fixture(autouse=True)
def runtime() -> Iterator[None]:
    """One for all pipelines of a test."""
    with ad.Runtime(ad.Options(num_workers=0)):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of records, lines and rows of one length: few, none, one, many, large."""
    made = tmp_path_factory.mktemp("buffer")
    for number, (count, size) in enumerate([(40, 0), (0, 0), (1, 30), (300, 700), (9, 90_000), (120, 40)]):
        rows = [row.replace(b"\n", b"_").replace(b"\r", b"_") for row in records(number, count, size)]
        (made / f"{number}.tfrecord").write_bytes(shard_bytes(rows))
        (made / f"{number}.tfrecord.gz").write_bytes(shard_bytes(rows, "GZIP"))
        (made / f"{number}.txt").write_bytes(b"".join(row + b"\r\n" * (n % 2) + b"\n" for n, row in enumerate(rows)))
        if number == 3:
            # The record in its middle is damaged: what is behind it is left out, if a policy allows it.
            (made / "6.tfrecore").write_bytes(shard_bytes(rows[:100]) + b"?" * 99 + shard_bytes(rows[100:]))
            # Some of its records are wrong by themselves.
            damaged = bytearray(shard_bytes(rows))
            for n in range(5, 300, 7):
                damaged[n * (len(rows[0]) + 16) + 12] ^= 1
            (made / "7.tfrecorf").write_bytes(damaged)
        (made / f"{number}.fixed").write_bytes(b"h" + b"".join(row.ljust(9)[:9] for row in rows))
        rest = [(number, n, int(row[:1] or b"0"), 'a "" b' * (n % 3) + "\n," * (n % 2)) for n, row in enumerate(rows)]
        lines = [json.dumps({"x": values}) + "\n" + " \n" * (values[1] % 3) for values in rest]
        (made / f"{number}.jsonl").write_text("".join(lines))
        lines = [
            f'{a},{b},"{text}",{c}{end}' for (a, b, c, text), end in zip(rest, ["\n", "\r\n", "\r"] * 200, strict=False)
        ]
        (made / f"{number}.csv").write_bytes(("file,n,text,x\n" + "".join(lines)).encode())
        with tarfile.open(made / f"{number}.tar", "w", format=1 + number % 2) as tar:
            for n, row in enumerate(rows):
                for name, content in [(f"{'x' * (n * 7 % 200)}{n}.n", b"%d" % n), (f"{n}/", b""), ("README", b"?" * n)]:
                    add(tar, name, content)
                for extension in ("a", "b", "c")[: n % 4]:
                    add(tar, f"{n}.{extension}", row[: -1 - n % 2])
    for number in range(70):
        content = record(7, number, [0, 1, 40, 5000, 300_000][number % 5])
        (made / f"{number:02}.object").write_bytes(content[number % 2 :])
    (made / "70.object").write_bytes(b"")
    return made


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """A member of a tar file, or a folder."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
    tar.addfile(member, io.BytesIO(content))


def doubled(element: bytes) -> bytes:
    """A function between files and shuffle."""
    return element * 2


def add_to(end: bytes, element: bytes) -> bytes:
    """A function that is made anew with every dataset."""
    return element + end


def numbered(element: bytes, rng: Any) -> tuple[bytes, int]:
    """A function with random numbers, which belong to the element."""
    return element, int(rng.integers(1000))


def and_number(*element: Any, rng: Any) -> tuple[Any, int]:
    """The same for all kinds of elements."""
    return plain(*element) if len(element) == 1 else element, int(rng.integers(1000))


def names(folder: Path, kind: str, *, shuffle: bool = False) -> ad.Dataset:
    """Files of one format."""
    return D.list_files(f"{folder}/*.{kind}", shuffle=shuffle, seed=3)


def mine(folder: Path, kind: str = "tfrecord") -> ad.Dataset:
    """The files of one of two readers, most of the records among them."""
    return names(folder, kind).shard(2, 1)


def swapped(number: int, element: Any) -> tuple[Any, int]:
    """A function behind `enumerate`."""
    return element, int(number)


def in_tar(sample: dict[str, Any]) -> tuple[Any, ...]:
    """What a sample consists of, in one order."""
    return tuple(sorted(sample.items()))


def shown(element: Any) -> bytes:
    """What can be compared, whatever it is."""
    return repr(element).encode()


def some(element: Any) -> bool:
    """Drops some elements; what they use up goes with the next one."""
    return len(element) % 3 != 0


def fails(element: bytes) -> bool:
    """A predicate that fails for some."""
    if element[:3] in {b"3:7", b"5:2"}:
        raise ValueError("no")
    return True


def tolerant(dataset: ad.Dataset) -> ad.Dataset:
    """Leaves out what fails."""
    return dataset.with_options(ad.Options(errors=ad.ErrorPolicy(max_in_a_row=1000, log_warning=False)))


KINDS: dict[str, Callable[[Path], ad.Dataset]] = {
    "records": lambda p: names(p, "tfrecord").interleave(ad.TFRecordDataset, 3),
    "records of shuffled files": lambda p: names(p, "tfrecord", shuffle=True).interleave(ad.TFRecordDataset, 2, 5),
    "one after the other": lambda p: ad.TFRecordDataset([f"{p}/{n}.tfrecord" for n in (3, 1, 3, 5)]),
    "one file": lambda p: ad.TFRecordDataset(f"{p}/3.tfrecord"),
    "lines": lambda p: names(p, "txt").interleave(ad.TextLineDataset, 6),
    "fixed": lambda p: names(p, "fixed").interleave(lambda f: ad.FixedLengthRecordDataset(f, 9, 1), 4),
    "map behind": lambda p: names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).map(doubled).prefetch(99),
    "random map behind": lambda p: names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).map(numbered, rng=True),
    "options behind": lambda p: (
        names(p, "tfrecord")
        .interleave(ad.TFRecordDataset, 3)
        .with_options(ad.Options(storage={"gs": {"token": "anon"}}))
    ),
    "threads behind": lambda p: names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).map(doubled, 2),
    "shuffle inside": lambda p: names(p, "tfrecord").interleave(lambda f: ad.TFRecordDataset(f).shuffle(20, seed=2), 3),
    "two shuffles": lambda p: names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).shuffle(50, seed=8),
    "filter": lambda p: names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).filter(lambda x: len(x) % 3),
    "filter inside": lambda p: names(p, "tfrecord").interleave(lambda f: ad.TFRecordDataset(f).filter(len), 3),
    "shard of files": lambda p: mine(p).interleave(ad.TFRecordDataset, 2, 3),
    "shard of lines": lambda p: mine(p, "txt").prefetch(2).interleave(ad.TextLineDataset, 3),
    "shard of records": lambda p: names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).shard(3, 1),
    "shard of records, random map": lambda p: (
        names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).shard(3, 1).map(numbered, rng=True)
    ),
    "ignored errors, random map": lambda p: (
        names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).ignore_errors().map(numbered, rng=True)
    ),
    "shard, filter": lambda p: mine(p).interleave(ad.TFRecordDataset, 2).filter(some).map(doubled),
    "shard, filter inside": lambda p: mine(p).interleave(lambda f: ad.TFRecordDataset(f).filter(some), 2),
    "shard, shuffle inside": lambda p: mine(p).interleave(lambda f: ad.TFRecordDataset(f).shuffle(20, seed=2), 3),
    "shard, two shuffles": lambda p: mine(p).interleave(ad.TFRecordDataset, 3).shuffle(50, seed=8).map(doubled),
    "shard, random map": lambda p: mine(p).interleave(ad.TFRecordDataset, 2).filter(some).map(numbered, rng=True),
    "policy": lambda p: tolerant(names(p, "tfrecord").interleave(ad.TFRecordDataset, 3)),
    "policy, damage": lambda p: tolerant(
        names(p, "tfrecor[de]").interleave(ad.TFRecordDataset, 3).filter(fails).prefetch(2)
    ),
    "policy, damaged records": lambda p: tolerant(names(p, "tfrecor[df]").interleave(ad.TFRecordDataset, 3)),
    "policy, shard": lambda p: tolerant(names(p, "tfrecor[de]").shard(1, 0).interleave(ad.TFRecordDataset, 3)),
    "policy, shard, filter": lambda p: tolerant(mine(p).interleave(ad.TFRecordDataset, 3).filter(fails)),
    "JSON": lambda p: names(p, "jsonl").interleave(ad.JsonLinesDataset, 3).map(shown),
    "JSON, filter, shard": lambda p: mine(p, "jsonl").interleave(ad.JsonLinesDataset, 2).map(shown).filter(some),
    "policy, JSON": lambda p: tolerant(names(p, "jsonl").interleave(ad.JsonLinesDataset, 3)).filter(bool),
    "CSV": lambda p: ad.CsvDataset(names(p, "csv"), [0, ""], header=True, select_cols=[1, 2], num_parallel_reads=2),
    "CSV by header": lambda p: (
        names(p, "csv").interleave(lambda f: ad.CsvDataset(f, {"text": "", "file": 0}, header=True), 3).map(shown)
    ),
    "CSV, one column": lambda p: ad.CsvDataset(names(p, "csv"), {"text": ""}, header=True).map(shown),
    "joined": lambda p: (
        names(p, "tfrecord")
        .interleave(ad.TFRecordDataset, 3)
        .concatenate(names(p, "txt").interleave(ad.TextLineDataset, 6).map(doubled))
        .map(numbered, rng=True)
    ),
    "joined, sampled": lambda p: D.sample_from_datasets(
        [
            ad.FileDataset(names(p, "object")).map(shown),
            names(p, "jsonl").interleave(ad.JsonLinesDataset, 3).map(shown).shuffle(9, seed=4),
            ad.TFRecordDataset(f"{p}/3.tfrecord").concatenate(ad.TFRecordDataset(f"{p}/5.tfrecord")).filter(some),
        ],
        seed=3,
    ).filter(some),
    "joined, chosen": lambda p: D.choose_from_datasets(
        [ad.TFRecordDataset(f"{p}/3.tfrecord"), ad.TFRecordDataset(f"{p}/3.tfrecord")],
        D.range(2).repeat(300).map(int),
        stop_on_empty_dataset=False,
    ),
    "shard, joined": lambda p: ad.TFRecordDataset(names(p, "tfrecord").shard(2, 1)).concatenate(
        ad.TextLineDataset(names(p, "txt"))
    ),
    "numbered": lambda p: names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).filter(some).enumerate(7).map(swapped),
    "numbered, joined": lambda p: (
        ad.TFRecordDataset(f"{p}/3.tfrecord")
        .concatenate(ad.FileDataset(names(p, "object")))
        .enumerate()
        .map(swapped, 2)
        .prefetch(2)
    ),
    "tar": lambda p: names(p, "tar").interleave(ad.TarDataset, 2),
    "tar, one by one": lambda p: ad.TarDataset(names(p, "tar")).filter(lambda x: x.get("n") != b"7").map(in_tar),
    "tar, shard": lambda p: ad.TarDataset(names(p, "tar").shard(2, 1)).map(in_tar),
    "ignored errors": lambda p: names(p, "tfrecor[df]").interleave(ad.TFRecordDataset, 3).ignore_errors().map(doubled),
    "objects": lambda p: ad.FileDataset(names(p, "object")),
    "objects, their names": lambda p: ad.FileDataset([f"{p}/{n:02}.object" for n in range(71)], with_url=True),
    "objects inside": lambda p: names(p, "object", shuffle=True).interleave(ad.FileDataset, 3),
    "objects, map behind": lambda p: ad.FileDataset(names(p, "object"), num_parallel_reads=None).map(doubled),
    "objects, filter": lambda p: ad.FileDataset(names(p, "object").shard(1, 0)).filter(some),
    "shard of objects": lambda p: ad.FileDataset(names(p, "object").shard(2, 1)).map(numbered, rng=True),
    "policy, objects": lambda p: tolerant(ad.FileDataset(names(p, "object"))),
    "map inside": lambda p: names(p, "tfrecord").interleave(lambda f: ad.TFRecordDataset(f).map(len), 3),
    "functions inside, made anew": lambda p: names(p, "tfrecord").interleave(
        lambda f: (
            ad.TFRecordDataset(f).map(lambda x: x[1:]).filter(some).map(functools.partial(add_to, b"!"), 2).prefetch(3)
        ),
        3,
    ),
    "map inside, map behind": lambda p: (
        names(p, "txt", shuffle=True)
        .interleave(lambda f: ad.TextLineDataset(f).map(doubled), 2)
        .map(doubled)
        .filter(some)
    ),
    "map inside, vectorized": lambda p: (
        names(p, "tar").interleave(lambda f: ad.TarDataset(f).map(in_tar), 2, num_parallel_calls=2).prefetch(2)
    ),
    "parser inside": lambda p: names(p, "jsonl").interleave(lambda f: ad.JsonLinesDataset(f).map(shown), 3),
    "map inside, joined": lambda p: D.sample_from_datasets(
        [
            names(p, "tfrecord").interleave(lambda f: ad.TFRecordDataset(f).map(doubled), 3),
            names(p, "txt").interleave(lambda f: ad.TextLineDataset(f).map(doubled).map(doubled), 3).repeat(2),
        ],
        seed=3,
    ),
    "shard, map inside": lambda p: mine(p).interleave(lambda f: ad.TFRecordDataset(f).map(len), 3),
    "repeat": lambda p: ad.TFRecordDataset(f"{p}/0.tfrecord").repeat(3),
    "repeat, several files": lambda p: (
        names(p, "tfrecord", shuffle=True).interleave(ad.TFRecordDataset, 3).map(doubled).repeat(3).filter(some)
    ),
    "repeat of names": lambda p: (
        names(p, "tfrecord", shuffle=True).repeat().interleave(ad.TFRecordDataset, 3).take(1300).map(doubled)
    ),
    "some of repeated names": lambda p: (
        names(p, "tfrecord").repeat(3).skip(3).shard(2, 1).take(6).interleave(ad.TFRecordDataset, 3)
    ),
    "repeat of what some files have": lambda p: (
        names(p, "tfrecord", shuffle=True).skip(2).interleave(ad.TFRecordDataset, 2).repeat(4)
    ),
    "repeat of some names": lambda p: (
        names(p, "tfrecord", shuffle=True).take(4).skip(1).repeat(4).interleave(ad.TFRecordDataset, 2)
    ),
    "repeat inside": lambda p: names(p, "tfrecord").interleave(
        lambda f: ad.TFRecordDataset(f).map(doubled).repeat(2), 3
    ),
    "repeat, joined": lambda p: D.sample_from_datasets(
        [ad.TFRecordDataset(f"{p}/3.tfrecord").repeat(), ad.TFRecordDataset(f"{p}/5.tfrecord").map(doubled).repeat()],
        seed=3,
    ).take(700),
    "repeat, objects": lambda p: ad.FileDataset(names(p, "object")).repeat(2).map(shown),
    "repeat of what is mixed": lambda p: (
        names(p, "txt").interleave(ad.TextLineDataset, 3).shuffle(50, seed=3).repeat(3).shuffle(20, seed=4)
    ),
    "shard, repeat": lambda p: ad.TFRecordDataset(f"{p}/0.tfrecord").shard(2, 0).repeat(3),
    "some": lambda p: ad.TFRecordDataset(f"{p}/3.tfrecord").skip(5).take(250).take_while(len).map(numbered, rng=True),
}
"""Inputs of a shuffle whose elements lie in files."""

OTHERS: dict[str, Callable[[Path], ad.Dataset]] = {
    "functions inside that differ": lambda p: names(p, "tfrecord").interleave(
        lambda f: ad.TFRecordDataset(f).map(lambda x: (f[-10:], x)), 3
    ),
    "functions inside, one file without": lambda p: names(p, "tfrecord").interleave(
        lambda f: ad.TFRecordDataset(f).map(doubled) if "3" in f[-10:] else ad.TFRecordDataset(f), 3
    ),
    "random map inside": lambda p: names(p, "tfrecord").interleave(
        lambda f: ad.TFRecordDataset(f).map(numbered, rng=True), 3
    ),
    "ignored errors, map inside": lambda p: names(p, "tfrecord").interleave(
        lambda f: ad.TFRecordDataset(f).map(doubled).ignore_errors(), 3
    ),
    "policy, map inside": lambda p: tolerant(
        names(p, "tfrecord").interleave(lambda f: ad.TFRecordDataset(f).map(doubled), 3)
    ),
    "repeat, random map": lambda p: ad.TFRecordDataset(f"{p}/3.tfrecord").map(numbered, rng=True).repeat(2),
    "repeat, random map, joined": lambda p: (
        ad.TFRecordDataset(f"{p}/3.tfrecord")
        .map(numbered, rng=True)
        .concatenate(ad.TextLineDataset(f"{p}/3.txt"))
        .repeat(2)
    ),
    "repeat, then numbered": lambda p: ad.TFRecordDataset(f"{p}/3.tfrecord").repeat(3).enumerate().map(swapped),
    "repeat of names, numbered": lambda p: (
        names(p, "tfrecord").repeat(2).interleave(ad.TFRecordDataset, 3).enumerate().map(swapped)
    ),
    "repeat inside, numbered": lambda p: (
        names(p, "txt").interleave(lambda f: ad.TextLineDataset(f).repeat(2), 3).enumerate().map(swapped)
    ),
    "repeat inside, random map": lambda p: (
        names(p, "tfrecord").interleave(lambda f: ad.TFRecordDataset(f).repeat(2), 3).map(numbered, rng=True)
    ),
    "random map behind repeat": lambda p: ad.TFRecordDataset(f"{p}/3.tfrecord").repeat(2).map(numbered, rng=True),
    "random map behind repeat of names": lambda p: (
        names(p, "tfrecord").repeat(2).interleave(ad.TFRecordDataset, 3).map(numbered, rng=True)
    ),
    "repeat, numbered": lambda p: ad.TFRecordDataset(f"{p}/3.tfrecord").enumerate().map(swapped).repeat(2),
    "options inside": lambda p: names(p, "tfrecord").interleave(
        lambda f: ad.TFRecordDataset(f).with_options(ad.Options(storage={"gs": {"token": "anon"}})), 3
    ),
    "compressed": lambda p: names(p, "tfrecord.gz").interleave(lambda f: ad.TFRecordDataset(f, "GZIP"), 3),
    "some compressed": lambda p: D.list_files(f"{p}/*.tfrecord*", shuffle=False).interleave(
        lambda f: ad.TFRecordDataset(f, "GZIP" if f.endswith(".gz") else None), 2
    ),
    "datasets inside": lambda p: names(p, "tfrecord").interleave(
        lambda f: D.from_tensors(f).interleave(ad.TFRecordDataset), 3
    ),
    "flat_map": lambda p: ad.TFRecordDataset(f"{p}/0.tfrecord").flat_map(lambda x: D.from_tensors(x).repeat(2)),
    "batch": lambda p: ad.TFRecordDataset(f"{p}/3.tfrecord").batch(7).unbatch(),
    "generated names": lambda p: D.from_generator(lambda: [f"{p}/3.tfrecord"]).interleave(ad.TFRecordDataset, 3),
    "numbers": lambda _: D.range(300),
    "shard of filtered files": lambda p: (
        names(p, "tfrecord").shard(1, 0).filter(lambda f: "1.t" not in f).interleave(ad.TFRecordDataset, 2)
    ),
    "shard, nested": lambda p: mine(p).interleave(lambda f: D.from_tensors(f).interleave(ad.TFRecordDataset), 3),
    "shard, compressed": lambda p: mine(p, "tfrecord.gz").interleave(lambda f: ad.TFRecordDataset(f, "GZIP"), 3),
    "shard, some compressed": lambda p: mine(p, "tfrecord*").interleave(
        lambda f: ad.TFRecordDataset(f, "GZIP" if f.endswith(".gz") else None), 2
    ),
    "ignored errors, map": lambda p: (
        names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).map(doubled).ignore_errors()
    ),
    "joined with numbers": lambda p: ad.TFRecordDataset(f"{p}/3.tfrecord").map(len).concatenate(D.range(40).map(int)),
    "numbered, filter": lambda p: (
        ad.TFRecordDataset(f"{p}/3.tfrecord").enumerate().map(swapped).filter(lambda x, n: not x or n % 3 > 0)
    ),
    "shard, numbered": lambda p: (
        ad.TFRecordDataset(f"{p}/3.tfrecord").shard(3, 0).interleave(D.from_tensors).enumerate().map(swapped)
    ),
    "policy, map": lambda p: tolerant(names(p, "tfrecord").interleave(ad.TFRecordDataset, 3).map(doubled)),
    "policy, shard, map": lambda p: tolerant(mine(p).interleave(ad.TFRecordDataset, 3).map(doubled)),
}
"""Inputs whose elements, or some of them, have to be made again."""


def plain(element: Any) -> Any:
    """What can be compared."""
    return element if isinstance(element, bytes | tuple | dict) else int(element)


def state_of(it: ad.PipelineIterator) -> Any:
    """As it is read from a file."""
    return json.loads(json.dumps(it.state_dict()))


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_the_rest_comes_in_the_same_order(kind: str, folder: Path) -> None:
    """From a state at any element, and from a state of the resumed iterator."""
    draw = random.Random(kind)
    for size in draw.sample([7, 150, 2000], 3)[: samples(2, 3)] * samples(1, 10):
        shuffled = {**KINDS, **OTHERS}[kind](folder).shuffle(size, seed=5)
        dataset = shuffled.map(and_number, rng=True).with_options(ad.Options(seed=9))
        with dataset.iterator(epoch=2) as it:
            elements = [plain(element) for element in it]
        first = draw.randint(0, len(elements))
        second = draw.randint(first, len(elements))
        with dataset.iterator(epoch=2) as it:
            for _ in range(first):
                next(it)
            state = state_of(it)
        with dataset.iterator(state=state) as it:
            assert [plain(next(it)) for _ in range(first, second)] == elements[first:second]
            state = state_of(it)
            assert [plain(element) for element in it] == elements[second:]
        with dataset.iterator(state=state) as it:
            assert [plain(element) for element in it] == elements[second:], (first, second)


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_a_state_says_how_the_buffer_is_read(kind: str, folder: Path) -> None:
    """From where its elements lie, or by giving the input again."""
    dataset = {**KINDS, **OTHERS}[kind](folder).shuffle(30, seed=5)
    with dataset.iterator() as it:
        for _ in range(35):
            next(it)
        text = str(ad.state.describe(it.state_dict()))
    lies = kind in KINDS
    assert bool(re.search(r"the \d+ elements in its buffer are read from where they lie", text)) is lies, text
    assert ("elements of its input are read again" in text) is (not lies), text


def test_numbered_nests_of_a_buffer_are_batched(tmp_path: Path) -> None:
    """Also if their dicts have the keys in different orders, so that they come as bare objects."""
    lines = [f'{{"a": {n}, "b": 0}}' if n % 3 else f'{{"b": 0, "a": {n}}}' for n in range(400)]
    (tmp_path / "lines").write_text("\n".join(lines))
    dataset = ad.TextLineDataset(str(tmp_path / "lines")).map(json.loads).enumerate().shuffle(500, seed=1).batch(2)
    with dataset.iterator() as it:
        found = [next(it) for _ in range(100)]
        state = state_of(it)
    with dataset.iterator(state=state) as it:
        found += it
    numbers = [(int(number), int(a)) for batch, parts in found for number, a in zip(batch, parts["a"], strict=True)]
    assert sorted(numbers) == [(n, n) for n in range(400)]


def test_a_buffer_goes_on_with_marks_behind_files_that_lie(tmp_path: Path) -> None:
    """Where elements of a compressed file follow, a state is near, not in front of all of them."""
    (tmp_path / "0.txt").write_text("".join(f"plain {row}\n" for row in range(2000)))
    with gzip.open(tmp_path / "1.gz", "wt") as file:
        file.writelines(f"packed {row}\n" for row in range(20_000))

    def lines(url: str) -> ad.Dataset:
        return ad.TextLineDataset(url, "GZIP" if url.endswith(".gz") else None)

    dataset = D.from_tensor_slices([str(tmp_path / "0.txt"), str(tmp_path / "1.gz")]).interleave(lines, 1)
    dataset = dataset.concatenate(ad.TextLineDataset(str(tmp_path / "0.txt"))).shuffle(100, seed=5)
    with dataset.iterator(epoch=1) as it:
        whole = [plain(element) for element in it]
    for first in (1000, 1950, 2000, 2105, 4000, 21_000, 22_100, 23_000):
        with dataset.iterator(epoch=1) as it:
            for _ in range(first):
                next(it)
            state = state_of(it)
        with dataset.iterator(state=state) as it:
            assert [plain(element) for element in it] == whole[first:]
        again = re.search(r"([\d,]+) elements? behind the mark of shuffle", str(ad.state.describe(state)))
        assert again is None or int(again[1].replace(",", "")) < 3000, first


@pytest.mark.parametrize("kind", [kind for kind in {**KINDS, **OTHERS} if "shard" in kind])
def test_a_reader_that_is_resumed_often_keeps_its_order(kind: str, folder: Path) -> None:
    """Also where each state is one of an iterator that has read its buffer from a state."""
    draw = random.Random(kind)
    for size in [20, 150] * samples(1, 10):
        dataset = {**KINDS, **OTHERS}[kind](folder).shuffle(size, seed=5).with_options(ad.Options(seed=9))
        whole = [plain(element) for element in dataset.iterator(epoch=2)]
        assert [plain(element) for element in resumed_often(dataset, draw, 150)] == whole


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("nbytes", "count", "buffer"), [(500, 1500, 4000), (66_000, 30, 120)])
def test_little_more_is_read_than_what_is_left(
    part: float, nbytes: int, count: int, buffer: int, is_sharded: bool
) -> None:
    """What is left, gaps in the buffer, what is made again behind the mark, and a piece of each open file.

    What is made again has 8 MiB at the most. Of short records, gaps have up to twice as many bytes as the buffer; of
    long ones, every gap costs more than a request.
    """
    shards, cycle = 16, 4
    record = nbytes + 16
    with FakeGCS(buckets=[BUCKET]) as server:
        put_shards(server, shards, count, nbytes)
        options = ad.Options(storage=gs_storage(server), num_workers=0, memory_limit_bytes=256 << 20)
        files = D.list_files(f"gs://{BUCKET}/*.tfrecord", shuffle=False)
        files = files.shard(1, 0) if is_sharded else files
        dataset = files.interleave(ad.TFRecordDataset, cycle).shuffle(buffer, seed=1)
        delivered = int(part * shards * count)
        _, elements, sent = read_after_resume(server, dataset, options, delivered)
    rest = len(elements)
    assert rest == shards * count - delivered
    again = min(max(buffer // 8, 1024), (8 << 20) // record + 1)
    gaps = 2 * buffer if nbytes < 1 << 16 else 0
    assert sent <= (rest + gaps + again) * record + cycle * (3 << 18), (sent / record, rest)


def test_an_object_that_was_replaced_is_refused() -> None:
    """Also if all of it was read, and only the buffer has elements of it."""
    with FakeGCS(buckets=[BUCKET]) as server:
        urls = put_shards(server, 3, 50, 10)
        options = ad.Options(storage=gs_storage(server), num_workers=0)
        dataset = ad.TFRecordDataset(urls).shuffle(20, seed=1)
        with ad.Runtime(options):
            with dataset.iterator() as it:
                for _ in range(60):
                    next(it)
                state = state_of(it)
            server.put(BUCKET, "shard-000.tfrecord", shard_bytes(records(7, 50, 10)))
            with pytest.raises(ad.StateError, match="changed since the state was taken"):
                list(dataset.iterator(state=state))


@pytest.mark.parametrize(
    ("kind", "size", "limit"),
    [
        ("records", 300, 8 << 20),
        ("threads behind", 300, 8 << 20),
        ("CSV, one column", 300, 8 << 20),
        ("objects inside", 20, 24 << 20),
    ],
)
@pytest.mark.parametrize("isolate", [False, True])
def test_little_memory_is_enough(kind: str, size: int, limit: int, isolate: bool, folder: Path) -> None:
    """Under a limit that the pipeline just runs with, in this process and in another one."""
    dataset = KINDS[kind](folder).shuffle(size, seed=5).batch(8)
    with ad.Runtime(ad.Options(num_workers=0, memory_limit_bytes=limit, isolate=isolate)):
        with dataset.iterator(epoch=1) as it:
            batches, states = [], []
            for batch in it:
                batches.append(batch.tolist())
                states.append(it.state_dict())
        for count in random.Random(kind).sample(range(len(states)), min(len(states), samples(2, 10))):
            with dataset.iterator(state=json.loads(json.dumps(states[count]))) as it:
                assert [batch.tolist() for batch in it] == batches[count + 1 :]


def test_a_buffer_that_is_left_while_it_ends_its_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays held of the rows that were to leave, nor of what reads the others."""
    path = tmp_path / "a"
    with ad.TFRecordWriter(path) as writer:
        writer.write_many([b"%d" % number * 50 for number in range(3000)])
    ds = ad.TFRecordDataset(path).shuffle(50, seed=1)
    with ds.iterator() as it:
        for _ in range(1500):
            next(it)
        state = it.state_dict()
    recall, recalled = LyingBuffer.recall, threading.Event()

    async def slow(self: LyingBuffer) -> None:
        if not recalled.is_set():
            recalled.set()
            await asyncio.Event().wait()
        await recall(self)

    async def used() -> tuple[int, int]:
        return alone.budgets.used_bytes, alone.budgets.slabs_in_use

    monkeypatch.setattr(LyingBuffer, "recall", slow)
    with ad.Runtime(ad.Options(num_workers=0)) as alone:
        it = ds.iterator(state=state)

        def close() -> None:
            recalled.wait()
            it.close()

        closing = threading.Thread(target=close)
        closing.start()
        with contextlib.suppress(ad.PipelineClosedError):
            for _ in it:
                pass
        closing.join()
        assert recalled.is_set()
        wait_until(lambda: alone.submit(used()).result() == (0, 0))
