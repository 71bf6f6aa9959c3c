"""Writes TFRecord files: records in, framed and optionally compressed bytes out.

For a path, the records go to a temporary file beside it, which replaces the path when the writer is closed without an
error. Until then, and after an error, the path is unchanged. What a killed program left of such a file is removed by
the next writer for the path. Records for a file object are written as they come.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np

from asyncdata import arguments
from asyncdata.errors import SystemResourceError, refused
from asyncdata.formats.compression import check_compression_type
from asyncdata.formats.crc32c import Bytes
from asyncdata.formats.tfrecord import encode_many
from asyncdata.replacing import check_replaceable, open_partial, remove_left_behind, sync_folder
from asyncdata.storage.local.paths import path_of
from asyncdata.storage.urls import scheme_of

_WRITE_BYTES: Final = 1 << 20
"""Frames are collected up to this size before they are written."""
_WINDOW_BITS: Final = {"GZIP": 31, "ZLIB": 15}


class BinarySink(Protocol):
    """The methods that a writer needs from a file object."""

    def write(self, data: bytes, /) -> Any:
        """Writes all of the data."""


def _as_bytes(record: Any) -> bytes:
    """Returns a copy; rejects numbers, texts (NumPy's, too), and arrays of objects, whose bytes are addresses."""
    try:
        view = memoryview(record)
    except (TypeError, ValueError):  # numpy has no buffer for dates
        view = None
    kinds = "" if view is None else re.sub(r":[^:]*:", "", view.format)  # without the names of fields
    if view is None or isinstance(record, np.number | np.bool_ | np.str_) or "O" in kinds or "w" in kinds:
        raise TypeError(f"a record must be bytes, not {arguments.shown(record)}")
    return bytes(view)


class TFRecordWriter:
    """Writes one TFRecord file.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> with TFRecordWriter(file) as writer:
        ...     writer.write(b"first")
        ...     writer.write_many([b"second", b""])
        >>> writer.records, writer.payload_bytes, writer.file_bytes == len(file.getvalue())
        (3, 11, True)

    Attributes:
        records: Records given to the writer so far.
        payload_bytes: Their bytes, without framing and before compression.
        file_bytes: Bytes given to the file so far; final after ``close()``.
    """

    @arguments.suggests
    def __init__(self, target: str | os.PathLike[str] | BinarySink, compression_type: str | None = None) -> None:
        kind = check_compression_type(compression_type)
        if kind == "ZSTD":
            raise ValueError("compression_type must be None, '', 'GZIP' or 'ZLIB' for writing, not 'ZSTD'")
        self.records = 0
        self.payload_bytes = 0
        self.file_bytes = 0
        self._gathered: list[Bytes] = []
        self._gathered_bytes = 0
        self._stream = zlib.compressobj(wbits=_WINDOW_BITS[kind]) if kind else None
        self._path: Path | None = None
        self._partial: Path | None = None
        self._closed = True
        if isinstance(target, str | os.PathLike):
            name = arguments.url("target", target)
            if scheme_of(name) != "file":
                raise ValueError(
                    f"target must be a local path or an open file, not {arguments.shown(name)}; see fsspec.open"
                )
            self._path = Path(path_of(name))
            check_replaceable(self._path)
            self._file: Any
            with contextlib.suppress(OSError):  # the folder is not there, or cannot be listed
                remove_left_behind(self._path.parent, re.escape(self._path.name))
            try:
                self._partial, self._file = open_partial(self._path)
            except OSError as error:
                # Nobody knows the hidden name.
                raise OSError(error.errno, error.strerror, str(self._path)) from None
        elif hasattr(target, "write"):
            self._file = target
        else:
            raise TypeError(f"target must be a path or a binary file that is open, not {arguments.shown(target)}")
        self._closed = False

    def write(self, record: Bytes) -> None:
        """Adds one record. Bytearrays and memoryviews are copied before this returns."""
        self.write_many((record,))

    def write_many(self, records: Iterable[Bytes]) -> None:
        """Adds records in order."""
        if self._closed:
            raise ValueError("the writer is closed")
        for record in records:
            kept = record if isinstance(record, bytes) else _as_bytes(record)
            self._gathered.append(kept)
            self._gathered_bytes += len(kept)
            self.records += 1
            self.payload_bytes += len(kept)
            if self._gathered_bytes >= _WRITE_BYTES:
                self.flush()

    def flush(self) -> None:
        """Gives the collected frames to the file (or to the compressor, which may keep some of them).

        If this fails, the writer is closed, and the path is unchanged.
        """
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._gathered_bytes = 0
            try:
                frames = encode_many(gathered)
                self._put(frames if self._stream is None else self._stream.compress(frames))
            except BaseException:
                self.discard()  # a part of a frame may be in the file
                raise

    def close(self) -> None:
        """Writes the rest; for a path, makes the file durable and moves it to its path. Idempotent."""
        if self._closed:
            return
        try:
            self.flush()
            if self._stream is not None:
                self._put(self._stream.flush())
            if self._path is not None and self._partial is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._partial.replace(self._path)
                self._partial = None
                self._file.close()
                sync_folder(self._path.parent)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError) and self._path is not None and not isinstance(error, SystemResourceError):
                raise self._refused(error) from error
            raise
        self._closed = True

    def discard(self) -> None:
        """Drops the file and leaves the path unchanged. Idempotent; does nothing after ``close()``."""
        if self._closed:
            return
        self._closed = True
        self._gathered.clear()
        if self._partial is not None:
            with contextlib.suppress(OSError):  # the rest must not be written any more
                self._file.close()
            self._partial.unlink(missing_ok=True)

    def __del__(self) -> None:
        if getattr(self, "_closed", True):  # also where the constructor failed
            return
        self.discard()
        where = "a file object" if self._path is None else str(self._path)
        lost = "its last records are lost" if self._path is None else "the path is unchanged"
        warnings.warn(
            f"the TFRecordWriter for {where} was dropped without close(), so {lost}: use it in a with statement",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _put(self, data: bytes) -> None:
        if data:
            try:
                self._write_whole(data)
            except OSError as error:
                if self._path is None:
                    raise
                raise self._refused(error) from error
            self.file_bytes += len(data)

    def _write_whole(self, data: bytes) -> None:
        """An unbuffered file may take a part of what it is given, as a pipe does."""
        if not isinstance(self._file, io.RawIOBase):
            self._file.write(data)
            return
        rest = memoryview(data)
        while rest:
            taken = self._file.write(rest)
            if not taken:
                raise BlockingIOError(errno.EAGAIN, "the file takes nothing now; open it with a buffer")
            rest = rest[taken:]

    def _refused(self, error: OSError) -> SystemResourceError:
        return refused("the file cannot be written", error, url=str(self._path), stage="TFRecordWriter")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
