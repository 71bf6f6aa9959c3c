"""Objects on their way between the two processes: a pickle, and beside it the arrays that it refers to.

    | count | lengths: pickle, array, array … | pickle | array | array | …          arrays 64-byte aligned

Short ones are sent in a message, long ones in a nameless file into which arrays are written once. The receiver either
reads them into its own memory (`load`), or maps the file (`load_mapped`) if they live as long as a pipeline.

Both ends are processes of one pipeline: nothing here is ever read from storage.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import cloudpickle  # type: ignore[import-untyped]  # ships no types
import numpy as np
import numpy.typing as npt

from asyncdata.memory import pickling_by_value
from asyncdata.memory.wire import aligned
from asyncdata.workers.channel import open_nameless_file

_MOST_PIECES: Final = 512
"""Of one system call; the limit of the system, IOV_MAX, is no lower than 1024 where it matters."""
_WORD: Final = 8

Buffers = list[memoryview]


def dump(value: object, dumps: Callable[..., bytes]) -> Buffers:
    """The pieces to send one after the other.

    Args:
        value: What is to be sent.
        dumps: ``pickle.dumps`` or a function like it.
    """
    beside: list[pickle.PickleBuffer] = []
    pickled = dumps(value, protocol=5, buffer_callback=beside.append)
    arrays = [buffer.raw() for buffer in beside]
    sizes = [len(pickled), *(array.nbytes for array in arrays)]
    head = np.array([len(sizes), *sizes], np.int64).tobytes()
    pieces = [memoryview(head), memoryview(pickled)]
    position = len(head) + len(pickled)
    for array in arrays:
        pieces += [memoryview(bytes(aligned(position) - position)), array]
        position = aligned(position) + array.nbytes
    return pieces


def dump_object(value: object) -> Buffers:
    """As `dump`, of anything a pipeline yields; classes of ``__main__`` keep being the same class in the consumer."""
    try:
        return dump(value, pickle.dumps)
    except Exception:  # noqa: BLE001 -- any __reduce__ may run here; what cannot be pickled at all fails again below
        return dump(value, partial(pickling_by_value.dumps, cloudpickle))


def nbytes(pieces: Buffers) -> int:
    """Length of them all."""
    return sum(piece.nbytes for piece in pieces)


def write_file(name: str, pieces: Buffers) -> int:
    """Puts pieces into a nameless file; the caller closes the descriptor."""
    fd = open_nameless_file(name)
    try:
        waiting = [piece for piece in pieces if piece.nbytes]
        while waiting:
            written = os.writev(fd, waiting[:_MOST_PIECES])
            while waiting and written >= waiting[0].nbytes:
                written -= waiting.pop(0).nbytes
            if written:
                waiting[0] = waiting[0][written:]
    except BaseException:
        os.close(fd)
        raise
    return fd


def load(body: bytes) -> Any:
    """Loads what was sent in a message. Arrays get memory of their own, because they may be written to."""
    sizes, position = _head(memoryview(body))
    pickled = memoryview(body)[position : position + sizes[0]]
    position += sizes[0]
    arrays: list[bytearray] = []
    for size in sizes[1:]:
        position = aligned(position)
        arrays.append(bytearray(body[position : position + size]))
        position += size
    return pickle.loads(pickled, buffers=arrays)  # noqa: S301 -- from a process of this pipeline


def load_file(fd: int) -> Any:
    """What was sent in a file; each array is read into memory of its own. Closes the descriptor."""
    try:
        sizes = _sizes_in(fd)
        position = _WORD * (1 + len(sizes))
        pickled = np.empty(sizes[0], np.uint8)
        _read(fd, pickled, position)
        position += sizes[0]
        arrays: list[npt.NDArray[np.uint8]] = []
        for size in sizes[1:]:
            arrays.append(np.empty(size, np.uint8))
            position = aligned(position)
            _read(fd, arrays[-1], position)
            position += size
    finally:
        os.close(fd)
    return pickle.loads(pickled.data, buffers=arrays)  # noqa: S301 -- from a process of this pipeline


def load_mapped(fd: int, size: int) -> Any:
    """What was sent in a file; arrays view the file, which lives as long as they do. Closes the descriptor."""
    try:
        whole = memoryview(mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(fd)
    sizes, position = _head(whole)
    pickled = whole[position : position + sizes[0]]
    position += sizes[0]
    arrays: Buffers = []
    for length in sizes[1:]:
        position = aligned(position)
        arrays.append(whole[position : position + length])
        position += length
    return pickle.loads(pickled, buffers=arrays)  # noqa: S301 -- from a process of this pipeline


def _head(view: memoryview) -> tuple[list[int], int]:
    count = int.from_bytes(view[:_WORD], "little")
    end = _WORD * (1 + count)
    return view[_WORD:end].cast("q").tolist(), end


def _sizes_in(fd: int) -> list[int]:
    count = int.from_bytes(os.pread(fd, _WORD, 0), "little")
    return memoryview(os.pread(fd, _WORD * count, _WORD)).cast("q").tolist()


def _read(fd: int, target: npt.NDArray[np.uint8], position: int) -> None:
    view = target.data
    while view.nbytes:
        count = os.preadv(fd, [view], position)
        if not count:
            raise OSError("a file between two processes is shorter than it says")
        view = view[count:]
        position += count
