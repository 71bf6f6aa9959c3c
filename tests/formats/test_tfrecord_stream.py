from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from asyncdata.errors import BrokenFrameError, CompressionError, CorruptRecordError
from asyncdata.formats.tfrecord import encode, encode_many
from asyncdata.testing import decoders
from tests.formats.streams import iter_records
from tests.samples import samples

RECORDS = [b"abc", b"", b"x" * 130, b"defg", b""]
PACKED: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "GZIP": lambda data: gzip.compress(data[:50], mtime=0) + gzip.compress(data[50:], mtime=0),
    "ZLIB": zlib.compress,
}


@pytest.mark.parametrize("kind", [None, "GZIP", "ZLIB"])
@pytest.mark.parametrize("records", [RECORDS, [], [b""], [b"one"]])
def test_any_chunking_gives_the_same_records(kind: str | None, records: list[bytes]) -> None:
    """Cut at every position of header, payload and footer, plain and compressed."""
    data = PACKED[kind](encode_many(records))
    decode = partial(iter_records, compression_type=kind)
    decoders.check_every_cut(decode, data, records)
    decoders.check_piece_sizes(decode, data, records, [1, 2, 3, 7, 12, 16, 19, 1000])
    decoders.check_random_cuts(decode, data, records, seed=1, rounds=samples(100, 5000))


def test_truncation_gives_the_whole_records_and_one_error() -> None:
    """A plain file may end only behind a record."""
    ends = [sum(16 + len(record) for record in RECORDS[:count]) for count in range(len(RECORDS) + 1)]
    decoders.check_truncation(iter_records, encode_many(RECORDS), RECORDS, ends=ends)


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_truncation_of_compressed_data_is_an_error(kind: str) -> None:
    """Only nothing, and the end of a member that ends with a record, are ends."""
    data = {"GZIP": lambda: gzip.compress(encode_many(RECORDS)), "ZLIB": lambda: zlib.compress(encode_many(RECORDS))}[
        kind
    ]()
    decoders.check_truncation(partial(iter_records, compression_type=kind), data, RECORDS, ends=[0])


def test_every_damaged_byte_is_noticed() -> None:
    """One clear error, and no record that was not written."""
    decoders.check_corruption(iter_records, encode_many(RECORDS), RECORDS)


def test_errors_say_where() -> None:
    """Offset and index count from the start of the object, over pieces."""
    data = bytearray(encode_many([b"%03d" % index for index in range(100)]))
    data[19 * 60 + 13] ^= 1
    with pytest.raises(CorruptRecordError) as corrupt:
        list(iter_records(decoders.pieces_of(bytes(data), 50), url="gs://b/o", version="1"))
    assert corrupt.value.place() == {"url": "gs://b/o", "version": "1", "offset": 19 * 60, "record": 60}
    data[19 * 40] ^= 1
    with pytest.raises(BrokenFrameError) as broken:
        list(iter_records(decoders.pieces_of(bytes(data), 50)))
    assert broken.value.place() == {"offset": 19 * 40, "record": 40}
    with pytest.raises(CompressionError):
        list(iter_records([bytes(data)], compression_type="GZIP"))


def test_a_large_record_comes_through_small_pieces() -> None:
    """A record much larger than a piece."""
    record = random.Random(2).randbytes(3_000_000)
    data = encode(b"before") + encode(record) + encode(b"after")
    assert list(iter_records(decoders.pieces_of(data, 40_000))) == [b"before", record, b"after"]


def test_the_kit_catches_decoders_that_break_the_laws() -> None:
    """A law that every decoder passes would be none: keeping a view, losing a tail, and making records up all fail."""
    data = b"ab\ncd\n"

    def keeps_views(pieces: Iterable[memoryview]) -> Iterable[bytes]:
        held = list(pieces)
        return b"".join(held).split(b"\n")[:-1]

    def loses_tails(pieces: Iterable[memoryview]) -> Iterable[bytes]:
        for piece in pieces:
            yield from bytes(piece).split(b"\n")[:-1]

    for decode in (keeps_views, loses_tails):
        with pytest.raises(AssertionError, match="cut at"):
            decoders.check_every_cut(decode, data, [b"ab", b"cd"])
        with pytest.raises(AssertionError, match="pieces of"):
            decoders.check_piece_sizes(decode, data, [b"ab", b"cd"], [1])
    with pytest.raises(AssertionError, match="truncated to"):
        decoders.check_truncation(loses_tails, data, [b"ab", b"cd"], ends=[0, 3])
    with pytest.raises(AssertionError, match="not noticed"):
        decoders.check_corruption(loses_tails, data, [b"ab", b"cd"])
