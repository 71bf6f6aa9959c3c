"""JSON lines: one JSON text per line, as Python objects. Lines of white space are skipped.

Python's ``json`` parses. Parsing costs far more than finding lines, so the framers of this format run in a thread.
Texts nested more than `MOST_NESTED` deep are rejected, because the depth that Python's parser and pickle support
depends on the stack, which differs between threads and workers.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np

from asyncdata.errors import CorruptRecordError
from asyncdata.formats.framing import Frames, Place, Refs
from asyncdata.formats.lines import LineFramer
from asyncdata.formats.signatures import look_of_no_text
from asyncdata.memory.structure import LEAF, Structure

MOST_NESTED: Final = 128
"""Arrays and objects inside one another."""

_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)
_QUOTE: Final = ord('"')
_STEPS: Final = np.array([(byte in b"[{") - (byte in b"]}") for byte in range(256)], np.int8)


def parse_json(line: bytes | memoryview) -> Any:
    """The value of one line.

    Raises:
        CorruptRecordError: It is no JSON text in UTF-8.
    """
    try:
        if _is_deep(bytes(line)):
            raise CorruptRecordError(f"the line is nested more than {MOST_NESTED} deep")
        return json.loads(str(line, "utf-8"))
    except RecursionError:
        raise CorruptRecordError("the line is nested too deeply for the remaining stack") from None
    except ValueError as error:
        shown = bytes(line[:50])
        look = f", like {found}" if (found := look_of_no_text(shown)) else ""
        # Python's parser would call it line 1.
        why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise CorruptRecordError(f"the line is not JSON: {why}; it begins with {shown!r}{look}") from None


def _is_deep(text: bytes) -> bool:
    """Whether arrays and objects are inside one another more often than they may be."""
    if text.count(b"[") + text.count(b"{") <= MOST_NESTED:
        return False
    codes = np.frombuffer(_ESCAPED.sub(b"", text) if b"\\" in text else text, np.uint8)
    outside = np.bitwise_xor.accumulate(codes == _QUOTE) ^ True
    return int((_STEPS.take(codes) * outside).cumsum(dtype=np.int32).max()) > MOST_NESTED


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
                message = f"line {int(frames.lines[row])}: {error.message}"
                behind = int(frames.starts[row]) - start
                frames.error = place.error(CorruptRecordError, message, behind=behind, record=row)
                frames.resume, frames.resume_line = frames.stop, frames.next_line
                if row + 1 < len(frames.starts):
                    frames.resume, frames.resume_line = int(frames.starts[row + 1]), int(frames.lines[row + 1])
                frames.stop, frames.next_line = int(frames.starts[row]), int(frames.lines[row])
                frames.starts, frames.lines = frames.starts[:row], frames.lines[:row]
                break
        frames.values = (values,)
        return frames
