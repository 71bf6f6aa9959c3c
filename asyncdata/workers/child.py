"""The main program of a worker process: receive a task, run the handler on the arena, send the reply.

    main thread                                  watchdog thread
    ───────────                                  ───────────────
    tasks channel: PROGRAM TASK … → handler      control channel: WITHDRAW, SAMPLE, CLOSE
    NEED → wait for GRANT → go on                EOF → the parent is gone: exit at once, even inside a task
    REPLY or FAILED

Invariants: a task runs at most once per time it was sent; a task that was withdrawn before it began never runs (a lock
decides which came first); no exception of user code can end the loop. The process ignores SIGINT, dies with the thread
that started it if the kernel supports that, and imports only the standard library, what is imported below and
the handler's module until the first program arrives.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypedDict

from asyncdata.errors import FunctionTransferError
from asyncdata.observe.line_table import TABLE_BYTES, LineTable
from asyncdata.observe.stack_sampler import SamplerThread, StackSampler
from asyncdata.workers import messages
from asyncdata.workers.channel import Channel
from asyncdata.workers.failure import encode_failure
from asyncdata.workers.messages import Message
from asyncdata.workers.task_notes import NOTES_BYTES, TaskNotes
from asyncdata.workers.whereabouts import Mark

_PR_SET_PDEATHSIG: Final = 1

Need = Callable[[int], tuple[int, int]]
Handler = Callable[[memoryview, Any, bytes, Need, Mark], bytes]


class Setup(TypedDict):
    """What the parent hands to a new worker, as plain values.

    Attributes:
        path: ``sys.path``, absolute.
        argv: ``sys.argv``.
        name: The worker's name.
        parent_pid: Who started it.
        tasks_fd: The tasks channel's socket.
        control_fd: The control channel's socket.
        stream: Whether these are SOCK_STREAM sockets.
        crash_fd: Where ``faulthandler`` writes the stack of a crash.
        arena_fd: The arena.
        arena_bytes: How much of it to map.
        handler: ``module:function``.
    """

    path: list[str]
    argv: list[str]
    name: str
    parent_pid: int
    tasks_fd: int
    control_fd: int
    stream: bool
    crash_fd: int
    arena_fd: int
    arena_bytes: int
    handler: str


class GrantDeniedError(Exception):
    """The parent did not grant the bytes that ``need`` asked for; the parent knows why. A handler lets it through."""


class _Program:
    """A program as it came, and as it is once loaded."""

    __slots__ = ("_failure", "_loaded", "_pickled", "_value")

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._loaded = False
        self._value: Any = None
        self._failure: FunctionTransferError | None = None

    def load(self) -> Any:
        """Unpickles on first use; a failure is the answer from then on."""
        if not self._loaded:
            try:
                self._value = pickle.loads(self._pickled)  # noqa: S301 -- made by the parent process, not from storage
            except BaseException as exc:  # noqa: BLE001 -- importing the user's modules may raise anything
                self._failure = not_loaded("a worker process cannot load the function", exc)
            self._loaded = True
            self._pickled = b""
        if self._failure is not None:
            raise self._failure
        return self._value


def not_loaded(what: str, cause: BaseException) -> FunctionTransferError:
    """The error for something that cannot be unpickled in this process."""
    error = FunctionTransferError(
        f"{what}: {type(cause).__name__}: {cause}. What it imports must be importable from the parent's sys.path, as "
        "that was when the Runtime was started."
    )
    error.__cause__ = cause
    return error


class WorkerLoops:
    """The two loops of a worker process, and the state they share.

    Args:
        tasks: The tasks channel, blocking.
        control: The control channel, blocking.
        arena: The mapped arena.
        handler: Runs one task.
        mark: Tells the parent where a task is.
    """

    def __init__(self, *, tasks: Channel, control: Channel, arena: memoryview, handler: Handler, mark: Mark) -> None:
        self._tasks = tasks
        self._control = control
        self._arena = arena
        self._handler = handler
        self._mark = mark
        self._inbox: deque[Message] = deque()
        self._programs: dict[int, _Program] = {}
        self._pid = os.getpid()
        self._ticket = 0
        self._waited_ns = 0
        self._lock = threading.Lock()
        self._newest_begun = 0  # guarded by the lock, as are the next two
        self._withdrawn: set[int] = set()
        self._closing = False
        self._sampler: SamplerThread | None = None
        self._shared: memoryview | None = None
        self._notes: TaskNotes | None = None

    # --- main thread

    def run(self) -> None:
        """Works until the parent closes the tasks channel."""
        while True:
            try:
                message = self._next()
                if message.kind == messages.TASK:
                    if self._begin(message.ticket):
                        self._execute(message)
                elif message.kind == messages.PROGRAM:
                    self._programs[message.ticket] = _Program(message.body)
                elif message.kind == messages.FORGET:
                    self._programs.pop(message.ticket, None)
                elif message.kind == messages.NOTE:
                    self._note_tasks(message)
            except EOFError:
                return

    def _note_tasks(self, message: Message) -> None:
        """Notes tasks from now on, or no longer."""
        if message.fd >= 0:
            with contextlib.suppress(OSError), open(message.fd, "rb+", buffering=0) as file:  # no memory: no notes
                self._shared = memoryview(mmap.mmap(file.fileno(), NOTES_BYTES))
        self._notes = TaskNotes(self._shared) if message.first and self._shared is not None else None

    def _next(self) -> Message:
        while not self._inbox:
            self._inbox.extend(self._tasks.receive())
        return self._inbox.popleft()

    def _begin(self, ticket: int) -> bool:
        """Claims a task, unless it was withdrawn or the pool closes."""
        with self._lock:
            self._newest_begun = ticket
            if self._closing:
                return False
            if ticket in self._withdrawn:
                self._withdrawn.remove(ticket)
                return False
        return True

    def _execute(self, task: Message) -> None:
        self._ticket = task.ticket
        self._waited_ns = 0
        notes = self._notes
        if notes is not None:
            notes.begin(task.ticket)
        begin = time.perf_counter_ns()
        kind = messages.REPLY
        try:
            body = self._handler(self._arena, self._programs[task.first].load(), task.body, self._need, self._mark)
            if not isinstance(body, bytes):
                raise TypeError(f"the handler returned {type(body).__name__}, not bytes")
        except _ParentGoneError:
            raise EOFError from None
        except BaseException as exc:  # noqa: BLE001 -- user code may raise anything, SystemExit included
            kind, body = messages.FAILED, encode_failure(exc)
        busy_ns = time.perf_counter_ns() - begin - self._waited_ns
        if notes is not None:
            notes.end(task.ticket, self._waited_ns / 1e9)
        if os.getpid() != self._pid:
            os._exit(0)  # user code forked, and the copy came out of the handler: the reply is the original's
        try:
            self._tasks.send(kind, task.ticket, max(busy_ns, 0), body=body)
        except OSError as exc:
            self._tasks.send(messages.FAILED, task.ticket, max(busy_ns, 0), body=encode_failure(exc)[:2048])

    def _need(self, nbytes: int, slot: int = 0) -> tuple[int, int]:
        """Asks the parent for room in the arena and waits for the answer: offset and size in bytes."""
        if os.getpid() != self._pid:
            os._exit(0)  # user code forked: the memory is the original's
        begin = time.perf_counter_ns()
        self._tasks.send(messages.NEED, self._ticket, nbytes, slot)
        answer: Message | None = None
        try:
            while answer is None:
                for message in self._tasks.receive():
                    if message.ticket == self._ticket and message.kind in (messages.GRANT, messages.DENY):
                        answer = message
                    else:
                        self._inbox.append(message)  # also of those that came together with the answer
        except EOFError:
            raise _ParentGoneError from None
        except OSError:
            traceback.print_exc()
            leave(1)  # a message is lost, and may have been another call's
        finally:
            self._waited_ns += time.perf_counter_ns() - begin
        if answer.kind == messages.DENY:
            raise GrantDeniedError(f"{nbytes} bytes of output space were not granted")
        return answer.first, answer.second

    # --- watchdog thread

    def watch(self) -> None:
        """Answers withdrawals; ends the process when the parent is gone."""
        while True:
            try:
                received = self._control.receive()
            except (EOFError, OSError):
                leave(0)
            for message in received:
                if message.kind == messages.WITHDRAW:
                    self._withdraw(message.ticket)
                elif message.kind == messages.SAMPLE:
                    with contextlib.suppress(OSError, RuntimeError):  # no memory, no thread: nothing is sampled
                        self._sample(message)
                elif message.kind == messages.CLOSE:
                    with self._lock:
                        self._closing = True

    def _sample(self, message: Message) -> None:
        """Has a thread look at the main thread's stack, or no longer."""
        if self._sampler is None:
            if message.fd < 0:
                return
            table = LineTable(memoryview(mmap.mmap(message.fd, TABLE_BYTES)))
            os.close(message.fd)
            main_thread = threading.main_thread().ident or 0
            self._sampler = SamplerThread(
                StackSampler(lambda: {main_thread: "worker processes"}, table), "asyncdata-sampler"
            )
        self._sampler.look_every(message.first / 1e6)

    def _withdraw(self, ticket: int) -> None:
        with self._lock:
            if ticket <= self._newest_begun:
                return  # it has begun: its reply is the answer
            self._withdrawn.add(ticket)
        self._control.send(messages.WITHDRAWN, ticket)


class _ParentGoneError(BaseException):
    """The tasks channel ended inside ``need``; no handler that catches Exception may keep it."""


def leave(code: int) -> NoReturn:
    """Ends the process at once, without exit handlers, waiting for no thread of user code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # nobody may be left to read it
            stream.flush()
    os._exit(code)


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when the thread that started it ends; covers code that holds the GIL."""
    if sys.platform == "linux":
        try:
            import ctypes  # noqa: PLC0415 -- only where the call exists; an interpreter may be built without it

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            pass  # the watchdog remains
    if os.getppid() != parent_pid:
        leave(0)


def name_process(name: str) -> None:
    """Shows the worker's name in ``top`` and ``ps``; a courtesy."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name[:15])
    except OSError:
        pass


def begin_process(name: str, parent_pid: int, crash_fd: int) -> None:
    """What every process of this package does first: it leaves SIGINT to its parent, and ends with it.

    Args:
        name: Shown in ``top``.
        parent_pid: Who started it.
        crash_fd: Where ``faulthandler`` writes the stacks of a crash.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    faulthandler.enable(file=crash_fd, all_threads=True)
    die_with_parent(parent_pid)
    name_process(name)


def _load_handler(target: str) -> Handler:
    module_name, _, function_name = target.partition(":")
    handler: Handler = getattr(importlib.import_module(module_name), function_name)
    return handler


def main(setup: Setup) -> NoReturn:
    """The whole life of a worker process."""
    begin_process(setup["name"], setup["parent_pid"], setup["crash_fd"])
    sys.argv[:] = setup["argv"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    tasks = Channel(socket.socket(fileno=setup["tasks_fd"]), stream=setup["stream"])
    control = Channel(socket.socket(fileno=setup["control_fd"]), stream=setup["stream"])
    for key in ("tasks_fd", "control_fd", "crash_fd"):
        os.set_inheritable(setup[key], False)
    try:
        mapped = mmap.mmap(setup["arena_fd"], setup["arena_bytes"], flags=mmap.MAP_SHARED)
        os.close(setup["arena_fd"])
        if hasattr(mmap, "MADV_DONTDUMP"):
            mapped.madvise(mmap.MADV_DONTDUMP)
        handler, mark = _load_handler(setup["handler"]), Mark(setup["crash_fd"])
        worker = WorkerLoops(tasks=tasks, control=control, arena=memoryview(mapped), handler=handler, mark=mark)
        threading.Thread(target=worker.watch, name="asyncdata-watchdog", daemon=True).start()
    except BaseException as exc:  # noqa: BLE001 -- whatever it is, the parent must hear of it
        tasks.send(messages.FAILED, 0, body=encode_failure(exc))
        leave(1)
    tasks.send(messages.READY, 0, os.getpid())
    try:
        worker.run()
    except BaseException:  # noqa: BLE001 -- last words before the process ends
        traceback.print_exc()
        leave(1)
    leave(0)
