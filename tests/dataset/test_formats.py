"""Datasets of files through the fluent handle: names, arguments, many files, small memory, compression, pickling."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import asyncdata as ad
from asyncdata.formats.tfrecord import encode_many
from asyncdata.planner.element_spec import spec_of
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.integration.shards import BUCKET, gs_storage
from tests.specs import agrees
from tests.zstandard import zstd

PACK: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "GZIP": gzip.compress,
    "ZLIB": zlib.compress,
    "ZSTD": zstd.compress,
}


@pytest.fixture(autouse=True)
def small_runtime() -> Iterator[ad.Runtime]:
    """One Runtime per test, without worker processes."""
    with ad.Runtime(ad.Options(num_workers=0, memory_limit_bytes=32 << 20, chunk_bytes=64 << 10)) as runtime:
        yield runtime


def tar_of(files: dict[str, bytes]) -> bytes:
    """A tar file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def parquet_of(columns: dict[str, Any]) -> bytes:
    """A Parquet file with row groups of three."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=3)
    return file.getvalue()


COUNT = 7
FORMATS: dict[str, tuple[Callable[..., ad.Dataset], Callable[[int], bytes], Callable[[int], list[Any]]]] = {
    "tfrecord": (
        ad.TFRecordDataset,
        lambda n: encode_many([b"%d-%d" % (n, i) for i in range(COUNT)]),
        lambda n: [b"%d-%d" % (n, i) for i in range(COUNT)],
    ),
    "lines": (
        ad.TextLineDataset,
        lambda n: b"\n".join(b"%d-%d" % (n, i) for i in range(COUNT)),
        lambda n: [b"%d-%d" % (n, i) for i in range(COUNT)],
    ),
    "fixed": (
        lambda names, **rest: ad.FixedLengthRecordDataset(names, 3, header_bytes=2, **rest),
        lambda n: b"hh" + b"".join(b"%d-%d" % (n, i) for i in range(COUNT)),
        lambda n: [b"%d-%d" % (n, i) for i in range(COUNT)],
    ),
    "csv": (
        lambda names, **rest: ad.CsvDataset(names, [np.int64, b"", 0.5], header=True, **rest),
        lambda n: b"a,b,c\n" + b"".join(b'%d,"%d\n",\n' % (n, i) for i in range(COUNT)),
        lambda n: [(n, b"%d\n" % i, 0.5) for i in range(COUNT)],
    ),
    "json": (
        ad.JsonLinesDataset,
        lambda n: b"\n\n".join(json.dumps({"n": n, "i": i}).encode() for i in range(COUNT)),
        lambda n: [{"n": n, "i": i} for i in range(COUNT)],
    ),
    "json in workers": (
        lambda names, **rest: ad.JsonLinesDataset(names, num_parallel_calls=2, **rest),
        lambda n: b"\n\n".join(json.dumps({"n": n, "i": i}).encode() for i in range(COUNT)),
        lambda n: [{"n": n, "i": i} for i in range(COUNT)],
    ),
    "tar": (
        ad.TarDataset,
        lambda n: tar_of({f"{i}.{e}": b"%d" % n for i in range(COUNT) for e in ("a", "b")}),
        lambda n: [{"__key__": str(i), "a": b"%d" % n, "b": b"%d" % n} for i in range(COUNT)],
    ),
    "parquet": (
        ad.ParquetDataset,
        lambda n: parquet_of({"n": [n] * COUNT, "text": [str(i) for i in range(COUNT)]}),
        lambda n: [{"n": n, "text": str(i)} for i in range(COUNT)],
    ),
    "files": (ad.FileDataset, lambda n: b"content %d" % n, lambda n: [b"content %d" % n]),
}
BY_NAME = pytest.mark.parametrize("name", FORMATS)
COMPRESSED = pytest.mark.parametrize("name", [name for name in FORMATS if name != "parquet"])


def in_turn(lists: list[list[Any]], cycle: int) -> list[Any]:
    """tf.data's order of an interleave with block length 1 over lists of one length."""
    found = []
    for start in range(0, len(lists), cycle):
        group = lists[start : start + cycle]
        found += [items[i] for i in range(len(group[0])) for items in group]
    return found


@pytest.mark.sampled
@BY_NAME
def test_one_file_many_files_and_datasets_of_names(name: str, tmp_path: Path) -> None:
    """A name, a path, a list, a Dataset: the same elements, one file after the other or in turn."""
    make, content, elements = FORMATS[name]
    paths = [tmp_path / f"{n}.file" for n in range(4)]
    for n, path in enumerate(paths):
        path.write_bytes(content(n))
    lists = [elements(n) for n in range(4)]
    flat = [element for items in lists for element in items]
    assert list(make(str(paths[0]))) == lists[0]
    assert list(make(paths[1])) == lists[1]
    assert list(make([str(paths[2])])) == lists[2]
    assert list(make([])) == []
    urls = [str(path) for path in paths]
    assert list(make(urls)) == flat
    listed = ad.Dataset.list_files(f"{tmp_path}/*.file", shuffle=False)
    assert list(make(listed)) == flat
    assert list(make(listed, num_parallel_reads=2)) == in_turn(lists, 2)
    assert list(listed.interleave(make, cycle_length=4)) == in_turn(lists, 4)
    copied = pickle.loads(pickle.dumps(make(urls)))
    assert list(copied) == flat
    assert list(make(urls).skip(len(lists[0])).take(2)) == flat[len(lists[0]) :][:2]


@pytest.mark.sampled
@COMPRESSED
@pytest.mark.parametrize("compression", ["GZIP", "ZLIB", "ZSTD"])
def test_every_format_compressed(name: str, compression: str) -> None:
    """Compressed files give the same; a file that is not compressed so says what it is."""
    make, content, elements = FORMATS[name]
    memory = fsspec.filesystem("memory")
    memory.pipe("/packed.file", PACK[compression](content(5)))
    assert list(make("memory://packed.file", compression_type=compression)) == elements(5)
    memory.pipe("/packed.file", content(5))
    with pytest.raises(ad.CompressionError, match=f"is not {compression}.*compression_type") as caught:
        list(make("memory://packed.file", compression_type=compression))
    error = caught.value
    assert (error.url, error.offset, error.record) == ("memory://packed.file", 0, 0)


@BY_NAME
def test_a_truncated_file_is_an_error_that_names_it(name: str) -> None:
    """Half a file gives an error with URL, stage and offset, or, where half a file is one too, fewer elements."""
    make, content, elements = FORMATS[name]
    data = content(3)
    fsspec.filesystem("memory").pipe("/half.file", data[: len(data) * 2 // 3])
    if name in ("lines", "files"):
        assert len(list(make("memory://half.file"))) <= len(elements(3))
        return
    with pytest.raises(ad.DataError) as caught:
        list(make("memory://half.file"))
    assert caught.value.url == "memory://half.file"
    assert caught.value.offset is not None
    assert caught.value.stage


def test_large_elements_in_little_memory(tmp_path: Path) -> None:
    """Lines and members of a few megabytes pass through a limit not much larger, and batch without a copy."""
    source = random.Random(1)
    lines = [bytes([97 + n % 26]) * source.randint(0, 3_000_000) for n in range(30)]
    (tmp_path / "long.txt").write_bytes(b"\n".join(lines))
    (tmp_path / "big.tar").write_bytes(tar_of({f"{n:03d}.bin": line for n, line in enumerate(lines)}))
    for number, line in enumerate(ad.TextLineDataset(str(tmp_path / "long.txt"))):
        assert line == lines[number]
    for number, sample in enumerate(ad.TarDataset(str(tmp_path / "big.tar"))):
        assert sample["bin"] == lines[number]
    batches = list(ad.TextLineDataset(str(tmp_path / "long.txt")).batch(2))
    assert [bytes(item) for batch in batches for item in batch] == lines


@pytest.mark.parametrize(
    ("default", "message"),
    [
        (1 << 31, r"the default 2147483648 does not fit int32, .* pass np\.int64\(2147483648\)"),
        ([-(1 << 31) - 1], "does not fit int32"),
        (1e39, r"does not fit float32, .* pass np\.float64\(1e\+39\)"),
    ],
)
def test_a_default_that_does_not_fit_its_column(default: Any, message: str) -> None:
    """It is refused with what to pass instead, and not stored as another number."""
    with pytest.raises(ValueError, match=message):
        ad.CsvDataset("a", [default])
    for fits in (-(1 << 31), 3.4028235e38, float("inf"), float("nan"), np.int64(1 << 31), np.float64(1e39)):
        ad.CsvDataset("a", [fits])


@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 20])
@pytest.mark.parametrize("damage", ["checksum", "end"])
def test_damage_behind_the_end_of_a_compressed_archive(damage: str, chunk_bytes: int, tmp_path: Path) -> None:
    """The checksum is behind the block of zeros that ends it: all samples come, and then the error."""
    archive = tar_of({f"{n}.bin": bytes([n]) * 5000 for n in range(3)}) + bytes(100_000)
    packed = gzip.compress(archive)
    damaged = packed[:-8] + bytes(8) if damage == "checksum" else packed[:-3]
    (tmp_path / "a.tar.gz").write_bytes(damaged)
    ds = ad.TarDataset(str(tmp_path / "a.tar.gz"), "GZIP").with_options(ad.Options(chunk_bytes=chunk_bytes))
    found: list[str] = []
    with pytest.raises(ad.CompressionError, match=r"a\.tar\.gz"):
        found.extend(sample["__key__"] for sample in ds)
    assert found == ["0", "1", "2"]


@pytest.mark.sampled
@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("listed", [False, True])
def test_whole_files_around_the_size_of_a_chunk(compression: str, listed: bool) -> None:
    """One element, whether the size is known before the first bytes are here, or comes with them."""
    fs = fsspec.filesystem("memory")
    source = random.Random(4)
    for size in (0, 1, 65_535, 65_536, 65_537, 131_072, 200_001, 1_000_000):
        content = source.randbytes(size)
        fs.pipe("/whole/x", PACK[compression or None](content))
        names: Any = ad.Dataset.list_files("memory://whole/*", shuffle=False) if listed else "memory://whole/x"
        assert list(ad.FileDataset(names, compression_type=compression)) == [content]


def test_files_from_a_bucket_in_bad_weather() -> None:
    """Small reads, resets and 503s: every format still gives all of it, in order."""
    faults = (
        Rule(fault=Fault(kind="status", status=503), every=5),
        Rule(fault=Fault(kind="reset", after_bytes=100), every=7),
    )
    with FakeGCS(buckets=[BUCKET], profile=Profile(rules=faults)) as server:
        retry = ad.RetryOptions(initial_delay_s=0.001, max_delay_s=0.01)
        options = ad.Options(
            storage=gs_storage(server), retry=retry, num_workers=0, memory_limit_bytes=32 << 20, chunk_bytes=64 << 10
        )
        with ad.Runtime(options):
            for name, (make, content, elements) in FORMATS.items():
                for n in range(3):
                    server.put(BUCKET, f"{name}/{n}", content(n))
                listed = ad.Dataset.list_files(f"gs://{BUCKET}/{name}/*", shuffle=False)
                assert list(make(listed)) == [element for n in range(3) for element in elements(n)]


def test_csv_columns_by_name() -> None:
    """Names come from each file's header, whatever its order, or are given; rows are dicts of the wanted ones."""
    memory = fsspec.filesystem("memory")
    memory.pipe({"/n/0.csv": b'id,"na""me",x\n1,a,0.5\n', "/n/1.csv": b'\xef\xbb\xbfx,id,"na""me"\r\n1.5,2,b'})
    urls = ["memory://n/0.csv", "memory://n/1.csv"]
    by_header = ad.CsvDataset(urls, {'na"me': "", "id": np.int64}, header=True)
    assert list(by_header) == [{'na"me': b"a", "id": 1}, {'na"me': b"b", "id": 2}]
    assert list(next(iter(by_header.batch(2)))) == ['na"me', "id"]
    assert by_header.element_spec == {'na"me': ad.BytesSpec(), "id": ad.ArraySpec((), np.int64)}
    memory.pipe("/n/2.csv", b"1,a,0.5\n2,b,\n")
    given = ad.CsvDataset("memory://n/2.csv", {"x": 9.0, "id": int}, column_names=["id", "name", "x"])
    assert list(given) == [{"x": 0.5, "id": 1}, {"x": 9.0, "id": 2}]
    all_named = ad.CsvDataset("memory://n/2.csv", [0, "", 9.0], column_names=["id", "name", "x"])
    assert list(all_named.take(1)) == [{"id": 1, "name": b"a", "x": 0.5}]
    some = ad.CsvDataset("memory://n/2.csv", [0, 9.0], select_cols=[0, 2], column_names=["id", "name", "x"])
    assert list(some.take(1)) == [{"id": 1, "x": 0.5}]
    assert list(ad.CsvDataset(urls[:1], {"x": 0.0}, header=True, column_names=["id", "name", "x"])) == [{"x": 0.5}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"id,y\n1,2\n", "line 1: the header has no column 'x'; it has 'id', 'y'"),
        (b"x,x\n1,2\n", "line 1: the header has 2 columns 'x'; it has 'x', 'x'"),
        (b"", "the file is empty, but its first line should be a header"),
        (b"id,x\n1\n", "line 2: at least 2 fields are expected, but there are 1"),
    ],
)
def test_headers_that_do_not_fit(text: bytes, message: str) -> None:
    """A file without the wanted columns is an error that names what it has."""
    fsspec.filesystem("memory").pipe("/h.csv", text)
    with pytest.raises(ad.DataError, match=re.escape(message)):
        list(ad.CsvDataset("memory://h.csv", {"x": 0.0}, header=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"x": 0},), "pass header=True"),
        (({"x": 0}, None, True, ",", True, "", [0]), "do not pass select_cols or exclude_cols"),
    ],
)
def test_names_of_columns_that_cannot_be(arguments: tuple[Any, ...], message: str) -> None:
    """Names need a place, and one only."""
    with pytest.raises(ValueError, match=message):
        ad.CsvDataset("memory://h.csv", *arguments)
    for names in (["a"], ["a", "a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="column_names must"):
            ad.CsvDataset("memory://h.csv", [0, 0], column_names=names)
    with pytest.raises(ValueError, match="'x', which is not in column_names"):
        ad.CsvDataset("memory://h.csv", {"x": 0}, column_names=["y"])


@pytest.mark.parametrize(
    ("exclude", "rows"),
    [
        ([0], [(2, 3), (5, 6)]),
        ([2, 1], [(1,), (4,)]),
        ([9, 1, 1], [(1, 3), (4, 6)]),
        ([3], [(1, 2, 3), (4, 5, 6)]),
        ([4, 2000], [(1, 2, 3), (4, 5, 6)]),
        ([], [(1, 2, 3), (4, 5, 6)]),
    ],
)
def test_columns_of_csv_that_are_left_out(exclude: list[int], rows: list[tuple[int, ...]]) -> None:
    """In any order, as in tf.data; a number behind the last column leaves nothing out."""
    fsspec.filesystem("memory").pipe("/left.csv", b"1,2,3\n4,5,6\n")
    assert list(ad.CsvDataset("memory://left.csv", [int] * len(rows[0]), exclude_cols=exclude)) == rows


def test_all_columns_of_csv_if_none_is_left_out() -> None:
    """A row with a field more is then an error, as without the argument."""
    fsspec.filesystem("memory").pipe("/left.csv", b"1,2,3\n")
    with pytest.raises(ad.CorruptRecordError, match="2 fields are expected, but there are 3"):
        list(ad.CsvDataset("memory://left.csv", [int, int], exclude_cols=[]))


def test_columns_of_csv() -> None:
    """Defaults and dtypes as tf.data takes them; what cannot be a column is refused at once."""
    fsspec.filesystem("memory").pipe("/c.csv", b"1,2,3,4,x\n,,,,\n")
    defaults = [0, [7], np.array([8], np.int64), np.float64(0.5), "none"]
    rows = list(ad.CsvDataset("memory://c.csv", defaults))
    assert rows == [(1, 2, 3, 4.0, b"x"), (0, 7, 8, 0.5, b"none")]
    assert [value.dtype.name for value in rows[0][:4]] == ["int32", "int32", "int64", "float64"]
    batch = next(iter(ad.CsvDataset("memory://c.csv", [0.0, ""], select_cols=[1, 4]).batch(2)))
    assert batch[0].dtype == np.float32
    assert list(batch[1]) == [b"x", b""]
    assert ad.CsvDataset(["a", "b"], [int, bytes]).element_spec == ad.CsvDataset("a", [int, bytes]).element_spec
    for name, dtype in {"int32": "int32", "int64": "int64", "float": "float32", "double": "float64"}.items():
        assert ad.CsvDataset("a", [name]).element_spec == (ad.ArraySpec((), dtype),)
    with pytest.raises(ad.CorruptRecordError, match="column 4"):
        list(ad.CsvDataset("memory://c.csv", ["string"], select_cols=[4]))
    assert list(ad.CsvDataset("memory://c.csv", [["string"]], select_cols=[4])) == [(b"x",), (b"string",)]
    for wrong in ([np.int8], [None], [1 + 2j], [], [[1, 2]], [True]):
        with pytest.raises((TypeError, ValueError)):
            ad.CsvDataset("memory://c.csv", wrong)
    arguments: list[dict[str, Any]] = [
        {"field_delim": ",,"},
        {"field_delim": "\n"},
        {"field_delim": '"'},
        {"select_cols": [1, 0]},
        {"select_cols": [0]},
        {"select_cols": [-1, 0]},
        {"select_cols": [0, 1], "exclude_cols": [2]},
        {"compression_type": "gzip"},
        {"num_parallel_reads": 0},
    ]
    for argument in arguments:
        with pytest.raises(ValueError, match=r"must|either|names"):
            ad.CsvDataset("memory://c.csv", [0, 0], **argument)


def test_arguments_that_make_no_sense() -> None:
    """They are refused when the dataset is made, not when it runs."""
    for record, header in ((0, 0), (-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="must be at least"):
            ad.FixedLengthRecordDataset("f", record, header)
    with pytest.raises(TypeError, match="list of str"):
        ad.ParquetDataset("f", columns="name")
    with pytest.raises(ValueError, match="at least one column"):
        ad.ParquetDataset("f", columns=[])
    with pytest.raises(ValueError, match="operator"):
        ad.ParquetDataset("f", filters=[("a", "~", 1)])


def test_a_bad_json_line_in_workers_names_the_record() -> None:
    """Parsed in workers or in a thread, the error names file, offset and record."""
    fsspec.filesystem("memory").pipe("/bad.jsonl", b'{"a": 1}\n\n{"a": }\n')
    for calls in (None, 2):
        with pytest.raises(ad.CorruptRecordError, match="not JSON") as caught:
            list(ad.JsonLinesDataset("memory://bad.jsonl", num_parallel_calls=calls))
        assert (caught.value.url, caught.value.record, caught.value.offset) == ("memory://bad.jsonl", 1, 10)


def test_bad_lines_and_rows_may_be_left_out() -> None:
    """With `ignore_errors` a bad line or row is left out by itself, a file that cannot be read any further ends."""
    memory = fsspec.filesystem("memory")
    memory.pipe({"/skip/0.jsonl": b"1\n{\n2\n", "/skip/1.jsonl": b"[\n3\n\n}\n", "/skip/2.jsonl": b"4\n"})
    listed = ad.Dataset.list_files("memory://skip/*.jsonl", shuffle=False)
    assert list(ad.JsonLinesDataset(listed).ignore_errors()) == [1, 2, 3, 4]
    rows = b'1,"a"\n2,"b""b"\nx,"c""c"\n4\n5,"e""e"\n6,"f"g\n7,"h"\n'
    memory.pipe({"/skip/0.csv": rows, "/skip/1.csv": b'8,"i"'})
    with (
        ad.CsvDataset(["memory://skip/0.csv", "memory://skip/1.csv"], [int, bytes]).ignore_errors().iterator() as found
    ):
        assert list(found) == [(1, b"a"), (2, b'b"b'), (5, b'e"e'), (8, b"i")]
    skipped = found.stats().skipped
    assert (skipped.elements, skipped.shards) == (2, 1)


@pytest.mark.parametrize("parallel", [None, 2])
@pytest.mark.parametrize("step", ["map", "batch"])
def test_an_error_has_its_place_wherever_functions_run(step: str, parallel: int | None, tmp_path: Path) -> None:
    """A parser's error and a batch that cannot be, in this process and in workers: URL, offset, record and stage."""
    path = tmp_path / "records"
    with ad.TFRecordWriter(path) as writer:
        writer.write_many([b"one", b"three"])
    parse = ad.parse_example({"x": ad.VarLenFeature(int)})
    records = ad.TFRecordDataset(path).skip(1)
    ds = records.map(parse, parallel)
    if step == "batch":
        ds = ad.TFRecordDataset(path).map(lambda record: np.zeros(len(record)), parallel).batch(2)
    with pytest.raises(ad.AsyncdataError) as caught:
        list(ds.with_options(ad.Options(num_workers=0)))
    error = caught.value
    assert (error.url, error.record, error.offset) == (str(path), 1, 19)
    assert step in str(error.stage)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_the_spec_of_parquet_rows_is_read_from_a_footer(many: bool) -> None:
    """Every kind of column has the spec of its elements, behind other steps too; options of any step open the file."""
    table = pa.table(
        {
            "i": pa.array([1, 2], pa.int16()),
            "f": pa.array([0.5, None]),
            "b": [True, False],
            "s": ["a", "b"],
            "d": pa.array(["x", "x"]).dictionary_encode(),
            "y": [b"a", b"b"],
            "t": pa.array([1, 2], pa.timestamp("us")),
            "l": [[1, 2], [3]],
            "v": pa.array([[1.0, 2.0]] * 2, pa.list_(pa.float32(), 2)),
            "o": [{"k": 1, "w": "a"}] * 2,
            "u": [[["a"]], [[]]],
        }
    )
    file = io.BytesIO()
    pq.write_table(table, file)
    with FakeGCS(buckets=[BUCKET]) as server:
        server.put(BUCKET, "x/0.parquet", file.getvalue())
        options = ad.Options(num_workers=0, storage=gs_storage(server))
        names: Any = f"gs://{BUCKET}/x/0.parquet"
        ds: ad.Dataset = ad.ParquetDataset(names)
        if many:
            ds = ad.ParquetDataset(ad.Dataset.list_files(f"gs://{BUCKET}/x/*"), num_parallel_reads=2)
        ds = ds.take(5).prefetch(1).with_options(options)
        spec = ds.element_spec
        assert spec["i"] == ad.ArraySpec((), np.int16)
        assert spec["o"] == {"k": ad.ArraySpec((), np.int64), "w": ad.StrSpec()}
        assert {name for name, leaf in spec.items() if leaf is None} <= {"l", "u", "v"}
        for element in ds:
            assert agrees(spec, spec_of(element)), (spec, spec_of(element))
        one = ad.ParquetDataset(names, columns=["v", "l", "s"]).with_options(options)
        vectors, lists = ad.ArraySpec((2,), np.float32), ad.ArraySpec((None,), np.int64)
        assert one.element_spec == {"v": vectors, "l": lists, "s": ad.StrSpec()}
        assert one.map(str).element_spec is None


def test_a_spec_of_parquet_that_cannot_be_read_says_why() -> None:
    """Asking is reading: what is not there, or not Parquet, is the error that iterating would be."""
    fsspec.filesystem("memory").pipe("/none.parquet", b"nothing of the kind")
    with pytest.raises(ad.BrokenFrameError, match="not a Parquet file"):
        _ = ad.ParquetDataset("memory://none.parquet").element_spec
    with pytest.raises(ad.ObjectNotFoundError):
        _ = ad.ParquetDataset(["memory://nowhere.parquet", "memory://none.parquet"]).batch(2).element_spec
    assert repr(ad.ParquetDataset("memory://nowhere.parquet")).startswith("<Dataset ParquetDataset")
