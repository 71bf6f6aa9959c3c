"""``Options(check_object_crc=True)``: what the records' own checksums cannot see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import asyncdata as ad
from asyncdata.errors import CorruptObjectError
from fake_gcs import FakeGCS, Fault, Profile, Rule

LINES = [b"line %d" % number for number in range(40_000)]
TEXT = b"\n".join(LINES)
CORRUPT = Rule(fault=Fault(kind="corrupt"), operations="storage.objects.get", media_only=True, nth=(3,))


def options(server: FakeGCS, **more: Any) -> ad.Options:
    storage = {"gs": {"endpoint_url": server.url, "token": "anon"}}
    return ad.Options(storage=storage, num_workers=0, chunk_bytes=65_536, **more)


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["listed", "opened", "manifest"])
def test_a_flipped_byte_is_found(how: str, tmp_path: Path) -> None:
    """In a format without checksums of its own; what precedes it was delivered, but the epoch does not end well."""
    with FakeGCS(buckets=["bucket"], profile=Profile(rules=(CORRUPT,))) as server:
        generation = server.put("bucket", "x", TEXT)
        if how == "listed":
            files: Any = ad.Dataset.list_files("gs://bucket/*")
        elif how == "opened":
            files = "gs://bucket/x"
        else:
            ad.write_manifest("gs://bucket/*", tmp_path / "m", options(server))
            files = ad.Dataset.from_manifest(tmp_path / "m")
        ds = ad.TextLineDataset(files)
        with pytest.raises(CorruptObjectError, match="gs://bucket/x") as caught:
            list(ds.with_options(options(server, check_object_crc=True)))
        assert caught.value.version == str(generation)
        # The same bytes in order, and then the same fault where nobody looks.
        assert list(ds.with_options(options(server, check_object_crc=True))) == LINES


def test_nobody_looks_unless_asked() -> None:
    """A text with a flipped byte is a text."""
    with FakeGCS(buckets=["bucket"], profile=Profile(rules=(CORRUPT,))) as server:
        server.put("bucket", "x", TEXT)
        found = list(ad.TextLineDataset("gs://bucket/x").with_options(options(server)))
        assert len(found) >= len(LINES) - 1
        assert found != LINES
