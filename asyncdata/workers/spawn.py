"""Starts worker processes: the configuration of a new interpreter, and the thread that starts it.

A worker is a fresh interpreter (``exec``, never a bare fork). It needs no import guard in the user's script, and works
from notebooks and from ``python -``. It gets the parent's ``sys.path``, interpreter options and working directory, one
thread per numeric library unless the environment says otherwise, and the parent's stderr for all that user code prints.

``Popen`` takes milliseconds, so a separate thread calls it. This thread lives as long as its pool, because the kernel
ends workers when the thread that started them ends. This also ends them when the parent is killed.
"""

from __future__ import annotations

import asyncio
import errno
import marshal
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from asyncdata.workers.channel import Channel, open_nameless_file
from asyncdata.workers.child import Setup
from asyncdata.workers.process import Process
from asyncdata.workers.whereabouts import open_crash_file

T = TypeVar("T")

_ALLOCATOR_VARIABLES: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
}
"""Of glibc, see mallopt(3); other allocators ignore them."""

_SINGLE_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "RAYON_NUM_THREADS",
)
_X_OPTIONS: Final = ("dev", "utf8", "no_debug_ranges", "int_max_str_digits", "frozen_modules", "warn_default_encoding")
_BOOTSTRAP: Final = (
    "import sys,marshal\n"
    "with open({fd},'rb') as f: s=marshal.load(f)\n"
    "sys.path[:]=s['path']\n"
    "from {program} import main\n"
    "main(s)\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnPlan:
    """Everything about a worker that is known before it exists.

    Attributes:
        executable: The interpreter.
        arena_fd: Descriptor of the arena, open in this process.
        arena_bytes: How much of it a worker maps.
        handler: ``module:function`` that runs a task.
        program: Module whose ``main`` is the process's program, with a `Setup`.
        path: ``sys.path`` for the worker, absolute.
        stream: Whether to use SOCK_STREAM sockets.
        pidfd: Whether to watch processes through pidfds.
    """

    executable: str
    arena_fd: int
    arena_bytes: int
    handler: str
    path: tuple[str, ...]
    stream: bool
    pidfd: bool
    program: str = "asyncdata.workers.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A worker process that was started, and our ends of what connects to it.

    Attributes:
        process: The process.
        tasks: Channel for tasks and replies.
        control: Channel for withdrawals; its end is what ends the worker.
        crash_fd: File that tells where the worker is, and has its stacks when it crashes; see ``workers.whereabouts``.
    """

    process: Process
    tasks: Channel
    control: Channel
    crash_fd: int

    def discard(self) -> None:
        """Kills and reaps a process that nobody watches, and closes everything."""
        self.process.discard()
        self.close()

    def close(self) -> None:
        """Closes our descriptors; the process must be gone, or will go for that reason."""
        self.tasks.close()
        self.control.close()
        self.process.close()
        os.close(self.crash_fd)


def absolute_path(path: Sequence[str], directory: str) -> tuple[str, ...]:
    """``sys.path`` with relative entries resolved, so that a later ``chdir`` changes nothing."""
    return tuple(os.path.join(directory, entry) if entry else directory for entry in path)


def interpreter_flags() -> list[str]:
    """The options of this interpreter that change what code means, for a new one."""
    flags = sys.flags
    arguments = ["-O"] * flags.optimize + ["-b"] * flags.bytes_warning
    switches = {
        "-B": flags.dont_write_bytecode,
        "-E": flags.ignore_environment and not flags.isolated,
        "-s": flags.no_user_site and not flags.isolated,
        "-S": flags.no_site,
        "-I": flags.isolated,
    }
    arguments += [switch for switch, is_set in switches.items() if is_set]
    for name in _X_OPTIONS:
        value = sys._xoptions.get(name)  # noqa: SLF001 -- documented, despite its name
        if value is not None:
            arguments += ["-X", name if value is True else f"{name}={value}"]
    for option in sys.warnoptions:
        arguments += ["-W", option]
    return arguments


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: this one's, with defaults for what it does not say.

    One thread per numeric library; and memory that is freed between two elements is kept by the allocator: giving it
    back to the system and faulting it in again costs more than decoding a small image.
    """
    return dict.fromkeys(_SINGLE_THREAD_VARIABLES, "1") | _ALLOCATOR_VARIABLES | dict(environment)


def launch(plan: SpawnPlan, name: str) -> Launched:
    """Starts one worker process; blocks for a few milliseconds.

    Raises:
        OSError: The interpreter cannot be started, or descriptors have run out. Nothing is left open.
    """
    opened: list[Channel | socket.socket] = []
    descriptors: list[int] = []
    try:
        tasks, their_tasks = Channel.pair(stream=plan.stream)
        opened += [tasks, their_tasks]
        control, their_control = Channel.pair(stream=plan.stream)
        opened += [control, their_control]
        crash_fd = open_crash_file()
        descriptors.append(crash_fd)
        setup_fd = open_nameless_file("asyncdata-setup")
        descriptors.append(setup_fd)
        setup: Setup = {
            "path": list(plan.path),
            "argv": list(sys.argv),
            "name": name,
            "parent_pid": os.getpid(),
            "tasks_fd": their_tasks.fileno(),
            "control_fd": their_control.fileno(),
            "stream": plan.stream,
            "crash_fd": crash_fd,
            "arena_fd": plan.arena_fd,
            "arena_bytes": plan.arena_bytes,
            "handler": plan.handler,
        }
        os.write(setup_fd, marshal.dumps(dict(setup)))
        os.lseek(setup_fd, 0, os.SEEK_SET)
        process = Process(_popen(plan, setup, setup_fd), use_pidfd=plan.pidfd)
    except BaseException:
        for end in opened:
            end.close()
        for fd in descriptors:
            os.close(fd)
        raise
    their_tasks.close()
    their_control.close()
    os.close(setup_fd)
    return Launched(process=process, tasks=tasks, control=control, crash_fd=crash_fd)


def _popen(plan: SpawnPlan, setup: Setup, setup_fd: int) -> subprocess.Popen[bytes]:
    if not plan.executable:
        raise FileNotFoundError("sys.executable is empty: this interpreter does not know how to start another")
    return subprocess.Popen(  # noqa: S603 -- this interpreter, or the one the caller named
        [plan.executable, *interpreter_flags(), "-c", _BOOTSTRAP.format(fd=setup_fd, program=plan.program)],
        stdin=subprocess.DEVNULL,
        stdout=stderr_descriptor(),
        pass_fds=(setup["tasks_fd"], setup["control_fd"], setup["crash_fd"], setup["arena_fd"], setup_fd),
        env=worker_environment(os.environ),
    )


def stderr_descriptor() -> int:
    """Where child processes print; nowhere when this process has no stderr."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


class Spawner:
    """The thread that starts processes.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._started = False

    def submit(self, work: Callable[[], T], dispose: Callable[[T], object]) -> asyncio.Future[T]:
        """Runs ``work`` in the thread; where its loop has gone meanwhile, ``dispose`` gets the result.

        A thread that the system refuses is an OSError of the future, and the next call tries again.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # the result whenever there is no error

        def order() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as exc:  # noqa: BLE001 -- raised again where the future is awaited
                error = exc
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop was closed
                if result is not None:
                    dispose(result)

        try:
            self._begin()
        except RuntimeError as error:
            future.set_exception(OSError(errno.EAGAIN, str(error)))
        else:
            self._orders.put(order)
        return future

    def _begin(self) -> None:
        if not self._started:
            self._thread.start()
            self._started = True

    def _work(self) -> None:
        # A new process inherits the mask: Ctrl-C finds it deaf until it has said that it ignores SIGINT.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while (order := self._orders.get()) is not None:
            order()

    def close(self) -> None:
        """Ends the thread; every order must have been carried out, so this takes microseconds."""
        if self._started:
            self._orders.put(None)
            self._thread.join()
