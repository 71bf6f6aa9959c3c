from __future__ import annotations

import gzip
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.errors import CompressionError, MissingPackageError
from asyncdata.formats.compression import Decompressor, check_compression_type
from asyncdata.formats.tfrecord import encode
from tests.zstandard import zstd

_CHECKED = {int(zstd.CompressionParameter.checksum_flag): 1}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "GZIP": lambda data: gzip.compress(data, mtime=0),
    "ZLIB": zlib.compress,
    "ZSTD": lambda data: zstd.compress(data, options=_CHECKED),
}
KINDS = pytest.mark.parametrize("kind", ["GZIP", "ZLIB", "ZSTD"])


def unpack(kind: str, data: bytes, *, piece: int = 1 << 20, room: int = 1 << 16) -> bytes:
    """All of the output, fed in pieces and read in buffers of these sizes."""
    decompressor = Decompressor(kind, url="gs://b/o", version="3")
    out, buffer = bytearray(), memoryview(bytearray(room))
    for begin in range(0, len(data), piece):
        part = bytearray(data[begin : begin + piece])
        decompressor.feed(memoryview(part))
        while count := decompressor.read_into(buffer):
            out += buffer[:count]
        assert decompressor.wants_input
        part[:] = b"\xa5" * len(part)
    decompressor.finish()
    assert decompressor.bytes_out == len(out)
    assert decompressor.bytes_in == len(data)
    return bytes(out)


@KINDS
@given(st.binary(max_size=300), st.integers(1, 20), st.integers(1, 20))
def test_pieces_and_buffers_of_any_size_give_the_same_bytes(kind: str, data: bytes, piece: int, room: int) -> None:
    """However input and output are cut, the output is the same."""
    assert unpack(kind, PACK[kind](data), piece=piece, room=room) == data


@KINDS
@given(st.lists(st.binary(max_size=40), min_size=2, max_size=4), st.integers(1, 9), st.integers(1, 9))
def test_streams_that_follow_one_another_are_one(kind: str, parts: list[bytes], piece: int, room: int) -> None:
    """Several members, empty ones among them, decode to their concatenation."""
    data = b"".join(PACK[kind](part) for part in parts)
    assert unpack(kind, data, piece=piece, room=room) == b"".join(parts)


@KINDS
def test_large_data_come_through_in_small_and_large_buffers(kind: str) -> None:
    """Repetitive and random data, larger than every inner buffer."""
    source = random.Random(3)
    data = b"".join(source.choice([bytes(5000), source.randbytes(4000), b"abc" * 3000]) for _ in range(60))
    packed = PACK[kind](data)
    for piece, room in ((1 << 20, 1 << 20), (1 << 20, 777), (999, 1 << 20), (70_000, 65_536)):
        assert unpack(kind, packed, piece=piece, room=room) == data


@KINDS
def test_nothing_decodes_to_nothing(kind: str) -> None:
    """An object of no bytes holds nothing; so does a stream of nothing."""
    assert unpack(kind, b"") == b""
    assert unpack(kind, PACK[kind](b"")) == b""


@pytest.mark.sampled
@KINDS
def test_a_bomb_is_expanded_one_buffer_at_a_time(kind: str) -> None:
    """64 MB of zeros in 64 KB: memory stays near the size of the buffer."""
    packer: Any = zstd.ZstdCompressor() if kind == "ZSTD" else zlib.compressobj(9, wbits=31 if kind == "GZIP" else 15)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    decompressor = Decompressor(kind)
    buffer = memoryview(bytearray(1 << 16))
    tracemalloc.start()
    try:
        decompressor.feed(packed)
        total = 0
        while count := decompressor.read_into(buffer):
            total += count
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    decompressor.finish()
    assert total == 64 << 20
    assert peak < 1 << 20


@KINDS
def test_every_truncation_is_an_error(kind: str) -> None:
    """A stream that is cut short anywhere but at its end is reported, with URL, version and offset."""
    packed = PACK[kind](b"some text that is text")
    for size in range(1, len(packed)):
        with pytest.raises(CompressionError, match="truncated") as caught:
            unpack(kind, packed[:size])
        assert caught.value.url == "gs://b/o"
        assert caught.value.version == "3"
        assert caught.value.offset is not None


@KINDS
def test_damage_is_an_error_or_harmless(kind: str) -> None:
    """Each changed byte gives an error or, in fields that carry no data, the same output; never other output."""
    data = random.Random(1).randbytes(50) + b"text " * 20
    packed = PACK[kind](data)
    noticed = 0
    for place in range(len(packed)):
        for flip in (0x01, 0x10, 0xFF):
            damaged = bytearray(packed)
            damaged[place] ^= flip
            try:
                assert unpack(kind, bytes(damaged)) == data
            except CompressionError:
                noticed += 1
    assert noticed > 2 * len(packed)


@KINDS
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_bytes_behind_the_end_are_an_error(kind: str, piece: int) -> None:
    """Trailing garbage is reported with its place, however it arrives."""
    packed = PACK[kind](b"data")
    for garbage in (b"x", b"xy", b"garbage!", b"\x1f", b"\x1fx"):
        with pytest.raises(CompressionError, match=f"compressed byte {len(packed)}"):
            unpack(kind, packed + garbage, piece=piece)


@pytest.mark.parametrize("piece", [1, 2, 1000])
@pytest.mark.parametrize("room", [4, 5, 100])
def test_zeros_behind_gzip_are_padding(piece: int, room: int) -> None:
    """Tape padding is ignored, as gzip does; what follows padding is not."""
    packed = PACK["GZIP"](b"data")
    for zeros in (1, 2, 511):
        assert unpack("GZIP", packed + bytes(zeros), piece=piece, room=room) == b"data"
        with pytest.raises(CompressionError, match="behind the end"):
            unpack("GZIP", packed + bytes(zeros) + b"\x1f\x8b", piece=piece, room=room)
    with pytest.raises(CompressionError, match="behind the end"):
        unpack("ZLIB", PACK["ZLIB"](b"data") + bytes(5), piece=piece, room=room)


# No times in the data: it names the test, and every process that runs tests must find the same names.
@pytest.mark.parametrize(
    ("kind", "data", "hint"),
    [
        ("GZIP", zlib.compress(b"data"), "compression_type='ZLIB'"),
        ("ZLIB", gzip.compress(b"data", mtime=0), "compression_type='GZIP'"),
        ("GZIP", encode(b"a record"), "compression_type=None"),
        ("ZLIB", encode(b"a record"), "compression_type=None"),
        ("GZIP", b"\x28\xb5\x2f\xfd" + bytes(20), "compression_type='ZSTD'"),
        ("ZSTD", gzip.compress(b"data", mtime=0), "compression_type='GZIP'"),
        ("GZIP", b"<html></html>", "HTML"),
        ("GZIP", b"hello world", "68 65 6c 6c 6f"),
    ],
)
def test_the_wrong_compression_is_named(kind: str, data: bytes, hint: str) -> None:
    """The error says what the object looks like, and what to pass where that helps."""
    with pytest.raises(CompressionError, match=f"is not {kind}") as caught:
        unpack(kind, data)
    assert hint in str(caught.value)
    assert caught.value.offset == 0


def test_input_is_not_overwritten_by_more_input() -> None:
    """Feeding before the last input is used up, and finishing before the output is read, are the caller's errors."""
    decompressor = Decompressor("ZLIB")
    decompressor.feed(zlib.compress(bytes(1000)))
    with pytest.raises(ValueError, match="not used up"):
        decompressor.feed(b"more")
    buffer = memoryview(bytearray(100))
    assert decompressor.read_into(buffer) == 100
    assert not decompressor.wants_input
    with pytest.raises(ValueError, match="left to be read"):
        decompressor.finish()


@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
def test_frames_to_be_skipped_hold_nothing(piece: int) -> None:
    """A frame of ZSTD's that carries no data may stand in front, between and behind others."""
    skipped = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    packed = skipped + PACK["ZSTD"](b"one") + skipped + PACK["ZSTD"](b"two") + skipped
    assert unpack("ZSTD", packed, piece=piece) == b"onetwo"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has the module itself")
def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no module for ZSTD is there, reading says which extra brings it."""
    monkeypatch.setitem(sys.modules, "backports", None)
    with pytest.raises(MissingPackageError, match=r"asyncdata\[zstd\]"):
        unpack("ZSTD", PACK["ZSTD"](b"data"))


def test_compression_types_are_spelled_as_tf_data_spells_them() -> None:
    """None and "" mean none; other spellings are refused at once."""
    assert [check_compression_type(name) for name in (None, "", "GZIP", "ZLIB", "ZSTD")] == [
        "",
        "",
        "GZIP",
        "ZLIB",
        "ZSTD",
    ]
    with pytest.raises(ValueError, match="not 'gzip'"):
        check_compression_type("gzip")
    with pytest.raises(ValueError, match="nothing to decompress"):
        Decompressor("")


def unpack_before(kind: str, data: bytes, *, piece: int, room: int) -> bytes:
    """The output in front of the error that this must end with."""
    decompressor = Decompressor(kind, url="gs://b/o", version="3")
    out, buffer = bytearray(), memoryview(bytearray(room))

    def unpack_all() -> None:
        for begin in range(0, len(data), piece):
            decompressor.feed(data[begin : begin + piece])
            while count := decompressor.read_into(buffer):
                out.extend(buffer[:count])
        decompressor.finish()

    with pytest.raises(CompressionError) as caught:
        unpack_all()
    assert caught.value.offset == decompressor.bytes_out == len(out)
    if decompressor.is_damaged:
        with pytest.raises(CompressionError):
            decompressor.read_into(buffer)
    return bytes(out)


GARBAGE = st.sampled_from([b"garbage", b"\x1f\x8bgarbage"])
PIECES = st.sampled_from([1, 2, 7, 1 << 20])
ROOMS = st.sampled_from([1, 5, 1000, 1 << 16])


@KINDS
@given(
    st.binary(max_size=300), st.binary(max_size=300), PIECES, ROOMS, st.sampled_from([b"garbage", b"\x1f\x8bgarbage"])
)
def test_garbage_behind_a_stream_takes_nothing_away(
    kind: str, one: bytes, two: bytes, piece: int, room: int, garbage: bytes
) -> None:
    """What the streams in front of it hold is given out before the error."""
    packed = PACK[kind](one) + PACK[kind](two) + garbage
    assert unpack_before(kind, packed, piece=piece, room=room) == one + two


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
@given(st.binary(max_size=300), st.integers(1, 4), PIECES, ROOMS)
def test_a_bad_trailer_takes_nothing_away(kind: str, data: bytes, back: int, piece: int, room: int) -> None:
    """A checksum that does not hold, or is cut short, is an error behind the data."""
    packed = bytearray(PACK[kind](data))
    assert unpack_before(kind, bytes(packed[:-back]), piece=piece, room=room) == data
    packed[-back - 4 * (kind == "GZIP")] ^= 1
    assert unpack_before(kind, bytes(packed), piece=piece, room=room) == data


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
@given(st.binary(min_size=50, max_size=3000), st.data(), PIECES, ROOMS)
def test_what_lies_in_front_of_damage_does_not_depend_on_how_it_is_read(
    kind: str, data: bytes, draw: st.DataObject, piece: int, room: int
) -> None:
    """The same bytes are given out, however input and output are cut."""
    packed = bytearray(PACK[kind](data))
    place = draw.draw(st.integers(2, len(packed) - 1))
    packed[place] ^= draw.draw(st.integers(1, 255))
    try:
        unpack(kind, bytes(packed))
    except CompressionError:
        given_out = unpack_before(kind, bytes(packed), piece=piece, room=room)
        assert given_out == unpack_before(kind, bytes(packed), piece=1 << 20, room=1 << 16)
