"""Ranges in braces, ``{0000..0127}``, in the patterns of every backend that lists, and of http, which does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import asyncdata as ad
from fake_gcs import FakeGCS

SHARDS = 20


def gs(server: FakeGCS) -> ad.Options:
    """Reads from that server."""
    return ad.Options(num_workers=0, storage={"gs": {"endpoint_url": server.url, "token": "anon"}})


def fill(server: FakeGCS, count: int = SHARDS) -> None:
    """Shards, and other objects beside them."""
    for number in range(count):
        server.put("bucket", f"a/x-{number:05d}.txt", b"%d\n" % number)
        server.put("bucket", f"a/y-{number:05d}.txt", b"other\n")


def test_a_long_range_takes_one_listing() -> None:
    """The files of a range are exactly those it names, and are not asked for one by one."""
    with FakeGCS(buckets=["bucket"]) as server:
        fill(server)
        server.journal.clear()
        ds = ad.Dataset.list_files("gs://bucket/a/x-{00001..00018}.txt", shuffle=False).with_options(gs(server))
        assert [url.rpartition("/")[2] for url in ds] == [f"x-{number:05d}.txt" for number in range(1, 19)]
        assert len(server.journal) == 1


def test_a_short_range_asks_for_its_names() -> None:
    """A few names of a large folder do not make it be listed."""
    with FakeGCS(buckets=["bucket"]) as server:
        fill(server)
        server.journal.clear()
        ds = ad.Dataset.list_files("gs://bucket/a/x-{00003..00005}.txt", shuffle=False).with_options(gs(server))
        assert len(list(ds)) == 3
        assert not server.journal.entries("storage.objects.list")


@pytest.mark.parametrize("last", [2, 30], ids=["short", "long"])
def test_a_missing_file_of_a_range_is_an_error(last: int) -> None:
    """A shard that does not exist is never left out in silence."""
    with FakeGCS(buckets=["bucket"]) as server:
        fill(server, last)
        ds = ad.Dataset.list_files(f"gs://bucket/a/x-{{00000..{last:05d}}}.txt", shuffle=False)
        with pytest.raises(ad.ObjectNotFoundError, match=rf"1 of the {last + 1} names.*x-{last:05d}\.txt"):
            list(ds.with_options(gs(server)))


def test_ranges_of_buckets_and_of_folders() -> None:
    """A range may stand anywhere, beside wildcards too."""
    with FakeGCS(buckets=[f"bucket-{number}" for number in range(18)]) as server:
        for number in range(18):
            server.put(f"bucket-{number}", f"d{number % 3}/one.txt", b"1\n")
        urls = ad.Dataset.list_files("gs://bucket-{0..17}/*/o*.txt", shuffle=False)
        assert len(list(urls.with_options(gs(server)))) == 18
        urls = ad.Dataset.list_files("gs://bucket-{3..8..3}/d{0..0}/{o,t}ne.txt", shuffle=False)
        assert len(list(urls.with_options(gs(server)))) == 2


def test_local_files_and_web_servers(tmp_path: Path) -> None:
    """Local names are looked at one by one, and so are those of a web server, which has no listing."""
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"{number}\n")
    found = ad.Dataset.list_files(f"{tmp_path}/{{0..19}}.txt", shuffle=False)
    assert len(list(found)) == 20
    with FakeGCS(buckets=["bucket"]) as server:
        fill(server)
        urls = ad.Dataset.list_files(f"{server.url}/bucket/a/x-{{00000..00019}}.txt", shuffle=False)
        lines = urls.flat_map(ad.TextLineDataset).with_options(ad.Options(num_workers=0))
        assert list(lines) == [b"%d" % number for number in range(SHARDS)]
