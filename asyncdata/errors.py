"""All exceptions that asyncdata raises itself, in one tree.

An error says what happened, where (URL, version, byte offset, record, stage) and, if possible, what to do. The location
is in attributes and in the message, and survives pickling. Exceptions of user functions keep their own type and get a
note instead (see ``workers.failure``).
"""

from __future__ import annotations

import errno as numbers
import os
import re
from typing import Any, Final

from asyncdata.redaction import redact, redact_about, redact_url

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""All but tabs and line breaks, which messages of several lines have."""
_BREAKS: Final = str.maketrans({"\t": r"\t", "\n": r"\n"})


class AsyncdataError(Exception):
    """Base of the tree.

    Attributes:
        message: What happened, without the location.
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
        self.message = message if url is None else redact_about(message, url)
        super().__init__(self.message)
        self.url = url
        self.version = version
        self.offset = offset
        self.record = record
        self.stage = stage
        self.leaf = leaf
        self.attempts = attempts

    def __setattr__(self, name: str, value: Any) -> None:
        """Removes secrets in URLs from every attribute, because errors are printed, logged and pickled."""
        if isinstance(value, str):
            value = redact_url(value) if name == "url" else redact(value)
        super().__setattr__(name, value)

    def add_note(self, note: str) -> None:
        """As ``BaseException.add_note``, without secrets and control characters."""
        super().add_note(_escaped(redact(note)))

    def place(self) -> dict[str, Any]:
        """Returns the known attributes, for rebuilding the error elsewhere."""
        names = ("url", "version", "offset", "record", "stage", "leaf", "attempts")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def complete(self, **place: Any) -> None:
        """Sets the attributes that are not known yet."""
        if isinstance(url := place.get("url"), str):
            self.message = redact_about(self.message, url)
            self.args = (self.message,)
        for name, value in place.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def __str__(self) -> str:
        place = ", ".join(f"{name} {value}" for name, value in self.place().items())
        # Names of objects and servers' words may hold what a terminal obeys, and what cannot be printed at all.
        message = _escaped(self.message)
        return f"{message} [{_escaped(place).translate(_BREAKS)}]" if place else message

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.place()
        # Attributes that subclasses and callers have added, including notes.
        known = {"message", *place}
        more = {name: value for name, value in vars(self).items() if name not in known and value is not None}
        return _rebuild, (type(self), self.message, place), more


def _escaped(text: str) -> str:
    """The text with control characters, and halves of characters, as Python writes them."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def _rebuild(kind: type[AsyncdataError], message: str, place: dict[str, Any]) -> AsyncdataError:
    return kind(message, **place)


class MissingPackageError(AsyncdataError, ModuleNotFoundError):
    """A package is not installed that this work needs. That is no fault of the data: no error policy skips it."""


# --- storage -----------------------------------------------------------------------------------------------------


class StorageError(AsyncdataError):
    """A storage backend failed, and a retry would not help."""


class TransientStorageError(StorageError):
    """A failure that may pass: 408, 425, 429, 5xx except 501, a broken connection, a time limit, a truncated body.

    Attributes:
        retry_after_s: The delay in seconds that the server asked for, if it did.
    """

    retry_after_s: float | None = None


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The bucket or object does not exist, or a pattern matched nothing."""


class AccessDeniedError(StorageError, PermissionError):
    """The credentials are missing, expired or insufficient (401, 403, 407)."""


class ObjectChangedError(StorageError):
    """The object was replaced or deleted after it was listed. The bytes of two versions are never mixed.

    Attributes:
        found: The version that exists instead of ``version``; None if there is none or it is not known.
    """

    found: str | None = None


class UnsupportedURLError(StorageError, ValueError):
    """No backend supports this URL, or the URL is malformed."""


# --- data --------------------------------------------------------------------------------------------------------


class DataError(AsyncdataError):
    """The bytes violate their format."""


class CorruptRecordError(DataError):
    """A record's checksum does not match, or its payload cannot be parsed. The records after it are readable."""


class BrokenFrameError(DataError):
    """The framing is damaged (length checksum, wrong length, truncated file): nothing after this offset can be read."""


class CorruptObjectError(DataError):
    """The bytes of a whole object do not match the checksum that its store keeps (``Options.check_object_crc``)."""


class CompressionError(DataError):
    """The stream does not have the requested compression, or is damaged or truncated."""


# --- running a pipeline ------------------------------------------------------------------------------------------


class PipelineError(AsyncdataError):
    """The pipeline itself cannot continue."""


class MemoryLimitError(PipelineError):
    """A stage cannot make progress within ``Options.memory_limit_bytes``; the message names it and what it needs."""


class SystemResourceError(PipelineError, OSError):
    """The system refused a resource: disk space, memory, descriptors, threads or processes.

    Attributes:
        errno: The system's error number, as in ``OSError``.
    """

    errno: int | None = None


class UnbatchableError(PipelineError, ValueError):
    """Elements of one batch differ in structure, shape or dtype."""


class StaleDataError(PipelineError):
    """A snapshot or a cache file was made by other steps, functions or files than the current ones."""


class TooManyErrorsError(PipelineError):
    """More elements failed than ``Options.errors`` allows. The error of the last one is the cause.

    Attributes:
        skipped: How many failed, including the one that exceeded the quota.
        first: The first failure, as text.
        last: The last failure, as text.
    """

    skipped: int = 0
    first: str = ""
    last: str = ""


class QuarantineError(PipelineError):
    """The quarantine list of ``Options.errors`` cannot be opened for appending."""


class FunctionTransferError(PipelineError, TypeError):
    """A function, or an object that it refers to, cannot be pickled for the worker processes."""


class WorkerDiedError(PipelineError):
    """A worker process ended (killed, out of memory, crashed in native code) while it held work."""


class TaskTimeoutError(PipelineError, TimeoutError):
    """One call of a user function in a worker process took longer than ``Options.task_timeout_s``.

    Attributes:
        stack: Where the call was, as Python prints it, the latest line first; and the process's other threads, if any.
    """

    stack: str = ""


class PipelineClosedError(PipelineError, RuntimeError):
    """The iterator or Runtime was used after it was closed, or the iterator after it failed."""


class StateError(PipelineError, ValueError):
    """A state or order log does not fit the pipeline or its data, or the pipeline has no state that brings it back."""


class ForkedProcessError(PipelineError, RuntimeError):
    """A running iterator or Runtime was inherited through ``fork()``; make a new iterator from the Dataset."""


class CloseTimeoutError(PipelineError, TimeoutError):
    """User code in a thread did not return within ``Options.close_timeout_s``; the message contains its stack."""


# --- what the system refuses -------------------------------------------------------------------------------------

_CURES: Final = {
    numbers.ENOSPC: "free space on its file system, or use another one",
    numbers.EDQUOT: "your quota there is used up: free space, or use another file system",
    numbers.EFBIG: "raise the limit of a file's size (ulimit -f), or use a file system for larger files",
    numbers.EROFS: "use a file system that can be written to",
    numbers.EACCES: "use a path that this user may write to",
    numbers.EPERM: "use a path that this user may write to",
    numbers.ENOENT: "use a path whose directories can be created",
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
    """Returns the error for something that the system refused, with the remedy.

    Args:
        what: What could not be done.
        error: The system's error; a RuntimeError if it refused a thread.
        url: The file concerned.
        stage: Who needed it.
    """
    number = error.errno if isinstance(error, OSError) else numbers.EAGAIN
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, OSError) and error.filename is not None and url is None:
        reason += f": {redact_url(os.fsdecode(error.filename))!r}"
    cure = _CURES.get(number or 0)
    made = SystemResourceError(f"{what}: {reason}{f'; {cure}' if cure else ''}", url=url, stage=stage)
    made.errno = number
    return made
