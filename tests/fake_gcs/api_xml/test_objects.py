"""The XML API."""

from __future__ import annotations

from xml.etree import ElementTree

from fake_gcs import FakeGCS
from tests.fake_gcs.asking import ask, o

NS = {"s": "http://s3.amazonaws.com/doc/2006-03-01/"}


def keys(body: bytes) -> list[str | None]:
    return [node.text for node in ElementTree.fromstring(body).findall("s:Contents/s:Key", NS)]


def test_put_get_head_delete(server: FakeGCS) -> None:
    """PUT answers ETag and generation; GET and HEAD have the headers strict clients want; DELETE is 204, then 404."""
    put = ask(server, "PUT", "/bkt/a/b", b"data", Content_Type="x/y", x_goog_meta_k="v", Cache_Control="no-store")
    assert put.status == 200
    get = ask(server, "GET", "/bkt/a/b")
    head = ask(server, "HEAD", "/bkt/a/b")
    assert (get.body, head.body) == (b"data", b"")
    for answer in (get, head):
        assert answer.headers["ETag"] == put.headers["ETag"]
        assert answer.headers["x-goog-generation"] == put.headers["x-goog-generation"]
        assert answer.headers["Content-Length"] == "4"
        assert answer.headers["Content-Type"] == "x/y"
        assert answer.headers["x-goog-meta-k"] == "v"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Last-Modified" in answer.headers
    assert ask(server, "DELETE", "/bkt/a/b").status == 204
    assert [ask(server, method, "/bkt/a/b").status for method in ("DELETE", "GET", "HEAD")] == [404] * 3


def test_preconditions_as_headers(server: FakeGCS) -> None:
    """x-goog-if-... and the headers of HTTP itself."""
    generation = ask(server, "PUT", "/bkt/x", b"1", x_goog_if_generation_match="0").headers["x-goog-generation"]
    assert ask(server, "PUT", "/bkt/x", b"2", x_goog_if_generation_match="0").status == 412
    tag = ask(server, "HEAD", "/bkt/x").headers["ETag"]
    stamp = ask(server, "HEAD", "/bkt/x").headers["Last-Modified"]
    for headers, status in (
        ({"x_goog_if_generation_match": generation}, 200),
        ({"x_goog_if_generation_match": "1"}, 412),
        ({"If_Match": tag}, 200),
        ({"If_Match": '"other"'}, 412),
        ({"If_None_Match": tag}, 304),
        ({"If_None_Match": "*"}, 304),
        ({"If_None_Match": '"other"'}, 200),
        ({"If_Modified_Since": stamp}, 304),
        ({"If_Unmodified_Since": stamp}, 200),
        ({"If_Modified_Since": "nonsense"}, 200),
        ({"If_Unmodified_Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 412),
        ({"Range": "bytes=0-0", "If_Range": '"other"'}, 200),
        ({"Range": "bytes=0-0", "If_Range": tag}, 206),
    ):
        assert ask(server, "GET", "/bkt/x", None, **headers).status == status, headers


def test_metadata_in_headers_is_utf8(server: FakeGCS) -> None:
    """What a client sends as UTF-8 bytes in a header comes back as the same bytes, and as text in JSON."""
    value = "\u00e9\u4e2d".encode().decode("latin-1")
    assert ask(server, "PUT", "/bkt/x", b"", x_goog_meta_k=value).status == 200
    assert ask(server, "HEAD", "/bkt/x").headers["x-goog-meta-k"] == value
    assert ask(server, "GET", "/storage/v1/b/bkt/o/x").json["metadata"] == {"k": "\u00e9\u4e2d"}


def test_copies_by_header(server: FakeGCS) -> None:
    """x-goog-copy-source, encoded or not, with its conditions; the directive REPLACE takes the request's metadata."""
    ask(server, "PUT", "/bkt/a%20b/c", b"data", x_goog_meta_k="v")
    copied = ask(server, "PUT", "/bkt/t", b"", x_goog_copy_source=o("bkt/a b/c"))
    assert copied.status == 200
    assert b"<CopyObjectResult" in copied.body
    assert ask(server, "GET", "/bkt/t").headers["x-goog-meta-k"] == "v"
    again = {"x_goog_copy_source": "/bkt/a%20b/c", "x_goog_if_generation_match": "0"}
    assert ask(server, "PUT", "/bkt/t", b"", **again).status == 412
    replaced = {"x_goog_copy_source": "bkt/a%20b/c", "x_goog_metadata_directive": "REPLACE", "x_goog_meta_n": "1"}
    assert ask(server, "PUT", "/bkt/u", b"", **replaced).status == 200
    headers = ask(server, "HEAD", "/bkt/u").headers
    assert (headers.get("x-goog-meta-n"), headers.get("x-goog-meta-k")) == ("1", None)
    assert ask(server, "PUT", "/bkt/v", b"", x_goog_copy_source="bkt/none").status == 404


def test_both_versions_of_the_listing(server: FakeGCS) -> None:
    """Pages by token and by marker, prefixes folded, names escaped."""
    for name in ("a/1", "a/2", "b&<>", "c\x01", "d"):
        server.put("bkt", name, b"xyz")
    first = ask(server, "GET", "/bkt?list-type=2&max-keys=2&prefix=&delimiter=/").body
    root = ElementTree.fromstring(first)
    assert root.findtext("s:CommonPrefixes/s:Prefix", "", NS) == "a/"
    assert keys(first) == ["b&<>"]
    assert root.findtext("s:IsTruncated", "", NS) == "true"
    token = o(root.findtext("s:NextContinuationToken", "", NS))
    rest = ask(server, "GET", f"/bkt?list-type=2&delimiter=/&continuation-token={token}").body
    assert keys(rest) == ["c\ufffd", "d"]
    entry = ElementTree.fromstring(rest).find("s:Contents[2]", NS)
    assert entry is not None
    assert entry.findtext("s:Size", "", NS) == "3"
    assert entry.findtext("s:LastModified", "", NS).endswith("Z")
    assert keys(ask(server, "GET", "/bkt?list-type=2&start-after=b%26%3C%3E").body) == ["c\ufffd", "d"]
    old = ask(server, "GET", "/bkt?max-keys=3").body
    assert ElementTree.fromstring(old).findtext("s:NextMarker", "", NS) == "b&<>"
    assert keys(ask(server, "GET", "/bkt?marker=b%26%3C%3E&encoding-type=url").body) == ["c%01", "d"]
    folded = ElementTree.fromstring(ask(server, "GET", "/bkt?delimiter=/&max-keys=1").body)
    assert folded.findtext("s:NextMarker", "", NS) == "a/"
    assert keys(ask(server, "GET", "/bkt?delimiter=/&max-keys=1&marker=a/").body) == ["b&<>"]


def test_virtual_hosts_and_the_service_itself(memory: FakeGCS) -> None:
    """bucket.storage.googleapis.com names the bucket in the host; the root lists buckets."""
    memory.put("bkt", "x/y", b"data")
    assert ask(memory, "GET", "/x/y", Host="bkt.storage.googleapis.com").body == b"data"
    assert b"<Name>bkt</Name>" in ask(memory, "GET", "/").body
    assert ask(memory, "PUT", "/other").status == 200
    assert ask(memory, "HEAD", "/other").status == 200
    assert ask(memory, "GET", "/other?location").status == 200
    assert ask(memory, "PATCH", "/bkt/x").status == 405
