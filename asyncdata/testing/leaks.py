"""What a piece of code left behind: tasks, threads, processes, descriptors, shared memory.

``snapshot()`` records what exists, ``check(before)`` names what exists now and did not then, ``assert_no_leaks()``
wraps a block in both::

    with assert_no_leaks():           # or: async with
        for batch in dataset:
            break

What always holds: the first look costs about a millisecond (most of it the kernel's, which writes down what is mapped)
and frees nothing; only when it finds something is garbage collected and looked again until ``settle_s`` is over,
because finalizers may signal now and finish soon after. This waiting is the one place of asyncdata that polls: nobody
announces that a foreign thing is gone.

What belongs to the whole process and stays on purpose is exempt: the threads of ``FOREIGN_THREADS``, everything of
fsspec's own event loop, and multiprocessing's resource tracker and fork server. A pipe that libuv opens once has no
mark by which to know it: ``start_process_wide()`` opens it before the first snapshot.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

import fsspec.asyn
import uvloop

from asyncdata.testing import procfs

FOREIGN_THREADS: Final[tuple[str, ...]] = (
    "fsspecIO",  # fsspec's loop for blocking calls: one per process, a daemon, never stopped
    "Dummy-",  # threads of C and Rust libraries (OpenMP, OpenCV, grpc, tokio) that have called into Python once
    "pydevd.",  # a debugger
    "pytest_timeout ",  # pytest-timeout's timer, where it cannot use a signal
)
"""Beginnings of the names of threads that belong to the process as a whole."""

Kind = Literal["task", "thread", "process", "descriptor", "shared memory"]

ALL_KINDS: Final[tuple[Kind, ...]] = ("task", "thread", "process", "descriptor", "shared memory")

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One thing that was left behind.

    Attributes:
        kind: What sort of thing.
        name: Which one, in words.
    """

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


class LeakError(AssertionError):
    """Something was left behind.

    Attributes:
        leaks: All of it.
    """

    def __init__(self, leaks: Iterable[Leak]) -> None:
        self.leaks = tuple(leaks)
        super().__init__("left behind:\n" + "\n".join(f"  {leak}" for leak in self.leaks))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessSnapshot:
    """What existed at one moment; make one with ``snapshot()``.

    Attributes:
        tasks: asyncio tasks that are not done, of every loop.
        threads: Python's living threads.
        processes: Ids of all processes of the machine: what is new among them is judged later. The system gives an id
            again only after all others.
        descriptors: The open descriptors by number, and what each points to. How many point to one target is what
            counts: numbers are reused.
        segments: Named shared memory of all programs, and its inodes. A new one is a leak while this process or a
            descendant has it open or mapped; one that nobody holds may be any program's, and only whoever made it can
            tell (multiprocessing's resource tracker does).
        mappings: Inodes of the memfds and shared memory mapped into this process, and their names.
        started_with: ``NAME=value`` in this process's environment for its children to inherit; finds
            descendants whose own parent has died. None leaves them out.
    """

    tasks: frozenset[asyncio.Task[Any]]
    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    descriptors: Mapping[int, str]
    segments: Mapping[str, int]
    mappings: Mapping[int, str]
    started_with: str | None


def start_process_wide() -> None:
    """Starts what the libraries below keep for the whole process, so that no block is blamed for using them first.

    Call it once, before the first snapshot; a second call does nothing. uvloop's first loop opens a pipe for signals
    that is never closed; fsspec starts a thread with a loop.
    """
    uvloop.new_event_loop().close()
    fsspec.asyn.get_loop()


def snapshot(*, started_with: str | None = None) -> ProcessSnapshot:
    """Records what exists now.

    Args:
        started_with: See ``ProcessSnapshot.started_with``.

    Example:
        >>> before = snapshot()
        >>> file = open("/dev/null")
        >>> [leak.kind for leak in check(before)]
        ['descriptor']
        >>> file.close()
        >>> check(before)
        []
    """
    return ProcessSnapshot(
        tasks=frozenset(_pending_tasks()),
        threads=frozenset(threading.enumerate()),
        processes=procfs.pids(),
        descriptors=procfs.descriptors(),
        segments=procfs.shared_memory_files(),
        mappings=procfs.shared_memory_mappings(os.getpid()),
        started_with=started_with,
    )


def check(
    before: ProcessSnapshot, now: ProcessSnapshot | None = None, *, only: Iterable[Kind] = ALL_KINDS
) -> list[Leak]:
    """What exists now and did not at ``before``; one look, without waiting and without collecting garbage.

    Args:
        before: What to compare with.
        now: A snapshot that has just been taken and shall serve as ``before`` next; None looks at what is asked for.
        only: The kinds to look at.
    """
    find = {
        "task": _new_tasks,
        "thread": _new_threads,
        "process": _new_processes,
        "descriptor": _new_descriptors,
        "shared memory": _new_shared_memory,
    }
    return [Leak(kind=kind, name=name) for kind in only for name in find[kind](before, now)]


def settle(before: ProcessSnapshot, *, settle_s: float = 2.0, only: Iterable[Kind] = ALL_KINDS) -> list[Leak]:
    """Like ``check``, but gives finalizers up to ``settle_s`` seconds; returns at once when nothing is left."""
    kinds = tuple(only)
    leaks = check(before, only=kinds)
    for pause_s in _pauses(settle_s if leaks else 0.0):
        gc.collect()
        leaks = check(before, only=kinds)
        if not leaks:
            break
        time.sleep(pause_s)
    return leaks


async def settle_async(
    before: ProcessSnapshot, *, settle_s: float = 2.0, only: Iterable[Kind] = ALL_KINDS
) -> list[Leak]:
    """Like ``settle``, and lets the running loop work meanwhile."""
    kinds = tuple(only)
    leaks = check(before, only=kinds)
    for pause_s in _pauses(settle_s if leaks else 0.0):
        gc.collect()
        leaks = check(before, only=kinds)
        if not leaks:
            break
        await asyncio.sleep(pause_s)
    return leaks


class assert_no_leaks(contextlib.AbstractContextManager["assert_no_leaks"]):  # noqa: N801 -- reads as the verb it is
    """A block, ``with`` or ``async with``, that must leave nothing behind; raises ``LeakError`` otherwise.

    A block that raises keeps its own exception and is not checked: what it held is still held by the traceback.

    Args:
        settle_s: How long finalizers may take, in seconds.
        started_with: See ``ProcessSnapshot.started_with``.

    Example:
        >>> with assert_no_leaks(settle_s=0.1):  # doctest: +ELLIPSIS
        ...     file = open("/dev/null")
        Traceback (most recent call last):
        asyncdata.testing.leaks.LeakError: left behind:
          descriptor: /dev/null...
        >>> file.close()
    """

    def __init__(self, *, settle_s: float = 2.0, started_with: str | None = None) -> None:
        self._settle_s = settle_s
        self._started_with = started_with
        self._before: ProcessSnapshot | None = None

    def __enter__(self) -> Self:
        self._before = snapshot(started_with=self._started_with)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._before is not None and (leaks := settle(self._before, settle_s=self._settle_s)):
            raise LeakError(leaks)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None or self._before is None:
            return
        if leaks := await settle_async(self._before, settle_s=self._settle_s):
            raise LeakError(leaks)


def _pauses(total_s: float) -> Iterator[float]:
    """Growing pauses until ``total_s`` seconds are over; none for zero."""
    deadline = time.monotonic() + total_s
    pause_s = _FIRST_PAUSE_S
    while time.monotonic() < deadline:
        yield pause_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


# --- what is new, kind by kind ------------------------------------------------------------------------------------


def _new_tasks(before: ProcessSnapshot, now: ProcessSnapshot | None) -> Iterator[str]:
    foreign = _fsspec_loop()
    for task in (_pending_tasks() if now is None else now.tasks) - before.tasks - _current_task():
        loop = task.get_loop()
        if loop is not foreign:
            yield f"{task.get_name()} running {task.get_coro()!r}{' on a closed loop' if loop.is_closed() else ''}"


def _new_threads(before: ProcessSnapshot, now: ProcessSnapshot | None) -> Iterator[str]:
    foreign = _fsspec_executor_threads()
    for thread in threading.enumerate() if now is None else now.threads:
        if thread in before.threads or thread in foreign or thread.name.startswith(FOREIGN_THREADS):
            continue
        target = getattr(thread, "_target", None)
        yield f"{thread.name!r}{' (daemon)' if thread.daemon else ''}{f' running {target!r}' if target else ''}"


def _new_processes(before: ProcessSnapshot, now: ProcessSnapshot | None) -> Iterator[str]:
    new = (procfs.pids() if now is None else now.processes) - before.processes - _multiprocessing_pids()
    for process in filter(None, map(procfs.process, new)):
        if os.getpid() in _ancestors(process):
            kind = "zombie" if process.state == "Z" else "descendant"
        elif before.started_with is not None and procfs.was_started_with(process.pid, before.started_with):
            kind = "orphan"
        else:
            continue
        yield f"{kind} {process.pid} {procfs.command_line(process.pid) or process.name}"


def _new_descriptors(before: ProcessSnapshot, now: ProcessSnapshot | None) -> Iterator[str]:
    foreign = _foreign_descriptors()
    spare = Counter(before.descriptors.values())
    for descriptor, target in sorted((procfs.descriptors() if now is None else now.descriptors).items()):
        if spare[target] > 0:
            spare[target] -= 1
        elif descriptor not in foreign:
            socket_ends = procfs.describe_socket(descriptor) if target.startswith("socket:") else ""
            yield f"{target} (number {descriptor}){' ' if socket_ends else ''}{socket_ends}"


def _new_shared_memory(before: ProcessSnapshot, now: ProcessSnapshot | None) -> Iterator[str]:
    mapped = procfs.shared_memory_mappings(os.getpid()) if now is None else now.mappings
    yield from (f"mapping of {name}" for inode, name in mapped.items() if inode not in before.mappings)
    segments = procfs.shared_memory_files() if now is None else now.segments
    known = set(before.segments.values())
    named = {path for path, inode in segments.items() if inode not in known}
    if named:
        # The folder belongs to the machine: a name counts where this process or a descendant uses it.
        tree = [process.pid for process in procfs.processes() if os.getpid() in (process.pid, *_ancestors(process))]
        used = {path for pid in tree for path in procfs.shared_memory_in_use(pid)}
        yield from sorted(named & used)


def _ancestors(process: procfs.ProcessInfo) -> Iterator[int]:
    """The pids above a process, nearest first. Ends at a process that is gone."""
    current: procfs.ProcessInfo | None = process
    while current is not None and current.parent not in {0, current.pid}:
        yield current.parent
        current = procfs.process(current.parent)


# --- what exists --------------------------------------------------------------------------------------------------


def _pending_tasks() -> set[asyncio.Task[Any]]:
    """Every task of every loop that is not done."""
    registries = [
        registry
        # Python 3.11 keeps one weak set of tasks; 3.12 and 3.13 two; from 3.14 on C tasks are in neither.
        for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
        if (registry := getattr(asyncio.tasks, name, None)) is not None
    ]
    tasks: set[asyncio.Task[Any]] = set()
    if sys.version_info >= (3, 14):
        tasks.update(item for item in gc.get_objects() if issubclass(type(item), asyncio.Task))
    for registry in registries:
        tasks.update(_copy(registry))
    return {task for task in tasks if not task.done()}


def _current_task() -> set[asyncio.Task[Any]]:
    """The task that asks, which is no leak; none outside a running loop."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return set()
    return set() if task is None else {task}


def _copy(registry: Iterable[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """A weak set's content. Another thread may add to it meanwhile, which ends the iteration; then it begins again."""
    while True:
        with contextlib.suppress(RuntimeError):
            return list(registry)


def _fsspec_loop() -> asyncio.AbstractEventLoop | None:
    """The loop fsspec runs for the whole process, if it was ever started."""
    loop: asyncio.AbstractEventLoop | None = fsspec.asyn.loop[0]
    return loop


def _fsspec_executor_threads() -> frozenset[threading.Thread]:
    """The threads in which fsspec's loop resolves names and opens files."""
    executor = getattr(_fsspec_loop(), "_default_executor", None)
    if not isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        return frozenset()
    return frozenset(executor._threads)  # noqa: SLF001 -- their names are those of every loop's executor


def _foreign_descriptors() -> frozenset[int]:
    """The descriptors of fsspec's loop and of multiprocessing's two helper processes."""
    loop = _fsspec_loop()
    owners = [getattr(loop, name, None) for name in ("_selector", "_ssock", "_csock")]
    found = {owner.fileno() for owner in owners if owner is not None}
    found.update(_multiprocessing_numbers("_fd", "_forkserver_alive_fd"))
    return frozenset(found)


def _multiprocessing_pids() -> frozenset[int]:
    """The resource tracker and the fork server: one each per process, started on first use, never stopped."""
    return frozenset(_multiprocessing_numbers("_pid", "_forkserver_pid"))


def _multiprocessing_numbers(tracker_field: str, server_field: str) -> Iterator[int]:
    fields = (
        ("multiprocessing.resource_tracker", "_resource_tracker", tracker_field),
        ("multiprocessing.forkserver", "_forkserver", server_field),
    )
    for module, name, attribute in fields:
        number = getattr(getattr(sys.modules.get(module), name, None), attribute, None)
        if number is not None:
            yield number
