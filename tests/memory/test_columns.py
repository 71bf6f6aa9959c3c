"""Columns and blocks: rows move, holds move with them, nothing else counts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncdata.memory.advance import EMPTY, Advance
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import (
    ArrayColumn,
    Column,
    ObjectColumn,
    RefColumn,
    alike,
    as_objects,
    concat,
    merge,
)
from asyncdata.memory.leaf import BYTES, OBJECT, STR, Leaf, array_leaf
from asyncdata.memory.structure import LEAF, DictOf, Structure, TupleOf, leaf_count
from asyncdata.memory.used import Used
from tests.memory.places import Place, place


def ints(found: Place, values: list[int]) -> Column:
    return ArrayColumn(np.array(values, np.int64))


def floats(found: Place, values: list[int]) -> Column:
    return ArrayColumn(np.array(values, np.float64))


def objects(found: Place, values: list[int]) -> Column:
    return ObjectColumn(list(values))


def refs(found: Place, values: list[int]) -> Column:
    return found.column([str(value).encode() for value in values])


def texts(found: Place, values: list[int]) -> Column:
    return found.column([str(value).encode() for value in values], STR)


def mixed(found: Place, values: list[int]) -> Column:
    column = found.column([str(value).encode() for value in values])
    column = column.with_leaves()
    assert column.leaves is not None
    column.leaves[::2] = STR
    return column


MAKERS: list[Callable[[Place, list[int]], Column]] = [ints, floats, objects, refs, texts, mixed]


def elements(column: Column) -> list[Any]:
    return [column.element(row) for row in range(len(column))]


@pytest.mark.parametrize("make", MAKERS)
def test_split_gather_and_pick(make: Callable[[Place, list[int]], Column]) -> None:
    """Split and pick hand the holds on, gather takes new ones; every element is what it was."""
    with place() as found:
        column = make(found, list(range(7)))
        before = elements(column)
        head, tail = column.split(3)
        assert elements(head) + elements(tail) == before
        twice = head.gather(np.array([2, 2, 0]))
        assert elements(twice) == [before[2], before[2], before[0]]
        head.release()
        assert elements(twice) == [before[2], before[2], before[0]]
        twice.release()
        turned = tail.pick(np.array([3, 2, 1, 0]))
        assert elements(turned) == before[:2:-1]
        assert turned.nbytes > 0
        turned.release()


@pytest.mark.parametrize("one", MAKERS)
@pytest.mark.parametrize("two", MAKERS)
def test_concat_and_as_objects(
    one: Callable[[Place, list[int]], Column], two: Callable[[Place, list[int]], Column]
) -> None:
    """Joined columns have all rows in order; unlike ones become objects, and give their memory back."""
    with place() as found:
        first, second = one(found, [1, 2, 3]), two(found, [4, 5])
        expected = elements(first) + elements(second)
        both = concat([first, second])
        assert elements(both) == expected
        assert elements(as_objects(both)) == expected


@pytest.mark.sampled
@pytest.mark.parametrize("one", MAKERS)
@pytest.mark.parametrize("two", MAKERS)
@given(data=st.data())
def test_rows_can_be_exchanged(
    one: Callable[[Place, list[int]], Column], two: Callable[[Place, list[int]], Column], data: st.DataObject
) -> None:
    """Rows leave a buffer and others take their places: what leaves and what stays is what lists give."""
    with place() as found:
        size, fresh = 5, data.draw(st.integers(1, 4))
        held, new = one(found, list(range(size))).owned(), two(found, list(range(10, 10 + fresh)))
        buffer, coming = elements(held), elements(new)
        slots = data.draw(st.lists(st.integers(0, size - 1), min_size=fresh, max_size=fresh, unique=True))
        held, new = alike(held, new)
        out = merge(held, new, np.array(slots))
        held.put(np.array(slots), new, np.arange(fresh))  # type: ignore[arg-type]  # `alike` made them of one kind
        assert elements(out) == [buffer[slot] for slot in slots]
        for slot, element in zip(slots, coming, strict=True):
            buffer[slot] = element
        assert elements(held) == buffer
        out.release()
        held.release()


def test_what_rows_can_be() -> None:
    """Every kind of leaf is read back as what was written, in memory of its own."""
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    with place() as found:
        cases: list[tuple[bytes, Leaf, Any]] = [
            (b"\x00raw", BYTES, b"\x00raw"),
            ("ä".encode(), STR, "ä"),
            (pickle.dumps({"a": [1]}, 5), OBJECT, {"a": [1]}),
            (array.tobytes(), array_leaf(array), array),
            (np.int16(5).tobytes(), array_leaf(np.int16(5)), np.int16(5)),
        ]
        for payload, leaf, value in cases:
            column = found.column([payload], leaf)
            element = column.element(0)
            assert type(element) is type(value)
            assert np.array_equal(element, value)
            column.release()
        assert array_leaf(array).nbytes == 24


def test_tables_hold_what_they_point_to() -> None:
    """A row that is a table of other rows keeps their slabs alive, and gives them back with itself."""
    with place() as found:
        payloads = found.column([b"one", b"", b"three"], per_slab=1)
        table = found.column([payloads.rows.tobytes()], Leaf("table", shape=(3,)))
        again = table.gather(np.array([0, 0]))
        table.release()
        element = again.element(0)
        assert isinstance(element, BytesArray)
        again.release()
        assert element.tolist() == [b"one", b"", b"three"]
        assert found.slabs.alive() == []


def test_objects_are_counted_roughly() -> None:
    """Sizes that can be known cheaply are; anything else counts as 64 bytes."""
    assert ObjectColumn([b"abc", "de", np.zeros(3), object()]).nbytes == 3 + 2 + 24 + 64


def block(found: Place, values: list[int], kind: str) -> Block:
    origin = np.zeros((len(values), 4), np.int64)
    origin[:, 1] = values
    advance = Advance(len(values), (), Used(origin[:, :2]))
    if kind == "pair":
        return Block(TupleOf((LEAF, LEAF)), (ints(found, values), refs(found, values)), origin, advance)
    return Block(LEAF, (refs(found, values),), origin, advance)


@pytest.mark.parametrize("kind", ["pair", "refs"])
def test_a_block_is_owned_once(kind: str) -> None:
    """Split, selected, reordered, joined: at every step exactly the elements that are left hold their slabs."""
    with place() as found:
        whole = block(found, list(range(8)), kind)
        before = whole.elements()
        head, tail = whole.split(5)
        kept = head.select(np.array([0, 3]))
        assert kept.elements() == [before[0], before[3]]
        assert kept.advance.used is not None
        assert kept.advance.used.end(2) == 4
        order = np.array([2, 0, 1])
        turned = tail.reorder(order, tail.advance.reorder(order, ()))
        assert turned.elements() == [before[7], before[5], before[6]]
        both = Block.concat([kept, Block.empty(head.advance.dropped()), turned])
        assert both.elements() == [before[0], before[3], before[7], before[5], before[6]]
        assert both.origin[:, 1].tolist() == [0, 3, 7, 5, 6]
        assert both.nbytes > 0
        assert "5 elements" in repr(both)
        both.release()


@pytest.mark.parametrize("make", MAKERS)
def test_rows_for_functions_are_the_rows(make: Callable[[Place, list[int]], Column]) -> None:
    """One after the other as each by itself."""
    with place() as found:
        column = make(found, [3, 1, 2])
        want = [column.private(row) for row in range(3)]
        made = list(column.privates())
        assert made == want
        assert list(map(type, made)) == list(map(type, want))
        column.release()


@pytest.mark.parametrize("structure", [LEAF, TupleOf(()), TupleOf((LEAF,)), DictOf(("a",), (LEAF,)), DictOf((), ())])
def test_elements_for_functions_are_the_elements(structure: Structure) -> None:
    """Also those without leaves, and none at all."""
    for rows in (0, 2):
        columns = tuple(ObjectColumn([[i] for i in range(rows)]) for _ in range(leaf_count(structure)))
        block = Block(structure, columns, np.zeros((rows, 4), np.int64), EMPTY)
        assert list(block.privates()) == block.elements()
    assert list(Block.empty(EMPTY).privates()) == []


@pytest.mark.parametrize("nbytes", [8, 12, 64, 4096])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3], [1]])
def test_small_rows_are_one_array(nbytes: int, order: list[int]) -> None:
    """The same values as row by row, wherever they lie; larger ones are looked at one by one."""
    values = np.random.default_rng(1).integers(0, 256, (4, nbytes), np.uint8)
    with place() as found:
        for per_slab in (1, 4):
            column = found.column([row.tobytes() for row in values], array_leaf(values[0]), per_slab=per_slab)
            picked = column.gather(np.array(order))
            rows = picked.small_rows()
            if nbytes > 1024:
                assert rows is None
            elif rows is not None:
                assert (rows == values[order]).all()
            picked.release()
            column.release()


def test_blocks_of_unlike_structure_are_joined_as_objects() -> None:
    """Elements that nest differently stay what they are, side by side."""
    with place() as found:
        pair, bare = block(found, [1, 2], "pair"), block(found, [3], "refs")
        joined = Block.concat([pair, bare])
        assert joined.elements() == [(1, b"1"), (2, b"2"), b"3"]
        assert found.slabs.alive() == []


def test_blocks_without_rows_join_to_one() -> None:
    """News alone stays news."""
    two = Advance(2, ((0, "mark"),), Used(np.zeros((2, 2), np.int64)))
    joined = Block.concat([Block.empty(two.dropped()), Block.empty(two.split(1)[0].dropped()), Block.empty(EMPTY)])
    assert len(joined) == 0
    assert joined.advance.used is not None
    assert len(joined.advance.used.pairs) == 3
    assert not joined.advance.marks
    assert "no columns" in repr(joined)


def test_a_column_of_one_leaf_knows_it_row_by_row() -> None:
    """Asking for leaves per row changes nothing about the rows."""
    with place() as found:
        column = found.column([b"a", b"b"])
        each = column.with_leaves()
        assert each.with_leaves() is each
        assert [each.leaf_at(0), each.leaf_at(1)] == [BYTES, BYTES]
        assert isinstance(each, RefColumn)
        each.release()


@pytest.mark.parametrize("dtype", [">i8", "<i8", ">f4", "M8[s]", "?", "S3"])
def test_arrays_keep_their_type_when_they_are_joined(dtype: str) -> None:
    """Their byte order, too: rows that were joined would not fit a batch with rows that were not."""
    joined = concat([ArrayColumn(np.zeros(2, dtype)), ArrayColumn(np.zeros(3, dtype))])
    assert isinstance(joined, ArrayColumn)
    assert joined.array.dtype.str == np.dtype(dtype).str


def test_blocks_without_rows_that_wait_stay_few() -> None:
    """However many there are; rows between them, and the marks of all, stay in order."""
    parts: list[Block] = []
    for number in range(3000):
        found = Block(LEAF, (ArrayColumn(np.array([number])),), np.zeros((1, 4), np.int64), Advance(1, ((0, number),)))
        block = found if number == 1500 else Block.empty(Advance(0, ((0, number),)))
        block.add_to(parts)
    assert len(parts) < 1000
    joined = Block.concat(parts)
    assert [int(value) for value in joined.elements()] == [1500]
    assert joined.advance.marks == tuple((int(number > 1500), number) for number in range(3000))
