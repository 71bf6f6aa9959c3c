"""Before an ask fails, what stages collect is put together: what it takes then follows from its rows alone."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import Rows
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.memory.columns import Column, RefColumn, read_table
from asyncdata.memory.leaf import BYTES, Leaf
from asyncdata.memory.slabs import Slab
from asyncdata.runtime.memory import compaction
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.memory.compaction import Compaction
from asyncdata.runtime.memory.evacuate import move_rows, spaces
from tests.samples import samples

LIMIT = 256 * GRANULE
RESERVE = LIMIT // 8


class Buffer:
    """A stage that collects rows, and remembers what they are."""

    def __init__(self, budget: Budget, account: Account) -> None:
        self.budget = budget
        self.account = account
        self.rows: list[tuple[int, int]] = []
        self.contents: list[bytes] = []
        self.column = RefColumn(budget.slabs, np.empty((0, 2), np.int64), BYTES)
        self.tables: list[tuple[RefColumn, list[list[bytes]]]] = []
        budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """Whatever it has."""
        return [self.column, *(tables for tables, _ in self.tables)]

    def keep_tables(self, tables: RefColumn) -> None:
        """Tables of strings, which are held."""
        self.tables.append((tables, texts_of(tables)))

    def keep(self, offset: int, content: bytes) -> None:
        """One more row, which is held."""
        self.rows.append((offset, len(content)))
        self.contents.append(content)
        self.budget.slabs.hold_rows(np.array([offset], np.int64))

    def settle(self) -> None:
        """No more rows come."""
        self.column = RefColumn(self.budget.slabs, np.array(self.rows, np.int64).reshape(-1, 2), BYTES)

    def check(self) -> None:
        """The rows are what they were."""
        view = self.budget.slabs.arena.view
        assert [bytes(view[at : at + size]) for at, size in self.column.rows.tolist()] == self.contents
        assert [texts_of(tables) for tables, _ in self.tables] == [texts for _, texts in self.tables]

    def release(self) -> None:
        """Gives back what it has."""
        for column in self.movable():
            column.release()


def texts_of(tables: RefColumn) -> list[list[bytes]]:
    """What is read by way of tables."""
    return [tables.element(row).tolist() for row in range(len(tables))]


class Bench:
    """Some buffers, a consumer with a reserve, and somebody who asks for more."""

    def __init__(self, arena: Arena) -> None:
        self.budget = Budget(arena, LIMIT)
        self.budget.relieve = Compaction(self.budget)
        self.consumer = self.budget.open("consumer", rank=0, kind=Kind.ASSEMBLER, reserved_bytes=RESERVE)
        self.budget.adopt(self.consumer)
        accounts = [self.budget.open(f"buffer {rank}", rank=rank, kind=Kind.ASSEMBLER) for rank in (1, 2)]
        self.buffers = [Buffer(self.budget, account) for account in accounts]
        self.asking = self.budget.open("asking", rank=3, kind=Kind.ASSEMBLER)

    async def fill(self, draw: random.Random, nbytes: int, share: float) -> None:
        """Slabs of some rows each, a share of which is kept, by either buffer, until so many bytes are taken."""
        slabs = self.budget.slabs
        while self.budget.ledger.used + 8 * GRANULE <= nbytes:
            account = draw.choice(self.buffers).account
            slab = await self.budget.take(account, draw.randint(1, 8) * GRANULE)
            at = slab.offset
            while (size := draw.choice([draw.randint(1, 200), draw.randint(1, 2 * GRANULE)])) <= (
                slab.offset + slab.nbytes - at
            ):
                if draw.random() < share:
                    content = draw.randbytes(size)
                    slabs.arena.view[at : at + size] = content
                    draw.choice(self.buffers).keep(at, content)
                at += size
            slabs.drop(slab)
        for buffer in self.buffers:
            buffer.settle()

    async def tabulate(self, draw: random.Random) -> None:
        """Strings of a buffer are in tables from now on, some of them beside others that differ in length."""
        slabs = self.budget.slabs
        for buffer in self.buffers:
            order = draw.sample(range(len(buffer.rows)), len(buffer.rows))
            while order:
                lengths = [draw.randint(1, 3)] * 3 if draw.random() < 0.5 else [draw.randint(1, 3) for _ in range(3)]
                cut = [[order.pop() for _ in range(min(length, len(order)))] for length in lengths]
                cut = [rows for rows in cut if rows]
                slab = await self.budget.take(buffer.account, GRANULE)
                offsets = []
                for number, rows in enumerate(cut):
                    offsets.append(slab.offset + 128 * number)
                    read_table(slabs.arena.array, offsets[-1], len(rows))[...] = [buffer.rows[row] for row in rows]
                leaves = [Leaf("table", shape=(len(rows),)) for rows in cut]
                places = np.array([(at, leaf.nbytes) for at, leaf in zip(offsets, leaves, strict=True)], np.int64)
                objects = np.empty(len(leaves), object)
                objects[:] = leaves
                alike = len(set(leaves)) == 1 and draw.random() < 0.8
                tables = RefColumn(slabs, places, leaves[0] if alike else None, None if alike else objects)
                tables.hold()
                slabs.drop(slab)
                buffer.keep_tables(tables)
            buffer.column.release()
            buffer.rows, buffer.contents = [], []
            buffer.settle()

    def lend(self, draw: random.Random, nbytes: int) -> list[Slab]:
        """The consumer holds some slabs as well."""
        lent: list[Slab] = []
        for slab in draw.sample(self.budget.slabs.alive(), len(self.budget.slabs.alive())):
            if sum(one.nbytes for one in lent) + slab.nbytes <= nbytes:
                self.budget.slabs.hold(slab)
                lent.append(slab)
        self.budget.kept.lend(lent)
        self.budget.charge_consumer(lent, self.consumer)
        return lent

    @property
    def live(self) -> int:
        """Bytes of all rows that the buffers keep."""
        strings = [content for buffer in self.buffers for content in buffer.contents]
        tables = [(table, text) for buffer in self.buffers for table, text in buffer.tables]
        strings += [string for _, texts in tables for text in texts for string in text]
        return sum(map(len, strings)) + sum(128 * len(table) for table, _ in tables)

    def most_that_fits(self) -> int:
        """Beside the rows packed: each slab but the last of an account is full, but for a row that did not fit."""
        fits = LIMIT - RESERVE - self.live * 9 // 7 - 4 * GRANULE
        sizes = [count * GRANULE for count in range(1, LIMIT // GRANULE)]
        return max(size for size in sizes if self.budget.charge(size) <= max(fits, GRANULE))

    def put_back(self, *held: Slab) -> None:
        """Nothing is left."""
        for buffer in self.buffers:
            buffer.check()
            buffer.release()
        self.budget.slabs.drop_each(held)
        assert self.budget.ledger.used == 0


@pytest.fixture
def bench() -> Iterator[Bench]:
    arena = Arena(16 * LIMIT)
    yield Bench(arena)
    arena.close()


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(samples(20, 1000)))
@pytest.mark.parametrize("share", [0.02, 0.2, 0.6])
async def test_an_ask_is_granted_if_it_fits_beside_the_rows(bench: Bench, share: float, seed: int) -> None:
    """However thin the slabs are in which they came, and whatever a consumer within its reserve holds of them."""
    draw = random.Random(seed)
    budget = bench.budget
    await bench.fill(draw, LIMIT - RESERVE, share)
    lent = bench.lend(draw, draw.choice([0, RESERVE // 2]))
    slab = await budget.take(bench.asking, bench.most_that_fits())
    assert budget.ledger.peak <= LIMIT
    assert bench.consumer.own <= RESERVE
    budget.kept.take_back(lent)
    bench.put_back(slab, *lent)


@pytest.mark.parametrize("seed", range(samples(5, 200)))
@pytest.mark.parametrize("share", [0.02, 0.2])
async def test_strings_of_tables_are_packed_like_rows(bench: Bench, share: float, seed: int) -> None:
    """As many bytes may be asked for beside them."""
    draw = random.Random(seed)
    await bench.fill(draw, LIMIT // 2, share)
    await bench.tabulate(draw)
    slab = await bench.budget.take(bench.asking, bench.most_that_fits())
    assert bench.budget.ledger.peak <= LIMIT
    bench.put_back(slab)


@pytest.mark.parametrize("seed", range(samples(10, 200)))
@pytest.mark.parametrize("reader", ["row", "task", "consumer"])
async def test_tables_are_right_whoever_else_reads_them(bench: Bench, reader: str, seed: int) -> None:
    """The consumer, a task, another row: strings of such tables stay where they are."""
    draw = random.Random(seed)
    slabs, kept = bench.budget.slabs, bench.budget.kept
    await bench.fill(draw, LIMIT // 2, 0.3)
    await bench.tabulate(draw)
    others: list[RefColumn] = []
    delivered: list[tuple[RefColumn, list[Slab]]] = []
    for buffer in bench.buffers:
        for tables, _ in draw.sample(buffer.tables, 2):
            if reader == "consumer":
                rows = [tables.rows, *tables.tables()]
                lent = slabs.by_index(np.unique(slabs.of_rows(np.concatenate(rows)[:, 0])).tolist())
                for slab in lent:
                    slabs.hold(slab)
                delivered.append((tables.owned(), lent))
                kept.lend(lent)
            elif reader == "task":
                others.append(tables.gather(np.arange(len(tables))))
            else:
                buffer.keep_tables(tables.gather(np.arange(len(tables))))
    read = [*others, *(tables for tables, _ in delivered)]
    before = [texts_of(tables) for tables in read]
    taken = []
    for share in (2, 4, 8, 16):
        with contextlib.suppress(MemoryLimitError):
            taken.append(await bench.budget.take(bench.asking, LIMIT // share))
    for buffer in bench.buffers:
        buffer.check()
    assert [texts_of(tables) for tables in read] == before
    for tables, lent in delivered:
        assert {slabs.at(int(at)) for table in tables.tables() for at in table[:, 0]} <= {*lent}
    for tables in others:
        tables.release()
    for _, lent in delivered:
        kept.take_back(lent)
        slabs.drop_each(lent)
    bench.put_back(*taken)


@pytest.mark.parametrize("seed", range(samples(5, 200)))
async def test_very_many_rows_are_moved_by_and_by(bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turns in between, and what comes of it is the same."""
    monkeypatch.setattr(compaction, "_FEW_ROWS", 10)
    monkeypatch.setattr(compaction, "_CALLS", 1 << 30)
    pack, calls = bench.budget.relieve, list[bool]()

    def relieve() -> bool:
        calls.append(pack())
        return calls[-1]

    monkeypatch.setattr(bench.budget, "relieve", relieve)
    await bench.fill(random.Random(seed), LIMIT - RESERVE, 0.1)
    asking = asyncio.create_task(bench.budget.take(bench.asking, bench.most_that_fits()))
    rounds = 0
    while not asking.done():
        await asyncio.sleep(0)
        rounds += bool(calls)
        for buffer in bench.buffers:
            buffer.check()
    assert True in calls
    assert rounds >= len(calls)
    assert bench.budget.ledger.peak <= LIMIT
    bench.put_back(await asking)


@pytest.mark.parametrize("seed", range(samples(5, 200)))
async def test_an_ask_that_does_not_fit_fails_and_everything_is_as_it_was(bench: Bench, seed: int) -> None:
    """With the rows alone the limit would be exceeded."""
    draw = random.Random(seed)
    await bench.fill(draw, LIMIT - RESERVE, 0.6)
    with pytest.raises(MemoryLimitError):
        await bench.budget.take(bench.asking, LIMIT - RESERVE - bench.live // GRANULE * GRANULE)
    assert bench.budget.ledger.peak <= LIMIT
    bench.put_back()


async def test_rows_in_slabs_that_somebody_uses_stay_where_they_are(bench: Bench) -> None:
    """A task was told where they lie, a window is read: copying them would free nothing."""
    await bench.fill(random.Random(1), LIMIT - RESERVE, 0.3)
    held = bench.budget.slabs.alive()
    for slab in held:
        bench.budget.slabs.hold(slab)
    places: list[Rows] = [buffer.column.rows.copy() for buffer in bench.buffers]
    with pytest.raises(MemoryLimitError):
        await bench.budget.take(bench.asking, 8 * GRANULE)
    for buffer, rows in zip(bench.buffers, places, strict=True):
        assert (buffer.column.rows == rows).all()
    assert not bench.budget.moved
    bench.put_back(*held)


@pytest.mark.parametrize("sizes", [(7,), (1, 64, 300), tuple(range(1, 200))])
async def test_rows_are_the_same_however_they_are_copied(bench: Bench, sizes: tuple[int, ...]) -> None:
    """Many rows of few sizes together, others one by one."""
    draw = random.Random(len(sizes))
    buffer, slabs = bench.buffers[0], bench.budget.slabs
    old = await bench.budget.take(buffer.account, 32 * GRANULE)
    at = old.offset
    for _ in range(400):
        content = draw.randbytes(draw.choice(sizes))
        slabs.arena.view[at : at + len(content)] = content
        buffer.keep(at, content)
        at += len(content) + 1
    buffer.settle()
    slabs.drop(old)
    new = await bench.budget.take(buffer.account, 32 * GRANULE)
    column = buffer.column
    chosen = np.array(draw.sample(range(400), 380))
    end = move_rows(column, chosen, spaces(column)[chosen], new.offset)
    assert end == new.offset + int(spaces(column)[chosen].sum())
    assert sorted(column.rows[chosen, 0]) == column.rows[chosen, 0].tolist()
    assert slabs.holds(old) == 20
    assert slabs.holds(new) == 381
    buffer.check()
    bench.put_back(new)


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("is_mixed", [True, False])
async def test_rows_at_the_end_of_the_arena_are_copied(count: int, is_mixed: bool) -> None:
    """Rows of a batch begin anywhere in it, and behind the last one there may be no memory."""
    arena = Arena(2 * GRANULE)
    budget = Budget(arena, 2 * GRANULE)
    account = budget.open("buffer", rank=1, kind=Kind.ASSEMBLER)
    new, old = sorted([await budget.take(account, GRANULE) for _ in range(2)], key=lambda slab: slab.offset)
    begin = old.offset + old.nbytes - 10 * count
    arena.array[begin:] = np.arange(10 * count) % 251
    rows = np.array([[begin + 10 * row, 10] for row in range(count)], np.int64)
    column = RefColumn(budget.slabs, rows, Leaf("array", "|u1", (10,)))
    column = column.with_leaves() if is_mixed else column
    column.hold()
    before = [column.element(row).tolist() for row in range(count)]
    move_rows(column, np.arange(count), spaces(column), new.offset)
    assert [column.element(row).tolist() for row in range(count)] == before
    column.release()
    budget.slabs.drop_each([new, old])
    assert budget.ledger.used == 0
    arena.close()


async def test_tables_begin_on_a_boundary_wherever_they_are_moved(bench: Bench) -> None:
    """Also together with strings that take just their length, in whatever order a stage names its columns."""
    buffer, slabs = bench.buffers[0], bench.budget.slabs
    ids, tables, strings = [await bench.budget.take(buffer.account, 8 * GRANULE) for _ in range(3)]
    slabs.arena.view[ids.offset : ids.offset + 101] = bytes(101)
    buffer.keep(ids.offset, bytes(101))
    buffer.settle()
    for row in range(8):
        slabs.arena.view[strings.offset + 10 * row : strings.offset + 10 * row + 10] = bytes([row]) * 10
    for row in range(4):
        table = read_table(slabs.arena.array, tables.offset + 64 * row, 2)
        table[...] = [[strings.offset + 20 * row, 10], [strings.offset + 20 * row + 10, 10]]
    rows = np.array([[tables.offset + 64 * row, 32] for row in range(4)], np.int64)
    column = RefColumn(slabs, rows, Leaf("table", shape=(2,)))
    column.hold()
    buffer.keep_tables(column)
    for slab in (ids, tables, strings):
        slabs.drop(slab)
    Compaction(bench.budget)()
    moved = buffer.tables[0][0]
    assert not (moved.rows[:, 0] % 64).any()
    # As a shuffle picks them: read together, not one after the other.
    mixed = moved.pick(np.array([2, 0, 3, 1]))
    tables_of = [read_table(slabs.arena.array, at, 2) for at in mixed.rows[:, 0].tolist()]
    assert (mixed.tables()[0] == np.concatenate(tables_of)).all()
    buffer.check()


async def test_a_lent_slab_is_the_consumers_only_when_nobody_else_holds_it(bench: Bench) -> None:
    """What a buffer pins is charged to the buffer, so that the consumer's reserve stays free for what it alone has."""
    await bench.fill(random.Random(2), 64 * GRANULE, 0.5)
    used = [buffer.account.used for buffer in bench.buffers]
    lent = bench.lend(random.Random(2), RESERVE)
    assert bench.consumer.used == 0
    assert [buffer.account.used for buffer in bench.buffers] == used
    for buffer in bench.buffers:
        buffer.check()
        buffer.column.release()
    bench.budget.charge_consumer(lent, bench.consumer)
    assert bench.consumer.used == bench.budget.ledger.used == sum(slab.nbytes for slab in lent)
    bench.budget.kept.take_back(lent)
    bench.budget.slabs.drop_each(lent)
    assert bench.budget.ledger.used == 0
