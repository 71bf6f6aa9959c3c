"""JSON lines: one JSON text per line, as Python objects. Lines of white space are passed over.

Parsing is Python's ``json``; what it takes about each text is far above the cost of finding lines, so that framers of
this format run in a thread.
"""

from __future__ import annotations

import json
from typing import Any

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.framing import Frames, Place, Refs
from asyncdata.formats.lines import LineFramer
from asyncdata.memory.structure import LEAF, Structure


def parse_json(line: bytes | memoryview) -> Any:
    """The value of one line.

    Raises:
        CorruptRecordError: It is no JSON text in UTF-8.
    """
    try:
        return json.loads(str(line, "utf-8"))
    except RecursionError:
        raise CorruptRecordError("the line is nested too deeply") from None
    except ValueError as error:
        shown = bytes(line[:50])
        raise CorruptRecordError(f"the line is no JSON text: {error}; it begins with {shown!r}") from None


class JsonFramer:
    """See the module's docstring."""

    structure: Structure = LEAF
    in_thread = True

    def __init__(self) -> None:
        self._lines = LineFramer(skip_blank=True)

    def frame(
        self, view: memoryview, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """See `Framer`."""
        frames = self._lines.frame(view, start, stop, limit=limit, remaining=remaining, last=last, place=place)
        (refs,) = frames.values
        assert isinstance(refs, Refs)
        assert frames.lines is not None
        values: list[Any] = []
        for begin, size in refs.rows.tolist():
            try:
                values.append(parse_json(view[begin : begin + size]))
            except CorruptRecordError as error:
                row = len(values)
                error.message = f"line {int(frames.lines[row])}: {error.message}"
                error.url, error.version = place.url, place.version
                error.offset, error.record = place.offset + int(frames.starts[row]) - start, place.record + row
                frames.error = error
                frames.resume, frames.resume_line = frames.stop, frames.next_line
                if row + 1 < len(frames.starts):
                    frames.resume, frames.resume_line = int(frames.starts[row + 1]), int(frames.lines[row + 1])
                frames.stop, frames.next_line = int(frames.starts[row]), int(frames.lines[row])
                frames.starts, frames.lines = frames.starts[:row], frames.lines[:row]
                break
        frames.values = (values,)
        return frames
