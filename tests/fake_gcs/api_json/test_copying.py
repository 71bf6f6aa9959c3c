"""Copy, rewrite, compose, move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_gcs import FakeGCS, ServiceOptions
from tests.fake_gcs.asking import ask, o, send

B = "/storage/v1/b/bkt/o"


def test_copies_share_nothing_that_can_change(server: FakeGCS) -> None:
    """A copy has the source's bytes and settings, or the given settings, and outlives its source."""
    server.put("bkt", "a/s", b"data", contentType="x/y", metadata={"k": "v"})
    copied = send(server, "POST", f"{B}/a%2Fs/copyTo/b/bkt/o/c%2Ft").json
    assert (copied["contentType"], copied["metadata"], copied["name"]) == ("x/y", {"k": "v"}, "c/t")
    other = send(server, "POST", f"{B}/a%2Fs/copyTo/b/bkt/o/u", {"contentType": "z/z"}).json
    assert (other["contentType"], other.get("metadata")) == ("z/z", None)
    server.put("bkt", "a/s", b"other")
    server.delete("bkt", "a/s")
    assert ask(server, "GET", "/bkt/c/t").body == b"data"
    assert send(server, "POST", f"{B}/a%2Fs/copyTo/b/bkt/o/v").status == 404


def test_conditions_of_source_and_target(server: FakeGCS) -> None:
    """``ifSource...`` looks at the source, ``if...`` at the target."""
    generation = server.put("bkt", "s", b"1")
    server.put("bkt", "t", b"2")
    for query, status in (
        (f"ifSourceGenerationMatch={generation}", 200),
        ("ifSourceGenerationMatch=1", 412),
        ("ifGenerationMatch=0", 412),
        (f"sourceGeneration={generation}", 200),
        ("sourceGeneration=1", 404),
    ):
        for verb in ("copyTo", "rewriteTo"):
            assert send(server, "POST", f"{B}/s/{verb}/b/bkt/o/t?{query}").status == status


@pytest.fixture
def slow_rewrites() -> Iterator[FakeGCS]:
    """A server whose rewrites do 1 MiB a call."""
    with FakeGCS(buckets=["bkt"], options=ServiceOptions(rewrite_bytes_per_call=1 << 20)) as server:
        yield server


def test_a_rewrite_may_take_several_calls(slow_rewrites: FakeGCS) -> None:
    """Until it is done the answers carry a token and no object; the token belongs to one rewrite."""
    server = slow_rewrites
    data = bytes(range(256)) * 4096 * 2 + b"x"
    server.put("bkt", "s", data)
    answer = send(server, "POST", f"{B}/s/rewriteTo/b/bkt/o/t").json
    seen = []
    while not answer["done"]:
        seen.append(int(answer["totalBytesRewritten"]))
        assert "resource" not in answer
        assert server.names("bkt") == ["s"]
        token = o(answer["rewriteToken"])
        assert send(server, "POST", f"{B}/s/rewriteTo/b/bkt/o/other?rewriteToken={token}").status == 400
        answer = send(server, "POST", f"{B}/s/rewriteTo/b/bkt/o/t?rewriteToken={token}").json
    assert seen == [1 << 20, 2 << 20]
    assert answer["resource"]["size"] == str(len(data))
    assert server.read("bkt", "t") == data


def test_the_client_may_bound_a_rewrite(memory: FakeGCS) -> None:
    """``maxBytesRewrittenPerCall`` counts, in multiples of 1 MiB."""
    memory.put("bkt", "s", bytes(3 << 20))
    path = f"{B}/s/rewriteTo/b/bkt/o/t"
    assert send(memory, "POST", f"{path}?maxBytesRewrittenPerCall={2 << 20}").json["done"] is False
    assert send(memory, "POST", f"{path}?maxBytesRewrittenPerCall=5").status == 400
    assert send(memory, "POST", path).json["done"] is True


def test_compose_concatenates(server: FakeGCS) -> None:
    """Bytes in order, the CRC32C of the whole, no MD5, the parts counted; 33 sources and missing ones are refused."""
    for name in "abc":
        server.put("bkt", name, name.encode() * 1000)
    sources = [{"name": "a"}, {"name": "b"}, {"name": "a"}]
    made = send(server, "POST", f"{B}/abc/compose", {"sourceObjects": sources, "destination": {"contentType": "x/y"}})
    assert made.status == 200
    assert server.read("bkt", "abc") == b"a" * 1000 + b"b" * 1000 + b"a" * 1000
    plain = ask(server, "PUT", "/bkt/same", server.read("bkt", "abc"))
    assert f"crc32c={made.json['crc32c']}" in plain.headers["x-goog-hash"]
    assert "md5Hash" not in made.json
    assert (made.json["componentCount"], made.json["contentType"]) == (3, "x/y")
    again = send(server, "POST", f"{B}/more/compose", {"sourceObjects": [{"name": "abc"}, {"name": "c"}]}).json
    assert again["componentCount"] == 4
    for wrong, status in (
        ([{"name": "a"}] * 33, 400),
        ([], 400),
        ([{"name": "nope"}], 404),
        ([{"nome": "a"}], 400),
        ("a", 400),
        ([{"name": "a", "objectPreconditions": {"ifGenerationMatch": "1"}}], 412),
    ):
        assert send(server, "POST", f"{B}/w/compose", {"sourceObjects": wrong}).status == status


def test_move_renames(server: FakeGCS) -> None:
    """The target has the bytes, the source is gone; conditions hold for both."""
    server.put("bkt", "s", b"data", metadata={"k": "v"})
    server.put("bkt", "t", b"old")
    assert send(server, "POST", f"{B}/s/moveTo/o/t?ifGenerationMatch=0").status == 412
    moved = send(server, "POST", f"{B}/s/moveTo/o/t")
    assert (moved.status, moved.json["metadata"]) == (200, {"k": "v"})
    assert server.names("bkt") == ["t"]
    assert server.read("bkt", "t") == b"data"
    assert send(server, "POST", f"{B}/t/moveTo/o/t").status == 400


def test_copies_in_a_directory_survive_their_source(tmp_path: Path) -> None:
    """A copy shares the file of its source by a link: replacing and deleting the source leaves it whole."""
    with FakeGCS(tmp_path, buckets=["bkt"]) as server:
        server.put("bkt", "s", b"data")
        send(server, "POST", f"{B}/s/copyTo/b/bkt/o/t")
        server.put("bkt", "s", b"new")
        server.delete("bkt", "s")
    with FakeGCS(tmp_path) as server:
        assert server.names("bkt") == ["t"]
        assert server.read("bkt", "t") == b"data"
