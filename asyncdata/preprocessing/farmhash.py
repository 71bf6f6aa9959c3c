"""FarmHash's Fingerprint64 of many byte strings at once, as TensorFlow's ``to_hash_bucket_fast`` uses it.

The function is defined by Google's FarmHash (G. Pike, 2014, https://github.com/google/farmhash; its namespace "na").
It treats strings by length, so strings of a class of lengths are hashed together, in numpy's 64-bit arithmetic, which
wraps around as the definition wants it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from asyncdata.memory.bytesarray import BytesArray

Words: TypeAlias = npt.NDArray[np.uint64]
Places: TypeAlias = npt.NDArray[np.int64]
Pair: TypeAlias = tuple[Words, Words]

_K0: Final = np.uint64(0xC3A5C85C97CB3127)
_K1: Final = np.uint64(0xB492B66FBE98F273)
_K2: Final = np.uint64(0x9AE16A3B2F90404F)
_BLOCK: Final = 64
_EIGHT: Final = np.arange(8)


def fingerprint64(batch: BytesArray) -> Words:
    """Returns the hash of each item."""
    memory, lengths, starts = batch.memory, batch.places[:, 1], batch.places[:, 0]
    out = np.full(len(batch), _K2)  # what an empty string has
    for least, most, hashed in (
        (1, 3, _up_to_3),
        (4, 7, _up_to_7),
        (8, 16, _up_to_16),
        (17, 32, _up_to_32),
        (33, 64, _up_to_64),
        (65, None, _long),
    ):
        chosen = np.flatnonzero((lengths >= least) & (lengths <= (lengths if most is None else most)))
        if len(chosen):
            out[chosen] = hashed(memory, starts[chosen], lengths[chosen])
    return out


def fetch(memory: npt.NDArray[np.uint8], at: Places) -> Words:
    """Returns the eight bytes at each place as a little-endian number."""
    found: Words = memory[at[:, None] + _EIGHT].view("<u8")[:, 0]
    return found


def rotated(value: Words, bits: int) -> Words:
    """Returns numbers rotated to the right."""
    return (value >> np.uint64(bits)) | (value << np.uint64(64 - bits))


def _mixed(value: Words) -> Words:
    return value ^ (value >> np.uint64(47))


def _combined(first: Words, second: Words, factor: Words) -> Words:
    return _mixed((_mixed((first ^ second) * factor) ^ second) * factor) * factor


def _factor(lengths: Places) -> Words:
    return _K2 + lengths.astype(np.uint64) * np.uint64(2)


def _up_to_3(memory: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> Words:
    first, middle, last = (memory[starts + step].astype(np.uint64) for step in (0, lengths >> 1, lengths - 1))
    y = first + (middle << np.uint64(8))
    z = lengths.astype(np.uint64) + (last << np.uint64(2))
    return _mixed(y * _K2 ^ z * _K0) * _K2


def _up_to_7(memory: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> Words:
    four = _EIGHT[:4]
    first, last = (
        memory[at[:, None] + four].view("<u4")[:, 0].astype(np.uint64) for at in (starts, starts + lengths - 4)
    )
    return _combined(lengths.astype(np.uint64) + (first << np.uint64(3)), last, _factor(lengths))


def _up_to_16(memory: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> Words:
    factor = _factor(lengths)
    a = fetch(memory, starts) + _K2
    b = fetch(memory, starts + lengths - 8)
    return _combined(rotated(b, 37) * factor + a, (rotated(a, 25) + b) * factor, factor)


def _up_to_32(memory: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> Words:
    factor, ends = _factor(lengths), starts + lengths
    a, b = fetch(memory, starts) * _K1, fetch(memory, starts + 8)
    c, d = fetch(memory, ends - 8) * factor, fetch(memory, ends - 16) * _K2
    return _combined(rotated(a + b, 43) + rotated(c, 30) + d, a + rotated(b + _K2, 18) + c, factor)


def _up_to_64(memory: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> Words:
    factor, ends = _factor(lengths), starts + lengths
    a, b = fetch(memory, starts) * _K2, fetch(memory, starts + 8)
    c, d = fetch(memory, ends - 8) * factor, fetch(memory, ends - 16) * _K2
    y = rotated(a + b, 43) + rotated(c, 30) + d
    z = _combined(y, a + rotated(b + _K2, 18) + c, factor)
    e, f = fetch(memory, starts + 16) * factor, fetch(memory, starts + 24)
    g, h = (y + fetch(memory, ends - 32)) * factor, (z + fetch(memory, ends - 24)) * factor
    return _combined(rotated(e + f, 43) + rotated(g, 30) + h, e + rotated(f + a, 18) + g, factor)


def _weak(memory: npt.NDArray[np.uint8], at: Places, a: Words, b: Words) -> Pair:
    """Mixes 32 bytes into two seeds."""
    w, x, y, z = (fetch(memory, at + step) for step in (0, 8, 16, 24))
    a = a + w
    b = rotated(b + a + z, 21)
    c = a + x + y
    return c + z, b + rotated(c, 44) + a


def _rounds(
    memory: npt.NDArray[np.uint8],
    at: Places,
    x: Words,
    y: Words,
    z: Words,
    v: Pair,
    w: Pair,
    factors: tuple[Words, Words],
) -> tuple[Words, Words, Words, Pair, Pair]:
    """One round over a block of 64 bytes; `factors` are those of the multiplications and of the additions in it."""
    factor, weight = factors
    x = rotated(x + y + v[0] + fetch(memory, at + 8), 37) * factor
    y = rotated(y + v[1] + fetch(memory, at + 48), 42) * factor
    x = x ^ w[1] * weight
    y = y + v[0] * weight + fetch(memory, at + 40)
    z = rotated(z + w[0], 33) * factor
    v = _weak(memory, at, v[1] * factor, x + w[0])
    w = _weak(memory, at + 32, z + w[1], y + fetch(memory, at + 16))
    return z, y, x, v, w


def _long(memory: npt.NDArray[np.uint8], starts: Places, lengths: Places) -> Words:
    """Strings of more than 64 bytes, the longest first, so that those that still have a block are in front."""
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    blocks = (lengths - 1) // _BLOCK
    count = len(starts)
    nothing = np.zeros(count, np.uint64)
    seed = np.full(count, 81, np.uint64)
    y = seed * _K1 + np.uint64(113)
    z = _mixed(y * _K2 + np.uint64(113)) * _K2
    state = [seed * _K2 + fetch(memory, starts), y, z, nothing, nothing, nothing, nothing]
    for block in range(int(blocks[0])):
        live = int(np.searchsorted(-blocks, -block))
        x, y, z, v, w, v2, w2 = (part[:live] for part in state)
        ones = np.ones(live, np.uint64)
        x, y, z, (v, v2), (w, w2) = _rounds(
            memory, starts[:live] + block * _BLOCK, x, y, z, (v, v2), (w, w2), (ones * _K1, ones)
        )
        state = [np.concatenate((new, old[live:])) for new, old in zip((x, y, z, v, w, v2, w2), state, strict=True)]
    x, y, z, v, w, v2, w2 = state
    factor = _K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    w = w + ((lengths - 1) & 63).astype(np.uint64)
    v = v + w
    w = w + v
    nine = np.full(count, 9, np.uint64)
    x, y, z, (v, v2), (w, w2) = _rounds(memory, starts + lengths - _BLOCK, x, y, z, (v, v2), (w, w2), (factor, nine))
    # A round leaves x and z exchanged, as the definition wants it.
    found = _combined(_combined(v, w, factor) + _mixed(y) * _K0 + z, _combined(v2, w2, factor) + x, factor)
    out = np.empty_like(found)
    out[order] = found
    return out
