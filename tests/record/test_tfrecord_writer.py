from __future__ import annotations

import errno
import gzip
import io
import os
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncdata.errors import SystemResourceError
from asyncdata.formats.tfrecord import encode_many
from asyncdata.record.tfrecord_writer import TFRecordWriter
from tests.formats.streams import iter_records

RECORDS = [b"first", b"", b"x" * 3_000_000, b"last"]


@pytest.mark.parametrize("kind", [None, "", "GZIP", "ZLIB"])
def test_what_is_written_is_read_back(tmp_path: Path, kind: str | None) -> None:
    """A file holds the records in order, and the counts are right."""
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path, kind) as writer:
        writer.write(RECORDS[0])
        writer.write_many(RECORDS[1:])
    data = path.read_bytes()
    assert list(iter_records([data], compression_type=kind)) == RECORDS
    assert writer.records == 4
    assert writer.payload_bytes == 3_000_009
    assert writer.file_bytes == len(data)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.tfrecord"]


def test_compressed_files_are_what_their_names_say(tmp_path: Path) -> None:
    """GZIP and ZLIB are the formats of those names, and the same records give the same bytes."""
    for kind, unpack in (("GZIP", gzip.decompress), ("ZLIB", zlib.decompress)):
        path = tmp_path / kind
        with TFRecordWriter(str(path), kind) as writer:
            writer.write_many(RECORDS)
        assert unpack(path.read_bytes()) == encode_many(RECORDS)


def test_records_are_counted_when_they_are_given() -> None:
    """Whether or not they are in the file yet, as for who begins a new shard every so many; a wrong one is none."""
    file = io.BytesIO()
    with TFRecordWriter(file) as writer:
        writer.write(b"first")
        assert (writer.records, writer.payload_bytes, file.getvalue()) == (1, 5, b"")
        with pytest.raises(TypeError):
            writer.write_many([b"ab", "text", b"never reached"])  # type: ignore[list-item]  # wrong on purpose
        writer.flush()
        writer.write(b"c")
        assert (writer.records, writer.payload_bytes) == (3, 8)
    assert (writer.records, writer.payload_bytes) == (3, 8)


def test_a_file_object_is_written_and_left_open() -> None:
    """The caller's file stays the caller's."""
    file = io.BytesIO()
    with TFRecordWriter(file) as writer:
        writer.write_many([bytearray(b"ab"), memoryview(b"cd")])
        assert file.getvalue() == b""
        writer.flush()
        assert file.getvalue() == encode_many([b"ab", b"cd"])
    assert not file.closed


def test_a_reused_buffer_is_copied() -> None:
    """A caller may overwrite a bytearray as soon as ``write`` has returned."""
    file, buffer = io.BytesIO(), bytearray(b"ab")
    with TFRecordWriter(file) as writer:
        writer.write(buffer)
        buffer[:] = b"zz"
    assert list(iter_records([file.getvalue()])) == [b"ab"]


def test_an_error_leaves_the_path_as_it_was(tmp_path: Path) -> None:
    """Neither a new file nor a temporary one stays, and an old one keeps its contents."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"old")

    def fail() -> None:
        with TFRecordWriter(path) as writer:
            writer.write(b"x" * 2_000_000)
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.tfrecord"]


def test_a_writer_that_is_dropped_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whoever forgot to close it hears of it; the path is as it was, and no hidden file stays."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"old")
    for target, lost in ((path, "the path is unchanged"), (io.BytesIO(), "its last records are lost")):
        writer = TFRecordWriter(target)
        writer.write(b"record")
        with pytest.warns(ResourceWarning, match=f"without close.*{lost}"):
            del writer
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a.tfrecord", b"old")]


def test_what_a_killed_program_left_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    """What somebody writes at the same time stays, and so do the files of other paths."""
    for name in (".a.rec.0123abcd.partial", ".b.rec.0123abcd.partial", ".a.rec.partial"):
        (tmp_path / name).write_bytes(b"left")
    with TFRecordWriter(tmp_path / "a.rec") as first:
        first.write(b"1")
        with TFRecordWriter(tmp_path / "a.rec") as second:
            second.write(b"2")
        assert (tmp_path / "a.rec").read_bytes() == encode_many([b"2"])
    assert (tmp_path / "a.rec").read_bytes() == encode_many([b"1"])
    assert sorted(os.listdir(tmp_path)) == [".a.rec.partial", ".b.rec.0123abcd.partial", "a.rec"]


def test_the_path_appears_only_when_the_file_is_whole(tmp_path: Path) -> None:
    """Until ``close()``, the path does not exist."""
    path = tmp_path / "a.tfrecord"
    writer = TFRecordWriter(path)
    writer.write(b"x" * 2_000_000)
    assert not path.exists()
    writer.close()
    writer.close()
    writer.discard()
    assert path.exists()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"late")


def test_no_records_make_an_empty_file(tmp_path: Path) -> None:
    """A shard without records is legal, compressed too."""
    for kind in (None, "GZIP", "ZLIB"):
        with TFRecordWriter(tmp_path / "e", kind):
            pass
        assert list(iter_records([(tmp_path / "e").read_bytes()], compression_type=kind)) == []


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    """A directory would be an error when all is written, and a pipe or device would be replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path, "directory"), (tmp_path / "pipe", "no regular file")):
        with pytest.raises(OSError, match=words):
            TFRecordWriter(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


class Piecewise(io.RawIOBase):
    """Takes half of what it is given, as an unbuffered file may, and nothing when it is full."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.data = b""

    def write(self, data: Any) -> int | None:
        taken = min(max(1, len(data) // 2), self.room - len(self.data))
        self.data += bytes(data[:taken])
        return taken or None


def test_unbuffered_files_get_everything() -> None:
    """Their ``write`` may take a part of the data; one that takes nothing is an error."""
    file = Piecewise(1000)
    with TFRecordWriter(file) as writer:
        writer.write_many([b"x" * 100] * 3)
    assert list(iter_records([file.data])) == [b"x" * 100] * 3
    writer = TFRecordWriter(Piecewise(50))
    writer.write(b"x" * 100)
    with pytest.raises(BlockingIOError, match="takes nothing now"):
        writer.close()


class FullOnce(io.BytesIO):
    """Has room again after it was full."""

    was_full = False

    def write(self, data: Any) -> int:
        if self.was_full:
            return super().write(data)
        self.was_full = True
        super().write(bytes(data)[:1000])
        raise OSError(errno.ENOSPC, "full")


@pytest.mark.parametrize("kind", [None, "GZIP"])
def test_a_writer_that_has_failed_writes_nothing_more(kind: str | None, tmp_path: Path) -> None:
    """Whoever goes on all the same gets no file with a gap in it."""
    file, record = FullOnce(), random.Random(1).randbytes(2_000_000)
    into_file, into_path = TFRecordWriter(file, kind), TFRecordWriter(tmp_path / "a", kind)
    into_path._file.close()
    into_path._file = FullOnce()
    for writer, error in ((into_file, OSError), (into_path, SystemResourceError)):
        with pytest.raises(error, match="full"):
            writer.write(record)
        with pytest.raises(ValueError, match="closed"):
            writer.write(record)
        writer.close()
    assert len(file.getvalue()) == 1000
    assert list(tmp_path.iterdir()) == []


def test_addresses_are_no_records() -> None:
    """The buffer of an array of objects has the addresses of these. Texts and single numbers are none either."""
    records: list[Any] = [
        *(np.array([1, None], object), np.array(["2020"], "M8[D]")),
        *("text", np.str_("text"), np.array(["text"]), 5, np.int64(5), np.float32(1)),
    ]
    for record in records:
        with pytest.raises(TypeError, match="a record must be bytes, not"), TFRecordWriter(io.BytesIO()) as writer:
            writer.write(record)


def test_rows_of_numbers_are_records() -> None:
    """Whatever their fields are called."""
    rows: Any = np.array([(1.0, 2), (3.0, 4)], [("weight", "<f4"), ("O", "<i4")])
    file = io.BytesIO()
    with TFRecordWriter(file) as writer:
        writer.write_many([rows, rows[1]])
    assert list(iter_records([file.getvalue()])) == [rows.tobytes(), rows[1].tobytes()]


def test_bad_arguments_leave_nothing_behind(tmp_path: Path) -> None:
    """An unknown compression or a missing folder is an error at once."""
    with pytest.raises(ValueError, match="compression_type"):
        TFRecordWriter(tmp_path / "a", "gz")
    with pytest.raises(FileNotFoundError):
        TFRecordWriter(tmp_path / "no" / "a")
    assert list(tmp_path.iterdir()) == []
