"""Columns packed for another process are read back as the same elements."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn
from asyncdata.memory.leaf import STR, Leaf
from asyncdata.memory.structure import LEAF, Structure, flatten
from asyncdata.memory.wire import Rowset, aligned, pack, packed_bytes, shape_of, write
from tests.memory.places import Place, place

OFFSET = 3 << 16


def sent(
    found: Place, structure: Structure, columns: tuple[Column, ...], *, origin: Any = None, inside: bool = False
) -> Rowset:
    """The rows after the way through a span, or a message, with a pickled shape."""
    parts = pack(columns, origin)
    shape = pickle.loads(pickle.dumps(shape_of(structure, columns)))
    count = len(columns[0])
    if inside:
        message = np.zeros(packed_bytes(parts), np.uint8)
        write(message, 0, parts)
        return Rowset(found.arena.array, message, 0, count, shape, with_origin=origin is not None)
    offset = 40 << 16
    write(found.arena.array, offset, parts)
    return Rowset(found.arena.array, found.arena.array, offset, count, shape, with_origin=origin is not None)


@pytest.mark.parametrize("inside", [False, True])
def test_every_kind_of_column(inside: bool) -> None:
    """References, arrays of any row shape, objects and nests come out as they went in."""
    payloads = [b"one", b"", b"\x00"]
    numbers = np.arange(3, dtype="<i2")
    images = np.arange(12, dtype=">f4").reshape(3, 2, 2)
    with place() as found:
        refs, texts = found.column(payloads), found.column([b"a", b"b", "ä".encode()], STR)
        arrays = found.column([np.int64(i).tobytes() * 2 for i in range(3)], Leaf("array", "<i8", (2,)))
        unlike = found.column(payloads).with_leaves()
        columns: tuple[Column, ...] = (
            refs,
            ArrayColumn(numbers),
            texts,
            ArrayColumn(images),
            ArrayColumn(np.empty((3, 0))),
            ObjectColumn([{"k": 1}, None, [2]]),
            arrays,
            unlike,
            ArrayColumn(np.array([1, "x", None], object)),
        )
        _, structure = flatten(tuple(range(len(columns))))
        origin = np.arange(12, dtype=np.int64).reshape(3, 4)
        rows = sent(found, structure, columns, origin=origin, inside=inside)
        assert len(rows) == 3
        assert rows.origin is not None
        assert rows.origin.tolist() == origin.tolist()
        for row in range(3):
            element = rows.element(row)
            expected = [column.element(row) for column in columns]
            assert all(np.array_equal(a, b) for a, b in zip(element, expected, strict=True))
        assert rows.refs[0] is not None
        assert rows.refs[0].tolist() == refs.rows.tolist()
        assert rows.refs[1] is None
        for column in columns:
            column.release()


def test_byte_strings_as_views() -> None:
    """Asked for, a byte string is a slice of the arena; nothing else changes."""
    with place() as found:
        column = found.column([b"payload"])
        rows = sent(found, LEAF, (column,))
        view = rows.element(0, found.arena.view)
        assert isinstance(view, memoryview)
        found.arena.view[int(column.rows[0, 0])] = ord("P")
        assert bytes(view) == b"Payload"
        assert rows.element(0) == b"Payload"
        assert rows.origin is None
        view.release()
        column.release()


def test_arrays_handed_out_are_private() -> None:
    """User code may write to what it is given."""
    with place() as found:
        rows = sent(found, LEAF, (ArrayColumn(np.zeros((2, 3))),))
        element = rows.element(0)
        element += 1
        assert rows.element(0).tolist() == [0, 0, 0]


def test_parts_are_padded() -> None:
    """Every part takes a multiple of 64 bytes, and the sum is what a span must have."""
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
    parts = pack((ArrayColumn(np.zeros(3, np.int8)), ArrayColumn(np.zeros(9))), np.zeros((3, 4), np.int64))
    assert packed_bytes(parts) == 64 + 128 + 128
