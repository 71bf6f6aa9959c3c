"""TensorFlow as the referee of files: lines, records of fixed length, CSV, compressed or not, whole or cut short."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from tests.referee.process import Referee
from tests.samples import samples

PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}
Case = dict[str, Any]
_PARTS = [
    b"",
    b"1",
    b"-2",
    b"3.5",
    b"a",
    b"na",
    b" 7 ",
    b'"b"',
    b'"c,d"',
    b'"e""f"',
    b'"g\n"',
    b'"h\r\ni"',
    b"0x1F",
    b"1e400",
]
_ODD = [b'j"', b'"k"l', b"\r", b"\n", b'"', b"\0", b"99999999999"]


def lines(source: random.Random) -> tuple[bytes, Case]:
    """A text with every kind of line end."""
    parts = source.choices([b"a", b"bc" * 50, b"\n", b"\r\n", b"\r", b"\0", b"\xff"], k=source.randint(0, 40))
    return b"".join(parts), {"kind": "lines", "arguments": {}}


def fixed(source: random.Random) -> tuple[bytes, Case]:
    """Records with header and footer, sometimes a byte too many."""
    record, header, footer = source.randint(1, 9), source.randint(0, 5), source.randint(0, 5)
    size = header + record * source.randint(0, 9) + footer + (source.random() < 0.2)
    arguments = {"record_bytes": record, "header_bytes": header, "footer_bytes": footer}
    return source.randbytes(size), {"kind": "fixed", "arguments": arguments}


def csv(source: random.Random) -> tuple[bytes, Case]:
    """Rows of fields that fit their columns, and now and then one that does not."""
    wishes = source.choices(
        ["int32", "int64", "float32", "float64", "string", [5], [0.25], ["x:6e6f"]], k=source.randint(1, 4)
    )
    arguments: dict[str, Any] = {"record_defaults": wishes, "header": source.random() < 0.3}
    if source.random() < 0.3:
        arguments["na_value"] = "na"
    if source.random() < 0.3:
        arguments["use_quote_delim"] = False
    width = len(wishes)
    if source.random() < 0.3:
        width += source.randint(0, 2)
        arguments["select_cols"] = sorted(source.sample(range(width), len(wishes)))
    kinds = dict(zip(arguments.get("select_cols", range(width)), wishes, strict=True))
    rows = [b",".join(field(source, kinds.get(n, "string")) for n in range(width)) for _ in range(source.randint(0, 8))]
    end = source.choice([b"\n", b"\r\n", b"\r"])
    return end.join(rows) + (end if source.random() < 0.5 else b""), {"kind": "csv", "arguments": arguments}


def field(source: random.Random, wish: Any) -> bytes:
    """A field, mostly one that fits its column."""
    if source.random() < 0.02:
        return source.choice(_ODD)
    if source.random() < 0.1:
        return source.choice(_PARTS)
    if wish in ("string", ["x:6e6f"]):
        return source.choice(_PARTS)
    if wish in ("int32", "int64", [5]):
        return b"%d" % source.randint(-(2**31), 2**31 - 1)
    return repr(source.uniform(-1, 1) * 10.0 ** source.randint(-40, 40)).encode()


def ours(case: Case) -> dict[str, Any]:
    """What asyncdata makes of it, written as the referee writes it."""
    arguments = dict(case["arguments"])
    make = {"lines": ad.TextLineDataset, "fixed": ad.FixedLengthRecordDataset, "csv": ad.CsvDataset}[case["kind"]]
    if case["kind"] == "csv":
        arguments["record_defaults"] = [column(wish) for wish in arguments["record_defaults"]]
    elements: list[Any] = []
    try:
        for element in make(case["path"], **arguments):
            elements.append(written(element))  # noqa: PERF401 -- those in front of an error count
    except ad.DataError as error:
        return {"elements": elements, "error": type(error).__name__}
    return {"elements": elements, "error": None}


def column(wish: Any) -> Any:
    """A column in asyncdata's words."""
    if isinstance(wish, list):
        return bytes.fromhex(wish[0][2:]) if isinstance(wish[0], str) else wish[0]
    return bytes if wish == "string" else np.dtype(wish)


def written(value: Any) -> Any:
    """An element as JSON can hold it."""
    if isinstance(value, tuple):
        return [written(part) for part in value]
    if isinstance(value, bytes):
        return value.hex()
    return [value.dtype.name, value.item().hex() if value.dtype.kind == "f" else value.item()]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(samples(1, 20)))
def test_files_give_what_tensorflow_gives(part: int, referee: Referee, tmp_path: Path) -> None:
    """Elements, their types, and the element in front of which an error comes, for files of every kind."""
    cases = []
    for seed in range(240 * part, 240 * part + 240):
        source = random.Random(seed)
        data, case = source.choice([lines, fixed, csv, csv])(source)
        compression = source.choice(["", "", "GZIP", "ZLIB"])
        path = tmp_path / str(seed)
        path.write_bytes(PACK[compression](data))
        case["path"] = str(path)
        case["arguments"]["compression_type"] = compression
        cases.append(case)
    failed = 0
    with ad.Runtime(ad.Options(num_workers=0)):
        for case in cases:
            expected = referee.ask("tf_sources", case)
            found = ours(case)
            context = Path(case["path"]).read_bytes(), case, expected["error"], found["error"]
            assert found["elements"] == expected["elements"], context
            assert (found["error"] is None) == (expected["error"] is None), context
            failed += found["error"] is not None
    assert 0 < failed < len(cases)
