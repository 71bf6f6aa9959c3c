"""What bytes of another format than the expected one look like; for error messages."""

from __future__ import annotations

from typing import Final

_SIGNATURES: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"\x78\x01", "zlib"),
    (b"\x78\x5e", "zlib"),
    (b"\x78\x9c", "zlib"),
    (b"\x78\xda", "zlib"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PAR1", "Parquet"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG", "a PNG image"),
    (b"GIF8", "a GIF"),
    (b"RIFF", "a WebP or another RIFF file"),
    (b"BM", "a BMP"),
    (b"II*\0", "a TIFF"),
    (b"MM\0*", "a TIFF"),
    (b"<", "XML or HTML"),
    (b"{", "JSON"),
)
_READABLE: Final = frozenset({"gzip", "zlib", "zstd"})
_ASCII_TEXT: Final = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))


def look_of(head: bytes, *, file: bool = True) -> str:
    """What bytes that begin so look like; empty if like nothing that is known.

    Args:
        head: The first bytes.
        file: They are a whole file's, for which a `compression_type` can be named.
    """
    for signature, look in _SIGNATURES:
        if head.startswith(signature):
            return f"{look}: pass compression_type={look.upper()!r}" if file and look in _READABLE else look
    return ""


def look_of_no_text(head: bytes) -> str:
    """The same for formats of text, in which "BM" is no picture: empty if a text can begin so."""
    return "" if _ASCII_TEXT.issuperset(head[:4]) else look_of(head)
