"""What /proc and /dev/shm say about this process and its descendants; reading only, no judgement.

Every function returns an empty result where the files are missing (another operating system), and skips what vanishes
between listing and reading: processes and descriptors of others come and go at any time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- listed, never written
_STAT_BYTES = 4096  # about fifty numbers and a name of 15 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One row of the process table.

    Attributes:
        pid: Process id.
        parent: Process id of the parent.
        state: One letter as in proc(5); ``Z`` is a zombie.
        name: What the kernel calls it, at most 15 characters.
    """

    pid: int
    parent: int
    state: str
    name: str


def descriptors(pid: int | None = None) -> dict[int, str]:
    """The open file descriptors of a process and what each one is: a path, ``socket:[inode]``, ``pipe:[inode]``.

    Args:
        pid: Of this process when it is None.
    """
    folder = f"/proc/{os.getpid() if pid is None else pid}/fd"
    found: dict[int, str] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)
                except OSError:
                    continue
                if target != folder:  # the descriptor this listing itself needs
                    found[int(entry.name)] = target
    except OSError:  # no procfs, no such process any more, or another user's
        return {}
    return found


def describe_socket(descriptor: int) -> str:
    """Both ends of a socket, for a message; empty when it is none, or no longer open."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return ""
    try:
        copy = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return ""
    try:
        with copy:
            family, kind = copy.family.name, copy.type.name
            here = copy.getsockname() or "unnamed"
            try:
                there = copy.getpeername() or "unnamed"
            except OSError:
                there = "nobody"
    except (OSError, AttributeError):  # AttributeError: a family Python has no name for
        return ""
    return f"{family} {kind} {here} to {there}"


def pids() -> frozenset[int]:
    """The ids of all processes of the machine (of the container, inside one)."""
    try:
        return frozenset(int(name) for name in os.listdir(PROC) if name.isdigit())
    except FileNotFoundError:
        return frozenset()


def processes() -> Iterator[ProcessInfo]:
    """The process table of the machine (of the container, inside one)."""
    for pid in pids():
        if (info := process(pid)) is not None:
            yield info


def process(pid: int) -> ProcessInfo | None:
    """One row of the process table, or None when the process is gone."""
    try:
        file = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(file, _STAT_BYTES)
    except OSError:
        return None
    finally:
        os.close(file)
    # The name is in parentheses and may itself contain blanks and parentheses, so split at the last one.
    head, _, tail = text.rpartition(b")")
    fields = tail.split(maxsplit=2)
    return ProcessInfo(
        pid=pid,
        parent=int(fields[1]),
        state=fields[0].decode(),
        name=head.partition(b"(")[2].decode(errors="replace"),
    )


def command_line(pid: int) -> str:
    """The arguments a process was started with; empty for a zombie."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def was_started_with(pid: int, variable: str) -> bool:
    """Whether ``NAME=value`` stood in the environment a process was started with."""
    try:
        return variable.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def shared_memory_files() -> dict[str, int]:
    """Named POSIX shared memory and semaphores of the machine: path to inode."""
    found: dict[str, int] = {}
    try:
        with os.scandir(SHARED_MEMORY) as entries:
            for entry in entries:
                try:
                    found[entry.path] = entry.inode()
                except OSError:
                    continue
    except FileNotFoundError:
        return {}
    return found


def shared_memory_in_use(pid: int) -> set[str]:
    """The paths of named shared memory that a process has open or mapped."""
    used = {*descriptors(pid).values(), *shared_memory_mappings(pid).values()}
    return {path for path in used if path.startswith(f"{SHARED_MEMORY}/")}


def shared_memory_mappings(pid: int) -> dict[int, str]:
    """The memfds and shared-memory files a process has mapped: inode to name. Mappings outlive their descriptor."""
    found: dict[int, str] = {}
    try:
        raw = (PROC / str(pid) / "maps").read_bytes()
    except OSError:
        return {}
    if b"/memfd:" not in raw and b"/dev/shm/" not in raw:  # the usual case, in a table of a thousand lines
        return {}
    for line in raw.decode(errors="replace").splitlines():
        if "/memfd:" in line or "/dev/shm/" in line:  # noqa: S108 -- read from the kernel's table, never written
            _, _, _, _, inode, name = line.split(maxsplit=5)
            found[int(inode)] = name
    return found
