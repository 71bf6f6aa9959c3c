"""CRC32C and MD5 of object bodies, computed while they pass by."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

import crc32c as _crc32c


@dataclass(frozen=True, slots=True)
class Checksums:
    """The two checksums GCS keeps.

    Attributes:
        crc32c: The Castagnoli CRC as an unsigned number.
        md5: The digest, 16 bytes; None for composed objects, which have none.
    """

    crc32c: int
    md5: bytes | None

    @property
    def crc32c_text(self) -> str:
        """Base64 of the big-endian CRC, as the APIs show it."""
        return base64.b64encode(self.crc32c.to_bytes(4, "big")).decode()

    @property
    def md5_text(self) -> str | None:
        """Base64 of the MD5, or None."""
        return None if self.md5 is None else base64.b64encode(self.md5).decode()


class Checksum:
    """A running CRC32C and MD5."""

    __slots__ = ("_crc", "_md5")

    def __init__(self) -> None:
        self._crc = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes."""
        self._crc = _crc32c.crc32c(data, self._crc)
        self._md5.update(data)

    def copy(self) -> Checksum:
        """The same over the same bytes, going its own way from here."""
        other = Checksum()
        other._crc, other._md5 = self._crc, self._md5.copy()
        return other

    def value(self, *, with_md5: bool = True) -> Checksums:
        """The checksums so far."""
        return Checksums(self._crc, self._md5.digest() if with_md5 else None)
