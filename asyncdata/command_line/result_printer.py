"""Where a command's result goes: text for people, or one JSON document for programs, both on standard output."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final, TextIO

from asyncdata.redaction import redact, redact_url

OK: Final = 0
FOUND: Final = 1
USAGE: Final = 2
FAILED: Final = 3
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141

VERSION: Final = 1
"""Of the JSON documents: fields may be added to a version, but not change their meaning."""


class UsageError(Exception):
    """What the command line asks for makes no sense."""


class UserCodeError(Exception):
    """Code of the user's failed: its exception's type, text and place, then its notes, a line each."""


class ResultPrinter:
    """What a command has to say.

    Args:
        command: Its name; None: the command line names none.
        stream: Standard output; None: it is closed.
        complaints: Standard error, likewise.
        as_json: Whether a document is wanted instead of text.
    """

    def __init__(self, command: str | None, stream: TextIO | None, complaints: TextIO | None, *, as_json: bool) -> None:
        self._command = command
        self._stream = stream
        self._complaints = complaints
        self.as_json = as_json
        self._has_document = False
        self._kept: dict[str, Any] = {}

    def say(self, text: str) -> None:
        """A line for people, at once."""
        if not self.as_json:
            _print(text, self._stream)

    def complain(self, text: str) -> None:
        """A line about what could not be done; if nobody can be told, the exit code still says it."""
        with contextlib.suppress(OSError):
            _print(f"asyncdata {self._command}: {text}", self._complaints)

    def keep(self, **fields: Any) -> None:
        """Fields of the document, however the command ends."""
        self._kept |= fields

    def document(self, **fields: Any) -> None:
        """The document for programs, at the end; later ones are not printed."""
        if self.as_json and not self._has_document:
            self._has_document = True
            whole = {"version": VERSION, "command": self._command, **self._kept, **fields}
            print(json.dumps(_redacted(whole), indent=2), file=self._stream, flush=True)


def _print(text: str, stream: TextIO | None) -> None:
    """Prints one line without secrets. Control characters, which names in data may hold, are shown and not obeyed."""
    if stream is None:  # closed before the program began
        return
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in redact(text))
    encoding = stream.encoding or "utf-8"
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _redacted(value: Any) -> Any:
    """Without secrets in URLs; what is no number of JSON's as text."""
    if isinstance(value, Mapping):
        return {redact(str(key)): _redacted(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(each) for each in value]
    if isinstance(value, str):
        return redact_url(value)
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def size(count: float) -> str:
    """Bytes as people read them, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"
