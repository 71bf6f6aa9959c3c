"""Multipart uploads of the XML API."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from fake_gcs import FakeGCS
from tests.fake_gcs.asking import Answer, ask

NS = {"s": "http://s3.amazonaws.com/doc/2006-03-01/"}


def begin(server: FakeGCS, **headers: str) -> str:
    answer = ask(server, "POST", "/bkt/x?uploads", b"", **headers)
    assert answer.status == 200
    return ElementTree.fromstring(answer.body).findtext("s:UploadId", "", NS)


def part(server: FakeGCS, key: str, number: int, data: bytes) -> str:
    answer = ask(server, "PUT", f"/bkt/x?partNumber={number}&uploadId={key}", data)
    assert answer.status == 200
    return answer.headers["ETag"]


def complete(server: FakeGCS, key: str, parts: list[tuple[int, str]], **headers: str) -> Answer:
    listed = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in parts)
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    return ask(server, "POST", f"/bkt/x?uploadId={key}", body, **headers)


def test_parts_in_any_order_become_the_object(server: FakeGCS) -> None:
    """Later parts may come first and a part may come twice; only the named ones count, by number."""
    key = begin(server, Content_Type="x/y", x_goog_meta_k="v")
    third, first = part(server, key, 3, b"C" * 1000), part(server, key, 1, b"wrong")
    first = part(server, key, 1, b"A" * 1000)
    part(server, key, 2, b"unused")
    assert b"<PartNumber>2</PartNumber>" in ask(server, "GET", f"/bkt/x?uploadId={key}").body
    assert server.names("bkt") == []
    done = complete(server, key, [(1, first), (3, third.replace('"', "&quot;"))])
    assert done.status == 200
    assert done.headers["x-goog-generation"].isdigit()
    assert server.read("bkt", "x") == b"A" * 1000 + b"C" * 1000
    head = ask(server, "HEAD", "/bkt/x").headers
    assert (head["Content-Type"], head["x-goog-meta-k"], head["x-goog-component-count"]) == ("x/y", "v", "2")
    assert complete(server, key, [(1, first)]).status == 404


def test_wrong_lists_of_parts_are_refused_and_the_upload_goes_on(server: FakeGCS) -> None:
    """Unknown parts, other ETags, a wrong order, nothing at all: 400, and it can be completed after it."""
    key = begin(server)
    one, two = part(server, key, 1, b"1"), part(server, key, 2, b"2")
    for wrong in ([(3, one)], [(1, two)], [(2, two), (1, one)], [(1, one), (1, one)], []):
        assert complete(server, key, wrong).status == 400
    assert ask(server, "PUT", f"/bkt/x?partNumber=0&uploadId={key}", b"1").status == 400
    assert ask(server, "PUT", f"/bkt/x?partNumber=10001&uploadId={key}", b"1").status == 400
    assert ask(server, "PUT", f"/bkt/other?partNumber=1&uploadId={key}", b"1").status == 404
    bad = ask(server, "PUT", f"/bkt/x?partNumber=5&uploadId={key}", b"1", x_goog_hash="crc32c=AAAAAA==")
    assert bad.status == 400
    bad = ask(server, "PUT", f"/bkt/x?partNumber=5&uploadId={key}", b"1", Content_MD5="AAAAAAAAAAAAAAAAAAAAAA==")
    assert bad.status == 400
    server.put("bkt", "x", b"there")
    assert complete(server, key, [(1, one), (2, two)], x_goog_if_generation_match="0").status == 412
    assert complete(server, key, [(1, one), (2, two)]).status == 200
    assert server.read("bkt", "x") == b"12"


def test_an_aborted_upload_leaves_nothing(tmp_path: Path) -> None:
    """Its parts are removed from the disk; so are those of uploads that are never ended, when the server ends."""
    tmp = tmp_path / ".fake_gcs" / "tmp"
    with FakeGCS(tmp_path, buckets=["bkt"]) as server:
        key = begin(server)
        part(server, key, 1, b"1")
        part(server, key, 1, b"2")
        assert len(list(tmp.iterdir())) == 1
        assert ask(server, "DELETE", f"/bkt/x?uploadId={key}").status == 204
        assert list(tmp.iterdir()) == []
        assert ask(server, "DELETE", f"/bkt/x?uploadId={key}").status == 404
        part(server, begin(server), 1, b"1")
    assert list(tmp.iterdir()) == []
