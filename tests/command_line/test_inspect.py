"""``asyncdata inspect``: what files are, what is in their records, and the images in them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import asyncdata as ad

JPEG = b"\xff\xd8\xff\xe0 not more than its beginning"
PNG = b"\x89PNG\r\n\x1a\n likewise"


def example(number: int) -> bytes:
    values = {
        "label": number,
        "weights": np.arange(number % 2 + 1, dtype=np.float32),
        "image": JPEG,
        "names": [b"a", b"bc"],
    }
    return ad.serialize_example(values)


def kinds(ran: Any) -> Any:
    assert ran.err == ""
    return ran.document["kinds"]


def test_examples(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """Each feature has its type, its shapes and its range; byte strings have their lengths and what they look like."""
    shard("a.tfrecord", [example(number) for number in range(10)])
    (kind,) = kinds(run("inspect", "a.tfrecord", "--json"))
    assert (kind["format"], kind["examples"], kind["records"], kind["is_all"]) == ("tfrecord", True, 10, True)
    fields = kind["fields"]
    assert fields["label"] == {
        "records": 10,
        "dtypes": ["int64"],
        "shapes": [[1]],
        "min": 0,
        "max": 9,
        "looks": [],
    }
    assert (fields["weights"]["dtypes"], fields["weights"]["shapes"]) == (["float32"], [[1], [2]])
    assert (fields["weights"]["min"], fields["weights"]["max"]) == (0.0, 1.0)
    assert fields["image"]["looks"] == ["a JPEG image"]
    assert (fields["image"]["min_bytes"], fields["image"]["max_bytes"]) == (len(JPEG), len(JPEG))
    assert (fields["names"]["shapes"], fields["names"]["min_bytes"]) == ([[2]], 1)


def test_records_that_are_no_examples(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """Their sizes are told, and nothing is invented."""
    shard("a.tfrecord", [b"x" * size for size in (3, 1, 2, 1000)])
    (kind,) = kinds(run("inspect", "a.tfrecord", "--json"))
    assert (kind["examples"], kind["fields"]) == (False, {})
    assert kind["record_bytes"] == {"min": 1, "median": 2, "max": 1000}


def test_the_limit(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """So many records are read of all files together; how many there are is estimated; 0 reads all."""
    for number in range(3):
        shard(f"{number}.tfrecord", [bytes(100)] * 100)
    (some,) = kinds(run("inspect", "*.tfrecord", "--limit", 50, "--json"))
    assert (some["records"], some["is_all"], some["records_estimated"]) == (50, False, 300)
    for limit in (0, 300, 1000):
        (all_,) = kinds(run("inspect", "*.tfrecord", "--limit", limit, "--json"))
        assert (all_["records"], all_["is_all"], all_["records_estimated"]) == (300, True, None)
    assert "50, the first; about 300 in all" in run("inspect", "*.tfrecord", "--limit", 50).out


def test_other_formats(run: Callable[..., Any], tmp_path: Path) -> None:
    """CSV, JSON lines, Parquet, tar, text and what is none of them; each is told by its content."""
    (tmp_path / "a.csv").write_text("name,price\nx,1.5\nyy,3\n")
    (tmp_path / "b.csv").write_text("1,2\n3,4\n")
    (tmp_path / "c").write_bytes(gzip.compress(b'{"id": 7, "tags": ["a"], "deep": {"er": null}}\n[1]\n'))
    pq.write_table(pa.table({"id": [1, 2], "list": [[1.0], [2.0, 3.0]]}), tmp_path / "d")
    with tarfile.open(tmp_path / "e", "w") as archive:
        for name, content in (("1.png", PNG), ("1.cls", b"5")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (tmp_path / "f").write_text("ein Satz\n")
    (tmp_path / "g").write_bytes(PNG + bytes(10))
    found = {Path(kind["first_file"]).name: kind for kind in kinds(run("inspect", "*", "--json"))}
    formats = {name: (kind["format"], kind["compression"]) for name, kind in found.items()}
    assert formats == {
        "a.csv": ("csv", None),
        "b.csv": ("csv", None),
        "c": ("jsonl", "GZIP"),
        "d": ("parquet", None),
        "e": ("tar", None),
        "f": ("text", None),
        "g": ("other", None),
    }
    assert (found["a.csv"]["records"], found["b.csv"]["records"]) == (2, 2)
    assert {name: field["dtypes"] for name, field in found["a.csv"]["fields"].items()} == {
        "name": ["bytes"],
        "price": ["float64", "int64"],
    }
    assert set(found["b.csv"]["fields"]) == {"0", "1"}
    assert set(found["c"]["fields"]) == {"id", "tags", "deep.er", ""}
    assert found["d"]["fields"]["list"]["shapes"] == [[1], [2]]
    assert found["e"]["fields"]["png"]["looks"] == ["a PNG image"]
    assert found["g"]["look"] == "a PNG image"


def test_damage_is_told_and_ends_nothing(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """The records behind a damaged one are looked at, and the exit code tells that something is wrong."""
    path = shard("a.tfrecord", [example(number) for number in range(10)])
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    ran = run("inspect", "a.tfrecord", "--json")
    (kind,) = kinds(ran)
    assert (ran.code, kind["records"], [each["offset"] for each in kind["findings"]]) == (1, 9, [0])


def test_what_cannot_be_read(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """It is told on standard error; the rest is looked at."""
    shard("a.tfrecord", [example(1)])
    ran = run("inspect", "a.tfrecord", "missing.tfrecord", "--json")
    assert ran.code == 3
    assert [kind["records"] for kind in ran.document["kinds"]] == [1]
    assert ran.document["unreadable"] == ["no file matches [url missing.tfrecord]"]


def test_images(run: Callable[..., Any], shard: Callable[..., Path], tmp_path: Path) -> None:
    """They are written byte for byte under numbers, at most as many as the limit says, nowhere else."""
    record = ad.serialize_example({"image": [JPEG, PNG], "../../evil.jpg": JPEG})
    shard("a.tfrecord", [record] * 4)
    before = set(tmp_path.iterdir())
    ran = run("inspect", "a.tfrecord", "--save-images", "out/pictures", "--limit", 3)
    assert ran.code == 0
    written = sorted((tmp_path / "out/pictures").iterdir())
    assert [path.suffix for path in written] == [".jpg", ".png", ".jpg"] or len(written) == 3
    assert {path.read_bytes() for path in written} <= {JPEG, PNG}
    assert set(tmp_path.iterdir()) - before == {tmp_path / "out"}
    assert "3 images in out/pictures" in ran.out


def test_a_folder_that_cannot_be_made(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """One line on standard error instead of a traceback."""
    shard("a.tfrecord", [example(1)])
    ran = run("inspect", "a.tfrecord", "--save-images", "a.tfrecord")
    assert ran.code == 3
    assert ran.err.count("\n") == 1


def test_names_of_features_command_nobody(run: Callable[..., Any], shard: Callable[..., Path]) -> None:
    """Control characters are shown."""
    shard("a.tfrecord", [ad.serialize_example({"\x1b[2J\nname": 1})])
    assert "\\x1b[2J\\nname  int64" in run("inspect", "a.tfrecord").out


def test_very_many_fields(run: Callable[..., Any], tmp_path: Path) -> None:
    """Records whose fields are all different, nested deeply, take no memory for each."""
    rows = [json.dumps({f"key {number}": number}) for number in range(3000)]
    rows.append('{"a": ' * 100 + "1" + "}" * 100)
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    ran = run("inspect", "a.jsonl", "--limit", 0)
    assert ran.code == 0
    assert "and more fields, in 2,001 places" in ran.out
