"""Decides from the head of a response to a ranged GET where its body goes. Pure.

A body that matches the request goes directly into the caller's buffer. A small error text is collected separately.
Everything else is a typed error before one byte of the body is touched.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from asyncdata.storage.failures import FailureCause, RangeIgnoredError, UnframedBodyError, read_failed
from asyncdata.storage.http1.head import ResponseHead

MAX_ASIDE_BYTES: Final = 64 << 10
"""The longest error text that is read; a longer one is cut there and its connection closed."""

_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")


class BodyPlan(NamedTuple):
    """What to do with the body.

    Attributes:
        wanted: The body is what was asked for and goes into the caller's buffer; else it is collected aside.
        size: Its length; None where only its end shows it (chunked, or until the connection closes).
        total: Size of the whole object, where the answer says it.
    """

    wanted: bool
    size: int | None
    total: int | None = None


def plan_body(head: ResponseHead, *, start: int, length: int) -> BodyPlan:
    """Decides for an answer to a GET of the bytes ``[start, start + length)``.

    Raises:
        ReadFailedError: A 206 that contradicts itself or the question.
        RangeIgnoredError: A 200 with more, or other, bytes than asked for.
        UnframedBodyError: The wanted body has no length.
        MalformedHeadError: Unreadable lengths.
    """
    headers = head.headers
    text = headers.get("content-length", "")
    if head.status == 206 and text.isdecimal() and text.isascii() and len(text) <= 19:
        # Nearly all are so: canonical numbers, all of which fit. What is not has to be looked at, and may be refused.
        nbytes, found = int(text), headers.get("content-range", "")
        if found.startswith(f"bytes {start}-{start + nbytes - 1}/") and "transfer-encoding" not in headers:
            text = found[found.index("/") + 1 :]
            if 0 < nbytes <= length and text.isdecimal() and text.isascii() and len(text) <= 19:
                total = int(text)
                if start + nbytes <= total:
                    return BodyPlan(wanted=True, size=nbytes, total=total)
    if head.status in {204, 304}:
        return BodyPlan(wanted=False, size=0)
    if head.status not in {200, 206}:
        return BodyPlan(wanted=False, size=None if head.is_chunked else head.content_length)
    size = head.content_length
    if head.is_chunked or size is None:
        raise UnframedBodyError(f"the server answered {head.status} with a body without a length")
    if head.status == 200:
        if start == 0 and size <= length:
            return BodyPlan(wanted=True, size=size, total=size)
        raise RangeIgnoredError(
            f"the server answered 200 with {size} bytes to a request for {length} bytes from {start}"
        )
    sent = head.content_range
    if sent is None or sent.start is None or sent.stop is None:
        raise read_failed("a 206 response without Content-Range", FailureCause.MALFORMED)
    if sent.start != start or sent.stop > start + length or sent.stop - sent.start != size:
        raise read_failed(
            f"requested bytes {start}-{start + length - 1}, got Content-Range {head.headers['content-range'][:60]!r} "
            f"with {size} bytes",
            FailureCause.MALFORMED,
        )
    return BodyPlan(wanted=True, size=size, total=sent.total)


def join_chunks(raw: bytes) -> bytes | None:
    """The content of a chunked body, or None while it is incomplete.

    Raises:
        ValueError: It is not a chunked body.
    """
    parts: list[bytes] = []
    at = 0
    while True:
        end = raw.find(b"\r\n", at)
        if end < 0:
            if len(raw) - at > 1024:
                raise ValueError("a chunk without a size")
            return None
        found = _CHUNK_SIZE.fullmatch(raw, at, end)
        if found is None:
            raise ValueError("a chunk without a size")
        size = int(found[1], 16)
        at = end + 2
        if size == 0:
            # Trailers, if any, end with an empty line as well.
            return b"".join(parts) if raw.startswith(b"\r\n", at) or b"\r\n\r\n" in raw[at:] else None
        if len(raw) < at + size + 2:
            return None
        if raw[at + size : at + size + 2] != b"\r\n":
            raise ValueError("a chunk longer than its size")
        parts.append(raw[at : at + size])
        at += size + 2
