"""Framers tested as decoders: records as bytes, in pieces cut anywhere, with and without the object's size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from asyncdata.errors import DataError
from asyncdata.formats.framing import Framer
from asyncdata.testing.decoders import Decode, Pieces, check_every_cut, check_piece_sizes, check_random_cuts
from tests.formats.streams import iter_framed
from tests.samples import samples


def plain(record: Any) -> Any:
    """A record as plain Python data; numbers keep their type."""
    if isinstance(record, tuple):
        return tuple(plain(part) for part in record)
    if isinstance(record, np.generic):
        return (record.dtype.name, record.item())
    return record


def decoder(make: Callable[[], Framer], *, size: int | None = None, block: int = 1024) -> Decode:
    """A framer as a decoder; records that are not bytes are written out."""

    def decode(pieces: Pieces) -> Iterator[bytes]:
        for record in iter_framed(make(), pieces, url="gs://b/o", size=size, block=block):
            yield record if isinstance(record, bytes) else repr(plain(record)).encode()

    return decode


def check_any_chunking(
    make: Callable[[], Framer], data: bytes, expected: list[bytes], *, rounds: int = 20, full: int = 2000
) -> None:
    """The law of any chunking, with every size of block that matters, and with the object's size known and not.

    Args:
        make: Makes the framer.
        data: What it is shown.
        expected: The records.
        rounds: Random ways of cutting.
        full: The same in the long run.
    """
    for size in (None, len(data)):
        for block in (1, 1024):
            decode = decoder(make, size=size, block=block)
            check_every_cut(decode, data, expected)
            check_piece_sizes(decode, data, expected, [1, 2, 7])
            check_random_cuts(decode, data, expected, seed=block, rounds=samples(rounds, full))


def outcome(make: Callable[[], Framer], data: bytes, *, size: int | None = None) -> tuple[list[Any], DataError | None]:
    """All records in front of an error, and the error."""
    records: list[Any] = []
    try:
        records.extend(map(plain, iter_framed(make(), [data], url="gs://b/o", size=size)))
    except DataError as error:
        return records, error
    return records, None
