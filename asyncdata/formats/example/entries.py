"""The entries of one record, where they are the usual ones: what readers of records alike learn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from asyncdata.formats.example.scalar import TAG_OF_KIND
from asyncdata.formats.example.varints import MAX_VARINT_BYTES, WireError, read_length
from asyncdata.formats.example.wanted import Wanted

Slots: TypeAlias = Mapping[bytes, tuple[int, Wanted]]
"""By key: the slot of a list, and what is wanted of it."""

FLOAT_BYTES: Final = 4
CONTINUES: Final = 0x80
"""What says in a byte of a varint that another one follows."""
_ENTRY, _VALUE = 0x0A, 0x12


class Entry(NamedTuple):
    """One entry of a record's map, with a single value in a packed list; or with anything, where it is not wanted.

    Attributes:
        slot: Of its list; None where it is not wanted.
        kind: Of its list.
        lengths: Where the lengths begin that enclose the value, and where they end.
        begin: Where the value begins.
        stop: Where it and the entry end.
    """

    slot: int | None
    kind: str
    lengths: list[tuple[int, int]]
    begin: int
    stop: int


def entries_of(record: bytes, begin: int, slots: Slots) -> list[Entry] | None:
    """The entries from a position on, up to the end of the record.

    None where one has something unusual, or a wanted key is missing or comes twice.
    """
    entries = []
    try:
        while begin < len(record):
            entry = _entry(record, begin, len(record), slots)
            if entry is None:
                return None
            entries.append(entry)
            begin = entry.stop
    except (WireError, IndexError):
        return None
    wanted = [entry.slot for entry in entries if entry.slot is not None]
    return entries if sorted(wanted) == list(range(len(slots))) else None


def _entry(record: bytes, at: int, stop: int, slots: Slots) -> Entry | None:
    """The entry that begins at some position, if it is a usual one."""
    begin, stop = read_length(record, at + 1, stop)
    lengths = [(at + 1, begin)]
    key = begin + 2 + record[begin + 1]
    if record[at] != _ENTRY or record[begin] != _ENTRY or record[begin + 1] >= CONTINUES or record[key] != _VALUE:
        return None
    wanted = slots.get(record[begin + 2 : key])
    tags = () if wanted is None else (TAG_OF_KIND[wanted[1].kind], _ENTRY)
    value = key
    for tag in (_VALUE, *tags):
        if record[value] != tag:
            return None
        begin, end = read_length(record, value + 1, stop)
        if end != stop:
            return None
        lengths.append((value + 1, begin))
        value = begin
    if wanted is None:
        return Entry(None, "bytes", lengths, value, stop)
    slot, item = wanted
    ends = [byte < CONTINUES for byte in record[value : min(stop, value + MAX_VARINT_BYTES + 1)]]
    if item.kind == "int64" and not (len(ends) <= MAX_VARINT_BYTES and ends[-1:] == [True] and sum(ends) == 1):
        return None
    if item.kind == "float32" and stop - value != FLOAT_BYTES:
        return None
    return Entry(slot, item.kind, lengths, value, stop)
