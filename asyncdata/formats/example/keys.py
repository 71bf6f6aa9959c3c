"""Compares the keys of thousands of entries, with those that a spec names or those of the record before.

A key is compared in the form that it has in an entry (its tag, its length, its bytes), in words of eight bytes. For the
look-up, factors are drawn until the top bits of the products differ for all keys of the spec. A key that is found is
then either that one key of the spec or unknown::

    words of the entry, behind the key masked:   0a 05 l a b e l 00
    times the factors, added up, shifted:        21
    slot in table 21:                            3      the words of key 3 are compared with those found
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.fields import Mask
from asyncdata.formats.example.varints import ByteArray, IntArray, WordArray, words_at

MAX_KEY_BYTES: Final = 96
"""Specs with longer keys are read record by record."""

_MOST_BITS: Final = 20
_TRIES: Final = 64


def _words_of(heads: Sequence[bytes]) -> list[WordArray]:
    """The words of keys with their tag and length: those of all keys at one place side by side."""
    size = -(-max(map(len, heads)) // 8) * 8
    words = np.frombuffer(b"".join(head.ljust(size, b"\0") for head in heads), "<u8").reshape(-1, size // 8)
    return [np.ascontiguousarray(column) for column in words.T]


class KeyTable:
    """Finds keys.

    Args:
        keys: The keys, all different, of at most `MAX_KEY_BYTES`; each one's slot is its place.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._words = _words_of([b"\x0a%c%b" % (len(key), key) for key in keys])
        self._masks = _words_of([b"\xff" * min(size + 2, 8 * len(self._words)) for size in range(256)])
        self._table: npt.NDArray[Any]
        self._sorted: npt.NDArray[Any] | None = None
        self._shift = np.uint64(0)
        self._prepare(np.random.default_rng(1), len(keys))

    def _prepare(self, source: np.random.Generator, count: int) -> None:
        """Looks for factors that keep all keys apart in a small table; a sorted one takes any number of keys."""
        bits = count.bit_length() + 2
        while True:
            for _ in range(_TRIES):
                numbers = source.integers(0, 1 << 62, len(self._words))
                self._factors = [np.uint64(2 * int(number) + 1) for number in numbers]
                products = self._products(self._words)
                hashes = (products >> np.uint64(64 - bits)).view(np.int64)
                if len(np.unique(hashes)) == count:
                    self._shift = np.uint64(64 - bits)
                    self._table = np.zeros(1 << bits, np.int64)
                    self._table[hashes] = np.arange(count)
                    return
                if bits == _MOST_BITS and len(np.unique(products)) == count:
                    self._table = np.argsort(products)
                    self._sorted = products[self._table]
                    return
            bits = min(bits + 1, _MOST_BITS)

    def _products(self, words: Sequence[WordArray]) -> WordArray:
        found = words[0] * self._factors[0]
        for word, factor in zip(words[1:], self._factors[1:], strict=True):
            found += word * factor
        return found

    def look_up(self, array: ByteArray, key: IntArray, head: WordArray, sizes: IntArray) -> tuple[IntArray, Mask]:
        """The slot of each key in ``array``, and whether it is really one of these keys.

        Args:
            array: The bytes.
            key: Where the tag of each key lies.
            head: The words there.
            sizes: Length of each key, at most 255.
        """
        words = [head & self._masks[0].take(sizes)]
        words += [
            words_at(array, key + 8 * word) & self._masks[word].take(sizes) for word in range(1, len(self._words))
        ]
        products = self._products(words)
        if self._sorted is None:
            products >>= self._shift
            slots = self._table.take(products.view(np.int64))
        else:
            slots = self._table.take(np.searchsorted(self._sorted, products), mode="clip")
        same: Mask = words[0] == self._words[0].take(slots)
        for word, known in zip(words[1:], self._words[1:], strict=True):
            same &= word == known.take(slots)
        return slots, same


class KeyOrder:
    """The keys of one record's entries, which those of other records are compared with, entry by entry.

    Attributes:
        heads: The keys with their tags and lengths.
        rows: Of each, what was said about it; the number of all for one that nobody speaks of.
        sizes: Bytes of each, tag and length included, as a column.
    """

    def __init__(self, heads: Sequence[bytes], rows: Mapping[bytes, int]) -> None:
        self.heads = list(heads)
        self.rows = np.array([rows.get(head[2:], len(rows)) for head in heads])
        self.sizes = np.array([[len(head)] for head in heads])
        self._words = [column[:, None] for column in _words_of(heads)]
        self._masks = [column[:, None] for column in _words_of([b"\xff" * len(head) for head in heads])]

    def is_of(self, array: ByteArray, key: IntArray, head: WordArray, steps: slice) -> bool:
        """Whether all records have these keys there.

        Args:
            array: The bytes.
            key: Where the tag of each key lies, by step and record.
            head: The words there.
            steps: Which entries of their records.
        """
        for number, (word, mask) in enumerate(zip(self._words, self._masks, strict=True)):
            found = words_at(array, (key + 8 * number).reshape(-1)).reshape(key.shape) if number else head
            differs = found & mask[steps]
            differs ^= word[steps]
            if differs.any():
                return False
        return True
