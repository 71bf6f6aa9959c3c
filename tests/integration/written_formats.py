"""Files of all formats that sources of drawn pipelines read, and objects that are replaced while they are read."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

import asyncdata as ad
from tests.referee import pipelines

Files: TypeAlias = dict[str, Any]
"""What each source can read, by its name."""


def write_files(folder: Path, counts: tuple[int, ...]) -> Files:
    """Files of all formats, each one per count of records."""
    written: Files = dict(pipelines.write_files(folder, counts))
    kinds = ("csv", "json", "gz", "tar", "parquet", "damaged")
    written |= {kind: [str(folder / f"{i}.{kind}") for i in range(len(counts))] for kind in kinds}
    for i, count in enumerate(counts):
        numbers = range(10 * i, 10 * i + count)
        for kind in ("csv", "json", "gz", "tar", "parquet"):
            Path(written[kind][i]).write_bytes(rows_of(f".{kind}", numbers))
        data = bytearray(Path(written["records"][i]).read_bytes())
        for place in range(14, len(data), 131):
            data[place] ^= 1
        Path(written["damaged"][i]).write_bytes(data)
    written["damaged"].append(str(folder / "missing"))
    written["whole"] = written["lines"] + written["csv"]
    written["listed"] = str(folder / "*.tfrecord")
    written["manifest"] = str(folder / "manifest.jsonl")
    ad.write_manifest(written["listed"], written["manifest"])
    written["directory"] = str(folder / "directory")
    for i in range(9):
        labelled = folder / "directory" / "ab"[i % 2] / f"{i}.txt"
        labelled.parent.mkdir(parents=True, exist_ok=True)
        labelled.write_text("x" * i)
    return written


def rows_of(name: str, numbers: range, version: int = 0, pad: int = 0) -> bytes:
    """A file of rows. Those of another version lie elsewhere and have the same values."""
    if name.endswith("records"):
        file = io.BytesIO()
        with ad.TFRecordWriter(file) as writer:
            writer.write_many([b"%d" % n + b"r" * pad for n in numbers])
        return file.getvalue()
    if name.endswith("tar"):
        return tar_of(numbers)
    if name.endswith("parquet"):
        return parquet_of(numbers, 7 + version)
    if name.endswith("csv"):
        number = (b"%d", b'"%d"', b'"00%d"')[version]
        rows = [number % n + b',"t ""%d%s"""' % (n % 7, b"c" * pad) for n in numbers]
    elif name.endswith("json"):
        rows = [b'{"n": %s%d, "t": "%s"}' % (b" " * version, n, b"j" * (n % 4 + pad)) for n in numbers]
    else:
        rows = [b"%d" % n * (n % 4) + b"l" * pad + b"\r" * version for n in numbers]
    data = b"".join(row + b"\n" for row in rows)
    return gzip.compress(data, 1 + version, mtime=0) if name.endswith("gz") else data


CHANGING = [f"{i}.{kind}" for i in range(2) for kind in ("csv", "json", "gz", "tar", "parquet", "lines", "records")]
"""Objects that are replaced while they are read, by the same rows that lie elsewhere."""


def changing(name: str, version: int) -> bytes:
    """A version of one of them."""
    return rows_of(name, range(int(name[0]) * 1000, int(name[0]) * 1000 + 200), version, 100)


def tar_of(numbers: range) -> bytes:
    """A sample of two members for each number."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for n in numbers:
            for extension, content in (("cls", b"%d" % (n % 5)), ("txt", b"x" * (n % 4))):
                member = tarfile.TarInfo(f"{n:04d}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def parquet_of(numbers: range, group: int) -> bytes:
    """A table in row groups of so many rows."""
    table = {"n": list(numbers), "t": ["t" * (n % 3) for n in numbers], "v": [[n] * (n % 3) for n in numbers]}
    schema = pa.schema([("n", pa.int64()), ("t", pa.string()), ("v", pa.list_(pa.int64()))])
    file = io.BytesIO()
    pq.write_table(pa.table(table, schema), file, row_group_size=group)
    return file.getvalue()
