"""CRC-32C as TFRecord files use it: masked, over single payloads and over many 8-byte lengths at once.

Payloads use the ``crc32c`` package (hardware instructions, any buffer, no copy). Length fields are too short for it,
because the call costs more than the checksum. CRC is linear over GF(2), so the CRC of an 8-byte length is the XOR of
one table entry per byte, and numpy looks up a thousand lengths at once. Bytes that are zero in all lengths contribute
nothing and are not looked up. A table of its own has the CRCs of all lengths below 64 KiB.

Masking (rotate right by 15, add a constant) prevents a CRC that is stored beside its data from looking like data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeAlias

import crc32c as _crc32c
import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Any contiguous run of bytes."""

MASK_DELTA: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF


checksum: Final[Callable[[Bytes], int]] = _crc32c.crc32c
"""The plain CRC-32C of ``data``; the library's function itself, for loops that call nothing else."""


resumed: Final[Callable[[Bytes, int], int]] = _crc32c.crc32c
"""The plain CRC-32C of what had the given one so far and goes on with ``data``."""


def mask(crc: int) -> int:
    """The masked form of a plain CRC."""
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & _WORD


def unmask(masked: int) -> int:
    """The plain CRC behind a masked one."""
    rotated = (masked - MASK_DELTA) & _WORD
    return ((rotated >> 17) | (rotated << 15)) & _WORD


def masked_checksum(data: Bytes) -> int:
    """What a TFRecord file stores for ``data``."""
    return mask(checksum(data))


def _length_tables() -> tuple[npt.NDArray[np.uint32], int]:
    zero = checksum(bytes(8))
    tables = np.zeros((8, 256), np.uint32)
    for position in range(8):
        for value in range(256):
            message = bytearray(8)
            message[position] = value
            tables[position, value] = checksum(message) ^ zero
    tables.setflags(write=False)
    return tables, zero


_TABLES, _ZERO = _length_tables()


_SHORT: Final = 1 << 16
"""Lengths below this one are looked up in one step."""


def masked_length_checksums(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
    """Masked CRCs of many lengths, each as its 8 little-endian bytes."""
    if len(lengths) and int(lengths.max()) < _SHORT:
        found: npt.NDArray[np.uint32] = _short_length_checksums().take(lengths)
        return found
    return _masked_length_checksums(lengths.astype(np.uint64, copy=False))


@functools.cache
def _short_length_checksums() -> npt.NDArray[np.uint32]:
    """Those of all short lengths."""
    found = _masked_length_checksums(np.arange(_SHORT, dtype=np.uint64))
    found.setflags(write=False)
    return found


def _masked_length_checksums(lengths: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    crcs = np.full(len(lengths), _ZERO, np.uint32)
    if len(lengths):
        width = (int(lengths.max()).bit_length() + 7) // 8
        rest = lengths
        for position in range(width):
            crcs ^= _TABLES[position][(rest & np.uint64(0xFF)).astype(np.intp)]
            rest = rest >> np.uint64(8)
    rotated: npt.NDArray[np.uint32] = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    rotated += np.uint32(MASK_DELTA)
    return rotated
