"""The least that reading local files costs: ``os.preadv`` into memory that is there already, and nothing else."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 8 << 20
_BUFFERS: Final = 16


def preadv_s(paths: Sequence[Path], rounds: int) -> list[float]:
    """CPU seconds to read all the files once, one value per round; a first round, which faults pages, is left out."""
    times = []
    with mmap.mmap(-1, CHUNK_BYTES * _BUFFERS) as memory:
        view = memoryview(memory)
        # More than one buffer, as a reader has: a single one would stay in the processor's cache.
        buffers = [view[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES] for index in range(_BUFFERS)]
        try:
            for _ in range(rounds + 1):
                began = time.thread_time()
                _read_all(paths, buffers)
                times.append(time.thread_time() - began)
        finally:
            for buffer in buffers:
                buffer.release()
            view.release()
    return times[1:]


def _read_all(paths: Sequence[Path], buffers: Sequence[memoryview]) -> None:
    turn = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            at = 0
            while count := os.preadv(descriptor, [buffers[turn % len(buffers)]], at):
                at += count
                turn += 1
        finally:
            os.close(descriptor)
