from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.formats import crc32c


def test_checksums_equal_the_published_vectors() -> None:
    """The polynomial is Castagnoli's (vectors of RFC 3720, B.4, and the usual check value)."""
    assert crc32c.checksum(bytes(32)) == 0x8A9136AA
    assert crc32c.checksum(b"\xff" * 32) == 0x62A8AB43
    assert crc32c.checksum(memoryview(bytes(range(32)))) == 0x46DD794E
    assert crc32c.checksum(bytearray(b"123456789")) == 0xE3069283


@given(st.integers(0, 2**32 - 1))
def test_unmask_undoes_mask(crc: int) -> None:
    """Masking loses nothing, and changes every CRC."""
    assert crc32c.unmask(crc32c.mask(crc)) == crc
    assert crc32c.mask(crc) != crc


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.integers(0, 64))
def test_length_checksums_equal_those_taken_one_by_one(lengths: list[int], bits: int) -> None:
    """The table look-ups give the CRC of the 8 bytes, whatever the widest length of the block."""
    short = [length & ((1 << bits) - 1) for length in lengths]
    found = crc32c.masked_length_checksums(np.array(short, np.uint64))
    assert found.tolist() == [crc32c.masked_checksum(length.to_bytes(8, "little")) for length in short]
