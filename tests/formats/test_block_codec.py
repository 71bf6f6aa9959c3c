from __future__ import annotations

import gzip

import pytest

from asyncdata.errors import BrokenFrameError
from asyncdata.formats.block_codec import CODECS, pack, unpack

DATA = [b"", b"a", bytes(1 << 20), bytes(range(256)) * 999]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", DATA, ids=len)
def test_what_was_packed_is_unpacked(codec: str, data: bytes) -> None:
    """All of it; and nothing but it: another length than the one that is claimed is damage."""
    packed = pack(memoryview(data), codec)
    assert unpack(packed, codec, len(data)).tobytes() == data
    for claim in (len(data) + 1, max(len(data) - 1, 0)):
        if claim != len(data):
            with pytest.raises(BrokenFrameError):
                unpack(packed, codec, claim)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_an_error(codec: str) -> None:
    """Cut short, followed by something, or no such stream at all."""
    packed = pack(memoryview(b"abc" * 100), codec)
    for damaged in (packed[:-1], packed + packed, packed + b"\0", b"", b"nothing of the kind"):
        with pytest.raises(BrokenFrameError):
            unpack(damaged, codec, 300)
    assert gzip.decompress(pack(memoryview(b"x"), "GZIP")) == b"x"
