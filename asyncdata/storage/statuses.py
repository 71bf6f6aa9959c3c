"""HTTP status codes to typed errors: one table for all HTTP backends. Pure."""

from __future__ import annotations

import email.utils
import re
from datetime import UTC, datetime
from typing import Final

from asyncdata.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from asyncdata.redaction import redact
from asyncdata.storage.failures import FailureCause, read_failed

_TRANSIENT: Final = {
    408: FailureCause.SERVER_ERROR,
    425: FailureCause.SERVER_ERROR,
    429: FailureCause.THROTTLED,
    500: FailureCause.SERVER_ERROR,
    502: FailureCause.SERVER_ERROR,
    503: FailureCause.SERVER_ERROR,
    504: FailureCause.SERVER_ERROR,
}
_FATAL: Final[dict[int, type[StorageError]]] = {
    401: AccessDeniedError,
    403: AccessDeniedError,
    404: ObjectNotFoundError,
    407: AccessDeniedError,
    410: ObjectNotFoundError,
}

_TITLE: Final = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)


def status_error(
    status: int,
    detail: str,
    *,
    url: str | None = None,
    version: str | None = None,
    offset: int | None = None,
    retry_after_s: float | None = None,
) -> StorageError:
    """The error that a status means for a read that expected a body.

    Args:
        status: The code.
        detail: What the server said, already shortened; part of the message.
        url: The object.
        version: The version that was asked for.
        offset: Where the attempt began.
        retry_after_s: The server's own wish.
    """
    message = f"the server answered {status}" + (f": {detail}" if detail else "")
    cause = _TRANSIENT.get(status) or (FailureCause.SERVER_ERROR if status > 500 and status != 501 else None)
    if cause is not None:
        return read_failed(message, cause, retry_after_s=retry_after_s, url=url, version=version, offset=offset)
    kind = _FATAL.get(status, StorageError)
    return kind(message, url=url, version=version, offset=offset)


def parse_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds meant by a ``Retry-After`` header (seconds or a date), None when absent or unreadable."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text)  # any number of digits is valid
    try:
        when = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())


def shorten(body: bytes, limit: int = 300) -> str:
    """The server's words, on one line and not too long; of a page for browsers its title."""
    text = " ".join(body[: 4 * limit].decode("utf-8", "replace").split())
    if text.lower().startswith(("<!doctype html", "<html")):
        title = _TITLE.search(text)
        text = title[1].strip() if title else "a page for browsers"
    text = redact(text)  # before a URL is truncated, behind which a user name would not be one
    return text if len(text) <= limit else text[: limit - 1] + "…"
