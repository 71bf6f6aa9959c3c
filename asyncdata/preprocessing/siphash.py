"""SipHash-2-4 of many byte strings at once, as TensorFlow's ``to_hash_bucket_strong`` uses it.

Defined by J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF" (2012). All strings go through their
words of eight bytes together, the longest first, so that those that still have a word are in front.
"""

from __future__ import annotations

import numpy as np

from asyncdata.memory.bytesarray import BytesArray
from asyncdata.preprocessing.farmhash import Words, fetch, rotated

State = list[Words]


def siphash(batch: BytesArray, key: tuple[int, int]) -> Words:
    """Returns the hash of each item.

    Args:
        batch: Byte strings or texts.
        key: Two 64-bit numbers.
    """
    order = np.argsort(-batch.places[:, 1], kind="stable")
    lengths, starts = batch.rows[order, 1], batch.rows[order, 0]
    memory = np.concatenate((batch.base, np.zeros(8, np.uint8)))  # behind the last item there are eight bytes to read
    words = lengths // 8
    low, high = (np.full(len(batch), part % (1 << 64), np.uint64) for part in key)
    magic = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    state = [part ^ np.uint64(number) for part, number in zip((low, high, low, high), magic, strict=True)]
    for word in range(int(words.max(initial=0))):
        live = int(np.searchsorted(-words, -word))
        part = _absorbed([each[:live] for each in state], fetch(memory, starts[:live] + 8 * word))
        state = [np.concatenate((new, old[live:])) for new, old in zip(part, state, strict=True)]
    # The rest of each string, and its length in the highest byte.
    left = (lengths % 8).astype(np.uint64) * np.uint64(8)
    rest = fetch(memory, starts + 8 * words) & ((np.uint64(1) << left) - np.uint64(1))
    state = _absorbed(state, rest | (lengths.astype(np.uint64) << np.uint64(56)))
    state[2] = state[2] ^ np.uint64(0xFF)
    for _ in range(4):
        state = _round(*state)
    found = state[0] ^ state[1] ^ state[2] ^ state[3]
    out = np.empty_like(found)
    out[order] = found
    return out


def _absorbed(state: State, word: Words) -> State:
    a, b, c, d = state
    a, b, c, d = _round(*_round(a, b, c, d ^ word))
    return [a ^ word, b, c, d]


def _round(a: Words, b: Words, c: Words, d: Words) -> State:
    a = a + b
    b = rotated(b, 51) ^ a
    a = rotated(a, 32)
    c = c + d
    d = rotated(d, 48) ^ c
    a = a + d
    d = rotated(d, 43) ^ a
    c = c + b
    b = rotated(b, 47) ^ c
    return [a, b, rotated(c, 32), d]
