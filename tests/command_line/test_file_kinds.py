"""What a file is: its content decides where it can, its name where it cannot, the user always."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import asyncdata as ad
from asyncdata.command_line.file_kinds import FORMATS, HEAD_BYTES, kind_of
from tests.zstandard import zstd


def _tfrecord(nbytes: int = 100) -> bytes:
    file = io.BytesIO()
    with ad.TFRecordWriter(file) as writer:
        writer.write(bytes(nbytes))
    return file.getvalue()


RECORDS = _tfrecord()


CASES: Final = [
    ("x", RECORDS, ("tfrecord", None)),
    ("x.txt", RECORDS, ("tfrecord", None)),
    ("x.tfrecord.gz", RECORDS, ("tfrecord", None)),
    ("x", gzip.compress(RECORDS, mtime=0), ("tfrecord", "GZIP")),
    ("x.tfrecord", zlib.compress(RECORDS), ("tfrecord", "ZLIB")),
    ("x.tfrecord", zstd.compress(RECORDS), ("tfrecord", "ZSTD")),
    ("x.tfrecord.gz", gzip.compress(RECORDS, mtime=0)[:12], ("tfrecord", "GZIP")),
    ("x.tfrecord.gz", b"", ("tfrecord", "GZIP")),
    ("gs://b/x.tfrecord-00000-of-00128", b"garbage", ("tfrecord", None)),
    ("gs://b.tfrecord/x", b"text", ("text", None)),
    ("x.tgz", gzip.compress(b"cut", mtime=0)[:9], ("tar", "GZIP")),
    # Lengths whose first bytes are those of zlib and gzip.
    *[("x", _tfrecord(nbytes)[:HEAD_BYTES], ("tfrecord", None)) for nbytes in (376, 24184, 40056, 55928, 35615)],
    ("x", b"PAR1....", ("parquet", None)),
    ("x.parquet", b"", ("parquet", None)),
    ("x.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0), ("csv", "GZIP")),
    ("x", b'{"a": 1}\n', ("jsonl", None)),
    ("x", b'{\n"a": 1}\n', ("text", None)),
    ("x", b"x^ begins like zlib\n", ("text", None)),
    ("x", "ä".encode()[:1], ("other", None)),
    ("x", b"a" * 100 + "ä".encode()[:1], ("text", None)),
    ("x", b"", ("other", None)),
]


@pytest.mark.parametrize(("name", "head", "expected"), CASES, ids=range(len(CASES)))
def test_what_a_file_is(name: str, head: bytes, expected: tuple[str, str | None]) -> None:
    """First bytes that belong to one format decide, then the name."""
    kind = kind_of(name, head, len(head))
    assert (kind.format, kind.compression) == expected


@given(
    st.binary(max_size=2000).flatmap(
        lambda head: st.sampled_from([head, gzip.compress(head, mtime=0), RECORDS[:12] + head])
    ),
    st.text(max_size=20).map(lambda stem: f"gs://b/{stem}"),
    st.sampled_from([None, *FORMATS]),
)
@example(b"\x1f\x8b", "x.csv", None)
@example(b'"' * HEAD_BYTES, "x.csv", None)
@example(b"\x28\xb5\x2f\xfd", "x.tsv.zst", "csv")
def test_any_bytes_are_something(head: bytes, name: str, chosen: str | None) -> None:
    """No bytes and no name make it fail, and the user's word counts."""
    kind = kind_of(name, head, len(head), chosen)
    assert kind.format in FORMATS
    assert chosen in (None, kind.format)
    assert "Dataset" in repr(kind.open("x"))
