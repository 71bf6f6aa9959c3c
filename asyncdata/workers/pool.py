"""A pool of worker processes on one event loop: small messages out, small replies back, payloads in a shared arena.

    run() ──▶ waiting (FIFO) ──▶ worker 0: [running, next]      at most ``depth`` tasks per worker
                            └──▶ worker 1: [running, next]      the least loaded worker first

The pool knows nothing about records or batches. Invariants:

- ``run`` returns or raises only when no worker uses the memory of the call any more: its reply has arrived, the task
  was taken back before it began, or the process that ran it is gone.
- There are as many workers as calls at a time, within a limit (see ``workers.demand``). One beyond the limit gets no
  more calls, and ends when it is done with those it has.
- A task whose worker dies runs again in another worker, from the start, ``retries`` times. Tasks that only waited in
  the dead worker move on without being counted. Every dead worker is replaced; if new ones die before they are ready,
  the delay grows (see ``workers.starts``), and calls that only wait for a worker end with an error.
- No task, thread, process or descriptor is left after ``aclose``.

The cost is paid per call: no Task, no pickle, one message each way. Callers wait in ``run`` (backpressure), and a
worker never has more than ``depth`` tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from asyncdata.errors import CloseTimeoutError, PipelineClosedError, PipelineError, WorkerDiedError, refused
from asyncdata.observe.cpu_time import CpuTime, of_process
from asyncdata.observe.line_table import Lines, together
from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.observe.trace_ring import TraceRing
from asyncdata.workers import messages
from asyncdata.workers.call import DIED, STOPPED, Call, OverdueError
from asyncdata.workers.channel import has_seqpacket
from asyncdata.workers.demand import Demand
from asyncdata.workers.dispatch import Dispatcher
from asyncdata.workers.failure import decode_failure
from asyncdata.workers.known_programs import Registry
from asyncdata.workers.messages import Message
from asyncdata.workers.overtime import Overtime
from asyncdata.workers.process import Process
from asyncdata.workers.spawn import Launched, Spawner, SpawnPlan, absolute_path, launch
from asyncdata.workers.starts import Starts
from asyncdata.workers.stats import PoolLoad, PoolStats
from asyncdata.workers.worker import Worker

Grant = Callable[[int, int], Awaitable[tuple[int, int]]]
"""Awaited with a number of bytes, and what they are for; gives offset and size in the arena."""

_LOGGER: Final = logging.getLogger(__name__)
_ABORT_TIMEOUT_S: Final = 3.0
_KILL_TIMEOUT_S: Final = 10.0
_SLOW_S: Final = 0.1  # what waits so long behind one and the same task is given to another worker


class WorkerPool:
    """See the module.

    Args:
        arena_fd: Descriptor of the shared arena; stays the caller's and must stay open until ``aclose`` is done.
        arena_bytes: Length of the arena; workers map all of it, which costs nothing until it is touched.
        num_workers: The most processes, at least 1.
        depth: Tasks per worker under way, the running one included. 2 hides the hand-off behind the running task.
        handler: ``module:function`` that runs a task in the worker:
            ``handler(arena, program, payload, need, mark) -> bytes``.
        close_timeout_s: How long ``aclose``, or a cancelled ``run``, waits for code that is running before its process
            is killed.
        retries: How many times a task is run again after the process that ran it died.
        executable: The interpreter of the workers; this one's by default.
        stream: Use SOCK_STREAM sockets even where SOCK_SEQPACKET exists.
        pidfd: False does without pidfds even where they exist.
    """

    def __init__(
        self,
        *,
        arena_fd: int,
        arena_bytes: int,
        num_workers: int,
        depth: int = 2,
        handler: str = "asyncdata.workers.program:execute",
        close_timeout_s: float = 10.0,
        retries: int = 1,
        executable: str | None = None,
        stream: bool | None = None,
        pidfd: bool = True,
    ) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, not {num_workers}")
        if depth < 1:
            raise ValueError(f"depth must be at least 1, not {depth}")
        self._demand = Demand(num_workers)
        self._close_timeout_s = close_timeout_s
        self._retries = retries
        self._plan = SpawnPlan(
            executable=sys.executable if executable is None else executable,
            arena_fd=arena_fd,
            arena_bytes=arena_bytes,
            handler=handler,
            path=absolute_path(sys.path, os.getcwd()),
            stream=not has_seqpacket() if stream is None else stream,
            pidfd=pidfd,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spawner = Spawner("asyncdata-spawner")
        self._spawning: set[asyncio.Future[Launched]] = set()
        self._workers: dict[Worker, None] = {}
        self._surplus: dict[Worker, None] = {}  # more than wanted: they end when they are idle
        self._leaving: set[Worker] = set()  # that were, and are ending
        self._dispatcher = Dispatcher(depth)
        self._programs = Registry()
        self._names = itertools.count()
        self._watchers: list[asyncio.Future[None]] = []  # who waits for workers to come, get ready or go
        self._overdue: set[Worker] = set()
        self._overtime = Overtime(self._workers)
        self._relief: asyncio.TimerHandle | None = None
        self._reports: list[str] = []
        self._starts = Starts()
        self._failed_at = 0.0
        self._next_start: asyncio.TimerHandle | None = None
        self._closing = False
        self._closed: asyncio.Future[None] | None = None
        self._tasks_done = 0
        self._busy_ns = 0
        self._ready = Stopwatch()
        self._left: dict[int, CpuTime] = {}
        self._deaths = 0
        self._last_death = ""
        self._sample_s = 0.0
        self._ring: TraceRing | None = None
        self._lines_of_the_gone: Lines = {}

    # --- life

    async def start(self, first: int | None = None) -> None:
        """Starts processes, without waiting until they are ready; holds the loop for under 2 ms at a time.

        Args:
            first: How many; the others when there are more calls at a time. None: all.
        """
        self._check_usable(started=False)
        self._demand.expect(first)
        self._loop = asyncio.get_running_loop()
        self._replenish()
        await self._until(lambda: not self._spawning or self._closing)
        self._check_usable()

    async def ready(self) -> None:
        """Waits until every worker has imported what it needs; raises ``PipelineError`` with the cause if it cannot."""
        self._check_usable()

        def is_settled() -> bool:
            all_ready = self._missing <= len(self._spawning) == 0 and all(worker.ready for worker in self._workers)
            return all_ready or self._starts.hopeless or self._closing

        await self._until(is_settled)
        self._check_usable()
        if self._starts.hopeless:
            raise self._starts.error()

    async def aclose(self) -> None:
        """Ends the workers: at once when idle, after the task they are in when busy, by force after the time limit.

        Calls of ``run`` that are still waiting raise ``PipelineClosedError``. Safe to call again, also at the same
        time. Cancelling it skips the time limits, not the cleaning up.

        Raises:
            CloseTimeoutError: Everything is closed, but these workers had to be killed inside user code; the message
                holds their stacks.
        """
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        self._closing = True
        if self._loop is None:
            self._release()
            return
        self._closed = self._loop.create_future()
        try:
            await self._end_workers()
        finally:
            self._release()
            self._closed.set_result(None)
        if self._reports:
            raise CloseTimeoutError("\n\n".join(self._reports))

    async def _end_workers(self) -> None:
        self._dispatcher.stop(self._closed_error)
        for worker in self._workers:
            self._dismiss(worker)
        interruption: asyncio.CancelledError | None = None
        for timeout_s, end in (
            (self._close_timeout_s, None),
            (_ABORT_TIMEOUT_S, Process.abort),
            (_KILL_TIMEOUT_S, Process.kill),
        ):
            if interruption is not None and end is not Process.kill:
                continue
            if end is not None:
                self._overdue.update(self._workers)
                for worker in self._workers:
                    end(worker.process)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._until(lambda: not self._workers and not self._spawning)
                break
            except TimeoutError:
                continue
            except asyncio.CancelledError as exc:
                interruption = exc
        for worker in list(self._workers):  # not even SIGKILL ended it: the kernel holds it in a system call
            self._reports.append(f"{worker.describe()} cannot be killed")
            self._remove(worker, "cannot be killed")
        if interruption is not None:
            raise interruption

    def _dismiss(self, worker: Worker) -> None:
        """Lets a worker go; one that is not ready yet has begun nothing and is killed."""
        self._dispatcher.retire(worker)
        worker.finish()
        if not worker.ready:
            worker.process.kill()

    def _release(self) -> None:
        for timer in (self._relief, self._next_start):
            if timer is not None:
                timer.cancel()
        self._overtime.close()
        self._programs.clear()
        self._spawner.close()

    def _closed_error(self) -> PipelineClosedError:
        return PipelineClosedError("the worker pool was closed")

    def _check_usable(self, *, started: bool = True) -> None:
        if self._closing:
            raise self._closed_error()
        if started is (self._loop is None):
            raise PipelineError("the worker pool is not started" if started else "the worker pool is already started")

    async def _until(self, is_settled: Callable[[], bool]) -> None:
        """Waits until a condition on the set of workers holds."""
        while not is_settled():
            watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append(watcher)
            await watcher

    def _notify(self) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()

    # --- programs and calls

    def register(self, program: bytes, *, limit_s: float | None = None, label: str = "") -> int:
        """Takes a pickled program of any size; each worker gets it once, before its first task of that program.

        A worker that says it is longer than `limit_s` in one call is ended; see ``workers.overtime``. Traces call its
        tasks by the `label`.

        Returns:
            Its number, for ``run`` and ``unregister``.
        """
        return self._programs.add(program, limit_s=limit_s, label=label)

    def unregister(self, program_id: int) -> None:
        """Lets pool and workers drop a program; no call of it may be under way. Unknown numbers are ignored."""
        if self._programs.remove(program_id):
            for worker in self._workers:
                if not worker.closing:
                    worker.forget(program_id)

    async def run(self, program_id: int, payload: bytes, *, grant: Grant) -> bytes:
        """Runs one task in the least loaded worker; see the module for what holds when it returns.

        Args:
            program_id: From ``register``.
            payload: For the handler; up to 4 KB is cheap, more works.
            grant: Asked when the worker needs more room; meanwhile the worker does nothing else. What it granted is
                used by this call until ``run`` returns.

        Returns:
            What the handler returned.

        Raises:
            Exception: The user's own, with the worker's traceback as its cause (see ``workers.failure``), or what
                ``grant`` raised.
            OverdueError: A user function did not return in time; its process is gone. That says nothing of other rows.
            WorkerDiedError: The processes that ran the task died, ``1 + retries`` times.
            PipelineError: No worker is there, and those that are started do not become ready.
            PipelineClosedError: The pool is closed.
        """
        self._check_usable()
        call = Call(self._programs[program_id], payload)
        if self._demand.begin():
            self._replenish()
        self._overtime.begin(call.program.limit_s)
        try:
            self._submit(call)
            while True:
                kind, value = await self._next_event(call)
                if kind == messages.NEED:
                    await self._answer(call, value, grant)
                    continue
                if kind == messages.REPLY and call.abandoned is None:
                    return value  # type: ignore[no-any-return]  # the body of a REPLY
                self._conclude(call, kind, value)
                self._submit(call, again=True)
        finally:
            self._demand.end()
            self._overtime.end(call.program.limit_s)
            if call.deadline is not None:
                call.deadline.cancel()

    def _submit(self, call: Call, *, again: bool = False) -> None:
        self._dispatcher.submit(call, again=again)
        if self._relief is None:
            self._relief = asyncio.get_running_loop().call_later(_SLOW_S, self._relieve)

    def _relieve(self) -> None:
        self._relief = None
        if self._dispatcher.relieve(self._workers) and not self._closing:
            self._relief = asyncio.get_running_loop().call_later(_SLOW_S, self._relieve)

    async def _answer(self, call: Call, needed: tuple[int, int], grant: Grant) -> None:
        """Answers NEED."""
        worker, ticket = call.worker, call.ticket
        nbytes, slot = needed
        granted = None
        if call.abandoned is None:
            try:
                granted = await grant(nbytes, slot)
                offset, size = granted
                if size < nbytes or offset < 0 or offset + size > self._plan.arena_bytes:
                    granted = None
                    raise ValueError(f"granted {size} bytes at {offset} for {nbytes} in {self._plan.arena_bytes}")
            except asyncio.CancelledError as exc:
                self._abandon(call, exc)
            except Exception as exc:  # noqa: BLE001 -- raised from run as soon as the worker has let go
                call.refusal = exc
        if worker is None or call.worker is not worker:
            return  # it died meanwhile; the event says so
        if granted is None or call.abandoned is not None:
            worker.send_denial(ticket)
        else:
            worker.send_grant(ticket, *granted)

    async def _next_event(self, call: Call) -> tuple[int, Any]:
        """Waits for the call's next event; a cancellation is remembered and turned into a withdrawal."""
        while call.event is None:
            call.waiter = asyncio.get_running_loop().create_future()
            try:
                await call.waiter
            except asyncio.CancelledError as exc:
                self._abandon(call, exc)
        event = call.event
        call.event = None
        return event

    def _conclude(self, call: Call, kind: int, value: Any) -> None:
        """Raises what the end of a call means; returns if the call is to be run again."""
        if call.abandoned is not None:
            raise call.abandoned
        if call.refusal is not None:
            raise call.refusal
        if kind == messages.FAILED:
            body, where = value
            raise decode_failure(body, where=where)
        if kind == STOPPED:
            raise value
        if self._closing:
            raise self._closed_error()
        if kind == DIED and value.hang is not None and call.program.limit_s is not None:
            raise OverdueError(value.hang, call.program.limit_s)
        if kind == DIED and value.blamed:
            call.attempts += 1
            if call.attempts > self._retries:
                raise WorkerDiedError(f"a task could not be finished: {value.text}", attempts=call.attempts)

    def _abandon(self, call: Call, cancellation: asyncio.CancelledError) -> None:
        """Takes a call back: at once where no worker has it, else through its worker, whose answer ends ``run``."""
        if call.abandoned is None:
            call.abandoned = cancellation
        if self._dispatcher.withdraw(call):
            call.deadline = asyncio.get_running_loop().call_later(self._close_timeout_s, self._overrun, call)

    def _overrun(self, call: Call) -> None:
        """Ends the worker that still runs a cancelled task after the time limit; with its stack if it can tell it."""
        worker = call.worker
        if worker is None:
            return
        if worker.head == call.ticket:
            if worker in self._overdue:
                worker.process.kill()
            else:
                self._overdue.add(worker)
                worker.process.abort()
        call.deadline = asyncio.get_running_loop().call_later(_ABORT_TIMEOUT_S, self._overrun, call)

    # --- what workers do

    def limit(self, most: int) -> None:
        """Changes the most processes that there may be; those beyond it get no more calls."""
        self._demand.limit(most)
        if self._loop is not None:
            self._replenish()
        self._notify()

    @property
    def _missing(self) -> int:
        """Workers that are wanted and not there, nor on their way; negative if there are more."""
        staying = len(self._workers) - len(self._surplus) - len(self._leaving)
        return self._demand.wanted - staying - len(self._spawning)

    @property
    def _starting(self) -> int:
        """Workers that are on their way, or not ready yet."""
        return len(self._spawning) + sum(not worker.ready for worker in self._workers)

    def _reduce(self) -> None:
        """Gives no more calls to workers of which there are more than wanted, those with the fewest first.

        What is still starting goes before them, as soon as it is ready.
        """
        too_many = -self._missing - self._starting
        if too_many <= 0:
            return
        serving = [worker for worker in reversed(self._workers) if worker.ready and worker.takes_more]
        serving.sort(key=lambda worker: len(worker.flight))
        for worker in serving[:too_many]:
            self._surplus[worker] = None
            self._dispatcher.retire(worker)
            worker.takes_more = False
            self._let_go(worker)

    def _keep(self) -> None:
        """Gives calls again to workers that were more than wanted and have not ended yet."""
        while self._missing > 0 and self._surplus:
            worker, _ = self._surplus.popitem()
            worker.takes_more = True
            self._dispatcher.supply(worker)

    def _let_go(self, worker: Worker) -> None:
        """Ends a worker that gets no more calls once it is idle."""
        if worker in self._surplus and not worker.flight and not worker.closing:
            del self._surplus[worker]
            self._leaving.add(worker)
            self._left[worker.pid] = of_process(worker.pid).since(worker.before)
            self._ready.end()
            self._dismiss(worker)

    def _replenish(self) -> None:
        """Lets go of workers that are too many, and starts missing ones: now, or later where they fail to start."""
        if self._closing:
            return
        self._reduce()
        self._keep()
        if self._next_start is not None:
            self._next_start.cancel()
            self._next_start = None
        count, delay_s = self._starts.plan(missing=max(0, self._missing), starting=self._starting)
        # From the failure on: whoever asks meanwhile does not put it off.
        due, loop = self._failed_at + delay_s, asyncio.get_running_loop()
        if delay_s and loop.time() < due:
            self._next_start = loop.call_at(due, self._start, count)
        else:
            self._start(count)

    def _start(self, count: int) -> None:
        self._next_start = None
        for _ in range(0 if self._closing else count):
            self._spawn()

    def _fail_start(self, error: PipelineError) -> None:
        """A worker has not become ready; if none is left and too many have not, nobody waits for the next one."""
        self._starts.fail(error)
        self._failed_at = asyncio.get_running_loop().time()
        if self._starts.hopeless and not self._workers and not self._spawning:
            self._dispatcher.stop(self._starts.error)

    def _spawn(self) -> None:
        name = f"asyncdata-w{next(self._names)}"
        future = self._spawner.submit(functools.partial(launch, self._plan, name), Launched.discard)
        self._spawning.add(future)
        future.add_done_callback(functools.partial(self._on_launched, name))

    def _on_launched(self, name: str, future: asyncio.Future[Launched]) -> None:
        self._spawning.discard(future)
        error = future.exception()
        if error is None:
            loop, launched = future.get_loop(), future.result()
            try:
                worker = Worker(name, launched, loop=loop, on_message=self._on_message, on_gone=self._on_gone)
            except RuntimeError as exc:  # where a thread would wait for its end, and the system has none
                launched.discard()
                error = OSError(errno.EAGAIN, str(exc))
            else:
                self._workers[worker] = None
                if self._closing:
                    self._dismiss(worker)
        if error is not None:
            text = f"{self._plan.executable!r} cannot be started"
            failure = PipelineError(f"{text}: {error}")
            if isinstance(error, OSError):
                failure = refused(text, error, stage="worker processes")
            failure.__cause__ = error
            self._fail_start(failure)
            self._replenish()
        self._notify()

    def _on_message(self, worker: Worker, message: Message) -> None:
        kind, ticket = message.kind, message.ticket
        if kind == messages.NEED:
            call = worker.flight.get(ticket)
            if call is not None:
                call.post(kind, (message.first, message.second))
            return
        if kind == messages.READY:
            worker.ready = True
            worker.before = of_process(worker.pid)
            self._ready.begin()
            if self._sample_s:
                self._sample(worker)
            self._note_tasks_of(worker)
            self._starts.succeed()
            self._replenish()
            self._dispatcher.supply(worker)
            self._notify()
            return
        if ticket == 0:
            worker.refusal = message.lost or decode_failure(message.body, where=worker.describe())
            return
        call = self._dispatcher.finish(worker, ticket)
        if call is None:
            return
        self._let_go(worker)
        if worker.spans is not None:
            worker.spans.ended(ticket, call.program.label, failed=kind == messages.FAILED)
        if kind == messages.WITHDRAWN and not call.withdrawn:
            self._move(call)
            return
        if kind != messages.WITHDRAWN:
            self._tasks_done += 1
            self._busy_ns += message.first
            worker.tasks_done += 1
            worker.busy_ns += message.first
        if message.lost is not None:
            # The shortage is this process's: the worker has done its part, and would have to do it again.
            what = f"what {worker.describe()} has sent cannot be received"
            call.post(STOPPED, refused(what, message.lost, stage="worker processes"))
        elif kind == messages.FAILED:
            call.post(kind, (message.body, worker.describe()))
        else:
            call.post(kind, message.body)

    def _move(self, call: Call) -> None:
        """Gives a call that waited behind a slow one to another worker."""
        if self._closing:
            call.post(STOPPED, self._closed_error())
        else:
            self._dispatcher.submit(call, again=True)

    def _on_gone(self, worker: Worker) -> None:
        how = worker.exit_text()
        if self._closing and worker in self._overdue:
            self._reports.append(
                f"{worker.describe()} was still in user code {self._close_timeout_s:g} s after the pool was "
                f"closed, and was killed. {worker.crash_text() or 'It left no stack.'}"
            )
        if not self._closing and worker not in self._leaving:
            self._deaths += 1
            self._last_death = f"{worker.describe()} {how}"
            _LOGGER.warning("%s", self._last_death)
        self._remove(worker, how)
        if not worker.ready and not self._closing:
            self._fail_start(worker.start_error(how))
        self._replenish()
        self._notify()

    def _remove(self, worker: Worker, how: str) -> None:
        self._lines_of_the_gone = together(self._lines_of_the_gone, worker.lines)
        if worker.spans is not None:
            for ticket, call in worker.flight.items():
                worker.spans.ended(ticket, call.program.label, killed=True)
        if worker.ready and worker not in self._leaving:
            self._ready.end()
        del self._workers[worker]
        self._surplus.pop(worker, None)
        self._leaving.discard(worker)
        self._overdue.discard(worker)
        self._dispatcher.bury(worker, worker.death(how))
        worker.close()

    def sample(self, every_s: float) -> None:
        """Has all workers, those to come as well, look at their stacks every so many seconds; 0: not any more."""
        self._sample_s = every_s
        for worker in self._workers:
            if worker.ready and not worker.closing:
                self._sample(worker)

    def _sample(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):  # no descriptors: the lines of this one are not in the profile
            worker.sample(self._sample_s)

    def note_tasks(self, ring: TraceRing | None) -> None:
        """Has all workers, those to come as well, note their tasks for spans in a ring; None: not any more."""
        self._ring = ring
        for worker in self._workers:
            if worker.ready and not worker.closing:
                self._note_tasks_of(worker)

    def _note_tasks_of(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):  # no descriptors: the tasks of this one are not in the trace
            worker.note_tasks(self._ring)

    def lines(self) -> Lines:
        """Where user functions spent their time while workers were sampled. Any thread may ask."""
        return together(self._lines_of_the_gone, *(worker.lines for worker in list(self._workers)))

    def load(self) -> PoolLoad:
        """What it has done. Any thread may ask."""
        return PoolLoad(self._tasks_done, self._busy_ns / 1e9, self._ready.seconds(), self._demand.short.seconds())

    def stats(self) -> PoolStats:
        """A snapshot. Any thread may ask."""
        # At one stroke: others come and go meanwhile.
        workers = [worker for worker in list(self._workers) if worker not in self._leaving]
        return PoolStats(
            tasks=self._tasks_done,
            in_flight=sum(len(worker.flight) for worker in workers),
            waiting=self._dispatcher.waiting,
            deaths=self._deaths,
            last_death=self._last_death,
            busy_s=self._busy_ns / 1e9,
            ready_s=self._ready.seconds(),
            left=dict(self._left),
            workers=tuple(worker.stats() for worker in workers),
        )
