from __future__ import annotations

import gzip
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.json_lines import MOST_NESTED, JsonFramer, parse_json
from tests.formats.framers import check_any_chunking, outcome

VALUES: list[Any] = [{"a": 1, "b": [1.5, None, True]}, {}, [], "ä\n", 7, {"nested": {"deep": [{"x": "\0"}]}}, 2**70]


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n\r\n", "\n\n \n"])
@pytest.mark.parametrize("final", ["", "\n"])
def test_each_line_is_a_value(end: str, final: str) -> None:
    """Values of any kind, with LF or CRLF, blank lines between them, with and without a last line end."""
    data = (end.join(json.dumps(value) for value in VALUES) + final).encode()
    check_any_chunking(JsonFramer, data, [repr(value).encode() for value in VALUES], rounds=3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1} {}', "Extra data"),
        (b'"\xff"', "not JSON"),
        (b"\0", "not JSON"),
        (b"[" * 100_000, "nested more than 128 deep"),
        (b"9" * 5000, "not JSON"),
        (b"1\r2", "Extra data at column 3"),
        (gzip.compress(b"{}", mtime=0), "like gzip: pass compression_type='GZIP'"),
        (b'"a\rb"', "control character"),
    ],
)
def test_a_bad_line_is_named(line: bytes, message: str) -> None:
    """The values in front of it come first; the error names line, record and offset, and shows a little of it."""
    records, error = outcome(JsonFramer, b'{"ok": 1}\n\n' + line + b'\n{"ok": 2}\n')
    assert records == [{"ok": 1}]
    assert isinstance(error, CorruptRecordError)
    assert message in str(error)
    assert "line 3" in str(error)
    assert (error.url, error.record, error.offset) == ("gs://b/o", 1, 11)
    assert len(str(error)) < 500


def test_numbers_as_python_reads_them() -> None:
    """NaN and Infinity, which Python writes, are read; views are taken as well as bytes."""
    assert math.isnan(parse_json(memoryview(b"NaN")))
    assert parse_json(b"-Infinity") == -math.inf


TEXTS = st.text(alphabet='[]{}"\\aé', max_size=8)


@given(st.lists(st.booleans(), max_size=MOST_NESTED), st.lists(TEXTS, max_size=60), st.integers(-2, 2))
def test_nesting_is_limited_to_the_same_depth_whatever_the_strings_hold(
    kinds: list[bool], texts: list[str], beyond: int
) -> None:
    """Brackets and escaped quotes in strings and keys do not count; one level more than there may be is refused."""
    depth = MOST_NESTED + beyond
    value: Any = texts
    for level in range(depth - 1):
        key = texts[level % len(texts)] if texts else ""
        value = {key: value, f"{key}+": key} if kinds and kinds[level % len(kinds)] else [key, value]
    line = json.dumps(value, ensure_ascii=False).encode()
    if depth > MOST_NESTED:
        with pytest.raises(CorruptRecordError, match="nested more than 128 deep"):
            parse_json(line)
    else:
        assert parse_json(line) == value


def test_many_arrays_beside_one_another_are_not_deep() -> None:
    """Only those that lie inside one another count."""
    value = [[i, {"a": []}] for i in range(2000)]
    assert parse_json(json.dumps(value).encode()) == value
