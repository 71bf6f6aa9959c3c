"""Uploads of the JSON API: media, multipart with either line end, resumable with everything that goes wrong."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_gcs import FakeGCS, FakeGCSProcess
from fake_gcs.checksums import Checksum
from tests.fake_gcs.asking import Answer, ask, raw, send, status_of
from tests.patience import LIMIT_S

UP = "/upload/storage/v1/b/bkt/o"
CHUNK = 256 * 1024
PARTS = "multipart/related; boundary=x"


def multipart(metadata: dict[str, object], media: bytes, end: bytes = b"\r\n") -> bytes:
    head = b"--==0==" + end + b"Content-Type: application/json; charset=UTF-8" + end + end
    middle = end + b"--==0==" + end + b"Content-Type: text/plain" + end + end
    return head + json.dumps(metadata).encode() + middle + media + end + b"--==0==--"


def upload(server: FakeGCS, metadata: dict[str, object], media: bytes, end: bytes = b"\r\n", query: str = "") -> Answer:
    kind = 'multipart/related; boundary="==0=="'
    return ask(server, "POST", f"{UP}?uploadType=multipart{query}", multipart(metadata, media, end), Content_Type=kind)


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_multipart_takes_both_line_ends(server: FakeGCS, end: bytes) -> None:
    """Metadata and media arrive whole with CR LF and with bare LF."""
    media = b"line\r\nline\n\r\n--==0=\n" * 1000
    made = upload(server, {"name": "x", "metadata": {"a": "b"}}, media, end)
    assert (made.status, made.json["contentType"], made.json["metadata"]) == (200, "text/plain", {"a": "b"})
    assert server.read("bkt", "x") == media
    assert upload(server, {}, b"1", end, "&name=y").json["name"] == "y"


def test_wrong_hashes_are_refused_and_leave_nothing(server: FakeGCS) -> None:
    """A CRC32C or MD5 that does not fit is 400, and the object that was there stays."""
    server.put("bkt", "x", b"old")
    running = Checksum()
    running.update(b"new")
    good = running.value()
    for wrong in ({"crc32c": "AAAAAA=="}, {"md5Hash": "1B2M2Y8AsgTpgAmY7PhCfg=="}):
        answer = upload(server, {"name": "x", **wrong}, b"new")
        assert (answer.status, answer.reason) == (400, "invalid")
    header = f"crc32c={good.crc32c_text}"
    assert ask(server, "PUT", "/bkt/x", b"oops", X_Goog_Hash=header).status == 400
    assert server.read("bkt", "x") == b"old"
    right = {"crc32c": good.crc32c_text, "md5Hash": good.md5_text}
    assert upload(server, {"name": "x", **right}, b"new").status == 200
    assert server.read("bkt", "x") == b"new"


@pytest.mark.parametrize(
    ("query", "kind", "body", "reason"),
    [
        ("uploadType=multipart", PARTS, b"--x\r\n\r\n{nonsense\r\n--x\r\n\r\nd\r\n--x--", "parseError"),
        ("uploadType=multipart", PARTS, b"--x\r\n\r\n[1]\r\n--x\r\n\r\nd\r\n--x--", "invalid"),
        ("uploadType=multipart", "text/plain", b"x", "invalid"),
        ("uploadType=multipart", PARTS, b"--x\r\n\r\n{}\r\n--x\r\n\r\nd\r\n--x--", "required"),
        ("uploadType=media", "text/plain", b"x", "required"),
        ("uploadType=telepathy&name=x", "text/plain", b"x", "invalid"),
        ("uploadType=resumable&name=x", "application/json", b"{" * 100_000, "parseError"),
        ("uploadType=resumable", "application/json", b"", "required"),
        ("name=x", "text/plain", b"x", "invalid"),
    ],
)
def test_malformed_uploads_are_400(memory: FakeGCS, query: str, kind: str, body: bytes, reason: str) -> None:
    """Bad JSON, no name, a wrong type: refused with the reason, and nothing is made."""
    answer = ask(memory, "POST", f"{UP}?{query}", body, Content_Type=kind)
    assert (answer.status, answer.reason) == (400, reason)
    assert memory.names("bkt") == []


def start(server: FakeGCS | FakeGCSProcess, name: str = "x", query: str = "", **headers: str) -> str:
    answer = send(server, "POST", f"{UP}?uploadType=resumable&name={name}{query}", {}, **headers)
    assert answer.status == 200
    assert answer.headers["Location"].startswith(server.url)
    return answer.headers["Location"].removeprefix(server.url)


def put(server: FakeGCS | FakeGCSProcess, place: str, data: bytes, content_range: str, method: str = "PUT") -> Answer:
    return ask(server, method, place, data, Content_Range=content_range)


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_resumable_by_chunks(server: FakeGCS, method: str) -> None:
    """Chunks with unknown total, a status query in between, and an end that names the total."""
    data = bytes(range(256)) * 2048 + b"tail"
    place = start(server, X_Upload_Content_Type="x/y")
    assert "Range" not in put(server, place, b"", "bytes */*", method).headers
    first = put(server, place, data[:CHUNK], f"bytes 0-{CHUNK - 1}/*", method)
    assert (first.status, first.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    status = put(server, place, b"", f"bytes */{len(data)}", method)
    assert (status.status, status.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    last = put(server, place, data[CHUNK:], f"bytes {CHUNK}-{len(data) - 1}/{len(data)}", method)
    assert (last.status, last.json["size"], last.json["contentType"]) == (200, str(len(data)), "x/y")
    assert server.read("bkt", "x") == data
    done = put(server, place, b"", "bytes */*", method)
    assert (done.status, done.json["generation"]) == (200, last.json["generation"])


def test_resumable_ends_by_an_empty_request(server: FakeGCS) -> None:
    """``bytes */N`` with all N bytes there makes the object; so does a single request without a range; so does 0."""
    place = start(server)
    put(server, place, b"z" * CHUNK, f"bytes 0-{CHUNK - 1}/*")
    assert put(server, place, b"", f"bytes */{CHUNK}").json["size"] == str(CHUNK)
    assert ask(server, "PUT", start(server, "whole"), b"data").json["size"] == "4"
    assert put(server, start(server, "empty"), b"", "bytes */0").json["size"] == "0"


def test_a_chunk_sent_twice_counts_once_and_a_gap_is_refused(server: FakeGCS) -> None:
    """What overlaps is skipped; what would leave a hole is refused and nothing is lost."""
    data = bytes(range(256)) * 2048
    place = start(server)
    put(server, place, data[:CHUNK], f"bytes 0-{CHUNK - 1}/*")
    assert put(server, place, data[CHUNK + 9 :], f"bytes {CHUNK + 9}-{len(data) - 1}/{len(data)}").status == 503
    again = put(server, place, data, f"bytes 0-{len(data) - 1}/{len(data)}")
    assert again.status == 200
    assert server.read("bkt", "x") == data


def test_clients_that_follow_308_get_200(server: FakeGCS) -> None:
    """``X-GUploader-No-308: yes``: the status of a session is in a header, and the end is as for everybody."""
    place = start(server)

    def put_so(data: bytes, content_range: str) -> Answer:
        return ask(server, "PUT", place, data, Content_Range=content_range, X_GUploader_No_308="yes")

    nothing = put_so(b"", "bytes */*")
    assert (nothing.status, nothing.headers["X-HTTP-Status-Code-Override"], "Range" in nothing.headers) == (
        200,
        "308",
        False,
    )
    first = put_so(b"z" * CHUNK, f"bytes 0-{CHUNK - 1}/*")
    assert (first.status, first.headers["X-HTTP-Status-Code-Override"]) == (200, "308")
    assert (first.headers["Range"], first.body) == (f"bytes=0-{CHUNK - 1}", b"")
    last = put_so(b"end", f"bytes {CHUNK}-{CHUNK + 2}/{CHUNK + 3}")
    assert (last.status, "X-HTTP-Status-Code-Override" in last.headers) == (200, False)
    assert last.json["size"] == str(CHUNK + 3)


@pytest.mark.parametrize(
    ("size", "content_range"),
    [
        (3, f"bytes {CHUNK}-{CHUNK + 2}/*"),
        (CHUNK, f"bytes {CHUNK}-{CHUNK + 9}/*"),
        (CHUNK, f"bytes {CHUNK}-{3 * CHUNK - 1}/*"),
        (CHUNK, f"bytes 9-{CHUNK + 18}/*"),
        (3 << 20, f"bytes {CHUNK}-{CHUNK + (2 << 20)}/*"),
    ],
)
def test_a_refused_chunk_leaves_nothing(server: FakeGCS, size: int, content_range: str) -> None:
    """Too small, longer or shorter than its Content-Range: 400, what came before stays, and the upload goes on."""
    data = bytes(range(256)) * (CHUNK // 256)
    place = start(server)
    assert put(server, place, data, f"bytes 0-{CHUNK - 1}/*").status == 308
    # Chunked: nobody knows beforehand that the length is wrong.
    head = f"PUT {place} HTTP/1.1\r\nHost: {server.endpoint}\r\nContent-Range: {content_range}\r\n"
    head += f"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n"
    assert status_of(raw(server, head.encode() + b"x" * size + b"\r\n0\r\n\r\n")) == 400
    if size < 1 << 20:
        assert put(server, place, b"x" * size, content_range).status == 400
    assert put(server, place, b"", "bytes */*").headers["Range"] == f"bytes=0-{CHUNK - 1}"
    last = put(server, place, b"tail", f"bytes {CHUNK}-{CHUNK + 3}/{CHUNK + 4}")
    running = Checksum()
    running.update(data + b"tail")
    assert (last.status, last.json["md5Hash"]) == (200, running.value().md5_text)
    assert server.read("bkt", "x") == data + b"tail"


def test_a_status_query_with_bytes_is_refused(server: FakeGCS) -> None:
    """``bytes */N`` asks; bytes with it are 400 and leave nothing."""
    place = start(server)
    assert put(server, place, b"zzz", "bytes */3").status == 400
    assert "Range" not in put(server, place, b"", "bytes */3").headers


def test_small_and_odd_chunks_are_refused_but_for_the_last(memory: FakeGCS) -> None:
    """What is no multiple of 256 KiB is 400, whether the total is known or not."""
    assert put(memory, start(memory), b"abc", "bytes 0-2/*").status == 400
    assert put(memory, start(memory), b"abc", "bytes 0-2/4").status == 400
    assert put(memory, start(memory), bytes(CHUNK + 1), f"bytes 0-{CHUNK}/*").status == 400
    assert put(memory, start(memory), bytes(CHUNK + 1), f"bytes 0-{CHUNK}/{3 * CHUNK}").status == 400
    assert put(memory, start(memory), bytes(2 * CHUNK), f"bytes 0-{2 * CHUNK - 1}/{3 * CHUNK}").status == 308
    assert put(memory, start(memory), b"abc", "bytes 0-2/3").status == 200


def test_as_many_bytes_come_as_were_announced(memory: FakeGCS) -> None:
    """More, fewer, or another total: 400, and the upload goes on where it was."""
    place = start(memory, X_Upload_Content_Length=str(CHUNK + 3))
    assert put(memory, place, bytes(CHUNK), f"bytes 0-{CHUNK - 1}/{2 * CHUNK}").status == 400
    assert put(memory, place, bytes(2 * CHUNK), f"bytes 0-{2 * CHUNK - 1}/*").status == 400
    assert put(memory, place, b"", f"bytes */{CHUNK}").status == 400
    assert ask(memory, "PUT", place, bytes(CHUNK)).status == 400
    assert ask(memory, "PUT", place, bytes(CHUNK + 4)).status == 400
    assert "Range" not in put(memory, place, b"", "bytes */*").headers
    assert put(memory, place, bytes(CHUNK), f"bytes 0-{CHUNK - 1}/*").status == 308
    assert put(memory, place, b"end", f"bytes {CHUNK}-{CHUNK + 2}/{CHUNK + 3}").json["size"] == str(CHUNK + 3)
    assert ask(memory, "PUT", start(memory, X_Upload_Content_Length="4"), b"data").json["size"] == "4"
    place = start(memory)
    assert put(memory, place, bytes(2 * CHUNK), f"bytes 0-{2 * CHUNK - 1}/*").status == 308
    assert put(memory, place, b"", f"bytes */{CHUNK}").status == 400
    assert put(memory, place, b"", f"bytes */{2 * CHUNK}").status == 200
    refused = send(memory, "POST", f"{UP}?uploadType=resumable&name=x", {}, X_Upload_Content_Length="-1")
    assert refused.status == 400


def test_conditions_hold_at_the_end_too(server: FakeGCS) -> None:
    """Someone else was faster between the start and the end: 412, and theirs stays."""
    place = start(server, query="&ifGenerationMatch=0")
    server.put("bkt", "x", b"theirs")
    assert put(server, place, b"mine", "bytes 0-3/4").status == 412
    assert server.read("bkt", "x") == b"theirs"
    refused = send(server, "POST", f"{UP}?uploadType=resumable&name=x&ifGenerationMatch=0", {})
    assert refused.status == 412


def test_cancelled_and_unknown_sessions(server: FakeGCS) -> None:
    """DELETE answers 499; after it, and for any other id, there is no such session."""
    place = start(server)
    put(server, place, b"z" * CHUNK, f"bytes 0-{CHUNK - 1}/*")
    assert ask(server, "DELETE", place).status == 499
    assert put(server, place, b"", "bytes */*").status == 404
    assert ask(server, "PUT", f"{UP}?uploadType=resumable&upload_id=none", b"x").status == 404
    assert server.names("bkt") == []


def test_a_broken_connection_keeps_what_came(server: FakeGCS) -> None:
    """The client leaves in the middle of a chunk; the status query tells how far it got, and it goes on from there."""
    data = bytes(range(256)) * 4096
    place = start(server)
    head = f"PUT {place} HTTP/1.1\r\nHost: {server.endpoint}\r\nContent-Length: {len(data)}\r\n"
    head += f"Content-Range: bytes 0-{len(data) - 1}/{len(data)}\r\n\r\n"
    host, _, port = server.endpoint.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(head.encode() + data[:300_000])
    assert server.journal.wait(lambda journal: any(entry.broken for entry in journal))
    status = put(server, place, b"", f"bytes */{len(data)}")
    have = int(status.headers["Range"].removeprefix("bytes=0-")) + 1
    assert (status.status, have) == (308, 300_000)
    put(server, place, data[have:], f"bytes {have}-{len(data) - 1}/{len(data)}")
    assert server.read("bkt", "x") == data


def test_chunked_and_expected_bodies(server: FakeGCS) -> None:
    """A chunked body makes the object; ``Expect: 100-continue`` is answered before the body comes."""
    request = f"PUT /bkt/x HTTP/1.1\r\nHost: {server.endpoint}\r\nConnection: close\r\n"
    body = b"4\r\nabcd\r\n3;x=y\r\nefg\r\n0\r\n\r\n"
    answer = raw(server, request.encode() + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n" + body)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert server.read("bkt", "x") == b"abcdefg"
    assert status_of(raw(server, request.encode() + b"Expect: tea\r\nContent-Length: 3\r\n\r\nabc")) == 417


def test_nothing_is_left_in_the_directory_by_what_failed(tmp_path: Path) -> None:
    """Refused, broken and cancelled uploads leave no file in the temporary folder."""
    with FakeGCS(tmp_path, buckets=["bkt"]) as server:
        upload(server, {"name": "x", "crc32c": "AAAAAA=="}, b"new")
        place = start(server)
        ask(server, "DELETE", place)
        ask(server, "POST", f"{UP}?uploadType=media&name=x&ifGenerationMatch=5", b"1")
        head = f"PUT /bkt/x HTTP/1.1\r\nHost: {server.endpoint}\r\nContent-Length: 100\r\n\r\nabc"
        host, _, port = server.endpoint.rpartition(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(head.encode())
        assert server.journal.wait(lambda journal: any(entry.broken for entry in journal))
        assert list((tmp_path / ".fake_gcs" / "tmp").iterdir()) == []


def test_large_objects_stream_in_constant_memory(tmp_path: Path, samples: Callable[[int, int], int]) -> None:
    """The server's memory does not grow with the object: many times more goes in and out than it may hold."""
    size = samples(192 << 20, 5 << 30)
    with FakeGCSProcess(tmp_path, buckets=["bkt"]) as server:
        ask(server, "GET", "/storage/v1/b")
        before = memory_of(server.pid, "VmHWM")
        piece = bytes(1 << 20)
        connection = http.client.HTTPConnection(server.endpoint, timeout=LIMIT_S)
        connection.request(
            "PUT", "/bkt/big", body=(piece for _ in range(size >> 20)), headers={"Content-Length": str(size)}
        )
        assert connection.getresponse().read() == b""
        connection.request("GET", "/bkt/big")
        answer = connection.getresponse()
        got = 0
        while data := answer.read(1 << 20):
            got += len(data)
        connection.close()
        assert got == size
        assert memory_of(server.pid, "VmHWM") - before < 48 << 20


@pytest.mark.slow
def test_bodies_of_deleted_objects_are_freed() -> None:
    """However an object was made, its bytes go with it; a finished session still tells what it had made."""
    with FakeGCSProcess(buckets=["bkt"]) as server:

        def put_part(name: str, body: bytes) -> None:
            begun = ask(server, "POST", f"/bkt/{name}?uploads").body
            key = begun.partition(b"<UploadId>")[2].partition(b"</UploadId>")[0].decode()
            etag = ask(server, "PUT", f"/bkt/{name}?partNumber=1&uploadId={key}", body).headers["ETag"]
            parts = f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
            parts += "</CompleteMultipartUpload>"
            assert ask(server, "POST", f"/bkt/{name}?uploadId={key}", parts.encode()).status == 200

        ask(server, "PUT", "/bkt/part", bytes(1 << 20))
        before = memory_of(server.pid, "VmRSS")
        data = bytes(_BODY_BYTES)
        kind = 'multipart/related; boundary="==0=="'
        place = start(server, "resumed")
        made = put(server, place, data, f"bytes 0-{len(data) - 1}/{len(data)}").json
        ask(server, "POST", f"{UP}?uploadType=media&name=media", data)
        ask(server, "POST", f"{UP}?uploadType=multipart", multipart({"name": "parts"}, data), Content_Type=kind)
        ask(server, "PUT", "/bkt/xml", data)
        put_part("xmlparts", data)
        sources = {"sourceObjects": [{"name": "media"}, {"name": "part"}]}
        assert send(server, "POST", "/storage/v1/b/bkt/o/composed/compose", sources).status == 200
        assert send(server, "POST", "/storage/v1/b/bkt/o/xml/rewriteTo/b/bkt/o/copy", {}).status == 200
        for name in ("resumed", "media", "parts", "xml", "xmlparts", "composed", "copy"):
            assert ask(server, "DELETE", f"/storage/v1/b/bkt/o/{name}").status == 204
        assert put(server, place, b"", "bytes */*").json == made
        assert memory_of(server.pid, "VmRSS") - before < _BODY_BYTES // 2


_BODY_BYTES = 34 << 20
"""Beyond what an allocator keeps for itself."""


def memory_of(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field}")
