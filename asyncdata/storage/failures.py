"""The typed errors of one read attempt, below the public tree in ``asyncdata.errors``.

A transient failure has the number of bytes that the attempt received (``filled``), so that the next attempt resumes
there, and its cause (``cause``), for the counters. Errors that mean "this server does not support ranges" have types of
their own, so that a backend can try another body path.
"""

from __future__ import annotations

import enum

from asyncdata.errors import StorageError, TransientStorageError
from asyncdata.types import ObjectInfo


class FailureCause(enum.StrEnum):
    """What ended an attempt."""

    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect_timeout"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CONNECTION_LOST = "connection_lost"
    SLOW = "slow"
    SHORT_BODY = "short_body"
    MALFORMED = "malformed"
    THROTTLED = "throttled"
    SERVER_ERROR = "server_error"
    OVERTAKEN = "overtaken"
    BACKEND = "backend"


TIMEOUT_CAUSES = (
    FailureCause.CONNECT_TIMEOUT,
    FailureCause.FIRST_BYTE_TIMEOUT,
    FailureCause.IDLE_TIMEOUT,
    FailureCause.SLOW,
)


class ReadFailedError(TransientStorageError):
    """One attempt failed and another may succeed.

    Attributes:
        cause: What ended it.
        filled: How many leading bytes of the attempt's buffer are valid.
        info: What the answer's head said about the object, where an opening read got that far.
    """

    cause: FailureCause = FailureCause.BACKEND
    filled: int = 0
    info: ObjectInfo | None = None


class UnreadableHeadError(ReadFailedError):
    """The head of the answer is not well formed; a more lenient reader may make sense of it."""

    cause = FailureCause.MALFORMED


class RangeIgnoredError(StorageError):
    """The server answered 200 with the whole object where a range was asked for."""


class UnframedBodyError(StorageError):
    """The body comes without a length (chunked, or until the connection closes): not for the range client."""


class EncodedBodyError(StorageError):
    """The body is not the stored bytes: the server compressed or decompressed it on the way."""


def read_failed(
    message: str,
    cause: FailureCause,
    *,
    filled: int = 0,
    retry_after_s: float | None = None,
    url: str | None = None,
    version: str | None = None,
    offset: int | None = None,
) -> ReadFailedError:
    """Builds a transient failure; ``offset`` is where the attempt began, the error names the first missing byte."""
    error = ReadFailedError(message, url=url, version=version, offset=None if offset is None else offset + filled)
    error.cause = cause
    error.filled = filled
    error.retry_after_s = retry_after_s
    return error


def refused_whole(info: ObjectInfo) -> ReadFailedError:
    """The failure for an object that was said to have no byte, and has some: replaced just now, or a cache lies."""
    return read_failed(
        f"the server refuses the beginning of an object of {info.size} bytes", FailureCause.MALFORMED, url=info.url
    )


def without_frames(error: BaseException) -> None:
    """Takes from a library's exception what leads to our frames, and through them to buffers and leases.

    A library in Rust may keep an exception that it raised until it is called the next time, where no garbage collector
    sees it. The memory of a pipeline that has ended must not wait for that.
    """
    error.__traceback__ = error.__context__ = None


def locate(error: StorageError, info: ObjectInfo, start: int) -> StorageError:
    """Adds the place to an error made by a layer that knows bytes but not objects; returns the same error."""
    if error.url is None:
        error.url = info.url
    if error.version is None:
        error.version = info.version
    if error.offset is None:
        error.offset = start + (error.filled if isinstance(error, ReadFailedError) else 0)
    return error
