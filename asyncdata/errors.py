"""Every exception asyncdata raises on its own account, in one tree.

An error says what happened, where (URL, version, byte offset, record, stage) and, where it can, what to do. The place
is kept in attributes as well as in the message, and survives pickling between processes. Exceptions raised by user
functions keep their own type; they get a note instead (see ``workers.failure``).
"""

from __future__ import annotations

import errno as numbers
import os
from typing import Any, Final

from asyncdata.redaction import redact


class AsyncdataError(Exception):
    """Base of the tree.

    Attributes:
        message: What happened, without the place.
        url: The object concerned.
        version: The generation, ETag or similar token that was read.
        offset: Byte offset inside the object as stored (decompressed offset for compressed files).
        record: Index of the record inside the object, from 0.
        stage: The pipeline stage, as ``describe()`` names it.
        leaf: The leaf of the element, as ``image.size`` for ``element["image"]["size"]``.
        attempts: How many times the operation was tried.
    """

    def __init__(
        self,
        message: str,
        *,
        url: str | None = None,
        version: str | None = None,
        offset: int | None = None,
        record: int | None = None,
        stage: str | None = None,
        leaf: str | None = None,
        attempts: int | None = None,
    ) -> None:
        super().__init__(redact(message))
        self.message = message
        self.url = url
        self.version = version
        self.offset = offset
        self.record = record
        self.stage = stage
        self.leaf = leaf
        self.attempts = attempts

    def __setattr__(self, name: str, value: Any) -> None:
        """Secrets in URLs stay out of every attribute: errors are printed, logged and pickled."""
        super().__setattr__(name, redact(value) if isinstance(value, str) else value)

    def add_note(self, note: str) -> None:
        """As ``BaseException.add_note``, without secrets."""
        super().add_note(redact(note))

    def place(self) -> dict[str, Any]:
        """The attributes that are known, for rebuilding the error elsewhere."""
        names = ("url", "version", "offset", "record", "stage", "leaf", "attempts")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def complete(self, **place: Any) -> None:
        """Fills in those of the attributes that are not known yet."""
        for name, value in place.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def __str__(self) -> str:
        place = ", ".join(f"{name} {value}" for name, value in self.place().items())
        return f"{self.message} [{place}]" if place else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.place()
        # What subclasses and callers have added, notes among it.
        known = {"message", *place}
        more = {name: value for name, value in vars(self).items() if name not in known and value is not None}
        return _rebuild, (type(self), self.message, place), more


def _rebuild(kind: type[AsyncdataError], message: str, place: dict[str, Any]) -> AsyncdataError:
    return kind(message, **place)


# --- storage -----------------------------------------------------------------------------------------------------


class StorageError(AsyncdataError):
    """A storage backend failed in a way that trying again will not mend."""


class TransientStorageError(StorageError):
    """A failure that may pass: 408, 429, 5xx, a reset or refused connection, a time limit, a body cut short.

    Attributes:
        retry_after_s: The server's own wish, in seconds, when it sent one.
    """

    retry_after_s: float | None = None


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The bucket or object does not exist, or a glob matched nothing."""


class AccessDeniedError(StorageError, PermissionError):
    """The credentials are missing, expired for good, or not enough (401, 403)."""


class ObjectChangedError(StorageError):
    """The object was replaced or deleted after it was listed; the bytes of two versions are never mixed.

    Attributes:
        found: The version that is there instead of ``version``; None where there is none, or nobody told.
    """

    found: str | None = None


class UnsupportedURLError(StorageError, ValueError):
    """No backend is known for this URL, or the URL is malformed."""


# --- data --------------------------------------------------------------------------------------------------------


class DataError(AsyncdataError):
    """The bytes are not what their format promises."""


class CorruptRecordError(DataError):
    """A checksum of one record does not match, or its payload cannot be parsed. The records after it are readable."""


class BrokenFrameError(DataError):
    """The framing is damaged (length checksum, lying length, truncated file): nothing after this offset can be read."""


class CorruptObjectError(DataError):
    """The bytes of a whole object do not match the checksum that its store keeps (``Options.check_object_crc``)."""


class CompressionError(DataError):
    """The stream is not in the compression that was asked for, or is damaged or cut short."""


# --- running a pipeline ------------------------------------------------------------------------------------------


class PipelineError(AsyncdataError):
    """The pipeline itself cannot go on."""


class MemoryLimitError(PipelineError):
    """A stage cannot make progress inside ``Options.memory_limit_bytes``; the message names it and what it needs."""


class SystemResourceError(PipelineError, OSError):
    """The system refused what the pipeline needs: room on a disk, memory, descriptors, threads or processes.

    Attributes:
        errno: The system's number for the reason, as in ``OSError``.
    """

    errno: int | None = None


class UnbatchableError(PipelineError, ValueError):
    """Elements of one batch differ in structure, shape or dtype."""


class StaleDataError(PipelineError):
    """What a snapshot or a cache in a file keeps was made by other steps, functions or files than those of now."""


class TooManyErrorsError(PipelineError):
    """More elements failed than ``Options.errors`` allows to be skipped. The last one's error is the cause.

    Attributes:
        skipped: How many failed, the one that was too many included.
        first: The first of them, as a text.
        last: The last one.
    """

    skipped: int = 0
    first: str = ""
    last: str = ""


class QuarantineError(PipelineError):
    """The quarantine list of ``Options.errors`` cannot be opened for appending."""


class FunctionTransferError(PipelineError, TypeError):
    """A function, or what it closes over, cannot be pickled for the worker processes."""


class WorkerDiedError(PipelineError):
    """A worker process ended (killed, out of memory, crashed in native code) while it held work."""


class TaskTimeoutError(PipelineError, TimeoutError):
    """One call of a user function in a worker process took longer than ``Options.task_timeout_s``.

    Attributes:
        stack: Where the call was, as Python shows it, the latest line first; and the process's other threads, if any.
    """

    stack: str = ""


class PipelineClosedError(PipelineError, RuntimeError):
    """The iterator or Runtime was closed, or the iterator had failed, and was then used again."""


class ForkedProcessError(PipelineError, RuntimeError):
    """A running iterator or Runtime was inherited through ``fork()``; make a new iterator from the Dataset instead."""


class CloseTimeoutError(PipelineError, TimeoutError):
    """User code in a thread did not return within ``Options.close_timeout_s``; the message holds its stack."""


# --- what the system refuses -------------------------------------------------------------------------------------

_CURES: Final = {
    numbers.ENOSPC: "free space on its file system, or use another one",
    numbers.EDQUOT: "your quota there is used up: free space, or use another file system",
    numbers.EFBIG: "raise the limit of a file's size (ulimit -f), or use a file system for larger files",
    numbers.EROFS: "use a file system that can be written to",
    numbers.EACCES: "use a path that this user may write to",
    numbers.EPERM: "use a path that this user may write to",
    numbers.ENOENT: "use a path whose directories can be made",
    numbers.EEXIST: "a part of the path is a file: use another path",
    numbers.ENOTDIR: "a part of the path is a file: use another path",
    numbers.EISDIR: "the path is a directory: name a file in it",
    numbers.ENAMETOOLONG: "use a shorter name",
    numbers.EMFILE: "raise the limit of open files (ulimit -n)",
    numbers.ENFILE: "close files of other programs, or raise the system's limit (fs.file-max)",
    numbers.ENOMEM: "lower Options.memory_limit_bytes or num_workers, or raise the limit of memory (ulimit -v)",
    numbers.EAGAIN: "lower num_workers or num_threads, or raise the limit of processes (ulimit -u)",
}


def refused(what: str, error: Exception, *, url: str | None = None, stage: str | None = None) -> SystemResourceError:
    """The error for something that the system refused, with what to do about it.

    Args:
        what: What could not be done.
        error: What the system said; a RuntimeError where it refused a thread.
        url: The file concerned.
        stage: Who needed it.
    """
    number = error.errno if isinstance(error, OSError) else numbers.EAGAIN
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, OSError) and error.filename is not None and url is None:
        reason += f": {redact(os.fsdecode(error.filename))!r}"
    cure = _CURES.get(number or 0)
    made = SystemResourceError(f"{what}: {reason}{f'; {cure}' if cure else ''}", url=url, stage=stage)
    made.errno = number
    return made
