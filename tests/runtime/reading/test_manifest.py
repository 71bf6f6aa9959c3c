"""What a pipeline knows of its files spares requests, and is never more than a claim."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.errors import CorruptObjectError, DataError, ObjectChangedError, ObjectNotFoundError, StorageError
from fake_gcs import FakeGCS

D = ad.Dataset


def shard(tmp_path: Path, *records: bytes) -> bytes:
    path = tmp_path / "shard"
    with ad.TFRecordWriter(path) as writer:
        writer.write_many(records)
    return path.read_bytes()


def lines(*entries: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def options(server: FakeGCS) -> ad.Options:
    return ad.Options(storage={"gs": {"endpoint_url": server.url, "token": "anon"}}, num_workers=0)


def test_a_manifest_spares_the_listing_and_every_look_up(tmp_path: Path) -> None:
    """Written once by the listing; then each shard costs the request for its bytes and nothing else."""
    with FakeGCS(buckets=["bucket"]) as server:
        for i in range(5):
            server.put("bucket", f"d/{i}.rec", shard(tmp_path, b"%d" % i))
        path = tmp_path / "all.jsonl"
        assert ad.write_manifest("gs://bucket/d/*.rec", path, options(server)) == 5
        server.journal.clear()
        ds = ad.TFRecordDataset(D.from_manifest(path, shuffle=False)).with_options(options(server))
        assert list(ds) == [b"0", b"1", b"2", b"3", b"4"]
        assert [entry.operation for entry in server.journal] == ["storage.objects.get"] * 5
        # Its order is kept, and shuffled as a listing is.
        urls = [f"gs://bucket/d/{i}.rec" for i in range(5)]
        assert list(D.from_manifest(path, shuffle=False)) == urls
        assert sorted(D.from_manifest(path, seed=3)) == urls
        assert list(D.from_manifest(path, seed=3)) == list(D.from_manifest(path, seed=3))


def test_a_manifest_may_lie_in_the_bucket(tmp_path: Path) -> None:
    """It is read like any object; the order of its lines is kept, and a URL may stand there twice, or alone."""
    with FakeGCS(buckets=["bucket"]) as server:
        for i in range(3):
            server.put("bucket", f"{i}.rec", shard(tmp_path, b"%d" % i))
        text = lines(*({"url": f"gs://bucket/{i}.rec"} for i in (2, 0, 2, 1))) + b"\n  \n"
        server.put("bucket", "m.jsonl", text)
        ds = ad.TFRecordDataset(D.from_manifest("gs://bucket/m.jsonl", shuffle=False))
        assert list(ds.with_options(options(server))) == [b"2", b"0", b"2", b"1"]


def test_reads_are_pinned_to_the_manifests_version(tmp_path: Path) -> None:
    """An object that was replaced since is an error that names both generations."""
    with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "0.rec", shard(tmp_path, b"old"))
        path = tmp_path / "all.jsonl"
        ad.write_manifest("gs://bucket/*.rec", path, options(server))
        listed = json.loads(path.read_bytes())["version"]
        server.put("bucket", "0.rec", shard(tmp_path, b"new"))
        with pytest.raises(ObjectChangedError) as caught:
            list(ad.TFRecordDataset(D.from_manifest(path)).with_options(options(server)))
        assert str(caught.value).count(listed) >= 1
        assert caught.value.version == listed


def test_only_a_version_is_believed_to_be_empty(tmp_path: Path) -> None:
    """Nothing of it is read that could show that it is not; without a version the object is opened."""
    with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "0.rec", shard(tmp_path, b"record"))
        path = tmp_path / "m"
        for version, expected in ({}, [b"record"]), ({"version": "1"}, []):
            path.write_bytes(lines({"url": "gs://bucket/0.rec", "size": 0, **version}))
            assert list(ad.TFRecordDataset(D.from_manifest(path)).with_options(options(server))) == expected


@pytest.mark.parametrize("is_size_known", [False, True])
def test_a_size_without_a_version_pins_no_less(tmp_path: Path, is_size_known: bool) -> None:
    """What is read of a replaced object is of one generation, as where only its name is known."""
    with FakeGCS(buckets=["bucket"]) as server:
        old, new = (shard(tmp_path, *([letter * 99_984] * 400)) for letter in (b"o", b"n"))
        server.put("bucket", "0.rec", old)
        path = tmp_path / "m"
        path.write_bytes(lines({"url": "gs://bucket/0.rec", **({"size": len(old)} if is_size_known else {})}))
        ds = ad.TFRecordDataset(D.from_manifest(path)).with_options(options(server))
        with ds.with_options(ad.Options(memory_limit_bytes=8 << 20)).iterator() as it:
            assert next(it)[:1] == b"o"
            server.put("bucket", "0.rec", new)
            with pytest.raises(ObjectChangedError, match="generations"):
                list(it)


def test_a_checksum_of_a_manifest_is_compared(tmp_path: Path) -> None:
    """Also if it is not the store's, and the manifest says no version."""
    with FakeGCS(buckets=["bucket"]) as server:
        data = shard(tmp_path, b"record")
        server.put("bucket", "0.rec", data)
        path = tmp_path / "m"
        path.write_bytes(lines({"url": "gs://bucket/0.rec", "size": len(data), "crc32c": 1}))
        ds = ad.TFRecordDataset(D.from_manifest(path)).with_options(options(server))
        assert list(ds) == [b"record"]
        with pytest.raises(CorruptObjectError, match="CRC-32C 00000001"):
            list(ds.with_options(ad.Options(check_object_crc=True)))


@pytest.mark.parametrize("size", [3, 10**15])
@pytest.mark.parametrize("make", [ad.TFRecordDataset, ad.FileDataset])
def test_a_size_that_is_not_true_ends_in_an_error(tmp_path: Path, size: int, make: Any) -> None:
    """Too small or too large is noticed by the server's answer; no allocation follows it."""
    with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", "0.rec", shard(tmp_path, b"record"))
        path = tmp_path / "m"
        path.write_bytes(lines({"url": "gs://bucket/0.rec", "size": size}))
        ds = make(D.from_manifest(path)).with_options(options(server))
        with pytest.raises(ObjectChangedError, match=f"{size} bytes were listed"):
            list(ds)
        # A new object of another size is read where that is wanted.
        assert len(list(ds.with_options(ad.Options(on_change="restart")))) == 1


@pytest.mark.parametrize("size", [3, 10**15])
@pytest.mark.parametrize("make", [ad.TFRecordDataset, ad.FileDataset])
def test_a_size_of_a_local_file_is_compared(tmp_path: Path, size: int, make: Any) -> None:
    """Whether it is read by itself or with others."""
    shard(tmp_path, b"record")
    path = tmp_path / "m"
    path.write_bytes(lines({"url": f"{tmp_path}/shard", "size": size}))
    with pytest.raises(ObjectChangedError, match=f"{size} bytes were listed"):
        list(make(D.from_manifest(path)))


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"", "names no file"), (b"nonsense\n", "line 1"), (lines({"url": "a"}, {"uri": "b"}), "line 2")],
)
def test_what_is_no_manifest_is_told(tmp_path: Path, text: bytes, message: str) -> None:
    """With the file, the line and the stage."""
    path = tmp_path / "m"
    path.write_bytes(text)
    with pytest.raises(DataError, match=message) as caught:
        list(D.from_manifest(path))
    assert caught.value.url == str(path)
    assert "from_manifest" in str(caught.value.stage)


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "file://elsewhere/file"},
        {"url": "/tmp/\ud800"},
        {"url": "/tmp/a\0b"},
        {"url": "/", "version": "\ud800"},
        {"url": "/", "version": "1" * 70_000},
        {"url": "/" + "a" * 200_000},
    ],
    ids=lambda entry: ascii(entry)[:40],
)
def test_entries_that_no_file_can_have_are_errors_of_the_read(tmp_path: Path, entry: dict[str, Any]) -> None:
    """They hold nothing: closing raises nothing."""
    manifest = tmp_path / "manifest"
    manifest.write_text(json.dumps({"size": 4 << 20, "version": "1-2-3"} | entry))
    with ad.Runtime(ad.Options(num_workers=0), pipelines=1):
        files = D.from_manifest(str(manifest), shuffle=False)
        with pytest.raises((StorageError, ValueError)):
            list(files.interleave(ad.TFRecordDataset, cycle_length=1))


def test_a_missing_manifest_is_not_found(tmp_path: Path) -> None:
    """As any file."""
    with pytest.raises(ObjectNotFoundError, match="from_manifest"):
        list(D.from_manifest(tmp_path / "m"))


def test_an_unknown_scheme_names_the_url_and_the_stage() -> None:
    """Whoever meets it first: a listing, or the opening of a file."""
    for ds in (D.list_files("wat://x/*"), D.from_manifest("wat://x/*"), ad.TFRecordDataset("wat://x/*")):
        with pytest.raises(StorageError) as caught:
            list(ds)
        assert caught.value.url == "wat://x/*"
        assert caught.value.stage


def test_many_patterns_are_listed_together(tmp_path: Path) -> None:
    """A list of a thousand names is no thousand waits in turn; each must exist."""
    for i in range(1000):
        (tmp_path / f"{i}").touch()
    names = [f"{tmp_path}/{i}" for i in range(1000)]
    assert list(D.list_files(names, shuffle=False)) == sorted(names)
    with pytest.raises(ObjectNotFoundError, match="no file matches"):
        list(D.list_files([*names, f"{tmp_path}/1000"]))


@pytest.mark.slow
def test_a_large_manifest_takes_memory_by_its_files_alone(tmp_path: Path) -> None:
    """20,000 entries: less than 800 bytes each, all told, until the first element is there."""
    path = tmp_path / "m"
    with path.open("wb") as file:
        for i in range(20_000):
            file.write(lines({"url": f"gs://bucket/train-{i:05d}", "size": i, "version": f"17672256{i:08d}"}))
    with D.from_manifest(path, shuffle=False).take(1).iterator() as warm:
        next(warm)
    tracemalloc.start()
    try:
        with D.from_manifest(path).iterator() as iterator:
            next(iterator)
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000 * 800 + 4e6
