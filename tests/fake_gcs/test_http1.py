"""The HTTP/1.1 core over bytes."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_gcs.http1 import BadRequest, BodyFraming, Head, parse_head, render_head
from tests.fake_gcs.asking import refusal_of

HEAD = b"GET /b/o?x=1 HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1"


def test_head_is_split_into_its_parts() -> None:
    """Method, raw path, raw query and headers with lower-case names come out as they went in."""
    head = parse_head(b"PUT /b/a%2Fb%20c?x=%31&y HTTP/1.1\r\nHost: h:1\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 5")
    assert head == Head(
        "PUT",
        "/b/a%2Fb%20c",
        "x=%31&y",
        {"host": "h:1", "x-a": "1, 2", "content-length": "5"},
        keep_alive=True,
        length=5,
    )


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET  / HTTP/1.1\r\nHost: h", 400),
        (b"GET / HTTP/1.1", 400),
        (b"GET / HTTP/2.0\r\nHost: h", 505),
        (b"PRI * HTTP/2.0", 505),
        (b"GET / FTP/1.1\r\nHost: h", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: h", 400),
        (b"GET / HTTP/1.1\r\nHost : h", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\n folded: x", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nHost: h", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x01b", 400),
        (b"GET / HTTP/1.1\r\nHost: h\nX: a", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked", 501),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: h", 414),
        (b"GET / HTTP/1.1\r\nHost: h" + b"\r\nA: b" * 300, 431),
        (b"GET ftp://x/ HTTP/1.1\r\nHost: h", 400),
    ],
)
def test_what_is_not_a_request_is_refused_with_its_status(raw: bytes, status: int) -> None:
    """A malformed head raises the status it is answered with; nothing is guessed."""
    with pytest.raises(BadRequest) as caught:
        parse_head(raw)
    assert caught.value.status == status


def test_connection_is_kept_as_the_version_says() -> None:
    """HTTP/1.1 keeps unless told to close, HTTP/1.0 closes unless told to keep; both framings at once close."""
    assert parse_head(b"GET / HTTP/1.1\r\nHost: h").keep_alive
    assert not parse_head(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Close").keep_alive
    assert not parse_head(b"GET / HTTP/1.0").keep_alive
    assert parse_head(b"GET / HTTP/1.0\r\nConnection: keep-alive").keep_alive
    both = parse_head(b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3")
    assert both.length is None
    assert not both.keep_alive


def test_identity_coding_is_no_coding() -> None:
    """``Transfer-Encoding: identity`` leaves the length as it is."""
    assert parse_head(b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\nContent-Length: 0").length == 0


def test_absolute_target_names_its_authority() -> None:
    """A target with a scheme is taken apart; it counts above the Host header."""
    head = parse_head(b"GET http://else:1/a?b#c HTTP/1.1\r\nHost: h")
    assert (head.authority, head.path, head.query) == ("else:1", "/a", "b")


def test_values_can_not_break_out_of_their_line() -> None:
    """Line ends in a header value become spaces."""
    head = render_head(200, [("x-goog-meta-a", "1\r\nSet-Cookie: x")])
    assert head == b"HTTP/1.1 200 OK\r\nx-goog-meta-a: 1  Set-Cookie: x\r\n\r\n"


def encode_chunked(chunks: list[bytes], trailer: bytes) -> bytes:
    body = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)
    return body + b"0\r\n" + trailer + b"\r\n"


@given(
    chunks=st.lists(st.binary(max_size=50), max_size=8),
    cuts=st.lists(st.integers(0, 500), max_size=20),
    trailer=st.sampled_from([b"", b"X: y\r\n"]),
    limit=st.integers(1, 64),
)
def test_chunked_bodies_come_out_whole_however_they_arrive(
    chunks: list[bytes], cuts: list[int], trailer: bytes, limit: int
) -> None:
    """Any chunking, cut anywhere, gives the same bytes, and what follows stays in the buffer."""
    wire = encode_chunked(chunks, trailer) + b"GET /next"
    framing = BodyFraming(remaining=0, chunked=True)
    buffer, got = bytearray(), bytearray()
    places = sorted({min(cut, len(wire)) for cut in cuts} | {len(wire)})
    start = 0
    for place in places:
        buffer += wire[start:place]
        start = place
        while piece := framing.take(buffer, limit):
            got += piece
    assert bytes(got) == b"".join(chunks)
    assert framing.done
    assert bytes(buffer) == b"GET /next"


@pytest.mark.parametrize(
    "wire", [b"zz\r\n", b"-1\r\n", b"1\r\nabc", b"x" * 300, b"0\r\n" + b"a: b\r\n" * 2000, b"\r\n"]
)
def test_malformed_chunks_are_refused(wire: bytes) -> None:
    """What is not a chunk raises instead of being skipped."""
    framing = BodyFraming(remaining=0, chunked=True)
    buffer = bytearray(wire)
    with pytest.raises(BadRequest):
        take_all(framing, buffer)


def take_all(framing: BodyFraming, buffer: bytearray) -> bytes:
    out = bytearray()
    while piece := framing.take(buffer):
        out += piece
    return bytes(out)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_head_or_a_refusal(data: bytes) -> None:
    """The parser has no third outcome."""
    for raw in (data, b"GET /" + data + b" HTTP/1.1\r\nHost: h", HEAD + b"\r\n" + data):
        status = refusal_of(partial(parse_head, raw))
        assert status in {0, 400, 414, 431, 501, 505}
        assert status or parse_head(raw).path.startswith(("/", "*"))
