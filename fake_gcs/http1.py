"""HTTP/1.1 without any I/O: request heads and chunked bodies in, response heads out.

Everything here is a pure function or a small state machine over bytes. What is not well formed raises ``BadRequest``
with the status to answer; nothing is guessed, for two readers that guess differently are how requests get smuggled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_HEAD_BYTES = 64 * 1024
"""Largest request line and headers together that are read."""
MAX_TARGET_BYTES = 16 * 1024
"""Longest request target: an object name of 1024 bytes, percent-encoded twice, fits several times."""
MAX_HEADERS = 200
"""Most header lines in one request."""
_MAX_CHUNK_LINE_BYTES = 256
_MAX_LENGTH_DIGITS = 15
_MAX_TRAILER_BYTES = 8 * 1024

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(r"[\x21-\x7e\x80-\xff]+\Z")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}\Z")

PHRASES = {
    100: "Continue",
    200: "OK",
    201: "Created",
    204: "No Content",
    206: "Partial Content",
    304: "Not Modified",
    308: "Resume Incomplete",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    412: "Precondition Failed",
    413: "Payload Too Large",
    414: "URI Too Long",
    415: "Unsupported Media Type",
    416: "Requested Range Not Satisfiable",
    417: "Expectation Failed",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    499: "Client Closed Request",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}


class BadRequest(Exception):  # noqa: N818 -- named after the status line it becomes
    """The bytes are not a request that can be served; the connection is closed after the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Head:
    """One request head.

    Attributes:
        method: As sent, upper case.
        path: Raw path, still percent-encoded, beginning with a slash (or ``*``).
        query: Raw query, without the question mark.
        headers: Names in lower case; repeated headers are joined by a comma.
        keep_alive: Whether the client wants the connection kept.
        length: Bytes of the body; None for a chunked body.
        authority: Host of an absolute target, or the target of CONNECT; else empty.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    keep_alive: bool
    length: int | None
    authority: str = ""


def parse_head(raw: bytes) -> Head:
    """Read a head, without its closing blank line.

    Raises:
        BadRequest: Not HTTP/1.0 or HTTP/1.1, or malformed, or framed in two ways.
    """
    lines = raw.decode("latin-1").split("\r\n")
    method, target, version = _request_line(lines[0])
    headers = _header_lines(lines[1:])
    minor = _minor_version(version)
    if minor and "host" not in headers:
        raise BadRequest(400, "a Host header is required")
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection if minor else "keep-alive" in connection
    if "transfer-encoding" in headers and "content-length" in headers:
        keep_alive = False  # TensorFlow sends both. RFC 9112, 6.1: the coding counts, and the connection is closed.
    authority, path, query = _split_target(method, target)
    return Head(method, path, query, headers, keep_alive, _body_length(headers, minor), authority)


def _request_line(line: str) -> tuple[str, str, str]:
    if len(line) > MAX_TARGET_BYTES:
        raise BadRequest(414, "the request target is too long")
    parts = line.split(" ")
    if len(parts) != 3 or not _TOKEN.match(parts[0]) or not _TARGET.match(parts[1]):
        raise BadRequest(400, "malformed request line")
    return parts[0].upper(), parts[1], parts[2]


def _minor_version(version: str) -> int:
    if version == "HTTP/1.1":
        return 1
    if version == "HTTP/1.0":
        return 0
    if version.startswith("HTTP/") and version[5:6].isdigit():
        raise BadRequest(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    raise BadRequest(400, "malformed request line")


def _header_lines(lines: list[str]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise BadRequest(431, "too many headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.match(name):
            raise BadRequest(400, "malformed header line")
        value = value.strip(" \t")
        if _BAD_VALUE.search(value):
            raise BadRequest(400, "control character in a header")
        name = name.lower()
        known = headers.get(name)
        if known is None:
            headers[name] = value
        elif name == "host" or (name == "content-length" and known != value):
            raise BadRequest(400, f"repeated {name} header")
        elif name != "content-length":
            headers[name] = f"{known}, {value}"
    return headers


def _split_target(method: str, target: str) -> tuple[str, str, str]:
    if method == "CONNECT":
        return target, "/", ""
    authority = ""
    if not target.startswith("/") and target != "*":
        scheme, found, rest = target.partition("://")
        if not found or scheme.lower() not in {"http", "https"}:
            raise BadRequest(400, "malformed request target")
        cut = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
        authority, target = rest[:cut], rest[cut:]
        if not target.startswith("/"):
            target = "/" + target
    target = target.partition("#")[0]
    path, _, query = target.partition("?")
    return authority, path, query


def _body_length(headers: dict[str, str], minor: int) -> int | None:
    encoding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if encoding is not None and encoding.lower() != "identity":
        if encoding.lower() != "chunked":
            raise BadRequest(501, "unknown transfer coding")
        if not minor:
            raise BadRequest(400, "a transfer coding needs HTTP/1.1")
        return None
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()) or len(length) > _MAX_LENGTH_DIGITS:
        raise BadRequest(400, "malformed Content-Length")
    return int(length)


def render_head(status: int, headers: list[tuple[str, str]]) -> bytes:
    """A response head with its blank line. Line ends inside a value become spaces: values come from users."""
    lines = [f"HTTP/1.1 {status} {PHRASES.get(status, 'Status')}"]
    for name, value in headers:
        if "\r" in value or "\n" in value or "\0" in value:
            value = value.replace("\r", " ").replace("\n", " ").replace("\0", " ")  # noqa: PLW2901 -- cleaned in place
        lines.append(f"{name}: {value}")
    lines.append("\r\n")
    return "\r\n".join(lines).encode("utf-8", "replace")


@dataclass(slots=True)
class BodyFraming:
    """Takes a request body out of the receive buffer, whatever its framing.

    ``take`` moves bytes from the front of the buffer to the caller and leaves what belongs to the next request.

    Attributes:
        remaining: Bytes of the body (or of the current chunk) still to come.
        chunked: Whether the body is chunked.
        done: Nothing more belongs to this body.
    """

    remaining: int
    chunked: bool
    done: bool = False
    _line: bool = field(default=False, repr=False)
    _trailer: int = field(default=-1, repr=False)

    @classmethod
    def of(cls, head: Head) -> BodyFraming:
        """The framing a head announces."""
        if head.length is None:
            return cls(remaining=0, chunked=True)
        return cls(remaining=head.length, chunked=False, done=head.length == 0)

    def done_or_small(self, limit: int) -> bool:
        """Whether what is left of the body is known to be no more than ``limit`` bytes."""
        return self.done or (not self.chunked and self.remaining <= limit)

    def take(self, buffer: bytearray, limit: int = 1 << 20) -> bytes:
        """The next piece of the body, at most ``limit`` bytes; empty when more input is needed or the body is over."""
        if self.chunked and not self.remaining and not self.done:
            self._next_chunk(buffer)
        if self.done or not self.remaining:
            return b""
        piece = bytes(buffer[: min(self.remaining, limit)])
        del buffer[: len(piece)]
        self.remaining -= len(piece)
        if not self.remaining:
            if self.chunked:
                self._line = True
            else:
                self.done = True
        return piece

    def _next_chunk(self, buffer: bytearray) -> None:
        if self._line:
            if len(buffer) < 2:
                return
            if buffer[:2] != b"\r\n":
                raise BadRequest(400, "malformed chunk")
            del buffer[:2]
            self._line = False
        if self._trailer < 0:
            end = buffer.find(b"\r\n", 0, _MAX_CHUNK_LINE_BYTES)
            if end < 0:
                if len(buffer) >= _MAX_CHUNK_LINE_BYTES:
                    raise BadRequest(400, "malformed chunk size")
                return
            size = bytes(buffer[:end]).partition(b";")[0].strip(b" \t")
            if not _HEX.match(size):
                raise BadRequest(400, "malformed chunk size")
            del buffer[: end + 2]
            self.remaining = int(size, 16)
            if self.remaining:
                return
            self._trailer = 0
        self._skip_trailer(buffer)

    def _skip_trailer(self, buffer: bytearray) -> None:
        while (end := buffer.find(b"\r\n", 0, _MAX_TRAILER_BYTES)) >= 0:
            del buffer[: end + 2]
            self._trailer += end + 2
            if end == 0:
                self.done = True
                return
            if self._trailer > _MAX_TRAILER_BYTES:
                break
        if self._trailer + len(buffer) > _MAX_TRAILER_BYTES:
            raise BadRequest(431, "the trailer is too long")
