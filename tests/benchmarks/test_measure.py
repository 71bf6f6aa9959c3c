"""CPU and memory of process trees, read from the kernel, with real processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Sampler, cpu_s, in_turn, tree, tree_cpu_s, tree_own_bytes, tree_pss_bytes

MIB = 1 << 20


@contextlib.contextmanager
def child(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that runs some code, says so, and waits for its input to end."""
    whole = f"{code}\nprint('ready', flush=True)\nimport sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", whole], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()
        process.wait()


def burn(seconds: float) -> None:
    """Uses so much CPU time."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


def test_cpu_time_is_that_of_the_process() -> None:
    """The kernel's clock for this process agrees with Python's own."""
    before, own = cpu_s(os.getpid()), time.process_time()
    burn(0.1)
    spent, own_spent = cpu_s(os.getpid()) - before, time.process_time() - own
    assert abs(spent - own_spent) < 0.02


def test_a_tree_is_a_process_with_its_descendants_less_some() -> None:
    """Grandchildren belong to it; what is left out is left out with its own children."""
    code = "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)"
    with child(code) as process:
        found = tree(os.getpid())
        assert found[0] == os.getpid()
        assert process.pid in found
        assert len(tree(process.pid)) == 2
        assert process.pid not in tree(os.getpid(), without=(process.pid,))
        assert not set(tree(process.pid)) & set(tree(os.getpid(), without=(process.pid,)))


def test_cpu_time_of_children_counts_while_they_live_and_after() -> None:
    """A tree's time does not shrink when a child ends."""
    before = tree_cpu_s(os.getpid())
    with child("import time\nwhile time.process_time() < 0.3: pass"):
        alive = tree_cpu_s(os.getpid()) - before
    ended = tree_cpu_s(os.getpid()) - before
    assert alive >= 0.3
    assert ended >= alive - 0.05


def test_a_process_that_is_gone_costs_nothing() -> None:
    """Reading the clock of a process that ended meanwhile is no error."""
    with child("") as process:
        pid = process.pid
    assert cpu_s(pid) == 0.0
    assert tree_cpu_s(pid) == 0.0
    assert tree_pss_bytes(pid) == 0


def test_memory_of_a_tree_counts_its_children() -> None:
    """A child that touches 64 MiB makes the tree so much larger."""
    before = tree_pss_bytes(os.getpid())
    with child(f"held = bytearray(b'x') * {64 * MIB}") as process:
        assert tree_pss_bytes(os.getpid()) - before > 48 * MIB
        assert tree_pss_bytes(os.getpid(), without=(process.pid,)) - before < 48 * MIB


def test_what_files_hold_is_not_a_tree_s_own(tmp_path: Path) -> None:
    """Neither code that other processes have, too, nor what is read through a mapping; shared memory is."""
    path = tmp_path / "mapped"
    path.write_bytes(b"x" * 64 * MIB)
    before = tree_own_bytes(os.getpid())
    with child(f"import numpy as np; held = np.memmap({str(path)!r}, mode='r'); held[::4096].sum()"):
        assert tree_own_bytes(os.getpid()) - before < 48 * MIB
    with child("import mmap; held = mmap.mmap(-1, 64 << 20); held.write(b'x' * (64 << 20))"):
        assert tree_own_bytes(os.getpid()) - before > 48 * MIB


def test_a_sampler_looks_at_least_once_and_ends_with_its_block() -> None:
    """Even an empty block has one sample, and none comes after it."""
    calls: list[int] = []

    def look() -> int:
        calls.append(len(calls))
        return len(calls)

    with Sampler(look, 0.001) as sampler:
        pass
    assert sampler.samples
    assert len(sampler.samples) == len(calls)


def test_runs_take_turns_and_turn_round() -> None:
    """Every other round goes backwards, and each result stands with its name."""
    order: list[str] = []
    notes: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return len(order)

    results = in_turn(2, {"a": lambda: run("a"), "b": lambda: run("b")}, notes.append)
    assert order == ["a", "b", "b", "a"]
    assert results == {"a": [1, 4], "b": [2, 3]}
    assert len(notes) == 4


def test_rounds_that_would_end_too_late_are_left_out() -> None:
    """The first round is made however long it takes; a limit that nothing reaches changes nothing."""
    notes: list[str] = []
    runs = {"a": lambda: burn(0.001)}
    assert len(in_turn(3, runs, notes.append, 0.0)["a"]) == 1
    assert "1 of 3" in notes[-1]
    assert len(in_turn(3, runs, notes.append, 600.0)["a"]) == 3
