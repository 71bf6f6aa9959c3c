"""Bad input of every kind gives one clear error that names URL, offset, record and stage, and a clean shutdown.

The clean shutdown is checked by the autouse fixture after each test; that the error is one, and which, is checked here.
Every case about files runs on local files, on ``memory://`` and on ``gs://``.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest

import asyncdata as ad
from asyncdata.formats.crc32c import masked_checksum
from fake_gcs import FakeGCS
from tests.integration.shards import BUCKET, gs_storage, records, shard_bytes

pytestmark = pytest.mark.sampled

FRAME = 16  # of a record: 8 bytes length, 4 + 4 bytes of checksums


@dataclass
class Store:
    """Somewhere to put files and read them from.

    Attributes:
        prefix: Of URLs.
        put: Writes one file; replaces it where it exists.
        remove: Deletes one file.
        options: For pipelines that read here.
    """

    prefix: str
    put: Callable[[str, bytes], object]
    remove: Callable[[str], object]
    options: ad.Options

    def url(self, name: str) -> str:
        """Of one file."""
        return self.prefix + name

    def read(self, *names: str, compression: str | None = None) -> ad.Dataset:
        """The records of these files."""
        return ad.TFRecordDataset([self.url(name) for name in names], compression).with_options(self.options)


def small_options(**changes: Any) -> ad.Options:
    """With little memory and few attempts."""
    retry = ad.RetryOptions(max_attempts=2, initial_delay_s=0.001)
    # Without worker processes, which take longer to start than most cases to run; those that need them say so.
    return ad.Options(**{"num_workers": 0, "memory_limit_bytes": 32 << 20, "retry": retry, **changes})


def _with_workers(options: ad.Options) -> ad.Options:
    return dataclasses.replace(options, num_workers=1)


@pytest.fixture(params=["local", "memory", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Local files, fsspec's memory, a bucket."""
    if request.param == "local":
        yield Store(
            f"{tmp_path}/",
            lambda name, data: (tmp_path / name).write_bytes(data),
            lambda name: (tmp_path / name).unlink(),
            small_options(),
        )
    elif request.param == "memory":
        memory = fsspec.filesystem("memory")
        folder = f"/{tmp_path.name}"
        yield Store(
            f"memory:/{folder}/",
            lambda name, data: memory.pipe_file(f"{folder}/{name}", data),
            lambda name: memory.rm_file(f"{folder}/{name}"),
            small_options(),
        )
        if memory.exists(folder):
            memory.rm(folder, recursive=True)
    else:
        with FakeGCS(buckets=[BUCKET]) as server:
            yield Store(
                f"gs://{BUCKET}/",
                lambda name, data: server.put(BUCKET, name, data),
                lambda name: server.delete(BUCKET, name),
                small_options(storage=gs_storage(server)),
            )


def error_of(dataset: ad.Dataset, kind: type[Exception] | tuple[type[Exception], ...]) -> Any:
    """The one error a dataset ends with. It is no group, and an iterator that was made says so again afterwards."""
    made: list[Iterator[Any]] = []

    def run() -> None:
        made.append(dataset.iterator())
        list(made[0])

    with pytest.raises(kind) as caught:
        run()
    assert not isinstance(caught.value, BaseExceptionGroup)
    for iterator in made:
        with pytest.raises(ad.PipelineClosedError, match=type(caught.value).__name__):
            next(iterator)
    return caught.value


# --- what is not there -------------------------------------------------------------------------------------------


def test_a_missing_object(store: Store) -> None:
    """The error names the URL."""
    store.put("there", shard_bytes([b"x"]))
    error = error_of(store.read("there", "missing"), ad.ObjectNotFoundError)
    assert error.url == store.url("missing")
    assert store.url("missing") in str(error)


def test_no_match_for_a_pattern(store: Store) -> None:
    """A glob that matches nothing is an error, not an empty dataset."""
    store.put("there", b"")
    pattern = store.url("other-*")
    error = error_of(ad.Dataset.list_files(pattern).with_options(store.options), ad.ObjectNotFoundError)
    assert pattern in str(error)


def test_a_missing_bucket() -> None:
    """For listing and for reading."""
    with FakeGCS() as server:
        options = small_options(storage=gs_storage(server))
        error = error_of(ad.TFRecordDataset("gs://nowhere/x").with_options(options), ad.ObjectNotFoundError)
        assert error.url == "gs://nowhere/x"
        listed = ad.Dataset.list_files("gs://nowhere/*").with_options(options)
        assert "gs://nowhere/" in str(error_of(listed, ad.ObjectNotFoundError))


@pytest.mark.parametrize("url", ["nosuchscheme://a/b", "gs://", "gs:///x", "http://"])
def test_a_url_that_cannot_be(url: str) -> None:
    """An unknown scheme, or a URL without its parts."""
    error = error_of(ad.TFRecordDataset(url).with_options(small_options()), ad.StorageError)
    assert url in str(error)


def test_a_directory_in_the_place_of_a_file(tmp_path: Path) -> None:
    """Said as such, with its path."""
    (tmp_path / "shard").mkdir()
    error = error_of(ad.TFRecordDataset(str(tmp_path / "shard")).with_options(small_options()), Exception)
    assert str(tmp_path / "shard") in str(error)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    """Access denied, with its path."""
    path = tmp_path / "shard"
    path.write_bytes(b"")
    path.chmod(0)
    error = error_of(ad.TFRecordDataset(str(path)).with_options(small_options()), ad.AccessDeniedError)
    assert error.url == str(path)


# --- what is damaged ---------------------------------------------------------------------------------------------


def damaged(where: int, data: bytes) -> bytes:
    """One bit is turned over."""
    return data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]


def test_a_wrong_length_checksum(store: Store) -> None:
    """Nothing after it can be read; the error says which record, and where it begins."""
    payloads = records(0, 10, 100)
    store.put("bad", damaged(3 * (100 + FRAME) + 8, shard_bytes(payloads)))
    error = error_of(store.read("bad"), ad.BrokenFrameError)
    assert (error.url, error.record, error.offset) == (store.url("bad"), 3, 3 * (100 + FRAME))
    assert error.stage


def test_a_wrong_payload_checksum(store: Store) -> None:
    """In raw records and below a map function, in a process, in a thread and inline."""
    store.put("bad", damaged(3 * (100 + FRAME) + 50, shard_bytes(records(0, 10, 100))))
    source = store.read("bad").with_options(_with_workers(store.options))
    for dataset in (
        source,
        source.batch(4),
        source.map(len),
        source.map(len, num_parallel_calls=2),
        source.map(len, num_parallel_calls=2, executor="thread"),
        source.shuffle(5, seed=1).map(len, num_parallel_calls=2).batch(4),
        store.read("bad").map(len, num_parallel_calls=2),
    ):
        error = error_of(dataset, ad.CorruptRecordError)
        assert (error.url, error.record, error.offset) == (store.url("bad"), 3, 3 * (100 + FRAME))
        assert error.stage


def test_a_wrong_payload_checksum_may_be_ignored(store: Store) -> None:
    """``check_crc=False`` reads what is there."""
    store.put("bad", damaged(50, shard_bytes(records(0, 3, 100))))
    options = small_options(check_crc=False, storage=store.options.storage)
    assert len(list(store.read("bad").with_options(options))) == 3


def test_a_file_cut_anywhere(store: Store, samples: Callable[[int, int], int]) -> None:
    """Whatever byte it ends at: the error names the record that is cut, or there is none at a record's end."""
    whole = shard_bytes(records(0, 4, 40))
    step = 40 + FRAME
    for length in range(0, len(whole), samples(40, 1)):
        store.put("cut", whole[:length])
        if length % step == 0:
            assert len(list(store.read("cut"))) == length // step
        else:
            error = error_of(store.read("cut"), ad.BrokenFrameError)
            assert (error.url, error.record, error.offset) == (
                store.url("cut"),
                length // step,
                length // step * step,
            )


@pytest.mark.parametrize("length", [2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_lying_length(store: Store, length: int) -> None:
    """A length is never believed beyond the file's end, nor used for an allocation."""
    good = shard_bytes([b"fine"])
    header = struct.pack("<Q", length)
    lie = header + struct.pack("<I", masked_checksum(header)) + b"x" * 100
    store.put("lie", good + lie)
    error = error_of(store.read("lie"), ad.BrokenFrameError)
    assert (error.url, error.record, error.offset) == (store.url("lie"), 1, len(good))
    store.put("squeezed", gzip.compress(good + lie))
    # How much a compressed file holds is not known; what there is, is read to its end, and no memory taken for more.
    error = error_of(store.read("squeezed", compression="GZIP"), ad.BrokenFrameError)
    assert (error.url, error.record, error.offset) == (store.url("squeezed"), 1, len(good))
    assert error.stage


@pytest.mark.parametrize("held", [0, 100, 200_000, 5_000_000])
@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_a_lying_length_far_behind_which_a_compressed_file_ends(tmp_path: Path, held: int, compression: str) -> None:
    """However much follows; a record whose length says so and that is there, but does not fit, hits the limit."""
    options = small_options(memory_limit_bytes=4 << 20, chunk_bytes=64 << 10)
    squeeze = gzip.compress if compression == "GZIP" else zlib.compress
    good = shard_bytes([b"fine", b"too"])
    for length, kind in ((1 << 40, ad.BrokenFrameError), (held + 1, ad.BrokenFrameError), (held, None)):
        header = struct.pack("<Q", length)
        body = b"x" * held
        path = tmp_path / f"{length}"
        end = struct.pack("<I", masked_checksum(body))
        path.write_bytes(squeeze(good + header + struct.pack("<I", masked_checksum(header)) + body + end))
        dataset = ad.TFRecordDataset(str(path), compression).with_options(options)
        if kind is None and held <= 200_000:
            assert list(dataset)[2] == body
            continue
        error = error_of(dataset, kind or ad.MemoryLimitError)
        assert (error.url, error.record, error.offset) == (str(path), 2, len(good))
        assert error.stage
        assert str(path) in str(error)


def test_a_length_beyond_the_memory_limit_in_a_file_that_is_as_long(tmp_path: Path) -> None:
    """An honest record that cannot fit says which limit it hits."""
    path = tmp_path / "huge"
    length = 64 << 20
    header = struct.pack("<Q", length)
    with path.open("wb") as file:
        file.write(header + struct.pack("<I", masked_checksum(header)))
        file.truncate(12 + length + 4)
    dataset = ad.TFRecordDataset(str(path)).with_options(small_options(check_crc=False))
    error = error_of(dataset, ad.MemoryLimitError)
    assert "memory_limit_bytes" in str(error)
    assert str(path) in str(error)


@pytest.mark.parametrize("stored", [None, "GZIP", "ZLIB"])
@pytest.mark.parametrize("asked", [None, "GZIP", "ZLIB"])
def test_the_wrong_compression(store: Store, stored: str | None, asked: str | None) -> None:
    """Both ways: the error names the file, and says what was asked for."""
    payloads = records(0, 20, 200)
    store.put("file", shard_bytes(payloads, stored))
    dataset = store.read("file", compression=asked)
    if stored == asked:
        assert list(dataset) == payloads
    else:
        error = error_of(dataset, ad.DataError)
        assert error.url == store.url("file")
        assert error.offset == 0
        assert "compress" in str(error).lower()


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_a_damaged_compressed_file(store: Store, kind: str) -> None:
    """Cut short, damaged in the middle, with rubbish behind it."""
    data = shard_bytes(records(0, 50, 500), kind)
    for bad in (data[:-1], data[: len(data) // 2], damaged(len(data) - 3, data), data[:30] + b"\xff" * 50 + data[80:]):
        store.put("file", bad)
        error = error_of(store.read("file", compression=kind), ad.DataError)
        assert error.url == store.url("file")
        assert error.offset is not None


@pytest.mark.parametrize("chunk_bytes", [64 << 10, 1 << 20])
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_damage_at_the_end_of_a_compressed_file_takes_nothing_away(store: Store, kind: str, chunk_bytes: int) -> None:
    """Garbage behind it, another member that is damaged, a bad trailer, or none: the records come first."""
    payloads = records(0, 300, 1000)
    data = shard_bytes(payloads, kind)
    another = data[:50] + b"\xff" * 50
    options = dataclasses.replace(store.options, chunk_bytes=chunk_bytes)
    for bad in (data + b"garbage", data + another, damaged(len(data) - (6 if kind == "GZIP" else 2), data), data[:-2]):
        store.put("file", bad)
        dataset = store.read("file", compression=kind).with_options(options)
        seen: list[bytes] = []
        with dataset.iterator() as iterator, pytest.raises(ad.CompressionError) as caught:
            seen.extend(iterator)
        assert seen == payloads
        assert (caught.value.url, caught.value.record) == (store.url("file"), 300)
        lenient = dataclasses.replace(options, errors=ad.ErrorPolicy(max_skipped=1))
        assert list(dataset.with_options(lenient)) == payloads


def test_an_unknown_compression_is_refused_at_once() -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match="LZ4"):
        ad.TFRecordDataset("x", compression_type="LZ4")


def test_a_bomb_is_read_inside_the_memory_limit(store: Store) -> None:
    """What expands a thousandfold is read slab by slab."""
    payloads = [bytes(1 << 20)] * 64
    store.put("bomb", zlib.compress(shard_bytes(payloads)))
    total = sum(len(record) for record in store.read("bomb", compression="ZLIB"))
    assert total == 64 << 20


READERS: dict[str, Callable[[str], ad.Dataset]] = {
    "here": ad.JsonLinesDataset,
    "workers": lambda path: ad.JsonLinesDataset(path, num_parallel_calls=2),
    "sent to workers": lambda path: ad.JsonLinesDataset(path).map(_itself, 2),
    "isolate": ad.JsonLinesDataset,
}


def _itself(value: Any) -> Any:
    return value


@pytest.mark.parametrize("reader", READERS)
def test_json_nested_deeply(reader: str, tmp_path: Path) -> None:
    """Parsed to the same depth wherever that happens, and refused beyond it."""
    path = str(tmp_path / "lines")
    cases = ((128, "[", "]", True), (128, '{"a":', "}", True), (129, '{"a":', "}", False), (100_000, "[", "]", False))
    with ad.Runtime(small_options(num_workers=int("workers" in reader), isolate=reader == "isolate")):
        for depth, opening, closing, is_fine in cases:
            Path(path).write_text(opening * depth + "0" + closing * depth)
            if is_fine:
                assert len(list(READERS[reader](path))) == 1
            else:
                error = error_of(READERS[reader](path), ad.CorruptRecordError)
                assert "nested more than 128 deep" in str(error)
                assert (error.url, error.record) == (path, 0)


# --- what looks bad and is not -----------------------------------------------------------------------------------


def test_empty_files_and_empty_records(store: Store) -> None:
    """Files without records have none; records without bytes are records."""
    store.put("empty", b"")
    store.put("blank", shard_bytes([b"", b"x", b"", b""]))
    store.put("gzipped", shard_bytes([], "GZIP"))
    store.put("nothing", b"")
    assert list(store.read("empty")) == []
    assert list(store.read("empty", "blank", "empty", "blank")) == [b"", b"x", b"", b""] * 2
    lengths = [batch.tolist() for batch in store.read("blank").map(len, num_parallel_calls=2).batch(3)]
    assert lengths == [[0, 1, 0], [0]]
    assert [list(batch) for batch in store.read("blank").batch(3)] == [[b"", b"x", b""], [b""]]
    assert list(store.read("gzipped", compression="GZIP")) == []
    assert list(store.read("nothing", compression="GZIP")) == []


# --- what changes meanwhile --------------------------------------------------------------------------------------


def test_an_object_replaced_after_it_was_listed(store: Store) -> None:
    """Never a mixture: the error says that the object changed."""
    store.put("a", shard_bytes(records(0, 5, 100)))
    store.put("b", shard_bytes(records(1, 5, 100)))
    replaced = threading.Event()

    def replace(url: str) -> ad.Dataset:
        if not replaced.is_set():
            replaced.set()
            store.put("b", shard_bytes(records(2, 7, 300)))
        return ad.TFRecordDataset(url)

    dataset = ad.Dataset.list_files(store.url("*"), shuffle=False).interleave(replace, cycle_length=1)
    error = error_of(dataset.with_options(store.options), ad.ObjectChangedError)
    assert error.url == store.url("b")


def test_an_object_replaced_or_deleted_while_it_is_read(store: Store) -> None:
    """From its first byte on, one version is read, or none."""
    for change in ("replace", "delete"):
        old = shard_bytes(records(0, 200, 30_000))
        store.put("big", old)
        options = small_options(chunk_bytes=1 << 16, memory_limit_bytes=2 << 20, storage=store.options.storage)
        iterator = ad.TFRecordDataset(store.url("big")).with_options(options).iterator()
        seen = [next(iterator)]
        if change == "replace":
            store.put("big", shard_bytes(records(9, 200, 31_000)))
        else:
            store.remove("big")

        def rest(iterator: ad.PipelineIterator = iterator, seen: list[Any] = seen) -> None:
            seen.extend(iterator)

        if change == "delete" and store.prefix.startswith("/"):
            rest()  # an open local file outlives its name
            assert len(seen) == 200
        else:
            with pytest.raises((ad.ObjectChangedError, ad.ObjectNotFoundError)) as caught:
                rest()
            assert caught.value.url == store.url("big")
        assert seen == records(0, 200, 30_000)[: len(seen)]


def test_a_local_file_cut_while_it_is_read(tmp_path: Path) -> None:
    """The same inode with fewer bytes is another version."""
    path = tmp_path / "big"
    path.write_bytes(shard_bytes(records(0, 200, 30_000)))
    options = small_options(chunk_bytes=1 << 16, memory_limit_bytes=2 << 20)
    iterator = ad.TFRecordDataset(str(path)).with_options(options).iterator()
    next(iterator)
    os.truncate(path, 1_000_000)
    with pytest.raises(ad.ObjectChangedError) as caught:
        list(iterator)
    assert caught.value.url == str(path)


# --- what user code does -----------------------------------------------------------------------------------------

PLACES = ["inline", "thread", "process"]


@pytest.mark.parametrize("place", PLACES)
def test_a_map_function_that_raises(place: str, store: Store) -> None:
    """Its own exception, with the record's URL, index and offset, and the line of the user's code."""

    def explode(record: bytes) -> int:
        if record.startswith(b"1:3;"):
            raise KeyError("not in the table")
        return len(record)

    store.put("a", shard_bytes(records(0, 5, 100)))
    store.put("b", shard_bytes(records(1, 5, 100)))
    dataset = store.read("a", "b").map(explode, None if place == "inline" else 2, executor=place)
    options = _with_workers(store.options) if place == "process" else store.options
    error = error_of(dataset.with_options(options), KeyError)
    notes = "\n".join(error.__notes__)
    assert "map(explode)" in notes or "explode" in notes
    assert store.url("b") in notes
    assert "record 3" in notes
