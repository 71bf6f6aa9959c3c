"""Laws that every decoder of bytes to records obeys, as functions to be called from a test.

A decoder is given as a function from the pieces of an object, in order, to its records; it raises a ``DataError`` where
the bytes are not what their format promises. The laws:

* *Any chunking*: however the bytes are cut into pieces, the records are the same.
* *Truncation*: of an object that ends early, the whole records come first, then one error; no record is made up.
* *Corruption*: of an object with checksums in which one byte is wrong, the records in front of it come first, then one
  error; no record is made up.

The functions raise ``AssertionError`` naming the cut or the byte, so that a failing case can be tried alone. Pieces are
views of one array that is overwritten as soon as the next piece is asked for: a decoder that keeps a view shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from asyncdata.errors import DataError

Pieces: TypeAlias = Iterable[memoryview]
Decode: TypeAlias = Callable[[Pieces], Iterable[bytes]]
"""Yields records as soon as they are whole; records are bytes of their own."""


class Outcome:
    """What a decoder made of some pieces.

    Attributes:
        records: The records it gave before it ended or raised.
        error: What it raised, if it did.
    """

    __slots__ = ("error", "records")

    def __init__(self, records: list[bytes], error: DataError | None) -> None:
        self.records = records
        self.error = error


def run(decode: Decode, pieces: Pieces) -> Outcome:
    """Decodes, keeping what came before an error. Errors that are no ``DataError`` pass through."""
    records: list[bytes] = []
    try:
        records.extend(map(bytes, decode(pieces)))
    except DataError as error:
        return Outcome(records, error)
    return Outcome(records, None)


def pieces_at(data: bytes, cuts: Sequence[int]) -> Iterator[memoryview]:
    """``data`` cut at ascending positions; each piece is overwritten when the next one is asked for."""
    bounds = [0, *cuts, len(data)]
    for begin, end in pairwise(bounds):
        piece = bytearray(data[begin:end])
        yield memoryview(piece)
        piece[:] = b"\xa5" * len(piece)


def pieces_of(data: bytes, size: int) -> Iterator[memoryview]:
    """``data`` in pieces of ``size`` bytes, the last one shorter."""
    return pieces_at(data, range(size, len(data), size))


def check_every_cut(decode: Decode, data: bytes, expected: Sequence[bytes]) -> None:
    """The law of any chunking, for every way of cutting the object in two."""
    for cut in range(len(data) + 1):
        _same(run(decode, pieces_at(data, [cut])), expected, f"cut at {cut}")


def check_piece_sizes(decode: Decode, data: bytes, expected: Sequence[bytes], sizes: Iterable[int]) -> None:
    """The law of any chunking, for pieces of each of these sizes; 1 is the hardest."""
    for size in sizes:
        _same(run(decode, pieces_of(data, size)), expected, f"pieces of {size}")


def check_random_cuts(decode: Decode, data: bytes, expected: Sequence[bytes], *, seed: int, rounds: int) -> None:
    """The law of any chunking, for cuts drawn at random, empty pieces among them."""
    for number in range(rounds):
        source = random.Random(f"{seed} {number}")
        cuts = sorted(source.choices(range(len(data) + 1), k=source.randint(0, 12)))
        _same(run(decode, pieces_at(data, cuts)), expected, f"cuts {cuts}")


def check_truncation(decode: Decode, data: bytes, expected: Sequence[bytes], *, ends: Iterable[int]) -> None:
    """The law of truncation, for every length.

    Args:
        decode: The decoder.
        data: A whole object.
        expected: Its records.
        ends: The lengths at which the object may legally end; every other length must give an error.
    """
    legal = set(ends)
    for size in range(len(data)):
        outcome = run(decode, pieces_of(data[:size], 7))
        count = len(outcome.records)
        if outcome.records != list(expected[:count]):
            raise AssertionError(f"truncated to {size}: the records are not the first ones")
        if (outcome.error is None) != (size in legal):
            raise AssertionError(f"truncated to {size}: the error is {outcome.error!r}")


def check_corruption(
    decode: Decode, data: bytes, expected: Sequence[bytes], *, flips: Iterable[int] = (0x01, 0x80, 0xFF)
) -> None:
    """The law of corruption, for every byte and each of the bit patterns that it is changed by."""
    known = list(expected)
    for flip in flips:
        for place in range(len(data)):
            damaged = bytearray(data)
            damaged[place] ^= flip
            outcome = run(decode, pieces_of(bytes(damaged), 64))
            where = f"byte {place} changed by {flip:#04x}"
            if outcome.error is None:
                raise AssertionError(f"{where}: not noticed")
            if outcome.records != known[: len(outcome.records)]:
                raise AssertionError(f"{where}: records were made up")


def _same(outcome: Outcome, expected: Sequence[bytes], where: str) -> None:
    if outcome.error is not None:
        raise AssertionError(f"{where}: {outcome.error!r}") from outcome.error
    if outcome.records != list(expected):
        count = len(outcome.records)
        first = next(
            (i for i, pair in enumerate(zip(outcome.records, expected, strict=False)) if pair[0] != pair[1]), -1
        )
        raise AssertionError(f"{where}: {count} records instead of {len(expected)}, the first that differs is {first}")
