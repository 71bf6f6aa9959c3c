"""The ``Range`` and ``Content-Range`` headers, as pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fake_gcs.errors import GCSError, invalid

_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,40})\s*-\s*(\d{0,40})\s*\Z", re.ASCII)
_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)\s*\Z", re.ASCII)


def resolve_range(header: str | None, size: int) -> tuple[int, int] | None:
    """What a ``Range`` header asks of an object of ``size`` bytes.

    Returns:
        ``(start, stop)`` with the end clipped to the object, or None when the whole object is to be sent: no header,
        or one in a form that is ignored (another unit, several ranges, an end before the start).

    Raises:
        GCSError: 416, when the range lies wholly behind the end of the object.
    """
    if not header:
        return None
    match = _RANGE.match(header)
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        last = int(match[2])
        if last == 0 or size == 0:
            raise _unsatisfiable(size)
        return max(0, size - last), size
    start = int(match[1])
    if match[2] and int(match[2]) < start:
        return None
    if start >= size:
        raise _unsatisfiable(size)
    return start, min(int(match[2]) + 1, size) if match[2] else size


def _unsatisfiable(size: int) -> GCSError:
    message = "The requested range cannot be satisfied."
    return GCSError(416, message, headers=(("Content-Range", f"bytes */{size}"),))


@dataclass(frozen=True, slots=True)
class ContentRange:
    """What one request of a resumable upload carries.

    Attributes:
        start: Offset of the first byte; None when no bytes are carried (``bytes */...``).
        stop: Offset behind the last byte; None like ``start``.
        total: Size of the finished object; None while it is unknown (``.../*``).
    """

    start: int | None
    stop: int | None
    total: int | None


def parse_content_range(header: str) -> ContentRange:
    """Read ``bytes 0-99/*``, ``0-99/100``, ``*/100`` and ``*/*``.

    Raises:
        GCSError: 400 for anything else, and for an end before the start or behind the total.
    """
    match = _CONTENT_RANGE.match(header.strip())
    if match is None:
        raise invalid(f"Failed to parse Content-Range header: {header[:100]}")
    total = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return ContentRange(None, None, total)
    start, stop = int(match[1]), int(match[2]) + 1
    if stop <= start or (total is not None and stop > total):
        raise invalid(f"Invalid Content-Range header: {header[:100]}")
    return ContentRange(start, stop, total)
