"""Recognises the head of an answer that differs from an earlier one in nothing but its range.

The heads of answers to two ranges of one length of one object differ in ``Content-Range``, whose only right value is
known beforehand: the range that was asked for, and the size of the object. A head is known if it has exactly this line,
and all the rest equals, byte by byte, the rest of a head that was parsed, checked and found to announce what was asked
for. Most answers to small ranges have such heads, and parsing them costs a good part of what these ranges cost.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from asyncdata.storage.http1.head import ResponseHead

_MOST: Final = 256
"""Heads that are remembered: a handful of objects, for a second, because heads have a date."""
_MOST_BYTES: Final = 4 << 10

_Key: TypeAlias = tuple[bytes, int, "KnownObject"]


class KnownObject(NamedTuple):
    """What is known of the object that is asked for: all that ``accept`` depends on, beside the head.

    Attributes:
        size: In bytes.
        version: Which is to be sent.
    """

    size: int
    version: str | None


class KnownAnswers:
    """Heads of whole 206 answers, without their range."""

    def __init__(self) -> None:
        self._heads: dict[_Key, ResponseHead] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, raw: bytearray, end: int, start: int, length: int, known: KnownObject) -> ResponseHead | None:
        """The head in ``raw[:end]``, without its range, if it is known to announce these bytes of this object."""
        key = _key(raw, end, start, length, known)
        return None if key is None else self._heads.get(key)

    def note(self, raw: bytearray, end: int, start: int, length: int, known: KnownObject, head: ResponseHead) -> None:
        """An answer was parsed, and is what was asked for, all of it."""
        key = _key(raw, end, start, length, known)
        # A second line about the range would have been joined to the first.
        if key is None or head.headers.get("content-range") != _range(start, length, known):
            return
        if len(self._heads) >= _MOST:
            self._heads.clear()
        headers = {name: value for name, value in head.headers.items() if name != "content-range"}
        self._heads[key] = head._replace(headers=headers)


def _range(start: int, length: int, known: KnownObject) -> str:
    return f"bytes {start}-{start + length - 1}/{known.size}"


def _key(raw: bytearray, end: int, start: int, length: int, known: KnownObject) -> _Key | None:
    """The head without its range; None where that is not written as usual."""
    line = b"\r\nContent-Range: bytes %d-%d/%d\r\n" % (start, start + length - 1, known.size)
    at = raw.find(line, 0, end + 2)
    if at < 0 or end > _MOST_BYTES:
        return None
    return bytes(raw[:at] + raw[at + len(line) - 2 : end]), length, known
