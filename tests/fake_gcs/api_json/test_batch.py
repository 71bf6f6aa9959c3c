"""The batch endpoint."""

from __future__ import annotations

from fake_gcs import FakeGCS
from tests.fake_gcs.asking import ask


def batch(server: FakeGCS, calls: list[bytes], end: bytes = b"\r\n") -> tuple[int, bytes]:
    parts = [
        b"--==x==" + end + b"Content-Type: application/http" + end + b"Content-ID: <id+%d>" % number + end + end + call
        for number, call in enumerate(calls)
    ]
    body = end.join(parts) + end + b"--==x==--"
    kind = 'multipart/mixed; boundary="==x=="'
    answer = ask(server, "POST", "/batch/storage/v1", body, Content_Type=kind)
    return answer.status, answer.body


def test_calls_are_answered_in_order(server: FakeGCS) -> None:
    """Each call has its own status; one that fails does not stop the others."""
    for name in ("a", "b/c"):
        server.put("bkt", name, b"data")
    patch = b'{"metadata": {"k": "v"}}'
    calls = [
        b"DELETE /storage/v1/b/bkt/o/a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"DELETE /storage/v1/b/bkt/o/none\r\n\r\n",
        b"PATCH /storage/v1/b/bkt/o/b%2Fc HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
        + str(len(patch)).encode()
        + b"\r\n\r\n"
        + patch,
        b"GET /storage/v1/b/bkt/o/b%2Fc?fields=metadata HTTP/1.1\r\n\r\n",
        b"GET /storage/v1/b/bkt/o/b%2Fc?alt=media HTTP/1.1\r\n\r\n",
        b"POST /upload/storage/v1/b/bkt/o?uploadType=media&name=z HTTP/1.1\r\n\r\nx",
        b"nonsense\r\n\r\n",
    ]
    for end in (b"\r\n", b"\n"):
        status, body = batch(server, calls, end)
        assert status == 200
        lines = [line for line in body.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
        first = 204 if end == b"\r\n" else 404
        assert [int(line.split()[1]) for line in lines] == [first, 404, 200, 200, 400, 400, 400]
        assert b"Content-ID: <response-id+3>" in body
        assert b'{"metadata": {"k": "v"}}' in body
    assert server.names("bkt") == ["b/c"]


def test_too_many_calls_and_broken_bodies_are_400(memory: FakeGCS) -> None:
    """A hundred calls are the limit."""
    call = b"GET /storage/v1/b/bkt HTTP/1.1\r\n\r\n"
    assert batch(memory, [call] * 100)[0] == 200
    assert batch(memory, [call] * 101)[0] == 400
    for kind, body in (("multipart/mixed; boundary=x", b"junk"), ("text/plain", b""), ("multipart/mixed", b"")):
        assert ask(memory, "POST", "/batch/storage/v1", body, Content_Type=kind).status == 400
