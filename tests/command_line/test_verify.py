"""``asyncdata verify``: whatever is wrong is found, where it is; what is whole passes; what cannot be read is told."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.command_line.entry import main
from asyncdata.command_line.findings import FindingsList
from fake_gcs import FakeGCS, Fault, Profile, Rule
from tests.samples import samples

RECORDS = [bytes([number]) * (number * 7) for number in range(12)]


def tfrecord(records: list[bytes] = RECORDS) -> bytes:
    file = io.BytesIO()
    with ad.TFRecordWriter(file) as writer:
        writer.write_many(records)
    return file.getvalue()


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number in range(5):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 700
            archive.addfile(member, io.BytesIO(bytes(700)))
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(500)), "text": ["x" * 50] * 500}), file, row_group_size=100)
    return file.getvalue()


WHOLE: dict[str, bytes] = {
    "a.tfrecord": tfrecord(),
    "a.tfrecord.gz": gzip.compress(tfrecord()),
    "a.tfrecord.zlib": zlib.compress(tfrecord()),
    "empty.tfrecord": b"",
    "a.tar": tar(),
    "a.tar.gz": gzip.compress(tar()),
    "a.parquet": parquet(),
    "a.csv": b'name,price\n"a, b",1\nc,2\n',
    "a.jsonl": b'{"a": 1}\n{"a": [2]}\n',
    "a.txt": "zwölf\n".encode() * 100,
    "noise": bytes(range(256)) * 8,
    "empty": b"",
}
BROKEN: dict[str, bytes] = {
    "cut.tfrecord": tfrecord()[:-7],
    "short.tfrecord": b"1234567",
    "page.tfrecord": b"<html>no such bucket</html>",
    "cut.tfrecord.gz": gzip.compress(tfrecord())[:-9],
    "plain.tfrecord.gz": b"this was never compressed",
    "cut.tar": tar()[:2000],
    "cut.tar.gz": gzip.compress(tar())[:-4],
    "sum.tar.gz": gzip.compress(tar())[:-8] + gzip.compress(tar() + b"x")[-8:],
    "cut.parquet": parquet()[:-30],
    "head.parquet": b"PAR1",
    "quotes.csv": b'name,price\n"a\nc,2\n',
    "fields.csv": b"name,price\na,1,2\nc,2\n",
    "bad.jsonl": b'{"a": 1}\n{"a": \n',
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", WHOLE)
def test_what_is_whole_passes(name: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """Files of every format, and empty ones."""
    (tmp_path / name).write_bytes(WHOLE[name])
    ran = run("verify", name)
    assert (ran.code, ran.err) == (0, "")
    assert "nothing wrong" in ran.out


@pytest.mark.sampled
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(name: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """Files of every format that are cut off, garbage, or something else than their name says."""
    (tmp_path / name).write_bytes(BROKEN[name])
    ran = run("verify", name)
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith(f"{name}:")
    assert "1 finding in 1 file" in ran.out


@pytest.mark.sampled
@settings(max_examples=samples(15, 500))
@given(data=st.data())
@pytest.mark.parametrize("compressed", [False, True])
def test_every_flipped_bit_is_found_in_its_record(compressed: bool, data: st.DataObject) -> None:
    """Of a TFRecord file, exactly at the record that it is in; of a compressed one, if it changes any record."""
    content = tfrecord()
    stored = zlib.compress(content) if compressed else content
    at = data.draw(st.integers(0, 8 * len(stored) - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tfrecord.zlib" if compressed else "a.tfrecord")
        damaged = bytearray(stored)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", out := io.StringIO())
            code = main(["verify", str(path), "--json", "--quiet"])
    document = json.loads(out.getvalue())
    findings = document["findings"]
    assert code == bool(findings)
    if compressed:
        assert findings or document["records"] == len(RECORDS)
    else:
        starts = [sum(len(each) + 16 for each in RECORDS[:number]) for number in range(len(RECORDS))]
        record = max(number for number, start in enumerate(starts) if start <= at // 8)
        assert [(each["offset"], each["record"]) for each in findings] == [(starts[record], record)]


def test_all_damaged_records_are_named(run: Callable[..., Any], tmp_path: Path) -> None:
    """Reading goes on behind a damaged payload, in all files that a range in braces names."""
    for number in range(3):
        content = bytearray(tfrecord([bytes(100)] * 500))
        for record in (0, 7, 499):
            content[116 * record + 50] ^= 1
        (tmp_path / f"x-{number}.tfrecord").write_bytes(content)
    found = run("verify", "x-{0..2}.tfrecord", "--json").document
    places = sorted((each["url"], each["offset"], each["record"]) for each in found["findings"])
    assert places == [(f"x-{number}.tfrecord", 116 * record, record) for number in range(3) for record in (0, 7, 499)]
    assert (found["files"], found["records"], found["findings_in_all"]) == (3, 3 * 497, 9)


def test_no_finding_is_lost(run: Callable[..., Any], tmp_path: Path) -> None:
    """They are counted, and told as far as anybody wants to read them, also if every record is damaged."""
    count = samples(5_000, 50_000)
    content = bytearray(tfrecord([bytes(8)] * count))
    content[12::24] = b"\1" * count
    (tmp_path / "a.tfrecord").write_bytes(content)
    found = run("verify", "a.tfrecord", "--json").document
    assert (found["findings_in_all"], found["records"]) == (count, 0)
    assert len(found["findings"]) <= 10_000
    assert len(set(map(str, found["findings"]))) == len(found["findings"])


def test_a_part_of_a_line_is_no_finding() -> None:
    """The disk was full in the middle of it; the lines around it are read."""
    line = json.dumps({"url": "a", "offset": 1, "record": 2, "error": "e"}).encode()
    with FindingsList() as findings:
        path = findings.policy.quarantine
        assert isinstance(path, str)
        with Path(path).open("ab") as file:
            file.write(line + b"\n" + line[:9] + b"\n" + line + b"\n")
        assert [found.url for found in findings.new()] == ["a", "a"]


def test_what_cannot_be_read_is_no_finding(run: Callable[..., Any], tmp_path: Path) -> None:
    """A missing file, a directory and a pattern without matches end with 3; the other files are checked."""
    (tmp_path / "a.tfrecord").write_bytes(WHOLE["a.tfrecord"])
    (tmp_path / "folder").mkdir()
    ran = run("verify", "a.tfrecord", "missing", "folder", "none-*", "{1..2}.x")
    assert ran.code == 3
    assert "1 file, 12 records" in ran.out
    complaints = ran.err.splitlines()
    assert len(complaints) == 4
    assert all(line.startswith("asyncdata verify: ") for line in complaints)


def test_the_name_of_a_file_commands_nobody(run: Callable[..., Any], tmp_path: Path) -> None:
    """Control characters in names are shown, so that a name can neither forge lines nor drive a terminal."""
    name = "a\n\x1b[2J*.tfrecord"
    (tmp_path / name).write_bytes(b"garbage that is long enough")
    ran = run("verify", "*.tfrecord")
    assert ran.code == 1
    assert "a\\n\\x1b[2J*.tfrecord:0: BrokenFrameError" in ran.out
    assert "\x1b" not in ran.out


def test_a_format_can_be_named(run: Callable[..., Any], tmp_path: Path) -> None:
    """What neither the bytes nor the name tell."""
    (tmp_path / "shard").write_bytes(b"x" * 100)
    assert run("verify", "shard").code == 0
    ran = run("verify", "shard", "--format", "tfrecord")
    assert (ran.code, ran.out.partition(":")[0]) == (1, "shard")


def test_files_are_counted_by_format(run: Callable[..., Any], tmp_path: Path) -> None:
    """Whatever else tells them apart, as the columns of CSV files."""
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("c,d\n1,2\n")
    assert run("verify", "a.csv", "b.csv", "--json").document["formats"] == {"csv": 2}


STORED = {
    "lines.txt": (b"line\n" * 50_000, 70_000),
    "a.tar": (tar(), 9_000),  # behind the block that ends it
    "a.parquet": (parquet(), 1),
    "noise": (bytes(range(256)) * 500, 0),
}
"""Objects, and which byte of each answer is turned."""


@pytest.mark.sampled
@pytest.mark.parametrize("name", STORED)
def test_whole_objects_are_compared_with_their_checksums(name: str, run: Callable[..., Any]) -> None:
    """A byte that no format protects, of formats whose readers pass over parts of a file, too."""
    content, at = STORED[name]
    fault = Fault(kind="corrupt", after_bytes=at)
    turned = Rule(fault=fault, operations="storage.objects.get", media_only=True)
    with FakeGCS(buckets=["bucket"]) as server:
        server.put("bucket", name, content)
        storage = ("--storage", f"gs.endpoint_url={server.url}", "--storage", "gs.token=anon")
        good = run("verify", "gs://bucket/*", "--json", *storage).document
        assert (good["object_checksums"], good["findings"], good["unreadable"]) == (1, [], [])
        server.profile = Profile(rules=(turned,))
        ran = run("verify", f"gs://bucket/{name}", "--json", *storage)
        assert (ran.code, ran.document["unreadable"]) == (1, [])
        assert any(each["error"].startswith("CorruptObjectError") for each in ran.document["findings"])


def test_access_denied_is_storage(run: Callable[..., Any]) -> None:
    """Files that may not be read end with 3, and those that may are checked."""
    denied = Rule(fault=Fault(kind="status", status=403), operations="storage.objects.get", objects="bucket/bad*")
    with FakeGCS(buckets=["bucket"], profile=Profile(rules=(denied,))) as server:
        server.put("bucket", "good.tfrecord", WHOLE["a.tfrecord"])
        server.put("bucket", "bad.tfrecord", WHOLE["a.tfrecord"])
        storage = ("--storage", f"gs.endpoint_url={server.url}", "--storage", "gs.token=anon")
        ran = run("verify", "gs://bucket/*", *storage)
    assert ran.code == 3
    assert "1 file, 12 records" in ran.out
    assert "gs://bucket/bad.tfrecord" in ran.err


def test_many_objects_in_little_memory(run: Callable[..., Any]) -> None:
    """However many objects there are, the memory of one pipeline is enough."""
    count = samples(200, 10_000)
    with FakeGCS(buckets=["bucket"]) as server:
        for number in range(count):
            server.put("bucket", f"{number:05d}.tfrecord", WHOLE["a.tfrecord"])
        storage = ("--storage", f"gs.endpoint_url={server.url}", "--storage", "gs.token=anon")
        ran = run("verify", "gs://bucket/*", "--json", "--memory", "16M", *storage)
    assert (ran.code, ran.document["files"], ran.document["records"]) == (0, count, 12 * count)
