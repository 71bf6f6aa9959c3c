"""`batch`: what becomes of every kind of leaf, and what cannot be batched."""

from __future__ import annotations

from collections import namedtuple
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.accounts import Kind
from asyncdata.memory.advance import Advance
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import RefColumn
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.stage import Stage
from asyncdata.runtime.stages.group.batch import BatchStage
from asyncdata.runtime.stages.sources.arrays import ItemsStage, RangeStage
from tests.runtime.stages import oracle
from tests.runtime.stages.laws import Bench, Make, Scripted, Trace, plain, whole

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 -- users write it so


def batched(items: list[Any], size: int, *, drop: bool = False) -> Make:
    def make(bench: Bench) -> Stage:
        upstream = ItemsStage(bench.context("items"), tuple(items))
        return over(bench, upstream, size, drop=drop)

    return make


def over(bench: Bench, upstream: Stage, size: int, *, drop: bool = False) -> BatchStage:
    return BatchStage(
        bench.context("batch(n)"),
        upstream,
        (size,),
        drop_remainder=drop,
    )


def run(items: list[Any], size: int, **options: bool) -> Trace:
    return whole(batched(items, size, **options))


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 1000])
@pytest.mark.parametrize("size", [1, 4, 1500])
def test_numbers(count: int, size: int, drop: bool) -> None:
    """Batches of consecutive elements; the last one is smaller, or left out."""
    trace = run(list(range(count)), size, drop=drop)
    assert [batch[1] for batch in trace.elements] == oracle.batch(range(count), size, drop_remainder=drop)
    assert all(batch[0] == "<i8" for batch in trace.elements)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([1.5, 2.5], ["<f8", [1.5, 2.5]]),
        ([True, False], ["|b1", [True, False]]),
        ([np.float32(1), np.float32(2)], ["<f4", [1.0, 2.0]]),
        ([np.int8(1), np.int8(2)], ["|i1", [1, 2]]),
        ([1j, 2j], ["<c16", [1j, 2j]]),
        ([2**63, 2**63 + 1], ["<u8", [2**63, 2**63 + 1]]),
        ([np.arange(3), np.arange(3)], ["<i8", [[0, 1, 2], [0, 1, 2]]]),
        ([[1, 2], [3, 4]], ["<i8", [[1, 2], [3, 4]]]),
        ([np.empty((0, 2)), np.empty((0, 2))], ["<f8", [[], []]]),
        ([np.array(7), np.array(8)], ["<i8", [7, 8]]),
        ([np.arange(4)[::2], np.arange(4)[1::2]], ["<i8", [[0, 2], [1, 3]]]),
        ([np.arange(2, dtype=">i4"), np.arange(2, dtype=">i4")], [">i4", [[0, 1], [0, 1]]]),
        ([np.datetime64("2020-01-01"), np.datetime64("2021-01-01")], None),
        ([b"", b"\x00a\x00"], [b"", b"\x00a\x00"]),
        ([b"", b""], [b"", b""]),
        ([bytearray(b"ab"), memoryview(b"c")], [b"ab", b"c"]),
        (["", "äöü"], ["", "äöü"]),
        ([np.str_("a"), "b"], ["a", "b"]),
        ([(1, b"a"), (2, b"bc")], [["<i8", [1, 2]], [b"a", b"bc"]]),
        ([Point(1, 2), Point(3, 4)], [["<i8", [1, 3]], ["<i8", [2, 4]]]),
        ([{"a": 1, "b": "x"}, {"b": "y", "a": 2}], {"a": ["<i8", [1, 2]], "b": ["x", "y"]}),
        ([(1, (2, {"k": 3})), (4, (5, {"k": 6}))], [["<i8", [1, 4]], [["<i8", [2, 5]], {"k": ["<i8", [3, 6]]}]]),
        ([(), ()], []),
    ],
)
def test_leaves(items: list[Any], expected: Any) -> None:
    """Numbers, arrays, byte strings, texts and nests of them are stacked leaf by leaf, nothing is truncated."""
    trace = run(items, 2)
    assert trace.error is None
    if expected is not None:
        assert trace.elements == [expected]
    else:
        assert trace.elements[0][1] == list(items)


def test_a_namedtuple_stays_one() -> None:
    """A batch of namedtuples is a namedtuple of batches."""
    seen = []

    def make(bench: Bench) -> Stage:
        stage = batched([Point(1, 2), Point(3, 4)], 2)(bench)
        pull = stage.pull

        async def look(limit: int) -> Any:
            block = await pull(limit)
            if block is not None:
                seen.extend(block.elements())
            return block

        stage.pull = look  # type: ignore[method-assign]  # looks at what passes
        return stage

    whole(make)
    assert type(seen[0]) is Point
    assert seen[0].y.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([np.zeros(2), np.zeros(3)], ["float64[2]", "float64[3]", "element 1"]),
        ([1, 2.5], ["int64[]", "float64[]"]),
        ([b"a", 1], ["bytes", "int64[]"]),
        ([b"a", "b"], ["bytes", "str"]),
        ([None, None], ["NoneType"]),
        ([{1, 2}, {1, 2}], ["set"]),
        ([[[1], [1, 2]]] * 2, ["not a regular array"]),
        ([["a", 1]] * 2, ["dtype <U21"]),
        ([["a"], ["a", "b"]], ["str[1]", "str[2]"]),
        ([(1, 2), (1, 2, 3)], ["structure"]),
        ([(1, 2), 3], ["structure"]),
        ([3, (1, 2)], ["structure"]),
        ([{"a": 1}, {"b": 1}], ["structure"]),
        ([np.zeros(2, [("a", "i4")])] * 2, ["cannot be batched"]),
    ],
)
def test_what_does_not_fit_says_so(items: list[Any], words: list[str]) -> None:
    """Elements that cannot share a batch raise one error that shows both; everything is given back."""
    trace = run(items, 2)
    assert trace.elements == []
    assert trace.error is not None
    assert trace.error.startswith("UnbatchableError")
    assert all(word in trace.error for word in words), trace.error


def test_the_error_names_stage_leaf_and_element() -> None:
    """The error says which leaf it was, its notes where it happened."""
    notes: list[str] = []

    def make(bench: Bench) -> Stage:
        stage = batched([{"a": 1, "b": np.zeros(i)} for i in range(2)], 2)(bench)
        pull = stage.pull

        async def noting(limit: int) -> Any:
            try:
                return await pull(limit)
            except Exception as error:
                notes.extend((str(error), *error.__notes__))
                raise

        stage.pull = noting  # type: ignore[method-assign]  # looks at what passes
        return stage

    whole(make)
    assert "leaf b" in notes[0]
    assert any("batch(n)" in note and "element 1 of items" in note for note in notes)


@pytest.mark.parametrize(
    "groups",
    [
        [np.zeros(2), np.zeros(3), np.zeros((1, 1))],
        [1, 2.5, b"x", "y"],
        [(1, 2), {"a": 1}, 3],
        [np.float32(1), np.float64(1)],
    ],
)
def test_batches_need_not_be_like_each_other(groups: list[Any]) -> None:
    """Only elements of one batch must agree; the next batch may have another shape, dtype or structure."""
    items = [item for item in groups for _ in range(4)]
    trace = run(items, 2)
    assert trace.error is None
    assert len(trace.elements) == 2 * len(groups)


def test_a_misfit_far_inside_comes_after_the_batches_before_it() -> None:
    """Batches in front of the one that cannot be made are delivered."""
    trace = run([*range(100), "x"], 10)
    assert [batch[1] for batch in trace.elements[:-1]] == oracle.batch(range(100), 10, drop_remainder=True)
    trace = run([*range(105), "x"], 10)
    assert len(trace.elements) == 10
    assert trace.error is not None


def test_references_stay_where_they_are() -> None:
    """Byte strings in the arena are not copied: the batch's table points at the slabs they were received into."""
    places: list[int] = []

    def make(bench: Bench) -> Stage:
        stage = over(bench, Scripted(bench, [("row", i) for i in range(1, 4)], "refs"), 3)
        pull = stage.pull

        async def look(limit: int) -> Any:
            block = await pull(limit)
            if block is not None:
                column = block.columns[0]
                assert isinstance(column, RefColumn)
                assert column.leaf == Leaf("table", shape=(3,))
                places.extend(column.tables()[0][:, 0].tolist())
            return block

        stage.pull = look  # type: ignore[method-assign]  # looks at what passes
        return stage

    trace = whole(make)
    assert trace.elements == [[b"1", b"22", b"333"]]
    assert [b - a for a, b in pairwise(places)] == [1, 2]


def test_many_small_batches_share_a_slab_and_begin_on_boundaries() -> None:
    """Small batches come many to a block, each on a boundary of 64 bytes."""
    starts: list[int] = []
    blocks = 0

    def make(bench: Bench) -> Stage:
        upstream = RangeStage(bench.context("range"), range(5000), "<i2")
        stage = over(bench, upstream, 3)
        pull = stage.pull

        async def look(limit: int) -> Any:
            nonlocal blocks
            block = await pull(limit)
            if block is not None:
                blocks += 1
                column = block.columns[0]
                assert isinstance(column, RefColumn)
                starts.extend(column.rows[:, 0].tolist())
            return block

        stage.pull = look  # type: ignore[method-assign]  # looks at what passes
        return stage

    trace = whole(make)
    assert [batch[1] for batch in trace.elements] == oracle.batch(range(5000), 3, drop_remainder=False)
    assert all(start % 64 == 0 for start in starts)
    assert blocks < 20


def test_an_empty_byte_string_at_the_end_of_a_full_slab() -> None:
    """A payload of no bytes lies in the batch's slab also where the others fill it to the last byte."""
    brim = (1 << 16) - 64
    trace = run([b"x" * brim, b"", b""], 3)
    assert [len(item) for item in trace.elements[0]] == [brim, 0, 0]
    nest = run([(np.zeros(1 << 13), np.empty(0)), (np.zeros(1 << 13), np.empty(0))], 2)
    assert nest.elements[0][1] == ["<f8", [[], []]]


def test_batches_of_batches() -> None:
    """Arrays are stacked again; byte strings become an array of objects."""

    def make(bench: Bench) -> Stage:
        inner = over(bench, RangeStage(bench.context("range"), range(12), "<i8"), 3)
        return over(bench, inner, 2)

    assert whole(make).elements[0] == ["<i8", [[0, 1, 2], [3, 4, 5]]]

    def of_bytes(bench: Bench) -> Stage:
        return over(bench, over(bench, Scripted(bench, [("row", 1)] * 4, "refs"), 2), 2)

    trace = whole(of_bytes)
    assert trace.error is None
    ((kind, rows),) = trace.elements
    assert kind == "|O"
    assert [len(row) for row in rows] == [2, 2]


def test_waiting_for_memory_is_given_up_without_a_trace() -> None:
    """A batch that can never fit is an error of its own, and what was collected is given back."""

    def make(bench: Bench) -> Stage:
        bench.budget.open("all of it", rank=5, kind=Kind.FLOW)
        return batched([np.zeros(10 << 20)] * 8, 8)(bench)

    trace = whole(make)
    assert trace.error is not None
    assert trace.error.startswith("MemoryLimitError")


def test_plain_data_helper_keeps_what_matters() -> None:
    """The helper these tests compare with tells dtypes and values apart."""
    assert plain(np.zeros(1, np.int8)) != plain(np.zeros(1, np.int16))
    assert plain(BytesArray.from_items([b"a"])) == [b"a"]
    assert Advance(0).has_news is False
    assert LEAF is None
