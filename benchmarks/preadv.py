"""The least that reading local files costs: ``os.preadv`` into memory that is there already, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import crc32c

CHUNK_BYTES: Final = 8 << 20
_BUFFERS: Final = 16


class Preadv:
    """Reads files into buffers of its own, which it holds between calls."""

    def __init__(self) -> None:
        memory = memoryview(mmap.mmap(-1, CHUNK_BYTES * _BUFFERS))
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        # More than one buffer, as a reader has: a single one would stay in the processor's cache.
        self._buffers = [memory[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES] for index in range(_BUFFERS)]

    def cpu_s(self, paths: Sequence[Path]) -> float:
        """CPU seconds to read all the files once."""
        began = time.thread_time()
        _read_all(paths, self._buffers)
        return time.thread_time() - began

    def busy_cpu_s(self, paths: Sequence[Path]) -> float:
        """The same while another processor forms checksums, as workers do beside a reader.

        Both share the memory's bandwidth and the last cache, which makes every copy dearer.
        """
        with _checksums(self._buffers):
            return self.cpu_s(paths)


@contextlib.contextmanager
def _checksums(buffers: Sequence[memoryview]) -> Iterator[None]:
    """A thread that forms checksums of what is read, without the interpreter's lock."""
    ended = threading.Event()

    def work() -> None:
        for buffer in itertools.cycle(buffers):
            crc32c.crc32c(buffer)
            if ended.is_set():
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
