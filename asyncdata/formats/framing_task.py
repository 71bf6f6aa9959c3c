"""`FramingTask`: finds the records of a run of bytes in another process that sees the same memory.

    this process   question(start, stop, …) ──bytes──▶ worker   run(memory, question): framer.frame(…)
                   answer(reply, start)     ◀──bytes──          positions in 32 bits, relative to the start

A framer depends on nothing but the bytes and the `Place` that it is given, and what it changes in the bytes is read in
the same way afterwards, so that each question may go to another worker, or be asked again.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncdata.formats.framing import Framer, Frames, Place, Refs, Values

_NARROW: Final = 1 << 31
"""Runs of fewer bytes have positions of 32 bits."""


class TimedFrames(NamedTuple):
    """What a worker found.

    Attributes:
        frames: Of the framer.
        cpu_s: Processor time that it took.
    """

    frames: Frames
    cpu_s: float


class FramingTask:
    """See the module's docstring.

    Args:
        framer: Of the format, which has framed nothing yet; each question is put to a copy that knows of no other.
    """

    functions: tuple[Callable[..., Any], ...] = ()
    """It calls none of the user's."""

    def __init__(self, framer: Framer) -> None:
        self._framer = copy.copy(framer)

    def question(self, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place) -> bytes:
        """What is asked, see `Framer.frame`."""
        return pickle.dumps((start, stop, {"limit": limit, "remaining": remaining, "last": last, "place": place}))

    def run(self, memory: memoryview, question: bytes) -> bytes:
        """Answers it; in the worker."""
        began_s = time.thread_time()
        start, stop, named = pickle.loads(question)  # noqa: S301 -- made by the parent process, not from storage
        frames = copy.copy(self._framer).frame(memory, start, stop, **named)
        dtype = np.int32 if stop - start < _NARROW else np.int64
        frames = _moved(frames, -start, dtype)
        return pickle.dumps((frames, time.thread_time() - began_s), pickle.HIGHEST_PROTOCOL)

    def answer(self, reply: bytes, start: int) -> TimedFrames:
        """What was found, with positions that count as in the question."""
        frames, cpu_s = pickle.loads(reply)  # noqa: S301 -- made by a worker process of this one
        return TimedFrames(_moved(frames, start, np.int64), cpu_s)


def _moved(frames: Frames, by: int, dtype: type[np.signedinteger[Any]]) -> Frames:
    """The same, where all positions are this much larger; ``stop`` and ``resume`` stay as they are."""

    def placed(values: Values) -> Values:
        if not isinstance(values, Refs):
            return values
        rows = np.empty(values.rows.shape, dtype)
        rows[:, 0], rows[:, 1] = values.rows[:, 0].astype(np.int64) + by, values.rows[:, 1]
        return Refs(rows, values.leaf)

    starts: npt.NDArray[Any] = (frames.starts.astype(np.int64) + by).astype(dtype)
    return dataclasses.replace(frames, starts=starts, values=tuple(map(placed, frames.values)))
