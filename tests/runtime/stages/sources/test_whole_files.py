"""Whole files: what is read in runs is what is read file by file, and costs less."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.runtime.stages.sources.whole_files import RunSize
from asyncdata.testing import assert_no_leaks
from fake_gcs import FakeGCS
from tests.samples import samples

SIZES = (1, 7, 4000, 4000, 4000, 60_000, 300_000)
ODD = ("empty", "huge", "missing", "folder", "proc", "link", "far", "bytes")


def by_itself(names: ad.Dataset, cycle: int, *, with_url: bool, compression: str | None = None) -> ad.Dataset:
    """The same datasets, each opened by a function that nobody looks into."""
    return names.interleave(lambda url: ad.FileDataset(url, with_url=with_url, compression_type=compression), cycle)


def outcome(ds: ad.Dataset) -> tuple[list[Any], str]:
    """What a dataset gives, and what it says when it fails."""
    found: list[Any] = []
    try:
        with ds.iterator() as elements:
            found.extend(elements)
    except (ad.AsyncdataError, OSError, TypeError) as error:
        return found, f"{type(error).__name__}: {error}"
    return found, ""


class Folder:
    """Files of many sizes, and names of what is none of them."""

    def __init__(self, path: Path, server: FakeGCS) -> None:
        self.path = path
        self.url = server.url
        for number, size in enumerate(SIZES * 8):
            (path / f"{number:03}").write_bytes(random.Random(number).randbytes(size))
        (path / "empty").touch()
        (path / "huge").write_bytes(random.Random(0).randbytes(9_000_000))
        (path / "folder").mkdir()
        (path / "link").symlink_to(path / "003")
        server.put("bucket", "far", b"from afar")

    def name(self, kind: str) -> str | bytes:
        """Of a file, or of something else."""
        others: dict[str, str | bytes] = {
            "proc": "/proc/self/status",
            "far": "gs://bucket/far",
            "bytes": os.fsencode(self.path / "001"),
        }
        return others.get(kind, str(self.path / kind))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """See `Folder`."""
    with FakeGCS(buckets=["bucket"]) as server:
        yield Folder(tmp_path_factory.mktemp("files"), server)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(12, 400)))
def test_in_runs_as_by_themselves(folder: Folder, seed: int) -> None:
    """Whatever else is among them: the same elements, and the same error after as many."""
    draw = random.Random(seed)
    names = [folder.name(f"{draw.randrange(56):03}") for _ in range(draw.randrange(2, 200))]
    for _ in range(draw.choice((0, 0, 1, 3))):
        names.insert(draw.randrange(len(names)), folder.name(draw.choice(ODD)))
    errors = draw.choice((None, None, ad.ErrorPolicy(max_skipped=100), ad.ErrorPolicy(max_skipped=1)))
    options = ad.Options(
        memory_limit_bytes=draw.choice((64, 96, 512)) << 20,
        errors=errors,
        storage={"gs": {"endpoint_url": folder.url, "token": "anon"}},
    )
    cycle, with_url = draw.choice((1, 3, 16)), draw.random() < 0.5
    urls = ad.Dataset.from_generator(lambda: iter(names), output_signature=None)
    if draw.random() < 0.3:
        urls = urls.shuffle(20, seed=seed)
    with assert_no_leaks():
        runs = outcome(
            ad.FileDataset(urls, with_url=with_url, num_parallel_reads=cycle).repeat(2).with_options(options)
        )
        assert runs == outcome(by_itself(urls, cycle, with_url=with_url).repeat(2).with_options(options))
    if draw.random() < 0.3:
        runs = outcome(ad.FileDataset(urls, num_parallel_reads=cycle).shuffle(9, seed=1).with_options(options))
        assert runs == outcome(by_itself(urls, cycle, with_url=False).shuffle(9, seed=1).with_options(options))


def test_many_files_take_few_reads(folder: Folder) -> None:
    """Names, listings, and an epoch in which sizes are known."""
    names = [str(folder.path / f"{number:03}") for number in range(56)] * 4
    listed = ad.Dataset.list_files(f"{folder.path}/0*", shuffle=False)
    for ds, count in ((ad.FileDataset(names), 224), (ad.FileDataset(listed), 56)):
        with ds.repeat(2).iterator() as elements:
            found = list(elements)
            stats = elements.stats()
        assert len(found) == 2 * count
        assert stats.fetch["bytes"] == sum(map(len, found))
        assert stats.fetch["requests"] < count
        (step,) = [step for step in stats.steps if step.kind == "FileDataset"]
        assert step.elements == 2 * count


def test_a_file_that_changed_after_it_was_listed_is_an_error(tmp_path: Path) -> None:
    """As one that is read by itself; files in front of it come."""
    for number in range(9):
        (tmp_path / f"{number}").write_bytes(b"old")
    ds = ad.FileDataset(ad.Dataset.list_files(f"{tmp_path}/*", shuffle=False)).repeat(2)
    with ds.iterator() as elements:
        first = [next(elements) for _ in range(9)]
        (tmp_path / "4").write_bytes(b"newer")
        with pytest.raises(ad.ObjectChangedError, match=r"/4"):
            first.extend(elements)
    assert first[:9] == [b"old"] * 9
    assert set(first) == {b"old"}


@pytest.mark.sampled
@pytest.mark.parametrize("with_url", [False, True])
def test_restored_behind_every_file(folder: Folder, with_url: bool) -> None:
    """Also from states that `interleave` took of the same files in another order of reading."""
    names = [folder.name(kind) for kind in ("001", "empty", "006", "link", "005", *(f"{n:03}" for n in range(9)))]
    for options in (ad.Options(), ad.Options(on_change="restart"), ad.Options(errors=ad.ErrorPolicy())):
        ds = ad.FileDataset([str(name) for name in names], with_url=with_url).with_options(options)
        whole = list(ds)
        with ds.iterator() as elements:
            for count in range(len(names) + 1):
                state = elements.state_dict()
                for other in (ds, ds.with_options(ad.Options(on_change="restart"))):
                    with other.iterator(state=state) as rest:
                        assert list(rest) == whole[count:]
                next(elements, None)


def test_the_length_of_a_run_is_learned() -> None:
    """Two milliseconds, and as many bytes as there is room for."""
    size = RunSize(1 << 20)
    assert size.choose([None] * 99) == (8, 1 << 16)
    size.learn(8, 8 * 4000, 0.0002)
    assert size.files == 64
    assert size.choose([None] * 99) == (64, 64 * 4000 * 9 // 8)
    assert size.choose([None] * 3) == (3, 1 << 16)
    assert size.choose([1000, 2000, 3000]) == (3, 6000)
    assert size.choose([1000, (1 << 20) + 1]) == (1, 1000)
    assert size.choose([(1 << 20) + 1]) == (0, 1)
    size.learn(64, 64 << 20, 1.0)
    assert size.files == 1
    assert size.choose([None, None]) == (1, (1 << 20) * 9 // 16 + 2250)
    assert size.choose([]) == (0, 1)


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["int", "categorical", "binary", None])
def test_labels_stay_with_their_files(tmp_path: Path, mode: str | None) -> None:
    """From every state on, in runs and by themselves, and in front of a shuffle."""
    for number in range(40):
        folder = tmp_path / f"class {number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:02}.txt").write_bytes(b"" if number == 7 else b"%d " % number * (1 + number))
    for shuffles in (False, True):
        ds = ad.text_dataset_from_directory(tmp_path, label_mode=mode, batch_size=None, shuffle=False)
        ds = ds.shuffle(13, seed=2, reshuffle_each_iteration=False) if shuffles else ds
        whole = [shown(element) for element in ds]
        assert sorted({text for text, _ in whole}) == sorted(b"%d " % n * (1 + n) if n != 7 else b"" for n in range(40))
        for text, label in whole:
            number = int(text.split()[0]) if text else 7
            hot = {"int": [number % 2], "binary": [number % 2], "categorical": [1 - number % 2, number % 2], None: []}
            assert label == hot[mode]
        itself = ds.with_options(ad.Options(on_change="restart"))
        assert [shown(element) for element in itself] == whole
        with ds.iterator() as elements:
            for count in range(0, 41, 3):
                state = elements.state_dict()
                with ds.iterator(state=state) as rest:
                    assert [shown(element) for element in rest] == whole[count:]
                for _ in range(3):
                    next(elements, None)


def shown(element: Any) -> tuple[bytes, list[float]]:
    """The text, and the label as numbers."""
    text, label = element if isinstance(element, tuple) else (element, ())
    return bytes(text, "utf-8") if isinstance(text, str) else bytes(text), np.ravel(label).tolist()
