"""Lines of manifests: what is written is read again, and everything else is refused in words."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import DataError
from asyncdata.storage.manifest_files import UNKNOWN_SIZE, format_entry, parse_entry
from asyncdata.types import ObjectInfo

_FILE_NAMES = st.binary(min_size=1).map(os.fsdecode)
_INFOS = st.builds(
    ObjectInfo,
    url=st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | _FILE_NAMES,
    size=st.integers(UNKNOWN_SIZE, 2**63 - 1),
    version=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    crc32c=st.none() | st.integers(0, 2**32 - 1),
)


@given(_INFOS)
def test_an_entry_is_one_line_and_comes_back(info: ObjectInfo) -> None:
    """Whatever is in a URL or a version, or in the name of a file; sizes that are not known are left out."""
    line = format_entry(info)
    assert "\n" not in line
    again = parse_entry(line.encode(), 0, "m")
    assert (again, again.crc32c) == (info, info.crc32c)
    assert ("size" in json.loads(line)) == (info.size >= 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"gs://bucket/x", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        (b"{}", "no 'url'"),
        (b'{"url": ""}', "no 'url'"),
        (b'{"url": 5}', "no 'url'"),
        (b'{"url": "x", "size": "5"}', "'size'"),
        (b'{"url": "x", "size": 1.5}', "'size'"),
        (b'{"url": "x", "size": true}', "'size'"),
        (b'{"url": "x", "size": -2}', "'size'"),
        (b'{"url": "x", "size": 1e400}', "'size'"),
        (b'{"url": "x", "size": 99999999999999999999}', "'size'"),
        (b'{"url": "x", "version": 7}', "'version'"),
        (b'{"url": "x", "crc32c": "AAAA"}', "'crc32c'"),
        (b'{"url": "x", "crc32c": 4294967296}', "'crc32c'"),
        (b'{"url": "x", "generation": "7"}', "unknown keys: generation"),
    ],
    ids=range(17),
)
def test_what_is_no_entry_is_refused(line: bytes, message: str) -> None:
    """The error names the file and the line, counted from 1 in words and from 0 in the attribute."""
    with pytest.raises(DataError, match=message) as caught:
        parse_entry(line, 6, "gs://b/manifest")
    assert "line 7 of" in str(caught.value)
    assert (caught.value.url, caught.value.record) == ("gs://b/manifest", 6)
