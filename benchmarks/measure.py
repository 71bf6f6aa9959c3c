"""What processes cost: CPU seconds and memory of a tree of them; and measuring several things in turn.

CPU time is read from the kernel's clock of each process, which counts every thread in nanoseconds. A tree is a process
and its descendants, less those that are named to be left out (a server that the same program started). Time of
children that ended is counted through their parent, so that a replaced worker process is not lost.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

T = TypeVar("T")

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PPID: Final = 1
_CUTIME: Final = 13
_CSTIME: Final = 14


def tree(root: int, without: Collection[int] = ()) -> list[int]:
    """Process ids of `root` and its descendants; `without` and their descendants are left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields:
                children.setdefault(int(fields[_PPID]), []).append(int(entry))
    found: list[int] = []
    left = [root]
    while left:
        pid = left.pop()
        if pid not in without:
            found.append(pid)
            left.extend(children.get(pid, ()))
    return found


def cpu_s(pid: int) -> float:
    """User and system time of one process so far, all its threads; 0 when it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def tree_cpu_s(root: int, without: Collection[int] = ()) -> float:
    """User and system time of a tree so far; that of children that have ended is included."""
    return sum(cpu_s(pid) + _ended_children_s(pid) for pid in tree(root, without))


def _ended_children_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[_CUTIME]) + int(fields[_CSTIME])) / _TICKS_PER_S if fields else 0.0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def tree_pss_bytes(root: int, without: Collection[int] = ()) -> int:
    """Memory of a tree, pages that processes share counted once."""
    return sum(_pss_bytes(pid, ("Pss:",)) for pid in tree(root, without))


def tree_own_bytes(root: int) -> int:
    """Likewise, without code and other pages of files, of which each process has a larger part when others end."""
    return sum(_pss_bytes(pid, ("Pss_Anon:", "Pss_Shmem:")) for pid in tree(root))


def _pss_bytes(pid: int, kinds: tuple[str, ...]) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


class Sampler(Generic[T]):
    """Calls a function at intervals in a thread of its own, and keeps what it returned.

    Attributes:
        samples: In order.
    """

    def __init__(self, function: Callable[[], T], interval_s: float) -> None:
        self.samples: list[T] = []
        self._function = function
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="benchmark-sampler", daemon=True)

    def _run(self) -> None:
        while True:
            self.samples.append(self._function())
            if self._ended.wait(self._interval_s):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()


def in_turn(
    rounds: int, runs: Mapping[str, Callable[[], T]], note: Callable[[str], None], limit_s: float = math.inf
) -> dict[str, list[T]]:
    """Measures each of `runs` once per round: A B A B, so that a machine that drifts meets all alike.

    Every other round goes backwards, so that nobody always runs behind the same neighbour.

    Args:
        rounds: At most so many.
        runs: By name, what is measured.
        note: Called before every run with what is about to run.
        limit_s: Rounds are left out that would end later than this if they took as long as the longest before them; the
            first one is always made.
    """
    results: dict[str, list[T]] = {name: [] for name in runs}
    names = list(runs)
    began = last = time.monotonic()
    longest = 0.0
    for index in range(rounds):
        if index and last - began + longest > limit_s:
            note(f"no time for more than {index} of {rounds} rounds")
            break
        for name in names if index % 2 == 0 else reversed(names):
            note(f"round {index + 1} of {rounds}: {name}")
            results[name].append(runs[name]())
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return results
