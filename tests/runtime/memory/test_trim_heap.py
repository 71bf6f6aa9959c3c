"""What the C library keeps of objects that are gone goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

KEPT = """
import os
from asyncdata.runtime.memory.outside_slabs import trim_heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

pieces = [bytes(5000) for _ in range(20_000)]
last = bytes(5000)  # what lies above keeps the heap as large as it is
full = resident()
pieces.clear()
trim_heap()
print(full - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_freed_memory_is_given_back() -> None:
    """Nearly all of 100 MB, although something lies above it."""
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80 * 10**6
