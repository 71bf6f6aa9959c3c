"""Zstandard streams with bounded output: Python's own module from 3.14 on, before that the extra ``zstd``.

Both have the same code and the same interface. The module is imported when the first stream begins, and only here. The
decoder rejects frames that need a window above 128 MiB.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from asyncdata.errors import MissingPackageError

_IN_STANDARD_LIBRARY = (3, 14)


class StreamError(Exception):
    """The stream is damaged."""


class Stream:
    """One frame, with the attributes of a ``zlib.decompressobj``.

    Attributes:
        unconsumed_tail: Always empty: the decoder keeps what it did not use.
    """

    unconsumed_tail = b""

    def __init__(self, module: Any) -> None:
        self._decoder = module.ZstdDecompressor()
        self._error: type[Exception] = module.ZstdError

    def copy(self) -> None:
        """Nothing: this decoder cannot be copied."""

    @property
    def eof(self) -> bool:
        """Whether the frame has ended."""
        return bool(self._decoder.eof)

    @property
    def unused_data(self) -> bytes:
        """What follows the frame."""
        return bytes(self._decoder.unused_data)

    def decompress(self, data: bytes, most: int) -> bytes:
        """Up to `most` bytes of output.

        Raises:
            StreamError: The frame is damaged.
        """
        try:
            return bytes(self._decoder.decompress(data, most))
        except self._error as error:
            raise StreamError(str(error)) from None


def stream() -> Stream:
    """A decoder for one frame.

    Raises:
        MissingPackageError: There is no module for it.
    """
    return Stream(_module())


def compress(data: memoryview) -> bytes:
    """One frame.

    Raises:
        MissingPackageError: There is no module for it.
    """
    packed: bytes = _module().compress(data)
    return packed


def _module() -> Any:
    if sys.version_info >= _IN_STANDARD_LIBRARY:
        return importlib.import_module("compression.zstd")
    try:
        from backports import zstd  # noqa: PLC0415 -- the door of an extra
    except ImportError:
        raise MissingPackageError("ZSTD needs an extra before Python 3.14: pip install 'asyncdata[zstd]'") from None
    return zstd
