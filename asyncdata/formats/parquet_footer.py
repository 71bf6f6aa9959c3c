"""Reads the footer of a Parquet file as untrusted bytes: Thrift's compact protocol, in Python.

pyarrow's accessors of a footer abort the process if a column chunk is inconsistent. `parquet` therefore checks what
this module reads before pyarrow sees the footer: the byte ranges of each column, and their statistics.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

_DEEPEST: Final = 24
_double = struct.Struct("<d").unpack_from

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)


class FooterError(ValueError):
    """The footer is damaged."""


class ColumnChunk(NamedTuple):
    """One column of one row group.

    Attributes:
        path: Names from the top of the schema to the column.
        kind: Number of the physical type.
        start: Offset in the file of its first page.
        stop: Offset behind its last one.
        uncompressed: Bytes of its pages after decompression, as stated.
        values: How many it has, missing ones included.
        nulls: How many are missing; None: not stated.
        least: The smallest value as stored; None: not stated.
        most: The largest value as stored; None: not stated.
    """

    path: tuple[str, ...]
    kind: int
    start: int
    stop: int
    uncompressed: int
    values: int
    nulls: int | None
    least: bytes | None
    most: bytes | None


class Group(NamedTuple):
    """One row group.

    Attributes:
        rows: How many it has.
        chunks: Its columns, in the order of the schema.
    """

    rows: int
    chunks: tuple[ColumnChunk, ...]


def parse_footer(data: bytes) -> list[Group]:
    """The row groups that a footer lists.

    Raises:
        FooterError: It is damaged, contradicts itself, or is of a file that is not complete in itself.
    """
    try:
        found = _Reader(data).struct(0)
        leaves = [element for element in found[2][1:] if not element.get(5)]
        groups = [_group(group, len(leaves)) for group in found.get(4, [])]
        stated, listed = found[3], sum(group.rows for group in groups)
    except (KeyError, IndexError, TypeError, AttributeError, struct.error, UnicodeDecodeError) as error:
        raise FooterError(f"a field is missing or cut off ({type(error).__name__}: {error})") from None
    if stated != listed:
        # Whichever is right: fewer rows than there are would be read without a word.
        raise FooterError(f"the file claims to have {stated} rows, but its row groups {listed}")
    return groups


def _group(group: dict[int, Any], leaves: int) -> Group:
    chunks = tuple(_chunk(chunk) for chunk in group[1])
    if len(chunks) != leaves:
        raise FooterError(f"a row group has {len(chunks)} columns, but the schema has {leaves}")
    rows = group[3]
    if not isinstance(rows, int) or rows < 0:
        raise FooterError(f"a row group claims to have {rows} rows")
    return Group(rows, chunks)


def _chunk(chunk: dict[int, Any]) -> ColumnChunk:
    if 1 in chunk:
        raise FooterError("a column claims to be in another file")
    meta = chunk[3]
    statistics = meta.get(12, {})
    start, dictionary = meta[9], meta.get(11)
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    return ColumnChunk(
        path=tuple(name.decode() for name in meta[3]),
        kind=meta[1],
        start=start,
        stop=start + meta[7],
        uncompressed=meta[6],
        values=meta[5],
        nulls=statistics.get(3),
        least=statistics.get(6),
        most=statistics.get(5),
    )


class _Reader:
    """Reads values of the compact protocol one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def varint(self) -> int:
        result = shift = 0
        while shift < 70:
            byte = self._data[self._at]
            self._at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
        raise FooterError("a number is too long")

    def number(self) -> int:
        raw = self.varint()
        return (raw >> 1) ^ -(raw & 1)

    def binary(self) -> bytes:
        size = self.varint()
        value = self._data[self._at : self._at + size]
        if len(value) < size:
            raise FooterError("a string is cut off")
        self._at += size
        return value

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise FooterError("it is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while True:
            head = self._data[self._at]
            self._at += 1
            if head == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self.number()
            kind = head & 0x0F
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self.number()
        if kind == _BINARY:
            return self.binary()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _MAP:
            return self._map(depth)
        size = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8, _UUID: 16}.get(kind)
        if size is None:
            raise FooterError(f"there is no type {kind}")
        value = self._data[self._at : self._at + size]
        self._at += size
        return _double(value)[0] if kind == _DOUBLE else value

    def _list(self, depth: int) -> list[Any]:
        head = self._data[self._at]
        self._at += 1
        count = head >> 4
        if count == 0x0F:
            count = self.varint()
        self._check_count(count)
        kind = head & 0x0F
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        count = self.varint()
        if not count:
            return []
        self._check_count(count)
        kinds = self._data[self._at]
        self._at += 1
        return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 0x0F, depth + 1)) for _ in range(count)]

    def _check_count(self, count: int) -> None:
        if count > len(self._data) - self._at:
            raise FooterError(f"a list claims to have {count} items, more than there are bytes")
