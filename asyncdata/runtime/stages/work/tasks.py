"""One job of a worker stage: some rows, the tasks that work on them, and the slabs the results lie in.

    rows ─▶ packed into a scratch slab ─▶ task(s) in workers ─▶ one slab of results (+ payload slabs) ─▶ a block

A job is the unit that is delivered: one batch, or one block of mapped rows. Its tasks write disjoint rows of one slab.
A task has the memory for its results before it begins; what it makes beyond that it is given at once, as debt, so that
no worker waits for memory. When a worker dies the pool runs the task again from the start. When a function does not
return in time, the task runs again without that row.

What becomes of a job may be known before all its tasks have ended: a batch fails with its first bad row, whatever the
tasks behind that row still do. Such a job keeps its memory until they have let go of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from asyncdata.errors import MemoryLimitError, UnbatchableError, WorkerDiedError
from asyncdata.memory.accounts import Account
from asyncdata.memory.block import Block
from asyncdata.memory.columns import ArrayColumn, Column, ObjectColumn, RefColumn, read_leaf, read_table
from asyncdata.memory.layout import Layout, same_places
from asyncdata.memory.leaf import Leaf
from asyncdata.memory.slabs import Slab
from asyncdata.memory.structure import Structure, leaf_order, unflatten
from asyncdata.memory.unlike import Kinds, first_misfit
from asyncdata.memory.wire import aligned, pack, packed_bytes, shape_of, write
from asyncdata.observe.parts import Runs
from asyncdata.observe.stopwatch import clock
from asyncdata.runtime.memory.landing import NoRoomError
from asyncdata.runtime.stage import StageContext
from asyncdata.runtime.stages.group.materialized import rows_of
from asyncdata.runtime.stages.group.stacking import Misfit, batch_of
from asyncdata.runtime.stages.work.failed import Failed, error_of
from asyncdata.runtime.stages.work.output_sizes import OutputSizes
from asyncdata.workers.call import OverdueError
from asyncdata.workers.pool import Grant
from asyncdata.workers.task_records import (
    NO_ROOM,
    NO_SPAN,
    RAGGED,
    RESULTS,
    RaggedRows,
    Reply,
    Task,
    decode_failed,
    decode_layout,
    decode_unlike,
    encode_shape,
)


class Executor(Protocol):
    """Runs one task: in a worker process, or in a thread of this one.

    Attributes:
        runs: Where.
        ready: Tasks need not wait for it to start.
    """

    runs: Runs
    ready: bool

    async def run(self, payload: bytes, grant: Grant) -> bytes:
        """See `workers.pool.WorkerPool.run`."""


class JobTask:
    """One task: its rows, what it was granted, what became of it."""

    __slots__ = ("count", "ended", "error", "payloads", "reply", "scratch", "start", "task", "unlike")

    def __init__(self, start: int, count: int) -> None:
        self.start = start
        self.count = count
        self.task: Task | None = None
        self.scratch: Slab | None = None
        self.payloads: list[Slab] = []
        self.ended = False
        self.reply: Reply | None = None
        self.error: BaseException | None = None
        self.unlike: Kinds | None = None

    @property
    def bad(self) -> bool:
        """Whether a row has no result. That it makes no batch with others is not looked at before all have theirs."""
        return self.error is not None or (self.reply is not None and self.reply.failed != b"" and self.unlike is None)


def _is_aside(part: JobTask) -> bool:
    return part.reply is not None and part.reply.status == RAGGED


class Job:
    """See the module's docstring.

    Args:
        block: The rows; owned by the job until it is finished or abandoned.
        number: Its place in the order of jobs.
        first: Rows of the input in front of it.
        context: Of the stage.
        keys: Key of the random generators, which also need the rows' provenance; None without such.
        sizes: What results are going to take; learns from this job.
        learned: Called when it has.
        most_bytes: Of the results of a task, unless they are one row's; 0: no limit.

    Attributes:
        input_bytes: What the rows take.
        parts: Its tasks.
        result_bytes: What results took so far.
    """

    def __init__(
        self,
        block: Block,
        number: int,
        *,
        first: int,
        context: StageContext,
        keys: tuple[int, int] | None,
        sizes: OutputSizes,
        learned: Callable[[], None],
        most_bytes: int,
    ) -> None:
        self.block = block
        self.number = number
        self.first = first
        self.input_bytes = block.payload_bytes(len(block))
        self.result_bytes = 0
        self.seconds = 0.0
        self.done = asyncio.Event()
        self.bad = False
        self.soonest = False
        self.parts: list[JobTask] = []
        self._budget = context.budget
        self._account = context.tasks
        self._inputs_account = context.inputs
        self._label = context.label
        self._meter = context.meter
        self._sources = context.sources
        self._keys = keys
        self._sizes = sizes
        self._learned = learned
        self._most_bytes = most_bytes
        self._results: Slab | None = None
        self._outgrown: list[Slab] = []
        self._needed = 0
        self._left = 0
        self._hung: dict[int, OverdueError] = {}

    def __len__(self) -> int:
        return len(self.block)

    # --- running -----------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """The job is the next one to be delivered."""
        if not self.soonest:
            self.soonest = True
            for slab in self._slabs():
                self._budget.hurry(slab)

    def movable(self) -> tuple[Column, ...]:
        """Its rows; none once a task has their offsets, because its results may refer to them. See `budget.Holder`."""
        return () if any(part.task is not None for part in self.parts) else self.block.columns

    def cut(self, rows_per_task: int) -> None:
        """Makes tasks of so many rows; `done` is set when all of them have ended."""
        count = len(self.block)
        self.parts = [JobTask(start, min(rows_per_task, count - start)) for start in range(0, count, rows_per_task)]
        self._left = len(self.parts)

    async def prepare(self, part: JobTask) -> None:
        """Takes the memory that a task needs, as far as that is known; for the soonest job, waits until it is there.

        Raises:
            MemoryLimitError: It never will be.
            NoRoomError: It is not there, and the job is not the soonest.
        """
        if self._sizes.known:
            nbytes = self._foreseen(self._sizes.results, len(self))
            if nbytes and self._results is None:
                slab = await self._take(nbytes)
                if self._results is None:
                    self._results = slab
                else:  # a task that had asked was faster
                    self._outgrown.append(slab)
            nbytes = self._foreseen(self._sizes.payloads, part.count)
            if nbytes and not part.payloads:
                part.payloads.append(await self._take(nbytes))
        columns: list[Column] = list(self.block.columns)
        origin = None if self._keys is None else self.block.origin
        if part.count < len(self.block):
            rows = slice(part.start, part.start + part.count)
            columns = [rows_of(column, rows) for column in columns]
            origin = None if origin is None else origin[rows]
        packed = pack(tuple(columns), origin)
        size = packed_bytes(packed)
        shape = encode_shape(shape_of(self.block.structure, self.block.columns))
        offset, inline = NO_SPAN, b""
        if size + len(shape) <= _INLINE_BYTES:
            array = np.empty(size, np.uint8)
            write(array, 0, packed)
            inline = array.tobytes()
        else:
            part.scratch = await self._take(size, self._inputs_account)
            offset = part.scratch.offset
            write(self._budget.slabs.arena.array, offset, packed)
        part.task = Task(
            offset=offset,
            count=part.count,
            batch_size=len(self.block),
            batch_start=part.start,
            keys=self._keys or (0, 0),
            with_origin=self._keys is not None,
            shape=shape,
            inline=inline,
            most_bytes=self._most_bytes,
            results=_room(self._results),
            payloads=_room(part.payloads[0] if part.payloads else None),
        )

    def is_idle(self, part: JobTask) -> bool:
        """Whether a task need not run, because an earlier row has failed."""
        return self.bad and any(earlier.bad for earlier in self.parts[: self.parts.index(part)])

    async def run(self, part: JobTask, executor: Executor) -> None:
        """Runs a task that is prepared."""
        meter = self._meter
        began = clock()
        try:
            reply = await self._call(part, executor)
            part.unlike = decode_unlike(reply.failed)
            part.reply = reply
            self.seconds += reply.seconds
            if not meter.calls_s:
                meter.startup_s = max(0.0, clock() - began - reply.seconds)
            meter.calls_s += reply.seconds
            self._note_sizes(part, reply)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- raised by the pull that delivers this job
            part.error = self._located(error, part)
        finally:
            meter.called(began, part.count)
            self.end(part)

    def fail(self, part: JobTask, error: BaseException) -> None:
        """A task could not be prepared."""
        part.error = self._located(error, part)
        self.end(part)

    def end(self, part: JobTask) -> None:
        """A task has ended."""
        part.ended = True
        self.bad = self.bad or part.bad
        if part.scratch is not None:
            self._budget.slabs.drop(part.scratch)
            part.scratch = None
        self._left -= 1
        if not self._left:
            # A call may have asked for more and been lost; what came of it then may have found room here.
            used = {each.reply.offset for each in self.parts if each.reply is not None}
            for slab in self._outgrown:
                if slab.offset not in used:
                    self._budget.slabs.drop(slab)
            self._outgrown = [slab for slab in self._outgrown if slab.offset in used]
            self.done.set()

    def _located(self, error: BaseException, part: JobTask) -> BaseException:
        if isinstance(error, WorkerDiedError):
            error.stage = self._label
        if isinstance(error, WorkerDiedError | MemoryLimitError):
            rows = self.block.origin[part.start : part.start + part.count]
            self._sources.locate_rows(error, self._label, rows)
        return error

    def _note_sizes(self, part: JobTask, reply: Reply) -> None:
        """What the task took; payloads that it had no use for are given back."""
        used = [slab for slab in part.payloads if slab.offset == reply.payloads]
        for slab in part.payloads:
            if slab not in used:
                self._budget.slabs.drop(slab)
        part.payloads = used
        self._sizes.saw_payloads(reply.count, reply.payload_bytes)
        self._learned()

    def split_off(self) -> Block | None:
        """The rows that its only task has left for another job, once it is done."""
        part = self.parts[0]
        if part.reply is None or part.reply.used >= part.count:
            return None
        part.count = part.reply.used
        self.block, rest = self.block.split(part.count)
        return rest

    def is_decided(self, *, ordered: bool) -> bool:
        """Whether it is known what becomes of the job.

        That is so when all tasks have ended; or when one has failed, and with it the job, and in order also all tasks
        before it have ended, so that it is known which failed first.
        """
        if self.done.is_set() or not self.bad:
            return self.done.is_set()
        if not ordered:
            return True
        for part in self.parts:
            if part.bad or not part.ended:
                return part.ended
        return False

    @property
    def error(self) -> BaseException | None:
        """Why a task has no results at all: the first of them, in the order of the rows."""
        return next((part.error for part in self.parts if part.error is not None), None)

    def failed(self) -> list[Failed]:
        """The rows without a result, ascending."""
        if not self.bad:
            return []
        return [
            Failed(part.start + row, self._failure(blob, part.start + row))
            for part in self.parts
            if part.reply is not None
            for row, blob in decode_failed(part.reply.failed)
        ]

    @property
    def stopped(self) -> bool:
        """Whether the last row that failed ended its task, although others were behind it."""
        part = self.parts[0]
        assert part.reply is not None
        return part.reply.count + len(decode_failed(part.reply.failed)) < part.count

    def first_error(self) -> BaseException | None:
        """Why the first row without a result has none."""
        for part in self.parts:
            if part.error is not None:
                return part.error
            if part.bad and part.reply is not None:
                row, blob = decode_failed(part.reply.failed)[0]
                return self._failure(blob, part.start + row)
        return self._misfit() if self.unlike else None

    @property
    def unlike(self) -> bool:
        """Whether rows of a task make no batch."""
        return any(part.unlike is not None for part in self.parts)

    async def _call(self, part: JobTask, executor: Executor) -> Reply:
        task = part.task
        assert task is not None

        async def grant(nbytes: int, slot: int) -> tuple[int, int]:
            slab = self._grant_results(nbytes) if slot == RESULTS else self._grant_payloads(part, nbytes)
            return slab.offset, slab.nbytes

        while True:
            try:
                return Reply.decode(await executor.run(task.encode(), grant))
            except OverdueError as overdue:
                self._hung[part.start + overdue.hang.row] = overdue
                task = dataclasses.replace(task, hung=(*task.hung, overdue.hang.row))

    def _foreseen(self, judged: Callable[[int], int], rows: int) -> int:
        """What so many rows are going to take, as it is judged: a guess, which must not be an error of its own.

        A task ends with the row that reaches the limit of its results. Beyond what there ever is beside what the job
        has, the task asks for what it turns out to need.
        """
        nbytes = judged(rows)
        if self._most_bytes:
            nbytes = min(nbytes, self._most_bytes + judged(1))
        if self._budget.charge(nbytes) > self._budget.most(self._account) - self._needed:
            return 0
        return nbytes

    async def _take(self, nbytes: int, account: Account | None = None) -> Slab:
        """Memory of a task that is about to begin: that of its results, unless another account is charged."""
        account = self._account if account is None else account
        if self.soonest:
            if account is self._account:
                self._budget.secure(account, self._needed + self._budget.charge(nbytes))
            slab: Slab | None = await self._budget.take(account, nbytes)
        else:
            slab = self._budget.take_spare(account, nbytes)
        if slab is None:
            raise NoRoomError
        if account is self._account:
            self._count(nbytes)
        return slab

    def _count(self, nbytes: int) -> None:
        self.result_bytes += nbytes
        self._needed += self._budget.charge(nbytes)

    def _grant_results(self, nbytes: int) -> Slab:
        """The slab of all tasks, which is larger than was foreseen."""
        if self._results is None or self._results.nbytes < nbytes:
            self._count(nbytes)
            # Where there never will be so much, what was there before is still the job's, and once only.
            larger = self._budget.owe(self._account, nbytes, spare=not self.soonest)
            if self._results is not None:
                self._outgrown.append(self._results)
            self._results = larger
        # Results of another layout than the others' do not fit the batch: `_misfit` finds out in what.
        self._sizes.saw_results(len(self), nbytes)
        self._learned()
        return self._results

    def _grant_payloads(self, part: JobTask, nbytes: int) -> Slab:
        self._count(nbytes)
        slab = self._budget.owe(self._account, nbytes, spare=not self.soonest)
        part.payloads.append(slab)
        return slab

    def _failure(self, blob: bytes, row: int) -> BaseException:
        origin = self.block.origin[row]
        records = next(iter(self.block.columns), None)
        size = int(records.rows[row, 1]) if isinstance(records, RefColumn) else 0
        return error_of(blob, self._hung.get(row), size, label=self._label, sources=self._sources, origin=origin)

    # --- results -----------------------------------------------------------------------------------------------

    def batch(self) -> tuple[Structure, tuple[Column, ...]]:
        """One batch: a column of one row per leaf. Releases the input rows."""
        if any(map(_is_aside, self.parts)):
            return self._stacked()
        layout, at = self._layout(), self._results_at()
        columns = []
        for leaf, offset in zip(layout.leaves, layout.offsets, strict=True):
            rows = np.array([[at + offset, leaf.nbytes]], np.int64)
            columns.append(RefColumn(self._budget.slabs, rows, leaf))
        return layout.structure, self._hand_over(tuple(columns))

    def rows(self) -> tuple[Structure, tuple[Column, ...]]:
        """The rows that have results, as a block's columns; there must be some. Releases the input rows."""
        reply = self.parts[0].reply
        assert reply is not None
        count = reply.count
        if reply.status == RAGGED:
            tables_at, ragged = pickle.loads(reply.body)  # noqa: S301 -- from a worker process of this pipeline
            return self._ragged(tables_at, ragged, count)
        layout, begin = self._layout(), self._results_at()
        arena = self._budget.slabs.arena.array
        columns: list[Column] = []
        for leaf, offset in zip(layout.leaves, layout.offsets, strict=True):
            at = begin + offset
            if leaf.kind == "table":
                table = read_table(arena, at, count).copy()
                columns.append(RefColumn(self._budget.slabs, table, Leaf("str" if leaf.text else "bytes")))
                continue
            nbytes = leaf.nbytes // leaf.shape[0]
            if nbytes <= _SMALL_ROW:
                array = arena[at : at + nbytes * count].view(leaf.dtype).reshape((count, *leaf.shape[1:]))
                columns.append(ArrayColumn(array.copy()))
                continue
            rows = np.empty((count, 2), np.int64)
            rows[:, 0] = at + np.arange(count) * nbytes
            rows[:, 1] = nbytes
            columns.append(RefColumn(self._budget.slabs, rows, Leaf("array", leaf.dtype, leaf.shape[1:])))
        return layout.structure, self._hand_over(tuple(columns))

    def _ragged(self, tables_at: int, ragged: RaggedRows, count: int) -> tuple[Structure, tuple[Column, ...]]:
        arena = self._budget.slabs.arena.array
        step = aligned(16 * count)
        columns: list[Column] = []
        for index, leaves in enumerate(ragged.leaves):
            table = read_table(arena, tables_at + index * step, count).copy()
            kinds = np.empty(count, object)
            kinds[:] = leaves
            columns.append(RefColumn(self._budget.slabs, table, None, kinds))
        if ragged.nests:
            # As an inline map gives them: what batches and windows them takes them apart.
            columns = [ObjectColumn([column.element(row) for row in range(count)]) for column in columns]
        return ragged.structure, self._hand_over(tuple(columns))

    def _stacked(self) -> tuple[Structure, tuple[Column, ...]]:
        """One batch of results that workers could not write into one place."""
        structures: list[Structure] = []
        values: list[list[Any]] = []
        for part in self.parts:
            assert part.reply is not None
            if not _is_aside(part):
                raise self._misfit()
            ragged, columns = self._put_aside(part.reply)
            structures.append(ragged.structure)
            order = leaf_order(structures[0], ragged.structure)
            if order is None:
                raise self._misfit()
            values = values or [[] for _ in columns]
            for items, leaf in zip(values, order, strict=True):
                items.extend(columns[leaf])
        try:
            return structures[0], self._hand_over(tuple(map(batch_of, values)))
        except Misfit as misfit:
            raise self._misfit() from misfit.error.__cause__

    def _put_aside(self, reply: Reply) -> tuple[RaggedRows, list[list[Any]]]:
        """The values of a task, leaf by leaf."""
        arena = self._budget.slabs.arena.array
        tables_at, ragged = pickle.loads(reply.body)  # noqa: S301 -- from a worker process of this pipeline
        step = aligned(16 * reply.count)
        columns = []
        for index, leaves in enumerate(ragged.leaves):
            table = read_table(arena, tables_at + index * step, reply.count).tolist()
            columns.append([read_leaf(arena, at, size, leaf) for (at, size), leaf in zip(table, leaves, strict=True)])
        return ragged, columns

    def _misfit(self) -> UnbatchableError:
        """Names what differs between the rows, or what is no part of a batch."""
        kinds = [self._kinds(part) for part in self.parts if part.unlike is not None or not _is_aside(part)]
        narrow = any(part.narrow or any(leaf.wide for leaf in part.leaves if isinstance(leaf, Leaf)) for part in kinds)
        row, error = first_misfit((part.start, self._kinds(part, narrow=narrow)) for part in self.parts)
        self._sources.locate(error, self._label, self.block.origin[row])
        return error

    def _kinds(self, part: JobTask, *, narrow: bool = False) -> Kinds:
        if part.unlike is not None:
            return part.unlike
        reply = part.reply
        assert reply is not None
        kinds = Kinds(len(self.block), narrow)
        if _is_aside(part):
            ragged, columns = self._put_aside(reply)
            for values in zip(*columns, strict=True):
                kinds.add(unflatten(ragged.structure, iter(values)))
        else:
            layout = decode_layout(reply.body)
            kinds.add_alike(layout.structure, layout.leaves, reply.count)
        return kinds

    def _results_at(self) -> int:
        """Where the results lie, as the tasks say; see `end`."""
        places = {part.reply.offset for part in self.parts if part.reply is not None}
        if len(places) > 1:
            died = WorkerDiedError(
                "a batch cannot be put together: the process of one of its tasks died, and the function returned "
                "results of another size when it was called again"
            )
            raise self._located(died, self.parts[0])
        return places.pop()

    def _layout(self) -> Layout:
        bodies = dict.fromkeys(part.reply.body for part in self.parts if part.reply is not None)
        first, *others = map(decode_layout, bodies)
        if not all(same_places(first, other) for other in others):
            raise self._misfit()
        return first

    def _hand_over(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """The results are held by their rows from now on, no longer by the job."""
        refs = [column for column in columns if isinstance(column, RefColumn)]
        offsets = [column.rows[:, 0] for column in refs]
        offsets += [table[:, 0] for column in refs for table in column.tables()]
        if offsets:
            # All at once: they lie in a slab or two.
            self._budget.slabs.hold_rows(np.concatenate(offsets))
        self.release()
        return columns

    def release(self) -> None:
        """Gives back the input rows and whatever the job still holds."""
        self.block.release()
        self.block = Block.empty(self.block.advance)
        slabs = self._slabs()
        for part in self.parts:
            part.payloads, part.scratch = [], None
        self._results, self._outgrown = None, []
        for slab in slabs:
            self._budget.slabs.drop(slab)

    def _slabs(self) -> list[Slab]:
        """Those that it holds."""
        slabs = [*self._outgrown] if self._results is None else [*self._outgrown, self._results]
        for part in self.parts:
            slabs += part.payloads if part.scratch is None else [*part.payloads, part.scratch]
        return slabs


def _room(slab: Slab | None) -> tuple[int, int]:
    return NO_ROOM if slab is None else (slab.offset, slab.nbytes)


_INLINE_BYTES = 3072
"""Packed rows of up to so many bytes travel in the message."""

_SMALL_ROW = 64
"""Rows of up to so many bytes are copied out of the arena: a reference to them would cost as much."""
