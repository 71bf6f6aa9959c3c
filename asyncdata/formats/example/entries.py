"""The usual entries of a record: what is in front of their values, and all entries of one record.

Readers of many records alike learn from one of them.
"""

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

HEAD_BYTES: Final = 6
"""In front of a value: tag and length of the Feature, of its list, and of the packed values."""
_WORD: Final = 8


class Head(NamedTuple):
    """What lies in front of a value whose size may vary, as a word, where all lengths take one byte.

    Attributes:
        size: Its bytes.
        read: Bytes that are read from its beginning on, with those of the value.
        mask: The bits of the word that are its.
        base: What it is in front of an empty value.
        growth: How much more with every byte of the value.
    """

    size: int
    read: int
    mask: int
    base: int
    growth: int


def _head_of(tag: int, read: int) -> Head:
    """``12 len tag len 0a len``; tag is that of the list."""
    base = _VALUE | 4 << 8 | tag << 16 | 2 << 24 | _ENTRY << 32
    return Head(HEAD_BYTES, read, (1 << 48) - 1, base, 1 << 8 | 1 << 24 | 1 << 40)


HEADS: Final = {
    "int64": _head_of(TAG_OF_KIND["int64"], HEAD_BYTES + MAX_VARINT_BYTES),
    "bytes": _head_of(TAG_OF_KIND["bytes"], _WORD),
    "unknown": Head(2, _WORD, 0xFFFF, _VALUE, 1 << 8),
}
"""By the kind of the list; of what is not wanted only the first tag and length are looked at."""


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
