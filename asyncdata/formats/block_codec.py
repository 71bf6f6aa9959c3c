"""Bodies of images, each compressed by itself with GZIP or ZSTD, so that images can still be read one by one."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from asyncdata.errors import BrokenFrameError
from asyncdata.formats import zstd

CODECS: Final = ("GZIP", "ZSTD")
_GZIP_BITS: Final = 31
_LEVEL: Final = 6


def pack(data: memoryview, codec: str) -> bytes:
    """The packed bytes.

    Raises:
        CompressionError: There is no module for the codec.
    """
    return gzip.compress(data, _LEVEL, mtime=0) if codec == "GZIP" else zstd.compress(data)


def unpack(data: bytes, codec: str, nbytes: int) -> npt.NDArray[np.uint8]:
    """The bytes that were packed, which are so many; no more memory is taken, whatever `data` is.

    Raises:
        BrokenFrameError: They are not.
        CompressionError: There is no module for the codec.
    """
    stream: Any = zlib.decompressobj(_GZIP_BITS) if codec == "GZIP" else zstd.stream()
    try:
        body = stream.decompress(data, max(nbytes, 1))
        # The end may lie behind the last byte that was asked for.
        more = b"" if stream.eof else stream.decompress(stream.unconsumed_tail, 1)
    except (zlib.error, zstd.StreamError) as error:
        raise BrokenFrameError(f"a compressed block is damaged: {error}") from None
    if more or not stream.eof or len(body) != nbytes or stream.unused_data:
        raise BrokenFrameError("a compressed block contradicts its header")
    return np.frombuffer(body, np.uint8)
