"""`map`, and `map` + `batch` in one step, carried out by worker processes or threads.

    feeder: rows ─▶ jobs, cut into tasks ─▶ dispatcher: memory, then a worker ─▶ `pull`: results

The feeder collects rows ahead of the consumer. A job is cut into tasks of about twenty milliseconds, by what earlier
tasks cost. The dispatcher takes the memory of one task after the other, in their order, and begins it, as many at a
time as the stage's parallelism allows; until it is known how large results are, only one. `pull` hands the results
out, in order or as they are ready.

The elements before one that fails are delivered, whatever the cuts: of mapped rows all of them, of batches
the whole ones. Then the error is raised, of the first element that failed; nothing behind it is waited for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from asyncdata.errors import MemoryLimitError, UnbatchableError
from asyncdata.memory.advance import EMPTY, Mark, Marks, Rows
from asyncdata.memory.block import Block
from asyncdata.memory.columns import Column
from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.runtime.memory.landing import NoRoomError
from asyncdata.runtime.stage import BLOCK_ROWS, Stage, StageContext, cancelled_task
from asyncdata.runtime.stages.group.collecting import Collected, Collector
from asyncdata.runtime.stages.work.failed import Failed
from asyncdata.runtime.stages.work.output_sizes import OutputSizes
from asyncdata.runtime.stages.work.tasks import Executor, Job, JobTask
from asyncdata.runtime.tuning.knob import Knob, as_knob

Outcome: TypeAlias = Literal["rows", "batch"]

_TASK_SECONDS: Final = 0.020
_AHEAD_PART: Final = 16
"""Of the limit: with more rows than that in jobs under way, no further one begins."""


class _Pace:
    """How many rows make a task of about twenty milliseconds, by a moving average of what rows cost.

    Fewer, if their results would take more than a part of the memory that is reserved for one.

    Args:
        first_rows: Rows of a task before anything is known.
        most_bytes: Of the results of a task.
    """

    def __init__(self, first_rows: int, most_bytes: int) -> None:
        self._first = first_rows
        self.most_bytes = most_bytes
        self._seconds: float | None = None
        self._bytes = 0.0

    def learn(self, seconds: float, nbytes: int, rows: int) -> None:
        if not rows:
            return
        if self._seconds is None:
            self._seconds, self._bytes = seconds / rows, nbytes / rows
        else:
            self._seconds += 0.2 * (seconds / rows - self._seconds)
            self._bytes += 0.2 * (nbytes / rows - self._bytes)

    @property
    def rows(self) -> int:
        if self._seconds is None:
            return self._first
        by_time = _TASK_SECONDS / max(self._seconds, 1e-9)
        by_bytes = self.most_bytes / max(self._bytes, 1.0)
        return max(1, int(min(by_time, by_bytes)))


class WorkerStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given; results leave in the order of the input, or as they are ready. Of batches
            no element may fail, because all must be there; else a guard goes with a program that skips.
        upstream: The input.
        executor: Runs tasks.
        outcome: What a job becomes: mapped ``rows``, or one ``batch``.
        parallelism: Tasks under way at a time.
        keys: Key of the random generators, where a function takes one.
        collector: Of batches; None otherwise.
        least_rows: Of a batch. One of fewer is left out once the functions were called, so that an element that fails
            is an error as it would be in a step of its own.
        first_rows: Rows of a task before anything is known about their cost.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        *,
        executor: Executor,
        outcome: Outcome,
        parallelism: int | Knob,
        keys: tuple[int, int] | None = None,
        collector: Collector | None = None,
        least_rows: int = 0,
        first_rows: int = 1,
    ) -> None:
        super().__init__(context, (upstream,))
        self._parallelism = as_knob(parallelism)
        context.meter.runs, context.meter.parallel = executor.runs, self._parallelism.value
        # The dispatcher waits beside the feeder, whose time is what the meter divides.
        self._memory_waits = context.tasks.waits = context.inputs.waits = Stopwatch()
        self._upstream = upstream
        self._executor = executor
        self._outcome = outcome
        self._ordered = context.ordered
        self._budget = context.budget
        self._rows_account = context.rows
        self._keys = keys
        self._tasks: set[asyncio.Task[None]] = set()
        self._collector = collector
        self._least_rows = least_rows
        if collector is not None:
            context.rows.foresee = collector.foresee
        self._guard = None if outcome == "batch" else context.guard
        self._sizes = OutputSizes()
        self._pace = _Pace(first_rows, max(context.tasks.reserved // 4, 1 << 16))
        self._input_bytes = 0
        self._most_ahead = context.budget.limit // _AHEAD_PART
        self._jobs: deque[Job] = deque()
        self._marks: dict[int, tuple[list[int], Marks]] = {}
        self._started = 0
        self._begun_rows = 0
        self._under_way = 0
        self._running = 0
        self._due: deque[tuple[Job, JobTask]] = deque()
        self._begun = asyncio.Event()
        self._is_told_of_room = False
        self._feeder: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._failure: BaseException | None = None
        self._failed_jobs: list[Job] = []
        self._ended = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._out: Block | None = None
        self._budget.holders[self] = None

    def movable(self) -> Iterable[Column]:
        """See `runtime.memory.budget.Holder`."""
        columns = [] if self._collector is None else self._collector.movable()
        for job in self._jobs:
            columns += job.movable()
        return columns

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the pipeline that this stage ends when it is closed."""
        task = self.context.spawn(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        assert self._collector is not None
        self._collector.restore(mark)

    @property
    def ordered(self) -> bool:
        """Where results leave in the order of the input."""
        return self._ordered and super().ordered

    # --- feeding -----------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        try:
            with self.context.meter.works_ahead():
                await self._feed_all()
        except asyncio.CancelledError:
            self._error = self._error or cancelled_task()
            raise
        except BaseException as error:  # noqa: BLE001 -- raised by the pull that reaches this point
            self._error = error
        finally:
            self._ended = True
            self._news.set()
            self._begun.set()

    async def _feed_all(self) -> None:
        while True:
            await self._wait_for_room()
            block = await self._collect()
            if block is None:
                break
            self._begin(block)
            if self._error is not None:
                break

    async def _wait_for_room(self) -> None:
        while (
            self._under_way >= self._parallelism.value
            or len(self._jobs) > self._parallelism.value
            or (self._jobs and self._input_bytes > self._most_ahead)
        ):
            self._room.clear()
            with self._waits_for():
                await self._room.wait()

    def _waits_for(self) -> Stopwatch:
        """What keeps the feeder from going on: the consumer, memory, or the tasks under way."""
        meter = self.context.meter
        if self._deliverable() is not None:
            return meter.full
        is_short = self._memory_waits.open > 0 or (self._is_told_of_room and self._running < 2)
        return meter.memory if is_short else meter.calls

    async def _collect(self) -> Block | None:
        if self._collector is not None:
            return await self._collect_batch(self._collector)
        return await self._upstream.pull(min(BLOCK_ROWS, self._pace.rows))

    async def _collect_batch(self, collector: Collector) -> Block | None:
        try:
            found = await collector.collect(1)
        except MemoryLimitError:
            raise  # there is even less for tasks
        except Exception as error:
            # The functions are called for the rows in front all the same: one may fail before that.
            rest = collector.rest()
            if not len(rest):
                rest.release()
                raise
            self._error, self._least_rows = error, max(self._least_rows, len(rest) + 1)
            found = Collected(rest, [len(rest)], ())
        if found is None:
            return None
        block, stops, marks = found
        self._marks[self._started] = (stops, marks)
        return block

    def _begin(self, block: Block) -> None:
        job = self._job(block, self._started, self._begun_rows)
        self._started += 1
        self._begun_rows += len(block)
        self._jobs.append(job)
        if self._jobs[0] is job:
            job.hurry()
        if not len(block):
            job.done.set()
            self._news.set()
            return
        self._plan(job)
        self._due.extend((job, part) for part in job.parts)
        self._begun.set()

    def _job(self, block: Block, number: int, first: int) -> Job:
        return Job(
            block,
            number,
            first=first,
            context=self.context,
            keys=self._keys,
            sizes=self._sizes,
            learned=self._begun.set,
            most_bytes=self._pace.most_bytes if self._outcome == "rows" else 0,
        )

    def _plan(self, job: Job) -> None:
        """Cuts a job into tasks, of batches into some of equal size, so that none of them is a short straggler."""
        rows = count = len(job)
        if self._outcome == "batch":
            rows = -(-count // -(-count // min(count, self._pace.rows)))
        job.cut(rows)
        self._under_way += 1
        self._input_bytes += job.input_bytes

    # --- dispatching -------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while True:
            while not self._due or not self._may_begin(self._due[0][0]):
                if self._ended and not self._due and not self._running:
                    return
                await self._wait_to_begin()
            job, part = self._due[0]
            try:
                if job.is_idle(part):
                    job.end(part)
                else:
                    await job.prepare(part)
            except NoRoomError:
                if not self._is_told_of_room:
                    self._is_told_of_room = True
                    self._budget.on_room(self._hear_of_room)
                await self._wait_to_begin()
                continue
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 -- raised by the pull that delivers this job
                job.fail(part, error)
            self._due.remove((job, part))
            self._running += 1
            if part.ended:
                self._ended_task(job)
            else:
                self._spawn(self._run(job, part))

    def _may_begin(self, job: Job) -> bool:
        """Whether another task may run, of this job: as few at a time as are needed to learn what their results take.

        What those of the soonest job take beside the slab that they share is needed in any case.
        """
        if not self._sizes.known or not (self._sizes.are_whole or job.soonest):
            return self._running == 0
        return self._running < self._parallelism.value

    def _hear_of_room(self) -> None:
        self._is_told_of_room = False
        self._begun.set()

    async def _wait_to_begin(self) -> None:
        """Returns when a task has come or ended, there is more memory, or another job is the soonest."""
        self._begun.clear()
        await self._begun.wait()

    async def _run(self, job: Job, part: JobTask) -> None:
        try:
            await job.run(part, self._executor)
        finally:
            self._ended_task(job)

    def _ended_task(self, job: Job) -> None:
        self._running -= 1
        self._begun.set()
        if job.done.is_set():
            self._under_way -= 1
            self._input_bytes -= job.input_bytes
            self._pace.learn(job.seconds, job.result_bytes, len(job))
            self._parallelism.done += 1
            self._parallelism.bytes_each = job.input_bytes + job.result_bytes
            if self._outcome == "rows" and (left := job.split_off()) is not None:
                self._continue(job, left)
            self._room.set()
        if job.done.is_set() or job.bad:
            self._news.set()

    def _continue(self, job: Job, left: Block) -> None:
        """Rows that a task has left are a job of their own, in front of those that were not begun."""
        rest = self._job(left, job.number, job.first + len(job))
        at = self._jobs.index(job) + 1
        behind = set(itertools.islice(self._jobs, at, None))
        self._jobs.insert(at, rest)
        self._plan(rest)
        place = next((place for place, (due, _) in enumerate(self._due) if due in behind), len(self._due))
        self._due.insert(place, (rest, rest.parts[0]))

    # --- delivering --------------------------------------------------------------------------------------------

    async def _pull(self, limit: int) -> Block | None:
        if self._out is not None:
            return self._cut(self._out, limit)
        if self._failure is not None:
            raise self._failure
        if self._feeder is None:
            self._feeder = self._spawn(self._feed())
            self._spawn(self._dispatch())
        while True:
            job = self._ready()
            if job is not None:
                self._room.set()
                if self.context.choices is not None and not self._ordered and len(job):
                    self.context.choices.note([(job.first, len(job))])
                block = self._finish(job)
                if not self._ordered:
                    block.advance = block.advance.unordered()
                if not len(block) and not block.advance.has_news and self._failure is not None:
                    raise self._failure
                return self._cut(block, limit)
            if self._ended and not self._jobs:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            if self._ended:
                # The feeder's time is over; what is under way is all that is waited for.
                with self.context.meter.works_ahead(), self.context.meter.calls:
                    await self._news.wait()
            else:
                await self._news.wait()

    def _deliverable(self) -> Job | None:
        """The next job to deliver, if it is known what becomes of it."""
        if self._ordered:
            return self._jobs[0] if self._jobs and self._jobs[0].is_decided(ordered=True) else None
        decided = [job for job in self._jobs if job.is_decided(ordered=False)]
        return next((job for job in decided if not job.bad and not job.unlike), decided[0] if decided else None)

    def _ready(self) -> Job | None:
        """The next job to deliver, taken out of the list."""
        job = self._deliverable()
        if job is not None:
            self._jobs.remove(job)
            if self._jobs:
                self._jobs[0].hurry()
                self._begun.set()
        return job

    def _finish(self, job: Job) -> Block:
        block = job.block
        if not len(block):
            return block
        if self._outcome == "batch" or job.error is not None:
            self._failure = job.first_error()
            if self._is_left_out(job) and isinstance(self._failure, UnbatchableError):
                self._failure = None
            if self._failure is not None:
                # Other tasks of it may be running: its memory is theirs until they have ended.
                self._failed_jobs.append(job)
                return Block.empty(EMPTY)
        try:
            return self._batch(job) if self._outcome == "batch" else self._rows(job)
        except BaseException:
            job.release()
            raise

    def _batch(self, job: Job) -> Block:
        origin, advance = job.block.origin, job.block.advance
        stops, marks = self._marks.pop(job.number)
        if self._is_left_out(job):
            job.release()
            return Block.empty(advance.select(np.empty(0, np.int64)))
        structure, columns = job.batch()
        return Block(structure, columns, origin[:1], advance.group(stops, marks))

    def _is_left_out(self, job: Job) -> bool:
        return len(job) < self._least_rows

    def _rows(self, job: Job) -> Block:
        """The rows that have results, up to the first that may not fail; notes why no more."""
        failed = job.failed()
        if not failed:
            if self._guard is not None:
                self._guard.passed(len(job))
            return self._result(job, None)
        count = len(job)
        end, skipped = self._judge(job, failed)
        kept = np.delete(np.arange(count), skipped)
        good = int(np.searchsorted(kept, end))
        advance = job.block.advance if end == count else job.block.advance.split(end)[0]
        # What was left out is used up all the same.
        advance = advance.select(kept[:good])
        if not good:
            job.release()
            return Block.empty(advance)
        block = self._result(job, kept)
        if end < count:
            block, rest = block.split(good)
            rest.release()
            block.advance = advance
        return block

    def _judge(self, job: Job, failed: list[Failed]) -> tuple[int, list[int]]:
        """Where the job's output ends, and which rows have no results."""
        end, rows = len(job), [row for row, _ in failed]
        before = 0
        for index, (row, error) in enumerate(failed):
            over: BaseException | None = error
            if self._guard is not None and not (job.stopped and index == len(failed) - 1):
                self._guard.passed(row - before)
                over = self._guard.skip(error, job.block.origin[row])
            if over is not None:
                self._failure, end = over, row
                break
            before = row + 1
        else:
            if self._guard is not None:
                self._guard.passed(len(job) - before)
        if self._guard is None or job.stopped:
            # Behind the last of them there is nothing.
            rows += range(failed[-1].row + 1, len(job))
        return end, rows

    def _result(self, job: Job, kept: Rows | None) -> Block:
        """The rows that have results: those `kept`, or all."""
        origin, advance = job.block.origin, job.block.advance
        structure, columns = job.rows()
        if kept is None:
            return Block(structure, columns, origin, advance)
        return Block(structure, columns, origin[kept], advance.select(kept))

    def _cut(self, block: Block, limit: int) -> Block:
        if len(block) <= limit:
            self._out = None
            return block
        head, self._out = block.split(limit)
        return head

    async def aclose(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        # A call of the pool returns only when no worker uses its memory any more.
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in (*self._jobs, *self._failed_jobs):
            job.release()
        self._jobs.clear()
        self._failed_jobs.clear()
        if self._collector is not None:
            self._collector.release()
        if self._out is not None:
            self._out.release()
            self._out = None
        await super().aclose()
