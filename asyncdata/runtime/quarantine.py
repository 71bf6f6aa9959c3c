"""The quarantine list: one line of JSON for every skipped element, appended to a file.

    stage loop ── put ──▶ [ at most 4096 lines ] ──▶ thread: one write per line, appended

The pipeline never waits for the file and, once it is open, never ends because of it. Lines that cannot be written (on a
full disk or a file system that hangs) are counted and reported by a warning. A line says where an element was and what
kind of error it had, never what it contained: of an exception of user code only its type and the line that raised it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
from typing import Any, Final

from asyncdata.errors import AsyncdataError, QuarantineError, refused
from asyncdata.redaction import redact_url
from asyncdata.workers.failure import UserFunctionError, raised_at

_LOGGER: Final = logging.getLogger(__name__)
_MOST_WAITING: Final = 4096
_CLOSE_S: Final = 5.0


class Quarantine:
    """See the module's docstring. `open` and `close` block; `put` does not.

    Args:
        path: The file; made if it is not there, with access for its owner only, and appended to if it is.

    Attributes:
        lost: Lines that could not be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost = 0
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._warned = False

    def open(self) -> None:
        """Opens the file.

        Raises:
            QuarantineError: It cannot be opened for appending.
            SystemResourceError: The system has no more threads.
        """
        try:
            # A pipe that nobody reads is an error rather than waited for.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(self.path, flags, 0o600)
            os.set_blocking(descriptor, True)
        except OSError as error:
            raise QuarantineError(f"the quarantine list {self.path!r} cannot be opened: {error.strerror}") from None
        name = "asyncdata-quarantine"
        thread = threading.Thread(target=self._write_all, args=(descriptor,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            os.close(descriptor)
            what = "the quarantine list cannot be written"
            raise refused(what, error, url=self.path, stage="quarantine list") from error
        self._thread = thread  # one that has not started cannot be joined

    def put(self, line: dict[str, Any]) -> None:
        """Appends a line soon."""
        if line.get("url"):
            line = {**line, "url": redact_url(line["url"])}
        data = json.dumps(line, ensure_ascii=True).encode() + b"\n"
        try:
            self._lines.put_nowait(data)
        except queue.Full:
            self._lose("lines arrive faster than they are written")

    def _write_all(self, descriptor: int) -> None:
        torn = False
        try:
            while (line := self._lines.get()) is not None:
                try:
                    # One write per line: lines of several processes do not mix. A part of one stays alone on its line.
                    text = b"\n" + line if torn else line
                    written = os.write(descriptor, text)
                    torn = written < len(text) and (torn or written > 0)
                    if written < len(text):
                        self._lose("the disk is full")
                except OSError as error:
                    self._lose(error.strerror or "the write failed")
        finally:
            os.close(descriptor)

    def _lose(self, why: str) -> None:
        self.lost += 1
        if not self._warned:
            self._warned = True
            _LOGGER.warning("lines of the quarantine list %s are lost: %s", self.path, why)

    def let_go(self) -> None:
        """Lets the thread write what waits and end, without waiting for it."""
        self._thread = None
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)

    def close(self) -> None:
        """Writes what waits and closes the file; gives up on a file system that hangs."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(queue.Full):  # told below
            self._lines.put(None, timeout=_CLOSE_S)
        thread.join(_CLOSE_S)
        if thread.is_alive():
            self._lose("its file system hangs; a thread is left behind")


def describe(error: BaseException) -> str:
    """An error in one line without anything of the element: of user code its type and place only."""
    if isinstance(error, AsyncdataError) and not isinstance(error, UserFunctionError):
        return f"{type(error).__name__}: {error.message}"
    place = raised_at(error)
    return f"{type(error).__name__} at {place}" if place else type(error).__name__
