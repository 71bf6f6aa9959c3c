"""`LineTable`: seconds by line of code, in a region of bytes that another process may share.

    slot:  | samples | seconds | what: texts separated by tabs, padded with zeros |        the first empty slot ends it

Whoever adds to a line that is there changes two words in place. The text of a new line is written before its numbers,
so that a reader never sees half of it, and what a process has added survives the process. The last slot is for all
lines that find no other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

_NUMBERS: Final = struct.Struct("=qd")
_SLOT_BYTES: Final = 256
_SLOTS: Final = 128
_TEXT_BYTES: Final = _SLOT_BYTES - _NUMBERS.size
_LONGEST_FILE: Final = 120
_LONGEST_FUNCTION: Final = 60

TABLE_BYTES: Final = _SLOT_BYTES * _SLOTS
OTHER_LINES: Final = "other lines"


class Spent(NamedTuple):
    """What was seen of a line.

    Attributes:
        samples: How often it was running when somebody looked.
        seconds: The time that these looks stand for.
    """

    samples: int
    seconds: float


class Line(NamedTuple):
    """A line of code.

    Attributes:
        place: What runs it: ``worker processes``, ``stage loop``, ``threads`` or ``your loop``.
        function: In which function it is.
        file: In which file; the beginning of a long path is left out.
        line: Its number.
    """

    place: str
    function: str
    file: str
    line: int


Lines: TypeAlias = Mapping[Line, Spent]


class LineTable:
    """See the module. One thread adds to it; any thread or process may read it.

    Args:
        region: ``TABLE_BYTES`` bytes, zeros at first; writable unless it is only read.
    """

    def __init__(self, region: bytearray | memoryview) -> None:
        self._region = region
        self._slots: dict[Line, int] = {}

    def add(self, line: Line, seconds: float) -> None:
        """One more look, at which this line was running."""
        slot = self._slots.get(line)
        if slot is None:
            slot = self._slots[line] = self._take(line)
        at = slot * _SLOT_BYTES
        samples, so_far = _NUMBERS.unpack_from(self._region, at)
        _NUMBERS.pack_into(self._region, at, samples + 1, so_far + seconds)

    def _take(self, line: Line) -> int:
        slot = min(len(set(self._slots.values())), _SLOTS - 1)
        if slot == _SLOTS - 1:
            if len(self._slots) > 4 * _SLOTS:  # lines without a slot of their own: not remembered one by one
                self._slots = {each: place for each, place in self._slots.items() if place < slot}
            line = Line(line.place, OTHER_LINES, "", 0)
        text = f"{line.place}\t{line.function[:_LONGEST_FUNCTION]}\t{line.line}\t{line.file[-_LONGEST_FILE:]}"
        data = text.encode("utf-8", "replace")[:_TEXT_BYTES]
        at = slot * _SLOT_BYTES + _NUMBERS.size
        self._region[at : at + _TEXT_BYTES] = data.ljust(_TEXT_BYTES, b"\0")
        return slot

    def read(self) -> dict[Line, Spent]:
        """What there is now."""
        found: dict[Line, Spent] = {}
        for at in range(0, TABLE_BYTES, _SLOT_BYTES):
            samples, seconds = _NUMBERS.unpack_from(self._region, at)
            if not samples:
                break
            text = bytes(self._region[at + _NUMBERS.size : at + _SLOT_BYTES]).rstrip(b"\0").decode("utf-8", "replace")
            place, function, number, file = (*text.split("\t", 3), "", "", "")[:4]
            line = Line(place, function, file, int(number) if number.isdecimal() else 0)
            found[line] = Spent(samples, seconds)
        return found


def together(*parts: Lines) -> dict[Line, Spent]:
    """The same line in several tables, added up."""
    found: dict[Line, Spent] = {}
    for part in parts:
        for line, spent in part.items():
            before = found.get(line, Spent(0, 0.0))
            found[line] = Spent(before.samples + spent.samples, before.seconds + spent.seconds)
    return found


def since(now: Lines, before: Lines) -> dict[Line, Spent]:
    """What was added after an earlier reading."""
    found = {}
    for line, spent in now.items():
        known = before.get(line, Spent(0, 0.0))
        if spent.samples > known.samples:
            found[line] = Spent(spent.samples - known.samples, spent.seconds - known.seconds)
    return found
