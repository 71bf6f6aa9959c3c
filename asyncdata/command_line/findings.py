"""What is wrong with files: an error policy skips it, and its quarantine list tells what it was.

The list is a file without a name, so that nothing is left of it however the program ends.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from asyncdata.options import ErrorPolicy
from asyncdata.redaction import redact_url

_MOST_IN_A_ROW: Final = 1 << 62
_OF_STORAGE: Final = ("TransientStorageError", "ObjectNotFoundError", "ObjectChangedError")


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a file is wrong.

    Attributes:
        url: The file.
        offset: Of the byte; the decompressed offset for compressed files. None: the file as a whole.
        record: Number of the record, from 0.
        error: The type of the error, and what it says.
        unread_bytes: Stored bytes behind this place, if nothing behind it can be read.
    """

    url: str
    offset: int | None
    record: int | None
    error: str
    unread_bytes: int | None = None

    def __str__(self) -> str:
        url = redact_url(self.url)
        place = url if self.offset is None else f"{url}:{self.offset}"
        record = "" if self.record is None else f" (record {self.record})"
        rest = f"; {self.unread_bytes:,} bytes behind it cannot be read" if self.unread_bytes else ""
        return f"{place}: {self.error}{record}{rest}"

    @property
    def of_storage(self) -> bool:
        """Whether the file could not be read, rather than being wrong."""
        return self.error.partition(":")[0] in _OF_STORAGE


class FindingsList:
    """Collects what a pipeline with its `policy` skips."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by __exit__
        self._rest = b""
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def policy(self) -> ErrorPolicy:
        """Skips everything that is wrong, and lists it here."""
        return ErrorPolicy(
            max_skipped=None,
            max_in_a_row=_MOST_IN_A_ROW,
            skip_unreachable=True,
            quarantine=f"/proc/self/fd/{self._file.fileno()}",
        )

    def new(self) -> list[Finding]:
        """What was found since the last call; after the pipeline was closed, all of the rest."""
        self._file.seek(self._read)
        data = self._file.read()
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [found for line in lines if (found := _finding(line)) is not None]


def _finding(text: bytes) -> Finding | None:
    """None for a part of a line, behind which the disk was full; it is counted as lost."""
    try:
        line: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return Finding(
        url=line["url"] or "",
        offset=line["offset"],
        record=line["record"],
        error=line["error"],
        unread_bytes=line.get("unread_bytes"),
    )
