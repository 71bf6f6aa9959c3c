"""Laws of deliveries: they show the right bytes, count what is kept, and are copied before anybody waits."""

from __future__ import annotations

import asyncio
import gc
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import Advance
from asyncdata.memory.arena import Arena
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, ObjectColumn, RefColumn
from asyncdata.memory.leaf import BYTES, OBJECT, STR, Leaf
from asyncdata.memory.lease import Returns
from asyncdata.memory.structure import LEAF
from asyncdata.runtime.consumer.delivery import Deliverer, Delivery
from asyncdata.runtime.memory.budget import Budget

MIB = 1 << 20
_SLAB = 64 << 10


@dataclass
class Bench:
    """An arena with a ledger, and a consumer with a share of four slabs."""

    arena: Arena
    budget: Budget
    account: Account
    consumer: Account
    returns: Returns
    deliverer: Deliverer

    async def rows(self, *payloads: bytes, leaf: Leaf = BYTES) -> Block:
        """A block of byte rows in a slab of their own, held by the block alone."""
        slab = await self.budget.take(self.account, sum(map(len, payloads)) + 64 * len(payloads))
        rows = np.zeros((len(payloads), 2), np.int64)
        at = slab.offset
        for index, payload in enumerate(payloads):
            rows[index] = at, len(payload)
            self.arena.view[at : at + len(payload)] = payload
            at += -(-len(payload) // 64) * 64
        column = RefColumn(self.budget.slabs, rows, leaf)
        column.hold()
        self.budget.slabs.drop(slab)
        return block_of(column)

    def deliver(self, block: Block) -> Delivery:
        """The whole block at once, as the consumer takes it."""
        delivery, rest = self.deliverer.deliver(block)
        assert rest is None
        return delivery.taken()


def block_of(column: Any) -> Block:
    """One column as a block."""
    origin = np.zeros((len(column), 4), np.int64)
    return Block(LEAF, (column,), origin, Advance(len(column)))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """On the test's own loop."""
    arena = Arena(256 * MIB)
    budget = Budget(arena, 8 * MIB)
    returns = Returns(asyncio.get_running_loop().call_soon_threadsafe)
    account = budget.open("source", rank=1, kind=Kind.SOURCE, reserved_bytes=MIB)
    consumer = budget.open("consumer", rank=0, kind=Kind.ASSEMBLER, reserved_bytes=MIB)
    yield Bench(arena, budget, account, consumer, returns, Deliverer(budget, consumer, returns, 4 * _SLAB))
    returns.close()
    arena.close()


async def test_every_kind_of_leaf(bench: Bench) -> None:
    """Bytes, text, arrays, numbers, pickled objects, tables of bytes; arrays are writable views of the arena."""
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    cases: list[tuple[bytes, Leaf, Any]] = [
        (b"bytes", BYTES, b"bytes"),
        (b"", BYTES, b""),
        ("tëxt".encode(), STR, "tëxt"),
        (array.tobytes(), Leaf("array", "<f4", (2, 3)), array),
        (np.int64(7).tobytes(), Leaf("array", "<i8", ()), np.int64(7)),
        (pickle.dumps({"a": 1}), OBJECT, {"a": 1}),
    ]
    for payload, leaf, expected in cases:
        delivery = bench.deliver(await bench.rows(payload, leaf=leaf))
        found = delivery.element(0)
        if leaf.kind == "array":
            np.testing.assert_array_equal(found, expected)
        else:
            assert found == expected
            assert type(found) is type(expected)
        if leaf.shape:
            assert found.flags.writeable
            assert np.shares_memory(found, bench.arena.array)


async def test_a_table_is_a_batch_of_bytes_without_a_copy(bench: Bench) -> None:
    """Its rows lead into other slabs, which are kept with it."""
    payloads = await bench.rows(b"first", b"", b"third")
    column = payloads.columns[0]
    assert isinstance(column, RefColumn)
    table = await bench.rows(column.rows.tobytes(), leaf=Leaf("table", shape=(3,)))
    outer = table.columns[0]
    assert isinstance(outer, RefColumn)
    outer.hold()
    bench.deliver(payloads)
    found = bench.deliver(table).element(0)
    assert isinstance(found, BytesArray)
    assert list(found) == [b"first", b"", b"third"]


async def test_other_columns_pass_as_they_are(bench: Bench) -> None:
    """Arrays and objects lie in ordinary memory; nothing is lent for them."""
    delivery = bench.deliver(block_of(ArrayColumn(np.arange(3))))
    assert [delivery.element(row) for row in range(3)] == [0, 1, 2]
    thing = object()
    delivery = bench.deliver(block_of(ObjectColumn([thing])))
    assert delivery.element(0) is thing
    assert bench.deliverer.kept_bytes == 0


async def test_what_is_delivered_is_charged_to_the_consumer_until_its_last_view_dies(bench: Bench) -> None:
    """The slab comes back after the last view, on the loop, and not before."""
    delivery = bench.deliver(await bench.rows(bytes(1000), leaf=Leaf("array", "|u1", (1000,))))
    assert bench.consumer.used == _SLAB
    assert bench.account.used == 0
    assert bench.deliverer.kept_bytes == _SLAB
    view = delivery.element(0)[10:20][::2]
    del delivery
    await asyncio.sleep(0)
    assert bench.deliverer.kept_bytes == _SLAB
    del view
    await asyncio.sleep(0)
    assert bench.deliverer.kept_bytes == 0
    assert bench.consumer.used == 0
    assert len(bench.budget.slabs) == 0


async def test_a_slab_is_counted_once_however_many_deliveries_show_it(bench: Bench) -> None:
    """Two blocks of rows of one slab."""
    block = await bench.rows(b"one", b"two")
    one, two = block.split(1)
    first, second = bench.deliver(one), bench.deliver(two)
    assert bench.deliverer.kept_bytes == _SLAB
    assert first.element(0) == b"one"
    del first
    await asyncio.sleep(0)
    assert bench.deliverer.kept_bytes == _SLAB
    assert second.element(0) == b"two"
    del second
    await asyncio.sleep(0)
    assert bench.deliverer.kept_bytes == 0


async def test_beyond_its_share_a_consumer_gets_copies(bench: Bench) -> None:
    """Counted, equal, aligned, writable; the rows are given back at once."""
    kept = []
    leaf = Leaf("array", "<i8", (1000,))
    for number in range(7):
        block = await bench.rows(np.full(1000, number).tobytes(), leaf=leaf)
        kept.append(bench.deliver(block).element(0))
        await asyncio.sleep(0)
    assert bench.deliverer.copies == 3
    assert len(bench.budget.slabs) == 4
    for number, array in enumerate(kept):
        assert (array == number).all()
        assert array.ctypes.data % 64 == 0
        array[:] = 0
        assert np.shares_memory(array, bench.arena.array) == (number < 4)
    del kept[:2], array
    await asyncio.sleep(0)
    block = await bench.rows(bytes(8000), leaf=leaf)
    assert np.shares_memory(bench.deliver(block).element(0), bench.arena.array)


async def test_beyond_its_share_a_consumer_gets_empty_strings_too(bench: Bench) -> None:
    """They take no bytes, but they need a place."""
    leaf = Leaf("array", "<i8", (1000,))
    kept = [bench.deliver(await bench.rows(bytes(8000), leaf=leaf)).element(0) for _ in range(4)]
    delivery = bench.deliver(await bench.rows(b"", b""))
    assert [delivery.element(row) for row in range(2)] == [b"", b""]
    assert len(kept) == 4


async def test_what_is_to_be_copied_stays_charged_until_it_is_taken(bench: Bench) -> None:
    """Nothing that waits for the consumer is outside of the limit."""
    bench.deliverer._share = bench.deliverer._fine_share = 0
    delivery, _ = bench.deliverer.deliver(await bench.rows(b"payload"))
    assert bench.budget.ledger.used == _SLAB
    assert bench.deliverer.kept_bytes == 0
    taken = delivery.taken()
    del delivery
    await asyncio.sleep(0)
    assert bench.budget.ledger.used == 0
    bench.arena.array[: 4 * MIB] = 0xEE  # poison
    assert taken.element(0) == b"payload"


async def test_small_slabs_may_be_kept_in_greater_number(bench: Bench) -> None:
    """A second, larger share holds as long as no slab of a delivery is a large part of the limit."""
    bench.deliverer._fine_share = 6 * _SLAB
    kept = [bench.deliver(await bench.rows(bytes([number]))) for number in range(8)]
    assert bench.deliverer.copies == 2
    assert bench.deliverer.kept_bytes == 6 * _SLAB
    large = bench.deliver(await bench.rows(bytes(300_000)))
    assert bench.deliverer.copies == 3
    assert [one.element(0) for one in kept] == [bytes([number]) for number in range(8)]
    assert large.element(0) == bytes(300_000)


async def test_a_large_block_is_delivered_in_parts(bench: Bench) -> None:
    """A consumer that keeps nothing gets no copies, however many slabs the pipeline's block spans."""
    leaf = Leaf("array", "<i8", (1000,))
    blocks = [await bench.rows(np.full(1000, number).tobytes(), leaf=leaf) for number in range(10)]
    rest: Block | None = Block.concat(blocks)
    seen: list[int] = []
    while rest is not None:
        delivery, rest = bench.deliverer.deliver(rest)
        seen.extend(int(delivery.element(row)[0]) for row in range(len(delivery)))
        assert bench.deliverer.kept_bytes <= 4 * _SLAB
        del delivery
        await asyncio.sleep(0)
    assert seen == list(range(10))
    assert bench.deliverer.copies == 0
    assert len(bench.budget.slabs) == 0


async def test_rows_of_one_slab_are_delivered_together(bench: Bench) -> None:
    """Its bytes are charged whole anyway."""
    block = await bench.rows(*(b"x" * 100 for _ in range(500)))
    delivery, rest = bench.deliverer.deliver(block)
    assert len(delivery) == 500
    assert rest is None


async def test_a_private_copy_of_a_table_has_its_payloads_with_it(bench: Bench) -> None:
    """Offsets are moved along; nothing points into the arena any more."""
    bench.deliverer._share = bench.deliverer._fine_share = 0
    payloads = await bench.rows(b"first", b"", b"x" * 100)
    inner = payloads.columns[0]
    assert isinstance(inner, RefColumn)
    table = await bench.rows(inner.rows.tobytes(), leaf=Leaf("table", shape=(3,)))
    column = table.columns[0]
    assert isinstance(column, RefColumn)
    for offset in inner.rows[:, 0]:
        bench.budget.slabs.hold(bench.budget.slabs.at(int(offset)))
    found = bench.deliver(table).element(0)
    bench.arena.array[: 4 * MIB] = 0xEE  # poison
    assert list(found) == [b"first", b"", b"x" * 100]


async def test_leases_that_end_after_closing_touch_nothing(bench: Bench) -> None:
    """The consumer may keep a view longer than anything else lives."""
    view = bench.deliver(await bench.rows(b"x" * 100, leaf=Leaf("array", "|S1", (100,)))).element(0)
    bench.returns.close()
    bench.arena.close()
    gc.collect()
    assert (view == b"x").all()
    del view
    await asyncio.sleep(0)
    assert bench.deliverer.kept_bytes == _SLAB
