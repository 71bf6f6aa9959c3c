"""Parses the head of an HTTP/1.1 response. Pure and strict: rejects malformed heads and never guesses."""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

MAX_HEAD_BYTES: Final = 64 << 10
_MOST_KEPT: Final = 4 << 10

_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([^\r\n\x00]*))?")
_NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_HEADER: Final = re.compile(rf"({_NAME}):[ \t]*([^\x00\r\n]*)")
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19})|\*)/(?:(\d{1,19})|\*)")


class MalformedHeadError(ValueError):
    """The bytes are not the head of an HTTP/1.1 response."""


class ContentRange(NamedTuple):
    """A ``Content-Range`` header.

    Attributes:
        start: First byte sent; None for ``*`` (an unsatisfied range).
        stop: One after the last byte sent; None likewise.
        total: Size of the object; None where the server does not say.
    """

    start: int | None
    stop: int | None
    total: int | None


class ResponseHead(NamedTuple):
    """Status line and headers. As cheap as it can be made, as all that is made for every answer.

    Attributes:
        status: The code, 100 to 599.
        reason: The server's phrase, often empty.
        headers: By lower-case name; repeated headers are joined by a comma.
        keep_alive: The connection may serve another request after this answer's body.
    """

    status: int
    reason: str
    headers: dict[str, str]
    keep_alive: bool

    @property
    def content_length(self) -> int | None:
        """The announced length of the body, None where there is none.

        Raises:
            MalformedHeadError: Not a number, or several that differ.
        """
        text = self.headers.get("content-length")
        if text is None:
            return None
        if text.isdecimal() and text.isascii() and len(text) <= 19:
            return int(text)
        first, *others = (part.strip() for part in text.split(","))
        if not (first.isascii() and first.isdigit() and len(first) <= 19) or any(part != first for part in others):
            raise MalformedHeadError(f"Content-Length is {text[:60]!r}")
        return int(first)

    @property
    def is_chunked(self) -> bool:
        """The body has a transfer coding, and thus no length beforehand."""
        coding = self.headers.get("transfer-encoding")
        return coding is not None and coding.strip().lower() != "identity"

    @property
    def content_range(self) -> ContentRange | None:
        """The parsed ``Content-Range``, None where there is none.

        Raises:
            MalformedHeadError: It makes no sense.
        """
        text = self.headers.get("content-range")
        return None if text is None else _parse_range(text)

    @property
    def object_size(self) -> int | None:
        """The size of the whole object, None where the head does not tell: the length of a part is not its size.

        Raises:
            MalformedHeadError: A header that should tell makes no sense.
        """
        if self.status == 206:
            sent = self.content_range
            return None if sent is None else sent.total
        return self.content_length if self.status == 200 and not self.is_chunked else None


@functools.lru_cache(maxsize=64)  # asked for more than once per answer
def _parse_range(text: str) -> ContentRange:
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found is None:
        raise MalformedHeadError(f"Content-Range is {text[:60]!r}")
    first, last, size = found.groups()
    start = None if first is None else int(first)
    stop = None if last is None else int(last) + 1
    total = None if size is None else int(size)
    if start is not None and stop is not None and (start >= stop or (total is not None and stop > total)):
        raise MalformedHeadError(f"Content-Range is {text[:60]!r}")
    return ContentRange(start, stop, total)


def parse_head(raw: bytes) -> ResponseHead:
    r"""Parses everything before the empty line.

    Args:
        raw: The head without its closing ``\r\n\r\n``.

    Raises:
        MalformedHeadError: It is not well formed.
    """
    lines = raw.decode("latin-1").split("\r\n")
    version, status, reason = _parse_status(lines[0])
    # Most lines are those of the answer before; of long heads nothing is kept.
    parse = _parse_line if len(raw) <= _MOST_KEPT else _parse_line.__wrapped__
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, value = parse(line)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection and (version == 1 or "keep-alive" in connection)
    return ResponseHead(status, reason, headers, keep_alive)


@functools.lru_cache(maxsize=64)
def _parse_status(line: str) -> tuple[int, int, str]:
    """(minor version, status, reason) of the status line."""
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise MalformedHeadError(f"the status line is {line[:80]!r}")
    return int(found[1]), int(found[2]), found[3] or ""


@functools.lru_cache(maxsize=512)
def _parse_line(line: str) -> tuple[str, str]:
    """(name in lower case, value) of a header line."""
    found = _HEADER.fullmatch(line)
    if found is None:
        raise MalformedHeadError(f"a header line is {line[:80]!r}")
    return found[1].lower(), found[2].rstrip(" \t")
