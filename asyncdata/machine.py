"""What this process may use of its machine: processors and memory, as far as affinity and control groups allow.

Schedulers of containers limit what a process uses, not what it sees: on a machine of 96 processors a container with a
quota of 4 has an affinity of 96. All groups around a process count, and a container may see its own as the root:

| version | processors                                 | memory                                          |
|---------|--------------------------------------------|-------------------------------------------------|
| 2       | GROUP/cpu.max                              | GROUP/memory.max, memory.current, memory.stat   |
| 1       | cpu/GROUP/cpu.cfs_quota_us, .cfs_period_us | memory/GROUP/memory.limit_in_bytes, .usage_in_… |

Sources: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

Read: TypeAlias = Callable[[str], str]
"""Gives the text of a file; an empty one where there is none."""

_MEMBERSHIPS: Final = "/proc/self/cgroup"
_MOUNT: Final = "/sys/fs/cgroup"
_UNLIMITED: Final = 1 << 60
"""Version 1 states a number that no machine has where there is no limit."""


def usable_cpus() -> int:
    """Returns the number of processors that this process may keep busy, at least 1.

    A quota that is no whole number is rounded up, as the JVM does.
    """
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        cpus = os.cpu_count() or 1
    quota = cpu_quota()
    return cpus if quota is None else max(1, min(cpus, math.ceil(quota)))


def read_text(path: str) -> str:
    """The text of a file of the system; an empty one where it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def cpu_quota(read: Read = read_text) -> float | None:
    """Returns how many processors' time the control groups allow; None without a quota."""
    return min(_quotas(read), default=None)


def memory_left(read: Read = read_text) -> int | None:
    """Returns how many bytes the control groups leave, what they hold of files not counted; None without a limit."""
    return min(_memory_left(read), default=None)


def _groups(read: Read, controller: str) -> Iterator[tuple[str, bool]]:
    """The folders of the groups around this process, and whether they are of version 2."""
    for line in read(_MEMBERSHIPS).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = f"{_MOUNT}/{controller}" if controllers else _MOUNT
        group = PurePosixPath(name)
        for each in (group, *group.parents):
            yield f"{mount}{each}".rstrip("/"), not controllers


def _quotas(read: Read) -> Iterator[float]:
    for folder, is_second in _groups(read, "cpu"):
        if is_second:
            words = read(f"{folder}/cpu.max").split()
        else:
            words = [*read(f"{folder}/cpu.cfs_quota_us").split(), *read(f"{folder}/cpu.cfs_period_us").split()]
        numbers = [int(word) for word in words if word.isdecimal()]  # not "max", nor -1
        if len(words) == len(numbers) == 2 and numbers[1]:
            yield numbers[0] / numbers[1]


def _memory_left(read: Read) -> Iterator[int]:
    for folder, is_second in _groups(read, "memory"):
        limit, used, of_files = (
            ("memory.max", "memory.current", "inactive_file")
            if is_second
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        words = [read(f"{folder}/{name}").strip() for name in (limit, used)]
        if all(word.isdecimal() for word in words) and int(words[0]) < _UNLIMITED:
            stat = dict(line.split() for line in read(f"{folder}/memory.stat").splitlines() if len(line.split()) == 2)
            yield max(0, int(words[0]) - int(words[1]) + int(stat.get(of_files, 0)))
