"""Objects of the JSON API, over a real socket, in memory and in a directory."""

from __future__ import annotations

import base64
import gzip
import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_gcs import FakeGCS
from tests.fake_gcs.asking import ask, o, send

UP = "/upload/storage/v1/b/bkt/o"
B = "/storage/v1/b/bkt/o"


def names(server: FakeGCS, query: str = "") -> list[str]:
    return [item["name"] for item in ask(server, "GET", f"{B}?{query}").json.get("items", [])]


def test_an_object_is_what_was_put(server: FakeGCS) -> None:
    """Resource, media and ranges agree with the bytes, and numbers of 64 bits are texts."""
    data = bytes(range(256)) * 10
    made = ask(server, "POST", f"{UP}?uploadType=media&name=a%2Fb", data, Content_Type="x/y").json
    assert made["size"] == "2560"
    assert made["contentType"] == "x/y"
    assert made["md5Hash"] == base64.b64encode(hashlib.md5(data).digest()).decode()
    assert made["generation"].isdigit()
    assert made["mediaLink"].startswith(f"{server.url}/download/storage/v1/b/bkt/o/a%2Fb?generation=")
    assert ask(server, "GET", f"{B}/a%2Fb").json == made
    link = made["mediaLink"].removeprefix(server.url)
    for path in (link, f"{B}/a%2Fb?alt=media&tensorstore=00", "/bkt/a/b", "/bkt/a%2Fb"):
        whole = ask(server, "GET", path)
        assert (whole.status, whole.body) == (200, data)
        assert "Content-Range" not in whole.headers
        part = ask(server, "GET", path, Range="bytes=2550-9999")
        assert (part.status, part.body) == (206, data[2550:])
        assert part.headers["Content-Range"] == "bytes 2550-2559/2560"
        assert part.headers["x-goog-hash"] == f"crc32c={made['crc32c']},md5={made['md5Hash']}"
        assert part.headers["x-goog-generation"] == made["generation"]
        assert part.headers["x-goog-stored-content-length"] == "2560"
        assert ask(server, "GET", path, Range="bytes=-3").body == data[-3:]
        behind = ask(server, "GET", path, Range="bytes=2560-")
        assert (behind.status, behind.headers["Content-Range"]) == (416, "bytes */2560")


def test_missing_things_are_404_with_the_reason(server: FakeGCS) -> None:
    """Objects, generations, buckets and paths; XML answers in XML, and a reader of bytes gets the message alone."""
    for path in (f"{B}/no", "/storage/v1/b/nob/o", "/storage/v1/b/nob", "/storage/v1/what"):
        answer = ask(server, "GET", path)
        assert (answer.status, answer.reason) == (404, "notFound")
    for path, code in (("/bkt/no", b"NoSuchKey"), ("/nob/x", b"NoSuchBucket"), ("/nob?list-type=2", b"NoSuchBucket")):
        answer = ask(server, "GET", path)
        assert answer.status == 404
        assert b"<Code>" + code + b"</Code>" in answer.body
    for path in (f"{B}/no?alt=media", f"/download{B}/no?alt=media", f"/download{B}/no"):
        answer = ask(server, "GET", path)
        assert (answer.status, answer.body) == (404, b"No such object: bkt/no")
        assert answer.headers["Content-Type"] == "text/html; charset=UTF-8"


def test_every_name_gcs_allows_works(server: FakeGCS) -> None:
    """Slashes, dots, percent signs, spaces, control characters, any plane of Unicode, 1024 bytes: put, list, read."""
    odd = [
        "a//b",
        "/",
        "dir/",
        "..a",
        "a/../b",
        "../../etc/passwd",
        "%2F",
        "a b+c&d=e?f#g",
        "é\u4e2d\U0001f600",
        ".json",
    ]
    odd += ["x" * 1024, "\u4e2d" * 341, "a" * 300 + "/" + "b" * 300, "\t\x01", ".fake_gcs/bucket.json", "<&>'\""]
    for name in odd:
        assert ask(server, "POST", f"{UP}?uploadType=media&name={o(name)}", name.encode()).status == 200
    assert names(server) == sorted(odd)
    for name in odd:
        assert ask(server, "GET", f"{B}/{o(name)}?alt=media").body == name.encode()
        assert ask(server, "GET", f"/bkt/{o(name)}").body == name.encode()
        assert ask(server, "DELETE", f"{B}/{o(name)}").status == 204
    assert names(server) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a\nb", "a\rb", "x" * 1025, "\u4e2d" * 342])
def test_names_gcs_refuses_are_400(memory: FakeGCS, name: str) -> None:
    """Empty, dots alone, line ends and too long names."""
    answer = ask(memory, "POST", f"{UP}?uploadType=media&name={o(name)}", b"x")
    assert (answer.status, answer.reason) == (400, "invalid" if name else "required")


def test_names_that_are_no_utf8_are_400(memory: FakeGCS) -> None:
    """Percent-encoded bytes that are not UTF-8 do not become a name."""
    assert ask(memory, "GET", f"{B}/%ff%fe").status == 400
    assert ask(memory, "PUT", "/bkt/%ff", b"x").status == 400


def test_generations_preconditions_and_metagenerations(server: FakeGCS) -> None:
    """Every condition, on read, write, change and delete."""
    first = ask(server, "POST", f"{UP}?uploadType=media&name=x&ifGenerationMatch=0", b"1").json
    again = ask(server, "POST", f"{UP}?uploadType=media&name=x&ifGenerationMatch=0", b"2")
    assert (again.status, again.reason) == (412, "conditionNotMet")
    g1 = int(first["generation"])
    second = ask(server, "POST", f"{UP}?uploadType=media&name=x&ifGenerationMatch={g1}", b"2").json
    g2 = int(second["generation"])
    assert g2 > g1
    expected = {
        f"ifGenerationMatch={g2}": 200,
        f"ifGenerationMatch={g1}": 412,
        f"ifGenerationNotMatch={g2}": 304,
        f"ifGenerationNotMatch={g1}": 200,
        "ifMetagenerationMatch=1": 200,
        "ifMetagenerationMatch=2": 412,
        "ifMetagenerationNotMatch=1": 304,
        "ifMetagenerationNotMatch=2": 200,
        f"generation={g2}": 200,
        f"generation={g1}": 404,
        "ifGenerationMatch=abc": 400,
    }
    for alt in ("", "alt=media&"):
        assert {query: ask(server, "GET", f"{B}/x?{alt}{query}").status for query in expected} == expected
    assert send(server, "PATCH", f"{B}/x?ifMetagenerationMatch=2", {}).status == 412
    patched = send(server, "PATCH", f"{B}/x?ifMetagenerationMatch=1", {"metadata": {"k": "v"}}).json
    assert (patched["generation"], patched["metageneration"]) == (str(g2), "2")
    assert ask(server, "DELETE", f"{B}/x?ifGenerationMatch={g1}").status == 412
    assert ask(server, "DELETE", f"{B}/x?ifGenerationMatch={g2}").status == 204
    assert ask(server, "DELETE", f"{B}/x").status == 404
    assert ask(server, "POST", f"{UP}?uploadType=media&name=x&ifGenerationMatch={g2}", b"3").status == 412


def test_patch_merges_and_update_replaces(server: FakeGCS) -> None:
    """Null removes a field, maps merge, PUT starts from nothing; the server's own fields can not be set."""
    server.put("bkt", "x", b"d", contentType="a/b", metadata={"k": "1", "l": "2"}, cacheControl="no-store")
    changes = {"metadata": {"k": None, "m": "3"}, "cacheControl": None, "size": "99", "generation": "1"}
    patched = send(server, "PATCH", f"{B}/x", changes).json
    assert (patched["metadata"], patched["size"], patched["contentType"]) == ({"l": "2", "m": "3"}, "1", "a/b")
    assert "cacheControl" not in patched
    replaced = send(server, "PUT", f"{B}/x", {"contentType": "c/d"}).json
    assert replaced["contentType"] == "c/d"
    assert "metadata" not in replaced
    assert replaced["metageneration"] == "3"
    assert ask(server, "GET", "/bkt/x").headers["Content-Type"] == "c/d"


def test_versions_are_kept_where_the_bucket_says_so(server: FakeGCS) -> None:
    """Replaced and deleted generations stay readable, are listed on request, and go when named."""
    assert send(server, "PATCH", "/storage/v1/b/bkt", {"versioning": {"enabled": True}}).status == 200
    g1, g2 = server.put("bkt", "x", b"1"), server.put("bkt", "x", b"2")
    assert ask(server, "DELETE", f"{B}/x").status == 204
    assert names(server) == []
    listed = ask(server, "GET", f"{B}?versions=true").json["items"]
    assert [item["generation"] for item in listed] == [str(g1), str(g2)]
    assert all("timeDeleted" in item for item in listed)
    assert ask(server, "GET", f"{B}/x?alt=media&generation={g1}").body == b"1"
    assert ask(server, "GET", f"/bkt/x?generation={g2}").body == b"2"
    assert ask(server, "DELETE", f"{B}/x?generation={g1}").status == 204
    assert ask(server, "GET", f"{B}/x?generation={g1}").status == 404
    assert [item["generation"] for item in ask(server, "GET", f"{B}?versions=true").json["items"]] == [str(g2)]


def test_listing_takes_all_its_parameters(server: FakeGCS) -> None:
    """Prefix, delimiter, pages, offsets, glob, trailing delimiter and fields."""
    for name in ("a/", "a/1", "a/2", "a/b/3", "c", "d"):
        server.put("bkt", name, b"")
    assert names(server, "prefix=a%2F&delimiter=%2F") == ["a/", "a/1", "a/2"]
    folded = ask(server, "GET", f"{B}?delimiter=/&includeTrailingDelimiter=true").json
    assert (folded["prefixes"], [item["name"] for item in folded["items"]]) == (["a/"], ["a/", "c", "d"])
    assert names(server, "startOffset=a/2&endOffset=d") == ["a/2", "a/b/3", "c"]
    assert names(server, "matchGlob=a/*") == ["a/", "a/1", "a/2"]
    page = ask(server, "GET", f"{B}?maxResults=4&pageToken=").json
    rest = ask(server, "GET", f"{B}?maxResults=4&pageToken={page['nextPageToken']}").json
    assert [item["name"] for item in page["items"] + rest["items"]] == ["a/", "a/1", "a/2", "a/b/3", "c", "d"]
    assert "nextPageToken" not in rest
    cut = ask(server, "GET", f"{B}?fields=items(name,size),nextPageToken&maxResults=1").json
    assert cut["items"] == [{"name": "a/", "size": "0"}]
    assert set(cut) == {"items", "nextPageToken"}
    for wrong in ("maxResults=x", "pageToken=%00", "fields=(", "matchGlob=%5B"):
        assert ask(server, "GET", f"{B}?{wrong}").status == 400


def test_gzip_is_transcoded_for_those_who_do_not_take_it(server: FakeGCS) -> None:
    """Without Accept-Encoding the plain bytes come, whole; with it the stored ones, ranges too."""
    plain = b"hello gzip " * 10_000
    stored = gzip.compress(plain)
    server.put("bkt", "z", stored, contentEncoding="gzip")
    server.put("bkt", "no", stored, contentEncoding="gzip", cacheControl="no-transform")
    for path in (f"{B}/z?alt=media", "/bkt/z"):
        inflated = ask(server, "GET", path, Accept_Encoding="identity", Range="bytes=0-4")
        assert (inflated.status, inflated.body) == (200, plain)
        assert "Content-Length" not in inflated.headers
        assert "Content-Encoding" not in inflated.headers
        raw = ask(server, "GET", path, Accept_Encoding="gzip", Range="bytes=0-4")
        assert (raw.status, raw.body, raw.headers["Content-Encoding"]) == (206, stored[:5], "gzip")
        assert raw.headers["x-goog-stored-content-encoding"] == "gzip"
    assert ask(server, "GET", "/bkt/no").body == stored


def test_user_metadata_can_not_forge_headers(memory: FakeGCS) -> None:
    """Line ends in metadata and content types stay inside their header."""
    memory.put("bkt", "x", b"d", metadata={"a\r\nb": "c\r\nSet-Cookie: x"}, contentType="t/x\r\nX-Evil: 1")
    headers = ask(memory, "GET", "/bkt/x").headers
    assert "Set-Cookie" not in headers
    assert "X-Evil" not in headers


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(start=st.integers(0, 120), length=st.integers(1, 120), suffix=st.booleans())
def test_ranges_are_slices(server: FakeGCS, start: int, length: int, suffix: bool) -> None:
    """Any range of any form gives the bytes that a slice gives."""
    data = bytes(range(100))
    if not server.names("bkt"):
        server.put("bkt", "r", data)
    header = f"bytes=-{length}" if suffix else f"bytes={start}-{start + length - 1}"
    expected = data[-length:] if suffix else data[start : start + length]
    answer = ask(server, "GET", "/bkt/r", Range=header)
    assert answer.body == expected if expected else answer.status == 416
