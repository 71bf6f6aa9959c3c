"""Packs a block's columns so that another process can read them.

    packed:  | column 0 | column 1 | … | origin (32 B per row, where it is wanted) |        each part 64-byte aligned

A few rows are sent inside the message, more of them in a span of the arena. A pickled `Shape` describes the columns. It
has the same bytes for every block of a stage, so both sides keep it decoded.

References are sent as references: a `RefColumn` writes 16 bytes per row, whatever its payload. Only Python objects are
pickled (by this pipeline's own processes).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from asyncdata.memory.advance import ORIGIN_WIDTH, Rows
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, RefColumn, read_leaf, read_table
from asyncdata.memory.leaf import Leaf, is_plain
from asyncdata.memory.own import own
from asyncdata.memory.pickling import dumps
from asyncdata.memory.structure import LEAF, Structure, map_leaves, unflatten
from asyncdata.types import Element

ALIGN = 64


def aligned(nbytes: int) -> int:
    """Rounded up to the alignment that every part begins on."""
    return -(-nbytes // ALIGN) * ALIGN


@dataclass(frozen=True, slots=True)
class Part:
    """One column in a span.

    Attributes:
        kind: ``refs`` (rows of offset and length), ``array`` (rows side by side), ``objects`` (one pickled list).
        leaf: Of ``refs``: what each row is; None when the leaves follow row by row in `leaves`.
        dtype: Of ``array``.
        row_shape: Of ``array``: the shape of one row.
    """

    kind: Literal["refs", "array", "objects"]
    leaf: Leaf | None = None
    dtype: str = ""
    row_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """What the columns of a block are, without their rows."""

    structure: Structure
    parts: tuple[Part, ...]


def shape_of(structure: Structure, columns: tuple[Column, ...]) -> Shape:
    """The shape of a block with these columns."""
    return Shape(structure, tuple(_part(column) for column in columns))


def _part(column: Column) -> Part:
    if isinstance(column, RefColumn) and column.leaf is not None:
        return Part("refs", leaf=column.leaf)
    if isinstance(column, ArrayColumn) and is_plain(column.array):
        return Part("array", dtype=column.array.dtype.str, row_shape=column.array.shape[1:])
    return Part("objects")


def pack(columns: tuple[Column, ...], origin: Rows | None) -> list[bytes | npt.NDArray[Any]]:
    """The parts to write one after the other, each padded to `ALIGN`; the last is the origin, if it is given.

    A pickled list is preceded by its length in eight bytes.
    """
    out: list[bytes | npt.NDArray[Any]] = []
    for column in columns:
        if isinstance(column, RefColumn) and column.leaf is not None:
            out.append(column.rows)
        elif isinstance(column, ArrayColumn) and is_plain(column.array):
            out.append(column.array)
        else:
            data = dumps([column.element(i) for i in range(len(column))])
            out.append(len(data).to_bytes(8, "little") + data)
    if origin is not None:
        out.append(origin)
    return out


def packed_bytes(parts: list[bytes | npt.NDArray[Any]]) -> int:
    """Bytes the parts take in a span."""
    return sum(aligned(_nbytes(part)) for part in parts)


def _nbytes(part: bytes | npt.NDArray[Any]) -> int:
    return len(part) if isinstance(part, bytes) else int(part.nbytes)


def write(arena: npt.NDArray[np.uint8], offset: int, parts: list[bytes | npt.NDArray[Any]]) -> None:
    """Writes packed parts into a span."""
    for part in parts:
        size = _nbytes(part)
        if isinstance(part, bytes):
            arena[offset : offset + size] = np.frombuffer(part, np.uint8)
        elif size:
            arena[offset : offset + size].view(part.dtype).reshape(part.shape)[...] = part
        offset += aligned(size)


def as_views(element: Element) -> Element:
    """The element with memoryviews for its byte strings, as functions want it that were promised no copies."""
    return map_leaves(lambda leaf: memoryview(leaf) if isinstance(leaf, bytes) else leaf, element)


class Rowset:
    """Rows read back in another process, as user functions want them.

    Args:
        arena: What references point into.
        packed: Where the packed rows lie: the arena itself, or a message.
        offset: Where they begin there.
        count: How many rows.
        shape: What their columns are.
        with_origin: Whether their provenance was packed with them.

    Attributes:
        origin: ``int64[n, 4]`` provenance, or None.
        refs: Per column, the rows of a reference column, else None.
    """

    def __init__(
        self,
        arena: npt.NDArray[np.uint8],
        packed: npt.NDArray[np.uint8],
        offset: int,
        count: int,
        shape: Shape,
        *,
        with_origin: bool,
    ) -> None:
        self._arena = arena
        self._count = count
        self._shape = shape
        self._columns: list[Any] = []
        self.refs: list[Rows | None] = []
        for part in shape.parts:
            rows: Rows | None = None
            if part.kind == "refs":
                rows = packed[offset : offset + 16 * count].view(np.int64).reshape(count, 2)
                self._columns.append(rows)
                offset += aligned(16 * count)
            elif part.kind == "array":
                size = int(np.dtype(part.dtype).itemsize * np.prod(part.row_shape, dtype=np.int64) * count)
                data = packed[offset : offset + size].view(part.dtype).reshape(count, *part.row_shape)
                self._columns.append(data)
                offset += aligned(size)
            else:
                size = int.from_bytes(packed[offset : offset + 8].tobytes(), "little")
                # Written by the parent process of this pipeline, never by storage.
                self._columns.append(pickle.loads(packed[offset + 8 : offset + 8 + size].tobytes()))  # noqa: S301 -- see above
                offset += aligned(8 + size)
            self.refs.append(rows)
        size = 8 * ORIGIN_WIDTH * count
        self.origin: Rows | None = None
        if with_origin:
            self.origin = packed[offset : offset + size].view(np.int64).reshape(count, ORIGIN_WIDTH)

    def __len__(self) -> int:
        return self._count

    @property
    def payloads(self) -> Rows | None:
        """Where the elements lie, if each is one byte string and nothing else; None otherwise.

        A table has references too, but its rows are whole batches of byte strings, and those of arrays and pickles are
        no byte strings at all. Code that reads rows as payloads checks this, not whether there are references.
        """
        if self._shape.structure is not LEAF or (leaf := self._shape.parts[0].leaf) is None:
            return None
        return self.refs[0] if leaf.kind == "bytes" else None

    def records(self, row: int) -> Rows:
        """Where the byte strings of an element lie, those of batches among them."""
        found = []
        for part, column in zip(self._shape.parts, self._columns, strict=True):
            if part.leaf is not None and part.leaf.kind == "table":
                found.append(read_table(self._arena, int(column[row, 0]), part.leaf.shape[0]))
            elif part.kind == "refs":
                found.append(column[row : row + 1])
        return np.concatenate(found)

    def _leaf(self, column: int, row: int, view: memoryview | None) -> Any:
        part = self._shape.parts[column]
        if part.kind == "refs":
            offset, length = self._columns[column][row].tolist()
            assert part.leaf is not None
            if view is not None and part.leaf.kind == "bytes":
                return view[offset : offset + length]
            if view is not None and part.leaf.kind == "table":
                table = read_table(self._arena, offset, part.leaf.shape[0])
                return BytesArray(self._arena, table, text=part.leaf.text)
            return read_leaf(self._arena, offset, length, part.leaf)
        # Of an object that several rows have there is one copy for all of them.
        value = own(self._columns[column][row])
        return value if view is None or part.kind == "array" else as_views(value)

    def element(self, row: int, view: memoryview | None = None) -> Element:
        """One element.

        Args:
            row: Which.
            view: The arena; when given, byte strings are handed out as views of it instead of copies.
        """
        structure = self._shape.structure
        if structure is LEAF:
            return self._leaf(0, row, view)
        return unflatten(structure, iter([self._leaf(i, row, view) for i in range(len(self._columns))]))
