"""The keys of a spec, ready to be looked up by the thousand.

A key is compared as it lies in an entry (its tag, its length, its bytes), in words of eight bytes. Factors are drawn
until the products' top bits differ for all keys of the spec; so a found key is that one key of the spec, or unknown::

    words of the entry, behind the key masked:   0a 05 l a b e l 00
    times the factors, added up, shifted:        21
    slot in table 21:                            3      the words of key 3 are compared with those found
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.formats.example.stepping import Mask
from asyncdata.formats.example.varints import ByteArray, IntArray, WordArray, words_at

_MOST_BITS: Final = 20
_TRIES: Final = 64


class KeyTable:
    """Finds keys.

    Args:
        keys: The keys, all different, of at most ``MAX_KEY_BYTES``; each one's slot is its place.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        heads = [b"\x0a" + bytes([len(key)]) + key for key in keys]
        self._count = -(-max(map(len, heads)) // 8)
        size = 8 * self._count
        words = np.frombuffer(b"".join(head.ljust(size, b"\0") for head in heads), "<u8").reshape(-1, self._count)
        self._words = [np.ascontiguousarray(words[:, word]) for word in range(self._count)]
        kept = np.arange(size) < np.arange(256)[:, None] + 2
        masks = (kept * np.uint8(0xFF)).astype(np.uint8).view("<u8")
        self._masks = [np.ascontiguousarray(masks[:, word]) for word in range(self._count)]
        self._table: npt.NDArray[Any] | None = None
        self._sorted: npt.NDArray[Any] | None = None
        self._shift = np.uint64(0)
        self._prepare(np.random.default_rng(1), len(keys))

    def _prepare(self, source: np.random.Generator, count: int) -> None:
        """Looks for factors that keep all keys apart in a small table; a sorted one takes any number of keys."""
        bits = count.bit_length() + 2
        while True:
            for _ in range(_TRIES):
                self._factors = [np.uint64(2 * int(number) + 1) for number in source.integers(0, 1 << 62, self._count)]
                products = self._products(self._words)
                hashes = (products >> np.uint64(64 - bits)).view(np.int64)
                if len(np.unique(hashes)) == count:
                    self._shift = np.uint64(64 - bits)
                    self._table = np.zeros(1 << bits, np.int64)
                    self._table[hashes] = np.arange(count)
                    return
                if bits == _MOST_BITS and len(np.unique(products)) == count:
                    order = np.argsort(products)
                    self._table, self._sorted = order, products[order]
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
        words += [words_at(array, key + 8 * word) & self._masks[word].take(sizes) for word in range(1, self._count)]
        products = self._products(words)
        assert self._table is not None
        if self._sorted is None:
            products >>= self._shift
            slots = self._table.take(products.view(np.int64))
        else:
            slots = self._table.take(np.searchsorted(self._sorted, products), mode="clip")
        same: Mask = words[0] == self._words[0].take(slots)
        for word in range(1, self._count):
            same &= words[word] == self._words[word].take(slots)
        return slots, same
