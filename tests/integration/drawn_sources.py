"""The datasets that the law of places draws: every kind of leaf, from memory and from every kind of file."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import asyncdata as ad
from asyncdata.formats.image import encode_png

COUNT: Final = 9


class Pair(NamedTuple):
    """A namedtuple as an element."""

    number: Any
    word: Any


@ad.register_dataclass
@dataclasses.dataclass
class Point:
    """A dataclass whose fields are leaves."""

    x: Any
    y: Any


@dataclasses.dataclass
class Plain:
    """A dataclass that nobody registered: an object."""

    x: Any


def example(n: int) -> bytes:
    """A record in which lists of any length, single values and whole shapes occur; one is missing now and then."""
    features: dict[str, Any] = {
        "number": n,
        "real": np.float32(n / 2),
        "pair": [n, -n],
        "reals": np.arange(n % 3, dtype=np.float32),
        "word": b"w" * n,
        "words": [b"a" * n, b"b"],
        "some": [b"x"] * (n % 3),
        "ones": np.ones(2, np.int64),
    }
    if n % 4 == 3:
        del features["number"]
    return ad.serialize_example(features)


def delimited(tag: int, *parts: bytes) -> bytes:
    """A field of a message: its tag, its length and its parts."""
    body = b"".join(parts)
    assert len(body) < 128
    return bytes([tag, len(body)]) + body


def sequence(n: int) -> bytes:
    """A SequenceExample: a context, and n % 4 steps."""
    step = delimited(0x0A, delimited(0x1A, delimited(0x0A, bytes([n % 100]))))
    lists = delimited(0x0A, delimited(0x0A, b"steps"), delimited(0x12, step * (n % 4)))
    context = ad.serialize_example({"id": n})
    return context + delimited(0x12, lists)


def image(n: int) -> bytes:
    """A PNG."""
    return encode_png(np.full((2 + n % 2, 3, 3), n, np.uint8))


EXAMPLES: Final = [example(n) for n in range(COUNT)]
OBJECTS: Final[list[Any]] = [None, {1, 2}, 2**70, "half \ud800", b"bytes", "text", 3, (1, b"b"), [1.5, 2.5]]


def yielded(items: list[Any]) -> ad.Dataset:
    """Elements as Python objects."""
    return ad.Dataset.from_generator(lambda: list(items))


def file(folder: Path, name: str, content: bytes) -> str:
    """A file of this content."""
    path = folder / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return str(path)


def shard(folder: Path, name: str, records: list[bytes]) -> str:
    """A TFRecord file."""
    path = folder / f"{name}.tfrecord"
    if not path.exists():
        with ad.TFRecordWriter(str(path)) as writer:
            writer.write_many(records)
    return str(path)


def damaged(folder: Path) -> bytes:
    """A TFRecord file of which one payload has another byte."""
    content = bytearray(Path(shard(folder, "examples", EXAMPLES)).read_bytes())
    content[len(content) // 2] ^= 1
    return bytes(content)


def tar(members: dict[str, bytes]) -> bytes:
    """A tar file."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as opened:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def parquet() -> bytes:
    """A Parquet file with columns of many kinds; some values are missing."""
    table = {
        "id": list(range(COUNT)),
        "name": ["é" * n if n % 4 else None for n in range(COUNT)],
        "raw": pa.array([b"b" * n for n in range(COUNT)], pa.binary()),
        "real": pa.array([n / 2 if n % 3 else None for n in range(COUNT)], pa.float32()),
        "reals": [[0.5] * (n % 3) for n in range(COUNT)],
        "flag": [n % 2 == 0 for n in range(COUNT)],
        "when": pa.array(range(COUNT), pa.timestamp("s")),
        "part": [{"a": n, "b": "b"} for n in range(COUNT)],
        "small": pa.array([n if n % 5 else None for n in range(COUNT)], pa.uint8()),
    }
    written = io.BytesIO()
    pq.write_table(pa.table(table), written, row_group_size=4)
    return written.getvalue()


def folders(folder: Path, name: str, contents: list[bytes]) -> str:
    """A directory with a folder for each of two classes."""
    for n, content in enumerate(contents):
        kind = ("cats", "dogs")[n % 2]
        (folder / name / kind).mkdir(parents=True, exist_ok=True)
        file(folder / name / kind, f"{n}.{'png' if content[:1] != b't' else 'txt'}", content)
    return str(folder / name)


CSV: Final = b"n,x,word\n" + b"".join(b"%d,%s,w%d\n" % (n, b"%d.5" % n if n % 3 else b"", n) for n in range(COUNT))
JSON: Final = b"".join(
    b'{"n": %d, "tags": [%s], "no": null}\n' % (n, b'"t", ' * (n % 3) + b"1.5") for n in range(COUNT)
)
DTYPES: Final = ("u1", "u8", "i2", "?", "c8", "f2", "M8[s]", "m8[ms]", "<U3", "S3", ">i4")

SOURCES: Final[dict[str, Callable[[Path], ad.Dataset]]] = {
    "numbers": lambda _: ad.Dataset.range(COUNT),
    "arrays": lambda _: ad.Dataset.from_tensor_slices(np.arange(6.0 * COUNT, dtype=np.float32).reshape(COUNT, 2, 3)),
    "uneven arrays": lambda _: yielded([np.arange(n) for n in range(COUNT)]),
    "bytes": lambda _: ad.Dataset.from_tensor_slices([b"b" * n for n in range(COUNT)]),
    "texts": lambda _: ad.Dataset.from_tensor_slices(["é" * n for n in range(COUNT)]),
    "objects": lambda _: yielded(OBJECTS),
    "one array": lambda _: ad.Dataset.from_tensors(np.arange(3)).repeat(4),
    "an array again and again": lambda _: yielded([np.arange(3)] * 4),
    "lists": lambda _: yielded([["a"], [b"b", np.arange(2)], ["c"] * 2]),
    "string tables": lambda _: yielded([ad.BytesArray.from_items([b"a", b"b" * n]) for n in range(COUNT)]),
    "tables of examples": lambda _: yielded([ad.BytesArray.from_items(EXAMPLES[:n]) for n in range(COUNT)]),
    "ragged": lambda _: yielded(
        [ad.RaggedArray.from_nested_row_splits(np.arange(3), [np.array([0, n % 4, 3])]) for n in range(9)]
    ),
    "examples": lambda _: ad.Dataset.from_tensor_slices(EXAMPLES),
    "examples in a tuple": lambda _: ad.Dataset.from_tensor_slices((EXAMPLES,)),
    "examples in a dict": lambda _: ad.Dataset.from_tensor_slices({"record": EXAMPLES}),
    "examples and numbers": lambda _: ad.Dataset.from_tensor_slices((EXAMPLES, np.arange(COUNT))),
    "example file": lambda folder: ad.TFRecordDataset(shard(folder, "examples", EXAMPLES)),
    "example files": lambda folder: ad.Dataset.from_tensor_slices(
        [shard(folder, f"examples-{n}", EXAMPLES[n:]) for n in range(3)]
    ).interleave(ad.TFRecordDataset, cycle_length=2),
    "sequences": lambda folder: ad.TFRecordDataset(shard(folder, "sequences", [sequence(n) for n in range(COUNT)])),
    "images": lambda folder: ad.TFRecordDataset(shard(folder, "images", [image(n) for n in range(COUNT)])),
    **{
        f"arrays of {kind}": lambda _, kind=kind: ad.Dataset.from_tensor_slices(  # type: ignore[misc]  # has a default
            np.arange(2 * COUNT).reshape(COUNT, 2).astype(kind)
        )
        for kind in DTYPES
    },
    "scalars": lambda _: ad.Dataset.from_tensor_slices(
        {kind: np.arange(COUNT).astype(kind) for kind in ("u4", "?", "c16", "M8[D]")}
    ),
    "records of NumPy": lambda _: ad.Dataset.from_tensor_slices(
        np.array([(n, n / 2) for n in range(COUNT)], [("a", np.int32), ("b", np.float64)])
    ),
    "python numbers": lambda _: yielded([1, 2.5, True, 3j, 2**63, 0]),
    "namedtuples": lambda _: yielded([Pair(n, b"w" * n) for n in range(COUNT)]),
    "namedtuples of arrays": lambda _: ad.Dataset.from_tensor_slices(
        Pair(np.arange(COUNT), {"a": np.ones((COUNT, 2))})
    ),
    "dataclasses": lambda _: yielded([Point(n, np.arange(3) + n) for n in range(COUNT)]),
    "dataclasses in a nest": lambda _: yielded([(Point(n, Pair(n, "w")), {"p": Point("x", n)}) for n in range(COUNT)]),
    "plain dataclasses": lambda _: yielded([Plain(n) for n in range(4)]),
    "TextLineDataset": lambda folder: ad.TextLineDataset(file(folder, "lines.txt", b"one\r\n\ntwo two\nthree")),
    "FixedLengthRecordDataset": lambda folder: ad.FixedLengthRecordDataset(
        file(folder, "fixed", b"h" + b"abc" * 7), 3, 1
    ),
    "FileDataset": lambda folder: ad.FileDataset([file(folder, f"whole-{n}", b"w" * n) for n in range(4)]),
    "FileDataset with_url": lambda folder: ad.FileDataset(
        [file(folder, f"whole-{n}", b"w" * n) for n in range(4)], with_url=True
    ).map(lambda url, content: (url[-7:], content)),
    "CsvDataset": lambda folder: ad.CsvDataset(file(folder, "rows.csv", CSV), [np.int64, 0.5, bytes], header=True),
    "CsvDataset of texts": lambda folder: ad.CsvDataset(
        file(folder, "rows.csv", CSV), [str], header=True, select_cols=[2]
    ),
    "CsvDataset by name": lambda folder: ad.CsvDataset(
        file(folder, "rows.csv", CSV), {"word": str, "n": int}, header=True
    ),
    "CsvDataset with a bad row": lambda folder: ad.CsvDataset(
        file(folder, "bad.csv", b"1,a\n2,b\nx,c\n4,d\n"), [int, str]
    ),
    "JsonLinesDataset": lambda folder: ad.JsonLinesDataset(file(folder, "rows.jsonl", JSON)),
    "JsonLinesDataset with a bad line": lambda folder: ad.JsonLinesDataset(
        file(folder, "bad.jsonl", b'{"n": 1}\n[2, 3]\n{"n"}\n4\n')
    ),
    "ParquetDataset": lambda folder: ad.ParquetDataset(file(folder, "rows.parquet", parquet())),
    "ParquetDataset columns": lambda folder: ad.ParquetDataset(
        file(folder, "rows.parquet", parquet()), ["real", "raw"], [("id", ">", 1)]
    ),
    "TarDataset": lambda folder: ad.TarDataset(
        file(folder, "samples.tar", tar({f"{n}.{kind}": b"m" * n for n in range(COUNT) for kind in ("cls", "txt")}))
    ),
    "TarDataset of any members": lambda folder: ad.TarDataset(
        file(folder, "uneven.tar", tar({f"{n // 2}.{'abc'[n % 3]}": b"m" * n for n in range(COUNT)}))
    ),
    "TFRecordDataset damaged": lambda folder: ad.TFRecordDataset(file(folder, "damaged.tfrecord", damaged(folder))),
    "image_dataset_from_directory": lambda folder: ad.image_dataset_from_directory(
        folders(folder, "pets", [image(n) for n in range(6)]), image_size=(2, 2), batch_size=None, shuffle=False
    ),
    "text_dataset_from_directory": lambda folder: ad.text_dataset_from_directory(
        folders(folder, "texts", [b"t" * (n + 1) for n in range(6)]), batch_size=None, shuffle=False
    ),
    "image dicts": lambda _: ad.Dataset.from_tensor_slices({"image": [image(n) for n in range(4)], "id": range(4)}),
}
