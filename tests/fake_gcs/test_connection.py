"""Hostile and clumsy clients: refused with the right status, and the server lives on."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_gcs import FakeGCS, Latency, Limits, Profile
from tests.fake_gcs.asking import ask, raw, send, status_of
from tests.fake_gcs.virtual import answered
from tests.patience import LIMIT_S

HOST = b"Host: localhost\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n" + HOST[17:] + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000, 431),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"CONNECT h:443 HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"BREW /bkt/x HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"POST /storage/v1/b HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999\r\n\r\n", 413),
        (b"PUT /bkt/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"PUT /bkt/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"PUT /bkt/x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"GET /bkt?" + b"&".join(b"a%d=1" % number for number in range(200)) + b" HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http://localhost/storage/v1/b/bkt HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"\r\n\r\nGET /storage/v1/b/bkt HTTP/1.1\r\n" + HOST + b"\r\n", 200),
    ],
)
def test_what_is_wrong_gets_its_status(memory: FakeGCS, request_bytes: bytes, status: int) -> None:
    """Each kind of nonsense is answered, the connection closed, and the next client served."""
    assert status_of(raw(memory, request_bytes)) == status
    assert ask(memory, "GET", "/storage/v1/b/bkt").status == 200


def test_requests_in_a_row_on_one_connection(memory: FakeGCS) -> None:
    """Pipelined requests, with bodies, are answered in order; a body nobody wanted does not become a request."""
    memory.put("bkt", "x", b"data")
    out = raw(
        memory,
        b"GET /bkt/x HTTP/1.1\r\nHost: h\r\n\r\n"
        b"PUT /bkt/y HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
        b"GET /bkt/none HTTP/1.1\r\nHost: h\r\nContent-Length: 27\r\n\r\nGET /evil HTTP/1.1\r\nHost: h\r\n"
        b"PUT /none/z HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
        b"GET /bkt/y HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    )
    statuses = [int(piece[:3]) for piece in out.split(b"HTTP/1.1 ")[1:]]
    assert statuses[:3] == [200, 200, 404]
    assert statuses[3] == 404
    assert not any("evil" in entry.target for entry in memory.journal)


@pytest.fixture
def impatient() -> Iterator[FakeGCS]:
    """A server that waits for nobody."""
    limits = Limits(head_timeout_s=0.2, body_timeout_s=0.2, idle_timeout_s=0.2, send_timeout_s=0.2, connections=20)
    with FakeGCS(buckets=["bkt"], limits=limits) as server:
        yield server


def test_slow_heads_and_bodies_are_408(impatient: FakeGCS) -> None:
    """A head or a body that does not come in time is refused; an idle connection is closed without a word."""
    assert status_of(raw(impatient, b"GET / HT")) == 408
    assert status_of(raw(impatient, b"PUT /bkt/x HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc")) == 408
    assert raw(impatient, b"") == b""


def test_dripping_heads_do_not_buy_time(impatient: FakeGCS) -> None:
    """Bytes one by one do not extend the time for the head."""
    host, _, port = impatient.endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as sock:
        sock.settimeout(0.02)
        for _ in range(1000):
            try:
                sock.sendall(b"x")
                if sock.recv(100).startswith(b"HTTP/1.1 408"):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("the server listened for ever")


def test_clients_that_read_nothing_are_dropped(impatient: FakeGCS) -> None:
    """A body that nobody takes does not hold the server's hands for ever."""
    impatient.put("bkt", "x", bytes(64 << 20))
    host, _, port = impatient.endpoint.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"GET /bkt/x HTTP/1.1\r\nHost: h\r\n\r\n")
        assert impatient.journal.wait(lambda journal: any(entry.broken for entry in journal))


def test_more_clients_than_connections_wait_their_turn(impatient: FakeGCS) -> None:
    """Silent connections above the limit do not keep others out for longer than the idle time."""
    host, _, port = impatient.endpoint.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        assert ask(impatient, "GET", "/storage/v1/b/bkt").status == 200
    finally:
        for sock in silent:
            sock.close()


def test_oversize_bodies_are_refused_before_they_are_taken(memory: FakeGCS) -> None:
    """A JSON body above the limit is 413 whether its length is announced or not."""
    head = b"POST /storage/v1/b HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert status_of(raw(memory, head + (b"100000\r\n" + bytes(1 << 20) + b"\r\n") * 20)) in {413, 0}
    assert ask(memory, "GET", "/storage/v1/b").status == 200


def test_deep_json_is_400(memory: FakeGCS) -> None:
    """Nesting beyond the parser's stack is a bad request, not a crash."""
    deep = b"[" * 100_000 + b"]" * 100_000
    assert ask(memory, "POST", "/storage/v1/b", deep).status == 400
    nested: dict[str, object] = {}
    for _ in range(200):
        nested = {"a": nested}
    assert send(memory, "PATCH", "/storage/v1/b/bkt", {"labels": nested}).status == 200


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)
@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"]),
    path=st.one_of(
        st.text(alphabet="abkt/%2Fo.é?=&:", max_size=40),
        st.sampled_from(
            [
                "storage/v1/b/bkt/o/%s",
                "storage/v1/b/%s/o",
                "bkt/%s",
                "upload/storage/v1/b/bkt/o?uploadType=%s",
                "batch/storage/v1%s",
                "retry_test/%s",
                "storage/v1/b/bkt/o/x/rewriteTo/b/%s/o/y",
                "_fake_gcs/%s",
            ]
        ).flatmap(lambda form: st.text(alphabet="ax/%2\x7f. ", max_size=12).map(lambda text: form.replace("%s", text))),
    ),
    headers=st.dictionaries(
        st.sampled_from(
            [
                "Range",
                "Content-Range",
                "x-goog-copy-source",
                "If-None-Match",
                "If-Modified-Since",
                "Content-Type",
                "x-goog-if-generation-match",
                "x-goog-hash",
                "x-retry-test-id",
            ]
        ),
        st.text(alphabet="bytes=0-9*/,; \t\"'multipart/related;boundary=x", max_size=30),
        max_size=3,
    ),
    body=st.binary(max_size=60),
)
def test_any_request_gets_an_answer(
    memory: FakeGCS, method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    """Whatever is asked, the answer is a status below 500, or one the server means: never a crash."""
    lines = [f"{method} /{path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    answer = raw(memory, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    assert status_of(answer) in {*range(200, 500), 501, 503}, answer


def test_random_bytes_do_not_stop_the_server(memory: FakeGCS, samples: Callable[[int, int], int]) -> None:
    """Garbage and mutilated requests, for a bounded number of rounds; the server answers to the end."""
    draw = random.Random(7)
    good = b"PUT /bkt/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    for _ in range(samples(150, 5000)):
        data = bytearray(good)
        for _ in range(draw.randrange(1, 6)):
            place = draw.randrange(len(data))
            data[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        host, _, port = memory.endpoint.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            try:
                while sock.recv(65536):
                    pass
            except ConnectionError:
                pass
    assert ask(memory, "GET", "/storage/v1/b/bkt").status == 200


def test_latency_comes_before_the_first_byte() -> None:
    """With a fixed latency no answer begins earlier than that."""
    bodies, elapsed_s = answered(Profile(latency=Latency(median_s=0.2)), b"data", "GET /bkt/x")
    assert bodies == [b"data"]
    assert elapsed_s == pytest.approx(0.2, abs=0.01)
