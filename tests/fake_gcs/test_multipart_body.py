"""multipart/related, streamed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_gcs.errors import GCSError
from fake_gcs.multipart_body import RelatedParser, boundary_of
from tests.fake_gcs.asking import refusal_of


def parse(pieces: list[bytes], boundary: bytes = b"==0==") -> tuple[bytes, str, bytes]:
    media = bytearray()

    def begin(_parser: RelatedParser) -> Callable[[bytes], None]:
        return media.extend

    parser = RelatedParser(boundary, begin)
    for piece in pieces:
        parser.write(piece)
    parser.finish()
    return parser.metadata, parser.media_type, bytes(media)


def build(metadata: bytes, media: bytes, end: bytes, tail: bytes = b"", preamble: bytes = b"") -> bytes:
    first = preamble + b"--==0==" + end + b"Content-Type: application/json" + end + end + metadata
    second = end + b"--==0==" + end + b"Content-Type: text/plain" + end + end + media
    return first + second + end + b"--==0==--" + tail


@given(
    media=st.one_of(
        st.binary(max_size=200), st.lists(st.sampled_from([b"\r\n", b"\n", b"--", b"==0==", b"-", b"x"])).map(b"".join)
    ),
    end=st.sampled_from([b"\r\n", b"\n"]),
    tail=st.sampled_from([b"", b"\r\n", b"\nepilogue"]),
    cuts=st.lists(st.integers(0, 400), max_size=30),
)
def test_media_comes_out_whole_however_it_arrives(media: bytes, end: bytes, tail: bytes, cuts: list[int]) -> None:
    """With CR LF and with bare LF, cut anywhere, the media is what was put in, unless it holds a delimiter itself."""
    if end + b"--==0==" in end + media + end:
        return
    wire = build(b'{"name": "x"}', media, end, tail)
    places = sorted({min(cut, len(wire)) for cut in cuts})
    pieces = [wire[a:b] for a, b in zip([0, *places], [*places, len(wire)], strict=True)]
    assert parse(pieces) == (b'{"name": "x"}', "text/plain", media)


def test_every_single_byte_may_come_alone() -> None:
    """Delimiters split over any number of pieces are found, with a preamble too."""
    wire = build(b"{}", b"a\r\n--==0=\r\n-", b"\r\n", preamble=b"hello\r\n")
    assert parse([bytes([byte]) for byte in wire]) == (b"{}", "text/plain", b"a\r\n--==0=\r\n-")


def test_little_is_held_back() -> None:
    """Memory does not grow with the media: all but a delimiter's length is passed on at once."""
    passed = 0

    def begin(_parser: RelatedParser) -> Callable[[bytes], None]:
        def write(data: bytes) -> None:
            nonlocal passed
            passed += len(data)

        return write

    parser = RelatedParser(b"==0==", begin)
    wire = build(b"{}", b"", b"\n").removesuffix(b"\n--==0==--")
    parser.write(wire)
    for count in range(1, 100):
        parser.write(b"z" * 10_000)
        assert passed >= count * 10_000 - 32


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"--==0==",
        b"--==0==\r\n\r\n{}\r\n--==0==--",
        build(b"{}", b"data", b"\r\n")[:-4],
        build(b"{}", b"data\r\n--==0==\r\n\r\nthird", b"\r\n"),
        b"--==0==\r\nno colon here\r\n\r\n{}",
        b"x" * 100_000,
        b"--==0==\r\n" + b"a: b\r\n" * 10_000,
    ],
)
def test_what_is_not_two_parts_is_refused(wire: bytes) -> None:
    """Missing, cut off, third and endless parts are 400."""
    with pytest.raises(GCSError) as caught:
        parse([wire])
    assert caught.value.status == 400


@given(st.binary(max_size=300))
def test_any_bytes_are_two_parts_or_a_refusal(data: bytes) -> None:
    """There is no third outcome."""
    for wire in (data, b"--==0==\n" + data, b"--==0==\r\n\r\n{}\r\n--==0==\r\n" + data):
        assert refusal_of(partial(parse, [wire])) in {0, 400}


def test_the_boundary_is_read_from_the_content_type() -> None:
    """Quoted and bare; another type or no boundary is 400."""
    assert boundary_of('multipart/related; boundary="=:a b"', "related") == b"=:a b"
    assert boundary_of("multipart/related; boundary===0==", "related") == b"==0=="
    for wrong in ("", "text/plain", "multipart/mixed; boundary=x", "multipart/related", "multipart/related; boundary="):
        with pytest.raises(GCSError):
            boundary_of(wrong, "related")
