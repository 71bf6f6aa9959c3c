"""Error policies on whole pipelines: what is left out, what is told, and that nothing goes on for ever."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncdata as ad
from asyncdata.formats import zstd
from asyncdata.formats.image import encode_png
from asyncdata.formats.tfrecord import encode_many
from asyncdata.storage.local.descriptors import version_of
from tests.patience import wait_until
from tests.samples import samples

SHARDS, RECORDS = 5, 40


class Damaged:
    """Shards with damaged records, one with broken framing, one that is missing."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.urls: list[str] = []
        self.good: list[bytes] = []
        self.bad: list[tuple[str, int, int]] = []
        self.ended: list[tuple[str, int | None, int]] = []
        for shard in range(SHARDS):
            path = folder / f"{shard}.tfrecord"
            self.urls.append(str(path))
            records = [f"{shard}-{number}-".encode() * draw.randint(1, 9) for number in range(RECORDS)]
            starts = [0]
            for record in records:
                starts.append(starts[-1] + 16 + len(record))
            data = bytearray(encode_many(records))
            bad = set(draw.sample(range(RECORDS), draw.choice([0, 2, 5])))
            for number in sorted(bad):
                data[starts[number] + 12] ^= 32
            stop = RECORDS
            if shard == 3:
                stop = draw.randrange(RECORDS)
                data[starts[stop]] ^= 1
                self.ended.append((str(path), stop, len(data) - starts[stop]))
            self.bad += [(str(path), number, starts[number]) for number in sorted(bad) if number < stop]
            self.good += [record for number, record in enumerate(records) if number not in bad and number < stop]
            path.write_bytes(data)
        self.urls.insert(2, str(folder / "missing.tfrecord"))
        self.ended.append((self.urls[2], None, 0))


def version_at(url: str) -> str | None:
    path = Path(url)
    return version_of(path.stat()) if path.exists() else None


def picky(record: bytes) -> bytes:
    if b"7-" in record:
        raise ValueError(record.decode())
    return record


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_good_arrives_and_the_rest_is_told(tmp_path: Path, workers: int) -> None:
    """Every way to run a function: the good elements in their order, and one line for each failure."""
    with ad.Runtime(ad.Options(num_workers=workers, memory_limit_bytes=32 << 20)):
        for seed in range(samples(3, 60)):
            draw = random.Random(10 * seed + workers)
            folder = tmp_path / str(seed)
            folder.mkdir()
            files = Damaged(folder, draw)
            kind = draw.choice(["process", "thread", "inline", "async", "filter", "batch"])
            listed = folder / "quarantine.jsonl"
            ds: ad.Dataset = ad.TFRecordDataset(files.urls)
            if kind == "async":
                ds = ds.map(picky_later, num_parallel_calls=3)
            elif kind == "filter":
                ds = ds.filter(lambda record: bool(picky(record)))
            elif kind == "inline":
                ds = ds.map(picky)
            else:
                ds = ds.map(picky, num_parallel_calls=2, executor="thread" if kind == "thread" else None)
            if kind == "batch":
                ds = ds.batch(7)
            policy = ad.ErrorPolicy(quarantine=listed, max_skipped=None)
            with ds.with_options(ad.Options(errors=policy, chunk_bytes=4096)).iterator() as it:
                found = list(it)
                stats = it.stats().skipped
            expected = [record for record in files.good if b"7-" not in record]
            if kind == "batch":
                assert [len(batch) for batch in found[:-1]] == [7] * (len(found) - 1)
                found = [record for batch in found for record in batch.tolist()]
            assert found == expected, (seed, kind)
            lines = [json.loads(line) for line in listed.read_text().splitlines()]
            corrupt = [line for line in lines if line["error"].startswith("CorruptRecordError")]
            refused = [line for line in lines if line["error"].startswith("ValueError at ")]
            ended = [line for line in lines if "unread_bytes" in line]
            assert sorted((line["url"], line["record"], line["offset"]) for line in corrupt) == sorted(files.bad)
            assert all(line["generation"] == version_at(line["url"]) for line in lines)
            assert len(refused) == len(files.good) - len(expected)
            assert sorted((line["url"], line["unread_bytes"] or 0) for line in ended) == sorted(
                (url, unread) for url, _, unread in files.ended
            )
            assert len(lines) == len(corrupt) + len(refused) + len(ended)
            assert (stats.elements, stats.shards) == (len(corrupt) + len(refused), len(ended))
            assert stats.unread_bytes == sum(unread for _, _, unread in files.ended)


async def picky_later(record: bytes) -> bytes:
    return picky(record)


def test_ignore_errors_counts_upstream_only() -> None:
    """What fails behind it is an error as ever."""
    ds = ad.Dataset.range(10).map(lambda x: 6 // (int(x) % 3)).ignore_errors()
    assert list(ds) == [6, 3] * 3
    with pytest.raises(ZeroDivisionError):
        list(ds.map(lambda x: 1 // (int(x) - 3)))


def fail(value: Any) -> None:
    raise ValueError("never")


@pytest.mark.sampled
@pytest.mark.parametrize("parallel", [None, 2])
def test_an_endless_dataset_of_failures_ends(parallel: int | None) -> None:
    """repeat() in front of a step in which everything fails, or behind it: an error, or the end."""
    with ad.Runtime(ad.Options(num_workers=0)):
        before = ad.Dataset.range(100).repeat().map(fail, num_parallel_calls=parallel).ignore_errors()
        with pytest.raises(ad.TooManyErrorsError, match="in a row") as caught:
            list(before)
        assert isinstance(caught.value.__cause__, ValueError)
        assert list(ad.Dataset.range(3).map(fail, num_parallel_calls=parallel).ignore_errors().repeat()) == []


@pytest.mark.parametrize("errors", [ad.ErrorPolicy(), None])
def test_a_missing_package_is_no_fault_of_the_data(
    errors: ad.ErrorPolicy | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No policy leaves out what only a package is needed for; neither files nor elements."""
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    (tmp_path / "y.zst").write_bytes(zstd.compress(memoryview(b"one\ntwo\n")))
    image = encode_png(np.zeros((2, 2, 3), np.uint8))
    for name in ("pyarrow", "backports", "cv2"):
        monkeypatch.setitem(sys.modules, name, None)
    datasets = [
        ad.ParquetDataset(str(tmp_path / "x.parquet")),
        ad.Dataset.from_tensors(image).map(ad.decode_image()),
    ]
    if sys.version_info < (3, 14):
        datasets.append(ad.TextLineDataset(str(tmp_path / "y.zst"), compression_type="ZSTD"))
    for dataset in datasets:
        policed = dataset.ignore_errors() if errors is None else dataset.with_options(ad.Options(errors=errors))
        with pytest.raises(ad.MissingPackageError, match="pip install"):
            list(policed)


def test_an_endless_list_of_missing_files_ends(tmp_path: Path) -> None:
    """Files are counted like elements."""
    names = ad.Dataset.from_tensor_slices([str(tmp_path / "a"), str(tmp_path / "b")]).repeat()
    options = ad.Options(num_workers=0, errors=ad.ErrorPolicy(max_skipped=None, max_in_a_row=50))
    ds = names.interleave(ad.TFRecordDataset, cycle_length=3).with_options(options)
    with pytest.raises(ad.TooManyErrorsError) as caught:
        list(ds)
    assert isinstance(caught.value.__cause__, ad.ObjectNotFoundError)


def test_a_list_that_cannot_be_written_is_told_before_anything_is_read(tmp_path: Path) -> None:
    """A wrong path ends the pipeline at its start."""
    policy = ad.ErrorPolicy(quarantine=tmp_path / "missing" / "list.jsonl")
    with pytest.raises(ad.QuarantineError):
        list(ad.Dataset.range(3).with_options(ad.Options(errors=policy)))


def test_a_policy_goes_with_a_loader_of_its_own(tmp_path: Path) -> None:
    """With isolate=True: counts, lists and errors cross the process."""
    listed = tmp_path / "list.jsonl"
    policy = ad.ErrorPolicy(max_skipped=3, quarantine=str(listed))
    options = ad.Options(isolate=True, num_workers=0, errors=policy)
    ds = ad.Dataset.range(100).map(one_in_ten).with_options(options)
    found: list[int] = []
    caught: ad.TooManyErrorsError | None = None
    with ds.iterator() as it:
        while caught is None:
            try:
                found.append(int(next(it)))
            except ad.TooManyErrorsError as error:
                caught = error
    assert found == [value for value in range(30) if value % 10]
    assert caught.skipped == 4
    assert len(listed.read_text().splitlines()) == 4


REPEATED: dict[str, Callable[[Path], ad.Dataset]] = {
    "behind repeat": lambda _: ad.Dataset.range(30).repeat(4).map(one_in_ten),
    "in front of repeat": lambda _: ad.Dataset.range(30).map(one_in_ten).repeat(4),
    "repeat of repeat": lambda _: ad.Dataset.range(30).repeat(2).repeat(2).map(one_in_ten),
    "shuffle": lambda _: ad.Dataset.range(30).repeat(4).shuffle(40, seed=1).map(one_in_ten),
    "records": lambda p: ad.TextLineDataset(f"{p}/0.txt").repeat(4).map(int).map(one_in_ten),
    "records, shuffle": lambda p: ad.TextLineDataset(f"{p}/0.txt").repeat(4).shuffle(9, seed=1).map(one_in_ten),
    "names": lambda p: (
        ad.Dataset.list_files(f"{p}/*.txt", shuffle=False).repeat(2).interleave(ad.TextLineDataset, 2).map(one_in_ten)
    ),
    "objects": lambda p: ad.FileDataset(ad.Dataset.list_files(f"{p}/*.one", shuffle=False).repeat(4)).map(one_in_ten),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", REPEATED)
def test_a_quota_is_used_up_at_the_same_element_behind_any_state(kind: str, tmp_path: Path) -> None:
    """Also where an element fails in each repetition."""
    for name in ("0.txt", "1.txt"):
        (tmp_path / name).write_text("".join(f"{value}\n" for value in range(30)))
    for value in range(30):
        (tmp_path / f"{value:02}.one").write_text(str(value))
    options = ad.Options(num_workers=0, errors=ad.ErrorPolicy(max_skipped=10))
    with ad.Runtime(options):
        dataset = REPEATED[kind](tmp_path).with_options(options)

        def rest(it: ad.PipelineIterator) -> list[int]:
            found: list[int] = []
            with it, pytest.raises(ad.TooManyErrorsError) as caught:
                found.extend(map(int, it))  # those in front of the error, too
            assert caught.value.skipped == 11
            return found

        whole = rest(dataset.iterator(epoch=0))
        for cut in range(len(whole) + 1):
            with dataset.iterator(epoch=0) as it:
                found = [int(next(it)) for _ in range(cut)]
                state = it.state_dict()
            assert found + rest(dataset.iterator(state=state)) == whole, cut


def one_in_ten(value: Any) -> Any:
    if int(value) % 10 == 0:
        raise ValueError("no")
    return value


@pytest.mark.parametrize("kind", ["records", "files"])
def test_files_of_another_size_end_at_their_turn(tmp_path: Path, kind: str) -> None:
    """Also of files that are read together, or at the same time: what is before them is delivered, and they count."""
    lines = []
    wrong = [number for number in range(16) if number % 5 == 3]
    for number in range(16):
        path = tmp_path / f"{number:02}"
        path.write_bytes(encode_many([b"%d" % number] * 200))
        lines.append(json.dumps({"url": str(path), "size": path.stat().st_size + (number in wrong)}))
    (tmp_path / "m").write_text("\n".join(lines) + "\n")
    names = ad.Dataset.from_manifest(tmp_path / "m", shuffle=False)
    ds = ad.FileDataset(names) if kind == "files" else ad.TFRecordDataset(names, num_parallel_reads=16)
    each = 1 if kind == "files" else 200
    for _ in range(5):
        with ad.Runtime() as runtime:
            with ds.with_options(ad.Options(errors=ad.ErrorPolicy(log_warning=False))).iterator() as it:
                assert len(list(it)) == (16 - len(wrong)) * each
                assert it.stats().skipped.shards == len(wrong)
            with ds.iterator() as it:
                assert len([next(it) for _ in range(3)]) == 3  # one of each file before the first wrong one
                with pytest.raises(ad.ObjectChangedError):
                    list(it)
            wait_until(lambda: runtime.submit(_used(runtime)).result() == (0, 0))


async def _used(runtime: ad.Runtime) -> tuple[int, int]:
    return runtime.budgets.used_bytes, runtime.budgets.slabs_in_use
