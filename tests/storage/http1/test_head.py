from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.storage.http1.head import ContentRange, MalformedHeadError, parse_head

token = st.text(alphabet="abcXYZ019-_", min_size=1, max_size=8)
value = st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)


@given(status=st.integers(100, 599), headers=st.lists(st.tuples(token, value), max_size=8))
def test_what_is_written_is_read(status: int, headers: list[tuple[str, str]]) -> None:
    """Names are case-insensitive, values are stripped, repeated headers are joined in order."""
    lines = [f"HTTP/1.1 {status} Some words", *(f"{name}: {text}" for name, text in headers)]
    head = parse_head("\r\n".join(lines).encode("latin-1"))
    assert (head.status, head.reason) == (status, "Some words")
    expected: dict[str, str] = {}
    for name, text in headers:
        key, stripped = name.lower(), text.strip(" \t")
        expected[key] = f"{expected[key]}, {stripped}" if key in expected else stripped
    assert head.headers == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    """No input makes the parser fail in another way than by its own error."""
    for data in (raw, b"HTTP/1.1 200 OK\r\n" + raw):
        try:
            head = parse_head(data)
            assert 100 <= head.status <= 599
            _ = head.content_length, head.content_range
        except MalformedHeadError:
            pass


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000",
        b"HTTP/1.1 999 X",
        b"http/1.1 200 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1 200 OK\nA: b",
        b"HTTP/1.1 200 OK\r\nA b",
        b"HTTP/1.1 200 OK\r\nA : b",
        b"HTTP/1.1 200 OK\r\n folded: x",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded",
        b"HTTP/1.1 200 OK\r\nA: b\x00c",
        b"HTTP/1.1 200 OK\r\nA: b\rc",
        b"HTTP/1.1 200 OK\r\nA: b\nc",
        b"HTTP/1.1 200 OK\r\n: b",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9",
    ],
)
def test_malformed_heads_are_refused(raw: bytes) -> None:
    """What is not well formed is refused, not guessed."""
    with pytest.raises(MalformedHeadError):
        parse_head(raw)


def head_with(*lines: str, version: str = "1.1") -> bytes:
    """A head with these header lines."""
    return "\r\n".join([f"HTTP/{version} 206 Partial", *lines]).encode()


def test_lengths() -> None:
    """A length is a plain number, or several equal ones."""
    assert parse_head(head_with()).content_length is None
    assert parse_head(head_with("Content-Length: 12")).content_length == 12
    assert parse_head(head_with("Content-Length: 12", "content-length: 12")).content_length == 12
    for bad in ("-1", "1.0", "0x10", "1 2", "", "+1", "1, 2", "9" * 20, "²"):
        with pytest.raises(MalformedHeadError):
            _ = parse_head(f"HTTP/1.1 200 OK\r\nContent-Length: {bad}".encode("latin-1")).content_length


def test_ranges() -> None:
    """Start, stop and total; an unsatisfied range has only a total."""
    assert parse_head(head_with()).content_range is None
    assert parse_head(head_with("Content-Range: bytes 2-5/9")).content_range == ContentRange(2, 6, 9)
    assert parse_head(head_with("Content-Range: bytes 2-5/*")).content_range == ContentRange(2, 6, None)
    assert parse_head(head_with("Content-Range: bytes */9")).content_range == ContentRange(None, None, 9)
    for bad in ("bytes 5-2/9", "bytes 2-9/9", "items 1-2/3", "bytes 1-2", "bytes -2/3", "1-2/3", "bytes 1-x/3"):
        with pytest.raises(MalformedHeadError):
            _ = parse_head(head_with(f"Content-Range: {bad}")).content_range


def test_sizes_of_objects() -> None:
    """A part tells it by its place alone, a whole object by its length, and other answers do not."""
    assert parse_head(head_with("Content-Range: bytes 2-5/9", "Content-Length: 4")).object_size == 9
    assert parse_head(head_with("Content-Range: bytes 2-5/*", "Content-Length: 4")).object_size is None
    assert parse_head(head_with("Content-Length: 4")).object_size is None
    assert parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 4").object_size == 4
    assert parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked").object_size is None
    assert parse_head(b"HTTP/1.1 404 No\r\nContent-Length: 4").object_size is None


def test_who_closes() -> None:
    """HTTP/1.1 keeps the connection unless told otherwise, HTTP/1.0 the other way round."""
    assert parse_head(head_with()).keep_alive
    assert not parse_head(head_with("Connection: Close")).keep_alive
    assert not parse_head(head_with(version="1.0")).keep_alive
    assert parse_head(head_with("Connection: keep-alive", version="1.0")).keep_alive


def test_transfer_codings() -> None:
    """Anything but identity hides the length."""
    assert parse_head(head_with("Transfer-Encoding: chunked")).is_chunked
    assert parse_head(head_with("Transfer-Encoding: gzip")).is_chunked
    assert not parse_head(head_with("Transfer-Encoding: identity")).is_chunked


def test_lines_that_came_before_are_what_they_were() -> None:
    """However often a line comes, in whatever company, it means the same, and a malformed one is refused again."""
    for _ in range(3):
        assert parse_head(head_with("A: 1", "a:\t2 ", "B: x")).headers == {"a": "1, 2", "b": "x"}
        assert parse_head(head_with("A: 1", "X: " + "x" * 10_000)).headers["x"] == "x" * 10_000
        with pytest.raises(MalformedHeadError, match="a header line is 'A 1'"):
            parse_head(head_with("A 1"))
        with pytest.raises(MalformedHeadError, match=r"the status line is 'HTTP/1\.7 206 Partial'"):
            parse_head(head_with(version="1.7"))
