"""The laws that every stage obeys, as functions to be called from a test.

A stage is given as a function ``make(bench) -> Stage``; what it reads it builds of `Scripted` sources, whose blocks are
cut as the bench says: whole, or at random, with blocks without rows strewn in. The laws:

* *Any blocking*: the elements, their provenance, the state after every row and what was used up of tracks by then are
  the same however the input is cut and however few rows are asked for at a time; a pull never returns more rows than
  that. The first three are the same where nothing is tracked, too.
* *Leases*: after the end, after closing at any step, after an error and after a cancellation, no slab is held and the
  ledger is charged with nothing. Closing that was interrupted can be begun again.

The third law, *restore at every step*, is about steps of plans: see ``restoring``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from asyncdata.formats.tfrecord import HEADER_BYTES, encode
from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import EMPTY, Advance, Fold, Mark, RecordMark, Slots
from asyncdata.memory.arena import Arena
from asyncdata.memory.block import Block
from asyncdata.memory.bytesarray import BytesArray
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn
from asyncdata.memory.leaf import BYTES, UNCHECKED_BYTES, Leaf
from asyncdata.memory.slabs import Slab
from asyncdata.memory.structure import LEAF, Structure, TupleOf
from asyncdata.memory.used import Used
from asyncdata.options import ErrorPolicy
from asyncdata.runtime.error_policy import Guard, Skips
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext
from asyncdata.runtime.stages.sources.arrays import block_of_elements
from asyncdata.runtime.stages.sources.file import SourceFile
from asyncdata.runtime.state.places import Places
from asyncdata.workers.thread_pool import ThreadPool
from tests.samples import samples

Make: TypeAlias = "Callable[[Bench], Stage]"
Kinds: TypeAlias = Literal["array", "objects", "refs", "records", "twice", "nests", "mixed"]
"""What a scripted source's elements are: numbers, Python ints, byte strings in slabs, unchecked records, pairs of a
byte string that is held twice, nests of a number, a byte string and an array in a slab, ints among pairs."""

LIMIT_BYTES = 64 << 20
_PAIR = Leaf("array", "<i8", (2,))


class _Finished(Exception):  # noqa: N818 -- a signal: cancels what is left in the TaskGroup
    pass


class Bench:
    """What a stage needs to run, and the looking afterwards: memory, threads, a TaskGroup, names of sources.

    Args:
        cuts: Draws how blocks are cut; None for blocks as large as they are asked for.
        tracked: Whether sources are tracks.
    """

    def __init__(self, cuts: random.Random | None = None, *, tracked: bool = True) -> None:
        self.cuts = cuts
        self.tracked = tracked
        self.arena = Arena(4 * LIMIT_BYTES)
        self.budget = Budget(self.arena, LIMIT_BYTES)
        self.sources = SourceTable()
        self.threads = ThreadPool(2)
        self._threads_started = False
        self._group: asyncio.TaskGroup | None = None
        self.rows = self.budget.open("rows", rank=2, kind=Kind.ASSEMBLER)
        self.tasks = self.budget.open("tasks", rank=1, kind=Kind.FLOW, reserved_bytes=1 << 20)
        self.inputs = self.budget.open("inputs", rank=1, kind=Kind.FLOW)
        self.read = self.budget.open("source", rank=3, kind=Kind.ASSEMBLER)
        self.ahead = self.budget.open("ahead", rank=1, kind=Kind.FLOW)

    def context(self, label: str, **named: Any) -> StageContext:
        """What a stage is given."""
        accounts = {"rows": self.rows, "kept": self.rows, "tasks": self.tasks, "inputs": self.inputs}
        return StageContext(
            label=label,
            budget=self.budget,
            sources=self.sources,
            threads=self,
            spawn=self.spawn,
            account={**accounts, "ahead": self.ahead}.__getitem__,
            **named,
        )

    def file(self, url: str) -> SourceFile:
        """A file that a stage reads."""
        account = self.budget.open("shard", rank=4, kind=Kind.SOURCE)
        return SourceFile(url=url, account=account, downstream=self.rows, order=1)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the pipeline."""
        assert self._group is not None
        return self._group.create_task(coroutine)

    async def run(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Calls a function in a thread."""
        if not self._threads_started:
            self._threads_started = True
            await self.threads.start()
        return await self.threads.run(fn, *args)

    async def observe(self, make: Make, *, pulls: int | None = None) -> Trace:
        """Runs a stage to its end, or for so many pulls, as a pipeline does; everything is given back then."""
        trace = Trace()
        stage: Stage | None = None
        try:
            async with asyncio.TaskGroup() as self._group:
                stage = make(self)
                await self._drive(stage, trace, pulls)
                raise _Finished
        except* _Finished:
            pass
        finally:
            await self.put_back(stage)
        trace.tracked = self.tracked
        return trace

    async def put_back(self, stage: Stage | None) -> None:
        """Closes the stage twice, and once more whenever that is interrupted."""
        left = 2 if stage is not None else 0
        while left:
            assert stage is not None
            try:
                await stage.aclose()
                left -= 1
            except asyncio.CancelledError:
                continue
        while True:
            try:
                await self.threads.aclose()
                break
            except asyncio.CancelledError:
                continue
        self._check()

    async def _drive(self, stage: Stage, trace: Trace, pulls: int | None) -> None:
        while pulls is None or trace.pulls < pulls:
            limit = BLOCK_ROWS if self.cuts is None else self.cuts.randint(1, 9)
            try:
                block = await stage.pull(limit)
                trace.pulls += 1
                if block is None:
                    assert await stage.pull(limit) is None, "a stage that has ended begins again"
                    return
            except Exception as error:  # noqa: BLE001 -- part of what is observed
                trace.error = f"{type(error).__name__}: {error}"
                return
            assert len(block) <= limit, f"{len(block)} rows instead of {limit} at most"
            trace.add(block)
            block.release()

    def _check(self) -> None:
        held = self.budget.slabs.alive()
        used = self.budget.ledger.used
        for account in (self.rows, self.tasks, self.inputs, self.read, self.ahead):
            self.budget.close(account)
        self.arena.close()
        assert not held, f"held at the end: {held}"
        assert used == 0, f"{used} bytes are charged at the end"


def guard(bench: Bench, **policy: Any) -> Guard:
    """A guard that lets any number of elements fail, or as many as a policy says."""
    return Skips(ErrorPolicy(**{"max_skipped": None, **policy}), bench.sources, None).guard("place", "step")


@dataclass(repr=False)
class Trace:
    """What a consumer sees of a stage, in plain lists that can be compared."""

    elements: list[Any] = field(default_factory=list)
    origins: list[Any] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    error: str | None = None
    pulls: int = field(default=0, compare=False)
    advance: Advance = field(default_factory=lambda: Advance(0), compare=False)
    tracked: bool = field(default=True, compare=False)
    _mark: tuple[Mark, Any] = field(default=(None, None), compare=False)
    _fold: Fold = field(default_factory=Fold, compare=False)

    def add(self, block: Block) -> None:
        """One more block."""
        self.elements += map(plain, block.elements())
        self.origins += block.origin.tolist()
        assert block.advance.rows == len(block)
        for row in range(1, len(block) + 1):
            mark, skip = self._fold.at(block.advance, row)
            if mark is not self._mark[0]:
                self._mark = mark, plain(mark)
            self.states.append((self._mark[1], skip))
        self._fold.feed(block.advance)
        self.advance = Advance.concat([self.advance, block.advance])

    @property
    def _used(self) -> Used:
        return self.advance.used or Used.nothing(self.advance.rows)

    @property
    def used(self) -> list[Any]:
        """Per element, the source rows that it uses up."""
        return [rows.tolist() for rows in self._used.by_row()[0]]

    @property
    def used_up(self) -> list[int]:
        """Record numbers of all source rows used up, sorted."""
        return sorted(self._used.pairs[:, 1].tolist())

    @property
    def tail(self) -> Any:
        """The source rows used up behind the last element."""
        return self._used.by_row()[1].tolist()

    def check_same(self, other: Trace) -> None:
        """Raises ``AssertionError`` where another run differs."""
        assert self.elements == other.elements
        assert self.error == other.error
        assert self.origins == other.origins
        if self.tracked == other.tracked:
            assert self.used == other.used
            shorter, longer = sorted((self.tail, other.tail), key=len)
            assert longer[: len(shorter)] == shorter
            # What was used up in front of an element that fails may come before it, or with it and so not at all.
            assert len(shorter) == len(longer) or self.error is not None
        for row, (one, two) in enumerate(zip(self.states, other.states, strict=True)):
            if self.tracked == other.tracked:
                assert one == two, f"state after {row + 1} elements"
            else:
                assert untracked(one) == untracked(two), f"state after {row + 1} elements"


def untracked(value: Any) -> Any:
    """A state without what the elements of a buffer use up of tracks."""
    if isinstance(value, tuple | list):
        return [untracked(item) for item in value]
    if isinstance(value, dict):
        return {key: untracked(item) for key, item in value.items() if key not in {"track", "position", "pairs"}}
    return value


def plain(value: Any) -> Any:
    """Elements and states as plain Python data."""
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, BytesArray):
        return value.tolist()
    if isinstance(value, Places | RecordMark | Slots):
        return plain(value.columns() if isinstance(value, Places) else value.written())
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return plain(vars(value))
    return value


# --- scripts -----------------------------------------------------------------------------------------------------

Event: TypeAlias = "tuple[Literal['row', 'drop', 'mark'], int]"


def script(count: int, *, first: int = 0, drops: bool = True) -> list[Event]:
    """Events of a source of `count` elements: some are dropped by a filter upstream, some are marked."""
    events: list[Event] = []
    for value in range(first, first + count):
        if drops and value % 5 == 2:
            events += [("drop", 1000 + value), ("drop", 2000 + value)]
        if value % 4 == 1:
            events.append(("mark", value))
        events.append(("row", value))
    if drops and count:
        events += [("drop", 3000), ("mark", 3000), ("drop", 3001)]
    return events


class Around(Protocol):
    """What a scripted source needs of what it runs in: a `Bench`, or a whole pipeline."""

    cuts: random.Random | None
    tracked: bool
    arena: Arena
    budget: Budget
    sources: SourceTable
    read: Account

    def context(self, label: str) -> StageContext:
        """What a stage is given."""


class Scripted(Stage):
    """A source that delivers a script, cut as the bench says.

    Args:
        bench: Whose memory it uses.
        events: What happens.
        kind: What the elements are.
        fail: Raised at the end instead of ending.
        damaged: Of the records, those whose checksum does not hold.
    """

    def __init__(
        self,
        bench: Around,
        events: Sequence[Event],
        kind: Kinds = "array",
        *,
        fail: bool = False,
        damaged: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(bench.context("scripted"))
        self._bench = bench
        self._events = list(events)
        self._kind = kind
        self._fail = fail
        self._damaged = damaged
        self._number = bench.sources.add(("scripted",), "scripted")
        self._at = 0
        self._slab: Slab | None = None
        self._column: RefColumn | None = None
        self._fill = 0

    @property
    def draining(self) -> bool:
        return self._at >= len(self._events)

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._at = self._events.index(("mark", mark["at"])) + 1

    async def _pull(self, limit: int) -> Block | None:
        cuts = self._bench.cuts
        if cuts is not None and cuts.random() < 0.3:
            await asyncio.sleep(0)
        return await self._next(limit)

    def _pull_ready(self, limit: int) -> Block | None:
        cuts = self._bench.cuts
        if cuts is None or cuts.random() < 0.5 or self._kind not in ("array", "objects") or self.draining:
            return None
        coroutine = self._next(limit)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            block: Block | None = stop.value
            return block
        raise AssertionError("numbers are available at once")

    async def _next(self, limit: int) -> Block | None:
        cuts = self._bench.cuts
        if self._at >= len(self._events):
            if self._fail:
                raise ValueError("the script ends with an error")
            return None
        events, self._at = self._cut(limit)
        values = [value for what, value in events if what == "row"]
        used = [value for what, value in events if what in ("row", "drop")]
        ends = np.array([i + 1 for i, event in enumerate(e for e in events if e[0] != "mark") if event[0] == "row"])
        rows = 0
        marks: list[tuple[int, Mark]] = []
        for what, value in events:
            rows += what == "row"
            if what == "mark":
                marks.append((rows, {"at": value}))
        advance = Advance(rows, tuple(marks))
        if self._bench.tracked:
            is_plain = len(used) == rows and cuts is not None and cuts.random() < 0.5
            advance.used = Used(self._origins(used)[:, :2], None if is_plain else ends.astype(np.int64))
        if not values:
            return Block.empty(advance)
        structure, columns = await self._columns(values)
        return Block(structure, columns, self._origins(values), advance)

    def _cut(self, limit: int) -> tuple[list[Event], int]:
        cuts = self._bench.cuts
        want = limit if cuts is None else cuts.choice([0, 1, limit, cuts.randint(0, limit)])
        stop = self._at
        while stop < len(self._events):
            if self._events[stop][0] == "row":
                if not want:
                    break
                want -= 1
            elif not want and cuts is not None and cuts.random() < 0.5:
                break
            stop += 1
        return self._events[self._at : stop], stop

    def _origins(self, values: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        origins = np.zeros((len(values), 4), np.int64)
        origins[:, 0] = self._number
        origins[:, 1] = values
        return origins

    async def _columns(self, values: list[int]) -> tuple[Structure, tuple[Column, ...]]:
        if self._kind == "array":
            return LEAF, (ArrayColumn(np.array(values, np.int64)),)
        if self._kind == "objects":
            return LEAF, (ObjectColumn(list(values)),)
        if self._kind == "mixed":
            mixed = [value if value % 3 else (value, str(value)) for value in values]
            block = block_of_elements(mixed, self._origins(values), EMPTY)
            return block.structure, block.columns
        refs = await self._refs(values, UNCHECKED_BYTES if self._kind == "records" else BYTES)
        if self._kind == "twice":
            twice = refs.gather(np.arange(len(values)))
            return TupleOf((LEAF, LEAF)), (refs, twice)
        if self._kind == "nests":
            # On its way the next wait may be cancelled: what is held must be found by `aclose`.
            self._column = refs
            arrays = await self._refs(values, _PAIR)
            self._column = None
            return TupleOf((LEAF, LEAF, LEAF)), (ArrayColumn(np.array(values, np.int64)), refs, arrays)
        return LEAF, (refs,)

    async def _refs(self, values: list[int], leaf: Leaf = BYTES) -> RefColumn:
        """Rows in slabs of their own making: a few slabs, each shared by some rows."""
        slabs = self._bench.budget.slabs
        rows = np.empty((len(values), 2), np.int64)
        column = RefColumn(slabs, rows[:0], leaf)
        for i, value in enumerate(values):
            if self._slab is None or self._fill > 200:
                if self._slab is not None:
                    slabs.drop(self._slab)
                    self._slab = None
                try:
                    self._slab = await self._bench.budget.take(self._bench.read, 1000)
                except BaseException:
                    column.release()
                    raise
                self._fill = 0
            payload = np.array([value, -value]).tobytes() if leaf is _PAIR else str(value).encode() * (value % 4)
            stored = encode(payload)[HEADER_BYTES:] if leaf.unchecked else payload
            if value in self._damaged:
                stored = stored[:-1] + bytes([stored[-1] ^ 1])
            at = self._slab.offset + self._fill
            self._bench.arena.view[at : at + len(stored)] = stored
            rows[i] = at, len(payload)
            slabs.hold(self._slab)
            column = RefColumn(slabs, rows[: i + 1], leaf)
            self._fill += len(stored)
        return column

    async def aclose(self) -> None:
        if self._column is not None:
            self._column.release()
            self._column = None
        if self._slab is not None:
            self._bench.budget.slabs.drop(self._slab)
            self._slab = None


# --- laws --------------------------------------------------------------------------------------------------------


def whole(make: Make) -> Trace:
    """The run in which blocks are as large as they are asked for."""
    return asyncio.run(Bench().observe(make))


def check_any_blocking(make: Make, *, seeds: range) -> Trace:
    """The law of any blocking, for a way of cutting per seed; the error names the seed."""
    expected = whole(make)
    for seed in seeds:
        found = asyncio.run(Bench(random.Random(seed), tracked=seed % 2 == 0).observe(make))
        try:
            found.check_same(expected)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    return expected


def check_closing(make: Make, *, seed: int = 0) -> None:
    """The law of leases, for closing after every number of pulls, or every other."""
    pulls = asyncio.run(Bench(random.Random(seed)).observe(make)).pulls
    for count in range(0, pulls + 1, samples(2, 1)):
        asyncio.run(Bench(random.Random(seed)).observe(make, pulls=count))


def check_cancelling(make: Make, *, seed: int = 0, steps: Iterator[int] | range = range(60)) -> None:
    """The law of leases, for a cancellation after every number of steps of the loop."""
    for count in steps:
        asyncio.run(_cancelled(make, random.Random(seed), count))


async def _cancelled(make: Make, cuts: random.Random, steps: int) -> None:
    async def observe() -> None:
        await Bench(cuts).observe(make)

    task = asyncio.create_task(observe())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
