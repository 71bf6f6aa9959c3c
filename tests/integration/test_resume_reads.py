"""What a resume requests of files of each kind, by the server's journal: what is left, and little more."""

from __future__ import annotations

import functools
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import asyncdata as ad
from asyncdata.formats import json_lines
from asyncdata.formats.json_lines import parse_json
from asyncdata.runtime.state.document import with_checksum
from fake_gcs import FakeGCS, Latency, Profile
from tests.integration.resumed_reads import resumed
from tests.integration.shards import BUCKET, gs_storage, record, records, shard_bytes

pytestmark = pytest.mark.sampled

D = ad.Dataset

OBJECTS = 120
NAMES = [f"{number:03}.object" for number in range(OBJECTS)]
CONTENTS = [record(number, 0, number * 97 % 5000) if number % 40 else b"" for number in range(OBJECTS)]


@pytest.fixture
def server() -> Iterator[FakeGCS]:
    """A store with nothing in it."""
    with FakeGCS(buckets=[BUCKET]) as server:
        yield server


def options_of(server: FakeGCS) -> ad.Options:
    """For pipelines that read from it."""
    return ad.Options(storage=gs_storage(server), num_workers=0, memory_limit_bytes=256 << 20)


def files(suffix: str, *, shuffle: bool = False) -> ad.Dataset:
    """The names of all files of one kind."""
    return D.list_files(f"gs://{BUCKET}/*.{suffix}", shuffle=shuffle, seed=3)


OF_OBJECTS: dict[str, tuple[Callable[[], ad.Dataset], int]] = {
    "no shuffle": (lambda: ad.FileDataset(files("object")), 0),
    "one by one": (lambda: ad.FileDataset(files("object"), num_parallel_reads=None), 0),
    "batch": (lambda: ad.FileDataset(files("object")).map(len).batch(3), 0),
    "shuffle": (lambda: ad.FileDataset(files("object")).shuffle(16, seed=1), 2),
    "names": (
        lambda: ad.FileDataset([f"gs://{BUCKET}/{name}" for name in NAMES], with_url=True).shuffle(16, seed=1),
        2,
    ),
    "map": (lambda: ad.FileDataset(files("object", shuffle=True)).map(len).shuffle(16, seed=1), 2),
    "shard": (lambda: ad.FileDataset(files("object").shard(2, 1)).shuffle(16, seed=1), 2 + 16),
}
"""Pipelines of whole objects, and how many of those that were delivered may be read again."""


@pytest.mark.parametrize("kind", OF_OBJECTS)
@pytest.mark.parametrize("part", [0.2, 0.7])
def test_of_whole_objects_those_that_are_left_are_requested(kind: str, part: float, server: FakeGCS) -> None:
    """Once each; behind `shuffle`, also those that it draws again, and behind `shard` those that were open."""
    for name, content in zip(NAMES, CONTENTS, strict=True):
        server.put(BUCKET, name, content)
    make, again = OF_OBJECTS[kind]
    count = int(part * (40 if kind == "batch" else 60 if kind == "shard" else OBJECTS))
    _, left, rest, requests = resumed(server, make(), options_of(server), count)
    assert list(map(str, rest)) == list(map(str, left))
    assert len(requests) <= len(left) * (3 if kind == "batch" else 1) + again, len(left)
    assert len({entry.object for entry in requests}) >= len(requests) - again, "some were requested in several parts"


def json_line(shard: int, index: int) -> bytes:
    """A value with line ends and brackets in it, in a line that is as long as its place says."""
    return json.dumps({"at": [shard, index], "text": "[\n" * (index * 31 % 400)}).encode() + b"\n"


def csv_line(shard: int, index: int) -> bytes:
    """A row whose quoted field has lines of its own."""
    text = 'a,""b""\r\n' * (index * 31 % 100)
    return f'{shard},"{text}",{index}\n'.encode()


@functools.cache
def tar_file(shard: int, count: int) -> bytes:
    """Samples of two members each, some of which have long names."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for index in range(count):
            for extension, size in (("bin", index * 31 % 1500), ("txt", 9)):
                member = tarfile.TarInfo(f"{'x' * (index % 150)}{index}.{extension}")
                content = record(shard, index, size)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


@functools.cache
def parquet_file(shard: int, count: int) -> bytes:
    """Rows in groups of 250."""
    parquet = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    rows = [{"at": index, "text": record(shard, index, 400)} for index in range(count)]
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(
        arrow.Table.from_pylist(rows), file, row_group_size=250, compression="none", use_dictionary=False
    )
    return file.getvalue()


FILES: dict[str, Callable[[int, int], bytes]] = {
    "jsonl": lambda shard, count: b"".join(json_line(shard, index) for index in range(count)),
    "csv": lambda shard, count: b"file,text,n\n" + b"".join(csv_line(shard, index) for index in range(count)),
    "tar": tar_file,
    "parquet": parquet_file,
}
PARTS: dict[str, tuple[str, Callable[[ad.Dataset], ad.Dataset], int]] = {
    "JSON lines": ("jsonl", lambda names: ad.JsonLinesDataset(names, num_parallel_reads=2), 0),
    "JSON lines, shuffle": ("jsonl", lambda names: ad.JsonLinesDataset(names, num_parallel_reads=2), 500),
    "CSV, shuffle": ("csv", lambda names: ad.CsvDataset(names, [0, "", 0], header=True, num_parallel_reads=2), 500),
    "CSV by header": ("csv", lambda names: ad.CsvDataset(names, {"n": 0, "text": ""}, header=True), 0),
    "CSV by header, shuffle": ("csv", lambda names: ad.CsvDataset(names, {"n": 0, "text": ""}, header=True), 500),
    "tar": ("tar", lambda names: ad.TarDataset(names, num_parallel_reads=2), 0),
    "tar, shuffle": ("tar", lambda names: ad.TarDataset(names, num_parallel_reads=2), 500),
    "tar, one by one": ("tar", lambda names: ad.TarDataset(names).prefetch(2), 0),
    "Parquet": ("parquet", lambda names: ad.ParquetDataset(names, num_parallel_reads=2), 0),
    "Parquet, one by one": ("parquet", lambda names: ad.ParquetDataset(names).batch(3).unbatch(), 0),
}
"""Pipelines of four files of 3,000 elements each, and the size of the shuffle's buffer."""


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("part", [0.45, 0.9])
def test_little_more_is_read_than_what_is_left(kind: str, part: float, server: FakeGCS) -> None:
    """Of open files what is in front of their marks, of a buffer the gaps, and 1,024 outputs that are drawn again."""
    suffix, make, buffer = PARTS[kind]
    sizes = []
    for shard in range(4):
        content = FILES[suffix](shard, 3000)
        sizes.append(len(content))
        server.put(BUCKET, f"{shard}.{suffix}", content)
    dataset = make(files(suffix))
    dataset = dataset.shuffle(buffer, seed=1) if buffer else dataset
    _, left, rest, requests = resumed(server, dataset, options_of(server), int(part * 12_000))
    assert list(map(str, rest)) == list(map(str, left))
    sent = sum(entry.sent for entry in requests)
    again = 2 * (1024 + 3 * buffer) if buffer else 1024
    least = len(left) / 12_000 * sum(sizes)
    assert sent <= least + again / 12_000 * sum(sizes) + 2 * (1 << 18), (sent, least, sizes)


def test_lines_among_those_of_a_buffer_are_not_parsed_again(server: FakeGCS, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in gaps that are read is passed over."""
    for shard in range(2):
        server.put(BUCKET, f"{shard}.jsonl", FILES["jsonl"](shard, 3000))
    parsed: list[bytes] = []

    def noted(line: bytes | memoryview) -> object:
        parsed.append(bytes(line))
        return parse_json(line)

    dataset = ad.JsonLinesDataset(files("jsonl")).shuffle(1500, seed=1)
    with ad.Runtime(options_of(server)), dataset.iterator() as it:
        for _ in range(4500):
            next(it)
        state = json.loads(json.dumps(it.state_dict()))
        left = list(it)
    with monkeypatch.context() as patch, ad.Runtime(options_of(server)):
        patch.setattr(json_lines, "parse_json", noted)
        assert list(dataset.iterator(state=state)) == left
    assert len(parsed) <= len(left) + 2 * 1024, "outputs behind the mark of the shuffle, lines behind that of the file"


@pytest.mark.parametrize("is_before", [False, True])
def test_rows_have_the_columns_that_the_header_names(is_before: bool, tmp_path: Path) -> None:
    """Behind a state, too; and behind those of an earlier version, which do not contain what the header says."""
    (tmp_path / "a.csv").write_bytes(FILES["csv"](0, 3000))
    dataset = ad.CsvDataset(str(tmp_path / "a.csv"), {"n": 0, "file": 0}, header=True)
    with ad.Runtime(ad.Options(num_workers=0)):
        with dataset.iterator() as it:
            for _ in range(2500):
                next(it)
            state = it.state_dict()
            rest = list(it)
        text = json.dumps(state["state"])
        assert '"columns"' in text
        if is_before:
            state = with_checksum({**state, "state": json.loads(text.replace('"columns"', '"before"'))})
        assert list(dataset.iterator(state=state)) == rest
        assert rest[0] == {"n": 2500, "file": 0}


JOINED: dict[str, Callable[[ad.Dataset, ad.Dataset], ad.Dataset]] = {
    "concatenate": lambda a, b: a.concatenate(b),
    "sample_from_datasets": lambda a, b: D.sample_from_datasets([a, b], seed=2),
    "choose_from_datasets": lambda a, b: D.choose_from_datasets([a, b], D.range(2).repeat(1800)),
    "enumerate": lambda a, _: a.enumerate().map(lambda number, element: (element, number)[0]),
    "ignore_errors": lambda a, _: a.ignore_errors(),
    "repeat": lambda a, _: a.repeat(2),
    "sample_from_datasets, repeat": lambda a, b: D.sample_from_datasets([a.repeat(), b.repeat()], seed=2).take(3600),
}
"""Steps between files and `map`."""


@pytest.mark.parametrize("step", JOINED)
def test_a_function_behind_joined_files_is_not_called_for_what_was_delivered(step: str, tmp_path: Path) -> None:
    """Only for what is left, and for what the shuffle draws again behind its mark."""
    for shard, name in enumerate(("a.first", "b.second")):
        (tmp_path / name).write_bytes(shard_bytes(records(shard, 1800, 50)))
    calls: list[bytes] = []

    def noted(element: bytes) -> bytes:
        calls.append(element)
        return element

    one, other = (ad.TFRecordDataset(D.list_files(f"{tmp_path}/*.{kind}")) for kind in ("first", "second"))
    dataset = JOINED[step](one, other).map(noted).shuffle(300, seed=1)
    count = 1040
    with ad.Runtime(ad.Options(num_workers=0)):
        with dataset.iterator() as it:
            for _ in range(count):
                next(it)
            state = json.loads(json.dumps(it.state_dict()))
            left = list(it)
        calls.clear()
        assert list(dataset.iterator(state=state)) == left
    assert len(calls) <= len(left) + count - 1024
    assert "read from where they lie" in str(ad.state.describe(state))


def test_a_function_inside_datasets_is_called_for_little_that_was_delivered(tmp_path: Path) -> None:
    """For none of what has left the shuffle; only for outputs behind a mark of the datasets of unknown lengths."""
    for shard in range(4):
        (tmp_path / f"{shard}").write_bytes(shard_bytes(records(shard, 2500, 50)))
    calls: list[bytes] = []

    def noted(element: bytes) -> bytes:
        calls.append(element)
        return element

    files = D.list_files(f"{tmp_path}/*", shuffle=False)
    dataset = files.interleave(lambda path: ad.TFRecordDataset(path).map(noted), 2).shuffle(1000, seed=1)
    with ad.Runtime(ad.Options(num_workers=0)):
        with dataset.iterator() as it:
            for _ in range(8000):
                next(it)
            state = json.loads(json.dumps(it.state_dict()))
            left = list(it)
        calls.clear()
        assert list(dataset.iterator(state=state)) == left
    assert len(calls) <= len(left) + 2048
    assert "read from where they lie" in str(ad.state.describe(state))


def generated() -> Iterator[bytes]:
    """Nothing can be read of it by itself."""
    return (b"%d" % number for number in range(4500))


MADE_AGAIN: dict[str, Callable[[Path], ad.Dataset]] = {
    "generator": lambda _: D.from_generator(generated),
    "zip": lambda p: D.zip((ad.TFRecordDataset(f"{p}/0"), ad.TFRecordDataset(f"{p}/1"))).map(lambda first, _: first),
    "compressed": lambda p: ad.TFRecordDataset(f"{p}/0.gz", "GZIP"),
    "sharded": lambda p: ad.TFRecordDataset([f"{p}/0.gz", f"{p}/0.gz"], "GZIP").shard(2, 1),
    "batches": lambda p: ad.TFRecordDataset(f"{p}/0").batch(3).unbatch(),
    "functions inside that differ": lambda p: D.list_files(f"{p}/?", shuffle=False).interleave(
        lambda path: ad.TFRecordDataset(path).map(lambda element: element or path), 2
    ),
}
"""Inputs whose elements have to be made again, in front of functions that need not be called again."""

MAPPED: dict[str, Callable[[ad.Dataset, Callable[[bytes], bytes]], ad.Dataset]] = {
    "inline": lambda ds, function: ds.map(function),
    "ahead": lambda ds, function: ds.map(bytes).prefetch(200).map(function, 3, executor="thread").prefetch(100),
    "several": lambda ds, function: ds.map(function).with_options(ad.Options(state_history=4)).map(bytes, 2),
    "zipped": lambda ds, function: D.zip((D.range(9999), ds.map(function, 2, executor="thread"))),
    "zipped twice": lambda ds, function: D.zip(
        (D.zip({"a": ds.map(function), "b": D.range(9998)}).map(lambda both: both["a"]), D.range(9999))
    ).prefetch(10),
}


@pytest.mark.sampled
@pytest.mark.parametrize("mapped", MAPPED)
@pytest.mark.parametrize("kind", MADE_AGAIN)
def test_functions_are_not_called_for_what_has_left_a_buffer(kind: str, mapped: str, tmp_path: Path) -> None:
    """Whatever made the elements in front of them, and however often the pipeline is resumed."""
    for shard in range(2):
        (tmp_path / f"{shard}").write_bytes(shard_bytes(records(shard, 4500, 20)))
    (tmp_path / "0.gz").write_bytes(shard_bytes(records(0, 4500, 20), "GZIP"))
    calls: list[bytes] = []

    def noted(element: bytes) -> bytes:
        calls.append(element)
        return element

    dataset = MAPPED[mapped](MADE_AGAIN[kind](tmp_path), noted).shuffle(300, seed=1).map(lambda *each: str(each))
    with ad.Runtime(ad.Options(num_workers=0, num_threads=2)):
        elements = list(dataset.iterator(epoch=2))
        state = None
        for begin, end in itertools.pairwise((0, 3500, 3600, len(elements) - 200)):
            with dataset.iterator(epoch=None if state else 2, state=state) as it:
                assert [next(it) for _ in range(begin, end)] == elements[begin:end]
                state = json.loads(json.dumps(it.state_dict()))
            calls.clear()
            assert list(dataset.iterator(state=state)) == elements[end:]
            # Outputs are drawn again behind a mark.
            assert len(calls) <= len(elements) - end + 1024


@pytest.mark.parametrize("any_order", [False, True])
def test_rows_of_the_buffer_are_requested_before_its_input(server: FakeGCS, *, any_order: bool) -> None:
    """The first elements wait for them, and would wait for long ranges that were requested first."""
    for shard in range(8):
        server.put(BUCKET, f"{shard}.tfrecord", shard_bytes(records(shard, 1000, 4000)))
    names = D.list_files(f"gs://{BUCKET}/*.tfrecord", shuffle=False)
    dataset = names.interleave(ad.TFRecordDataset, 8, deterministic=not any_order).shuffle(1000, seed=1)
    server.profile = Profile(latency=Latency(kind="fixed", median_s=0.1))
    _, left, rest, requests = resumed(server, dataset, options_of(server), 2000)
    assert sorted(rest) == sorted(left)
    first = [entry for entry in requests if entry.started_s < requests[0].started_s + 0.09]
    assert len(first) >= 8
    lengths = [1 + int(end) - int(begin) for entry in first for begin, _, end in [entry.range[6:].partition("-")]]
    assert sorted(lengths)[len(lengths) * 3 // 4] < 64_000, "most are of single rows"


def test_rows_of_many_sources_are_requested_one_source_after_the_other(server: FakeGCS) -> None:
    """The input of the buffer does not wait for the last of them."""
    for shard in range(5):
        server.put(BUCKET, f"{shard}.tfrecord", shard_bytes(records(shard, 200, 4000)))
    sources = [ad.TFRecordDataset(f"gs://{BUCKET}/{shard}.tfrecord") for shard in range(5)]
    dataset = D.sample_from_datasets(sources, seed=1).shuffle(300, seed=1)
    _, left, rest, _ = resumed(server, dataset, options_of(server), 400)
    assert list(rest) == list(left)
