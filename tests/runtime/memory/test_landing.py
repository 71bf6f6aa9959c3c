"""Rows that are collected lie in slabs that they fill, are charged as what they are, and are the same as before."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest

import asyncdata as ad
from asyncdata.memory.accounts import Kind
from asyncdata.memory.advance import EMPTY
from asyncdata.memory.arena import GRANULE
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ObjectColumn, RefColumn
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.slabs import Slab
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.memory.landing import Landing, LandingAhead, NoRoomError
from asyncdata.runtime.stages.sources.arrays import block_of_elements, source_origin
from tests.runtime.stages.laws import LIMIT_BYTES, Bench
from tests.samples import samples


class Thing:
    """An object of a class that nobody knows, which a copy is not."""

    def __repr__(self) -> str:
        return f"Thing({id(self)})"


def _value(draw: random.Random, kind: str) -> Any:
    size = draw.choice([0, 1, 3, 70, 5000, 70_000])
    if kind == "bytes":
        return draw.randbytes(size)
    if kind == "str":
        return "é" * size
    if kind == "array":
        return np.frombuffer(draw.randbytes(24), np.int64).reshape(3, 1)
    if kind == "unlike":
        return np.frombuffer(draw.randbytes(size), np.uint8)
    if kind == "plain":
        return draw.choice(
            [
                None,
                b"",
                b"y" * size,
                "é" * size,
                np.float32(3),
                7,
                np.zeros((size, 2)),
                np.array("x" * size),
                np.array([b"a" * size, [None]], object),
                [b"z" * size, {"a": [1.5, (None,)]}],
                {2, 3},
                bytearray(size),
                ad.BytesArray.copied(np.full(9, 97, np.uint8), np.array([[2, 5], [0, 0]])),
            ]
        )
    return draw.choice([7, None, "a\udc80", Thing(), [Thing()], [print], b"y"])


@pytest.mark.parametrize("seed", range(samples(20, 500)))
async def test_elements_are_the_same_and_everything_is_given_back(seed: int) -> None:
    """Whatever their leaves are, and however many slabs they take."""
    draw = random.Random(seed)
    bench = Bench()
    landing = Landing(bench.budget, bench.rows)
    kinds = draw.choices(["bytes", "str", "array", "unlike", "plain", "other"], k=draw.randrange(1, 4))
    for _ in range(5):
        count = draw.randrange(1, 12)
        elements = [tuple(_value(draw, kind) for kind in kinds) for _ in range(count)]
        block = block_of_elements(list(elements), source_origin(0, 0, count), EMPTY)
        await landing(block)
        for column, kind, values in zip(block.columns, kinds, zip(*elements, strict=True), strict=True):
            assert (
                kind == "other"
                or isinstance(column, RefColumn)
                or all(isinstance(value, int | np.float32) for value in values)
            )
        assert repr(block.elements()) == repr(elements)
        block.release()
    landing.close()
    assert not bench.rows.used
    await bench.put_back(None)


LARGE: dict[str, Any] = {
    "bytes": [b"a" * 3_000_000, b"b" * 70_000, b"c"],
    "texts": ["é" * 5000] * 3 + [f"{n}é" * 5000 for n in range(100)],
    "numbers": list(range(400_000)),
    "arrays": [np.arange(300_000.0).reshape(300, 1000).T, np.arange(9)[::2], np.zeros(200_000, ">i4")],
    "objects": np.array([b"x" * 600_000, None, [b"y" * 600_000]], object),
    "byte arrays": [bytearray(1_200_000), bytearray(3)],
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", LARGE)
async def test_a_large_object_is_pickled_where_there_is_room_for_it(kind: str) -> None:
    """Beside small ones; it takes no memory besides."""
    bench = Bench()
    landing = Landing(bench.budget, bench.rows)
    elements = [LARGE[kind], [b"small"], LARGE[kind], None]
    block = block_of_elements(list(elements), source_origin(0, 0, len(elements)), EMPTY)
    if kind == "bytes":
        tracemalloc.start()
    await landing(block)
    if kind == "bytes":
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
        tracemalloc.stop()
    assert all(isinstance(column, RefColumn) for column in block.columns)
    assert repr(block.elements()) == repr(elements)
    block.release()
    landing.close()
    assert not bench.rows.used
    await bench.put_back(None)


async def test_an_element_that_grows_meanwhile_is_an_error() -> None:
    """Nothing is written behind its end."""
    bench = Bench()
    element = [b"a" * 2_000_000]

    class Waiting(Landing):
        async def _take(self, nbytes: int) -> Slab:
            element.append(b"b" * 100_000)
            return await super()._take(nbytes)

    landing = Waiting(bench.budget, bench.rows)
    block = block_of_elements([element], source_origin(0, 0, 1), EMPTY)
    with pytest.raises(ad.PipelineError, match="changed while it was passed on"):
        await landing(block)
    block.release()
    landing.close()
    await bench.put_back(None)


@pytest.mark.parametrize("sizes", [(64, 0), (0, 64), (0, 0)])
async def test_empty_rows_lie_in_the_slab_of_the_others(sizes: tuple[int, int]) -> None:
    """Also where these end with it: what lies behind it is another slab, or none, whose holders would be miscounted."""
    bench = Bench()
    slabs = bench.budget.slabs
    landing = Landing(bench.budget, bench.rows)
    blocks = []
    for _ in range(GRANULE // 64 + 1):
        alone = [await bench.budget.take(bench.tasks, 100) for _ in sizes]
        rows = np.array([(slab.offset, size) for slab, size in zip(alone, sizes, strict=True)], np.int64)
        block = Block(LEAF, (RefColumn(slabs, rows, Leaf("bytes")),), source_origin(0, 0, len(sizes)), EMPTY)
        await landing(block)
        (column,) = block.columns
        assert isinstance(column, RefColumn)
        one, other = column.rows[:, 0].tolist()
        assert slabs.at(one) is slabs.at(other)
        blocks.append(block)
    for block in blocks:
        block.release()
    landing.close()
    assert not bench.rows.used
    await bench.put_back(None)


async def test_small_results_share_slabs() -> None:
    """Each alone in a slab of its own, a thousand rows of 100 bytes end up in two or three."""
    bench = Bench()
    landing = Landing(bench.budget, bench.rows)
    blocks = []
    for row in range(1000):
        slab = await bench.budget.take(bench.tasks, 100)
        bench.arena.array[slab.offset : slab.offset + 100] = row % 251
        column = RefColumn(bench.budget.slabs, np.array([[slab.offset, 100]]), Leaf("array", "|u1", (100,)))
        column.hold()
        bench.budget.slabs.drop(slab)
        block = Block(None, (column,), source_origin(0, row, 1), EMPTY)
        await landing(block)
        blocks.append(block)
    assert bench.rows.used <= 3 * GRANULE
    assert not bench.tasks.used
    assert [int(block.element(0)[99]) for block in blocks] == [row % 251 for row in range(1000)]
    for block in blocks:
        block.release()
    landing.close()
    assert not bench.rows.used
    await bench.put_back(None)


async def test_what_is_ahead_stays_within_its_reserve() -> None:
    """Beyond it elements stay what they are, nobody waits, and nothing is taken from others."""
    bench = Bench()
    account = bench.budget.open("ahead", rank=1, kind=Kind.FLOW)
    landing = LandingAhead(bench.budget, account)
    landed = []
    for row in range(100):
        block = block_of_elements([np.zeros(LIMIT_BYTES // 100, np.uint8)], source_origin(0, row, 1), EMPTY)
        with contextlib.suppress(NoRoomError):
            await asyncio.wait_for(landing(block), 10)
        landed.append(block)
    assert {type(block.columns[0]) for block in landed} == {ObjectColumn, RefColumn}
    assert 0 < account.used <= account.reserved == LIMIT_BYTES // 16
    for block in landed:
        block.release()
    landing.close()
    assert not account.used
    await bench.put_back(None)
