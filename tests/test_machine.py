"""Processors and memory, by both versions of control groups."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from asyncdata.machine import cpu_quota, memory_left, usable_cpus
from benchmarks import cpu_quota as quotas

IN_CONTAINER = {"/proc/self/cgroup": "0::/\n"}
IN_SERVICE = {"/proc/self/cgroup": "0::/system.slice/train.service\n"}
UNLIMITED = "9223372036854771712"
OF_VERSION_1 = {"/proc/self/cgroup": "3:memory:/docker/ab:c\n2:cpu,cpuacct:/docker/ab:c\n1:name=systemd:/x\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, None),
        (IN_CONTAINER, None),
        (IN_CONTAINER | {"cpu.max": "max 100000\n"}, None),
        (IN_CONTAINER | {"cpu.max": "150000 100000\n"}, 1.5),
        (IN_CONTAINER | {"cpu.max": "many of them"}, None),
        (IN_CONTAINER | {"cpu.max": "1 0"}, None),
        (IN_SERVICE | {"system.slice/train.service/cpu.max": "400000 100000", "system.slice/cpu.max": "max 100000"}, 4),
        (IN_SERVICE | {"system.slice/train.service/cpu.max": "max 100000", "system.slice/cpu.max": "3000 1000"}, 3),
        (IN_SERVICE | {"system.slice/train.service/cpu.max": "8 1", "cpu.max": "5 1"}, 5),
        (OF_VERSION_1 | {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (OF_VERSION_1 | {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.5),
        (
            OF_VERSION_1
            | {"cpu/docker/ab:c/cpu.cfs_quota_us": "50000\n", "cpu/docker/ab:c/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
    ],
)
def test_the_smallest_quota_counts(files: dict[str, str], cpus: float | None) -> None:
    """Of the groups around the process, whether it sees their folders or its own as the root."""
    assert cpu_quota(lambda path: files.get(path.removeprefix("/sys/fs/cgroup/"), "")) == cpus


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        (IN_CONTAINER | {"memory.max": "max\n", "memory.current": "5\n"}, None),
        (IN_CONTAINER | {"memory.max": "1000\n", "memory.current": "900\n"}, 100),
        (IN_CONTAINER | {"memory.max": "9\n", "memory.current": "8\n", "memory.stat": "anon 1\ninactive_file 6\n"}, 7),
        (IN_CONTAINER | {"memory.max": "1000\n", "memory.current": "1001\n"}, 0),
        (
            OF_VERSION_1 | {"memory/memory.limit_in_bytes": UNLIMITED, "memory/memory.usage_in_bytes": "9"},
            None,
        ),
        (OF_VERSION_1 | {"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "300"}, 700),
    ],
)
def test_memory_that_is_left(files: dict[str, str], left: int | None) -> None:
    """What the system keeps of files, and can drop, is not in the way."""
    assert memory_left(lambda path: files.get(path.removeprefix("/sys/fs/cgroup/"), "")) == left


def test_this_machine_has_something_left() -> None:
    """Whatever it is."""
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
    left = memory_left()
    assert left is None or left > 0


@pytest.mark.skipif(not quotas.is_possible(), reason="needs control groups of version 1, and root")
@pytest.mark.parametrize("share", [0.5, 1.5])
def test_a_process_in_a_group(share: float) -> None:
    """A real one, with a real quota."""
    look = "from asyncdata.machine import cpu_quota, usable_cpus; input(); print(cpu_quota(), usable_cpus())"
    program = [sys.executable, "-c", look]
    one = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with one, quotas.held([one.pid], share):
        out, _ = one.communicate("go\n")
    assert out.split() == [str(share), str(min(len(os.sched_getaffinity(0)), math.ceil(share)))]
