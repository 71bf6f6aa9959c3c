"""One worker process as its pool sees it: what it holds, what it knows, and its two channels on the pool's loop."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Callable

from asyncdata.errors import PipelineError, WorkerDiedError
from asyncdata.observe.cpu_time import CpuTime, of_process
from asyncdata.observe.line_table import TABLE_BYTES, Lines, LineTable
from asyncdata.observe.trace_ring import TraceRing
from asyncdata.workers import messages
from asyncdata.workers.call import Call, Death, Hang
from asyncdata.workers.channel import Channel, open_nameless_file
from asyncdata.workers.messages import Message
from asyncdata.workers.process import describe_exit
from asyncdata.workers.spawn import Launched
from asyncdata.workers.stats import WorkerStats
from asyncdata.workers.task_notes import NOTES_BYTES, TaskSpans
from asyncdata.workers.whereabouts import read_mark, read_stacks


class Worker:
    """See the module.

    Args:
        name: Its name.
        launched: The process and our ends of its channels; owned from now on.
        loop: The pool's loop.
        on_message: Called with each message of the tasks channel and of the control channel.
        on_gone: Called once, when the process has ended and every message it sent was delivered.

    Raises:
        RuntimeError: There is no thread to wait for the process, where it takes one. Nothing is watched.
    """

    def __init__(
        self,
        name: str,
        launched: Launched,
        *,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Worker, Message], None],
        on_gone: Callable[[Worker], None],
    ) -> None:
        self.name = name
        self.process = launched.process
        self.flight: dict[int, Call] = {}
        self.programs: set[int] = set()
        self.ready = False
        self.before = CpuTime()  # what it had used when it was ready
        self.refusal: Exception | None = None  # why it cannot start, in its own words
        self.load = -1  # under which load the dispatcher has it; -1 while it takes no tasks
        self.head = 0  # ticket of the call it is in
        self.seen = 0  # what that was when the dispatcher last looked for slow ones
        self.slow = False  # it takes no more until it is done with that call
        self.takes_more = True  # else it ends when it has no more calls
        self.tasks_done = 0
        self.busy_ns = 0
        self.closing = False
        self.ended_ns = 0  # when it was ended because a call took too long
        self._lines: LineTable | None = None
        self.spans: TaskSpans | None = None  # of its tasks, once somebody has asked for them
        self._launched = launched
        self._tasks = launched.tasks
        self._control = launched.control
        self._loop = loop
        self._on_message = on_message
        self._on_gone = on_gone
        self._reading = {self._tasks.fileno(): self._tasks, self._control.fileno(): self._control}
        self._writing: set[int] = set()
        self.process.watch(loop, self._gone)
        for fd, channel in self._reading.items():
            loop.add_reader(fd, self._readable, fd, channel)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def describe(self) -> str:
        """Names it in messages."""
        return f"worker process {self.name} (pid {self.pid})"

    def start_error(self, how: str) -> PipelineError:
        """Why it has not become ready.

        Args:
            how: Its end, as `exit_text` says it.
        """
        if self.refusal is None:
            return WorkerDiedError(f"{self.describe()} {how}")
        error = PipelineError(f"{self.describe()} cannot start: {type(self.refusal).__name__}: {self.refusal}")
        error.__cause__ = self.refusal
        return error

    def stats(self) -> WorkerStats:
        """A snapshot."""
        return WorkerStats(
            name=self.name,
            pid=self.pid,
            ready=self.ready,
            in_flight=len(self.flight),
            tasks=self.tasks_done,
            busy_s=self.busy_ns / 1e9,
            cpu=of_process(self.pid).since(self.before) if self.ready else CpuTime(),
        )

    # --- sending

    def send_task(self, call: Call) -> None:
        """Sends a call under its ticket, and its program before the first one.

        Raises:
            OSError: There is no descriptor left for a long payload; nothing was sent.
        """
        program = call.program
        if program.number not in self.programs:
            if program.fd >= 0:
                sent = self._tasks.send_attached(messages.PROGRAM, program.number, 0, fd=program.fd, size=program.size)
            else:
                sent = self._tasks.send(messages.PROGRAM, program.number, body=program.pickled)
            self._sent(self._tasks, done=sent)
            self.programs.add(program.number)
        if self.spans is not None:
            self.spans.sent(call.ticket)
        self._sent(self._tasks, done=self._tasks.send(messages.TASK, call.ticket, program.number, body=call.payload))

    def send_grant(self, ticket: int, offset: int, size: int) -> None:
        """Answers NEED."""
        self._sent(self._tasks, done=self._tasks.send(messages.GRANT, ticket, offset, size))

    def send_denial(self, ticket: int) -> None:
        """Answers NEED with no."""
        self._sent(self._tasks, done=self._tasks.send(messages.DENY, ticket))

    def forget(self, number: int) -> None:
        """Lets the worker drop a program, once the tasks already sent are done."""
        if number in self.programs:
            self.programs.remove(number)
            self._sent(self._tasks, done=self._tasks.send(messages.FORGET, number))

    def withdraw(self, ticket: int) -> None:
        """Asks for a task back; WITHDRAWN comes if it had not begun, else its reply."""
        self._sent(self._control, done=self._control.send(messages.WITHDRAW, ticket))

    def sample(self, every_s: float) -> None:
        """Has the process look at its own stack every so many seconds; 0: not any more. See `lines`."""
        every_us = int(every_s * 1e6)
        if self._lines is not None or not every_s:
            self._sent(self._control, done=self._control.send(messages.SAMPLE, 0, every_us))
            return
        fd = open_nameless_file("asyncdata-lines")
        try:
            os.ftruncate(fd, TABLE_BYTES)
            self._lines = LineTable(memoryview(mmap.mmap(fd, TABLE_BYTES, prot=mmap.PROT_READ)))
            self._sent(self._control, done=self._control.hand_over(messages.SAMPLE, 0, every_us, fd=fd))
        finally:
            os.close(fd)

    def note_tasks(self, ring: TraceRing | None) -> None:
        """Has the process note when it runs the tasks that it is sent from now on.

        Args:
            ring: Where spans of them go; None: nowhere, and it does not any more.

        Raises:
            OSError: There is no descriptor or memory left for it.
        """
        if self.spans is not None:
            self.spans.ring = ring
            self._sent(self._tasks, done=self._tasks.send(messages.NOTE, 0, int(ring is not None)))
        elif ring is not None:
            fd = open_nameless_file("asyncdata-tasks")
            try:
                os.ftruncate(fd, NOTES_BYTES)
                shared = memoryview(mmap.mmap(fd, NOTES_BYTES, prot=mmap.PROT_READ))
                self.spans = TaskSpans(self.name, self.pid, shared, ring)
                self._sent(self._tasks, done=self._tasks.hand_over(messages.NOTE, 0, 1, fd=fd))
            finally:
                os.close(fd)

    @property
    def lines(self) -> Lines:
        """Where it spent its time while it was sampled; also of a process that is gone. Any thread may ask."""
        return {} if self._lines is None else self._lines.read()

    def finish(self) -> None:
        """Lets the process end after the task it is in; it begins no other."""
        if not self.closing:
            self.closing = True
            self._control.send(messages.CLOSE)
            self._tasks.finish()

    def _sent(self, channel: Channel, *, done: bool) -> None:
        fd = channel.fileno()
        if not done and fd >= 0 and fd not in self._writing:
            self._writing.add(fd)
            self._loop.add_writer(fd, self._writable, fd, channel)

    def _writable(self, fd: int, channel: Channel) -> None:
        if channel.flush():
            self._writing.discard(fd)
            self._loop.remove_writer(fd)

    # --- receiving

    def _readable(self, fd: int, channel: Channel) -> None:
        try:
            received = channel.receive(lossy=True)
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._stop_reading(fd)
            if not self.closing:
                self.process.kill()  # it can be told nothing any more: a replacement takes over
            return
        for message in received:
            self._on_message(self, message)

    def _stop_reading(self, fd: int) -> None:
        if self._reading.pop(fd, None) is not None:
            self._loop.remove_reader(fd)
        if fd in self._writing:
            self._writing.discard(fd)
            self._loop.remove_writer(fd)

    def _gone(self) -> None:
        self.takes_more = False  # while what it has sent is read, it may answer calls that make room for others
        for fd, channel in list(self._reading.items()):
            while fd in self._reading:
                try:
                    received = channel.receive(lossy=True)
                except OSError:
                    break  # drained; a descendant of the process holds the other end open
                except EOFError:
                    break
                for message in received:
                    self._on_message(self, message)
            self._stop_reading(fd)
        self._on_gone(self)

    @property
    def due_ns(self) -> int:
        """When the user function it is in should have returned; 0 if it is in none, or in one without a limit."""
        return read_mark(self._launched.crash_fd)[1]

    def end_overdue(self, now_ns: int) -> None:
        """Ends a process that is too long in one call; it writes its stacks first."""
        self.ended_ns = now_ns
        self.process.abort()

    def exit_text(self) -> str:
        """How the process ended, with the stacks it left if it crashed; to be asked before ``close``."""
        if self.ended_ns:
            return "was ended because a call took longer than task_timeout_s"
        text = describe_exit(self.process.exit_code)
        stacks = self.crash_text()
        return f"{text}; its stacks:\n{stacks}" if stacks else text

    def crash_text(self) -> str:
        """What ``faulthandler`` wrote before the process ended; empty if nothing."""
        return read_stacks(self._launched.crash_fd)

    def death(self, how: str) -> Death:
        """The error for the call that the process was running; asked when the process is gone, before ``close``.

        A function that returned at the last moment is to blame for nothing: its task runs again as if it had waited.

        Args:
            how: As `exit_text` says it.
        """
        text = f"{self.describe()} {how}"
        if not self.ended_ns:
            return Death(text, blamed=True)
        row, due_ns = read_mark(self._launched.crash_fd)
        if not 0 < due_ns <= self.ended_ns:
            return Death(text, blamed=False)
        return Death(text, blamed=True, hang=Hang(row, self.crash_text()))

    def close(self) -> None:
        """Closes every descriptor that leads to the process."""
        for fd in list(self._reading):
            self._stop_reading(fd)
        self._launched.close()
