"""One tar header: 512 bytes of ustar, old GNU or V7, and the records of a pax header.

A header counts only if its checksum matches. Every length in it is checked for plausibility before it is used.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

BLOCK: Final = 512

OLD_REGULAR: Final = b"\0"
REGULAR: Final = frozenset({b"0", OLD_REGULAR, b"7"})
"""Kinds of member whose content is a file's: regular, old regular, contiguous."""

NO_CONTENT: Final = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})
"""Links, devices, directories, pipes: nothing follows their header, whatever size it states."""

LONG_NAME: Final = b"L"
LONG_LINK: Final = b"K"
PAX: Final = b"x"
PAX_GLOBAL: Final = b"g"
PAX_SOLARIS: Final = b"X"
SPARSE: Final = b"S"

_ZEROS: Final = bytes(BLOCK)
_EIGHT_SPACES: Final = 8 * 32
_ADLER_PRIME: Final = 65521


class HeaderError(ValueError):
    """The bytes are no tar header, or one that lies."""


class Header(NamedTuple):
    """One header.

    Attributes:
        name: The name in the header, with its prefix.
        size: What it says about the bytes that follow.
        kind: The type flag.
        extended: For `SPARSE`: more blocks of the sparse map follow.
    """

    name: str
    size: int
    kind: bytes
    extended: bool


def is_end(block: bytes) -> bool:
    """Whether a block is the one of zeros that ends an archive."""
    return block == _ZEROS


def parse_header(block: bytes) -> Header:
    """The header in one block.

    Raises:
        HeaderError: Its checksum does not hold, or a number in it is none.
    """
    stored = _number(block[148:156], "checksum")
    # The lower half of Adler-32 is one more than the sum of the bytes, modulo a prime: far cheaper than `sum`.
    quick = (zlib.adler32(block) & 0xFFFF) - (zlib.adler32(block[148:156]) & 0xFFFF) + _EIGHT_SPACES
    if (stored - quick) % _ADLER_PRIME and not _is_sum(block, stored):
        raise HeaderError(f"its checksum is {stored}, which its bytes do not add up to")
    name, kind = _text(block[:100]), block[156:157]
    size = _number(block[124:136], "size")
    if size < 0:
        raise HeaderError(f"its size is {size}")
    if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
        name = f"{prefix}/{name}"
    return Header(name, size, kind, kind == SPARSE and block[482:483] != b"\0")


def _is_sum(block: bytes, stored: int) -> bool:
    """Whether the bytes add up to this, as unsigned ones or, as some old writers did it, as signed ones."""
    unsigned = sum(block) - sum(block[148:156]) + _EIGHT_SPACES
    signed = unsigned - 256 * sum(byte > 127 for byte in (*block[:148], *block[156:]))
    return stored in (unsigned, signed)


def padded(size: int) -> int:
    """Bytes that content of this size takes up."""
    return -(-size // BLOCK) * BLOCK


def parse_pax(data: bytes) -> dict[str, str]:
    """The records of a pax header: ``length keyword=value`` lines.

    Raises:
        HeaderError: A record is damaged.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 20)
        digits = data[at:space]
        if space < 0 or not digits.isdigit():
            raise HeaderError("a record of its pax header does not begin with a length")
        stop = at + int(digits)
        keyword, equals, value = data[space + 1 : stop - 1].partition(b"=")
        if stop > len(data) or data[stop - 1 : stop] != b"\n" or not equals or not keyword:
            raise HeaderError("a record of its pax header is damaged")
        found[keyword.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        at = stop
    return found


def pax_size(records: dict[str, str]) -> int | None:
    """The size of the member that a pax header speaks of, if it states one."""
    text = records.get("size")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise HeaderError(f"its pax header states the size {text[:30]!r}")
    return int(text)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(field: bytes, what: str) -> int:
    """Octal digits, or base 256 when the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=False) & ((1 << (8 * len(field) - 1)) - 1)
        return value if field[0] == 0x80 else value - (1 << (8 * len(field) - 1)) if field[0] == 0xFF else -1
    digits = field.partition(b"\0")[0].strip(b" ")
    try:
        return int(digits or b"0", 8)
    except ValueError:
        raise HeaderError(f"its {what} is {digits!r}") from None


def text_of(content: bytes) -> str:
    """The long name that a `LONG_NAME` member holds."""
    return _text(content)
