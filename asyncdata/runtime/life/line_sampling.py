"""`LineSampling`: looks at what user code of a Runtime does, while a pipeline that is profiled runs on it.

If the profile has a trace, reads and tasks are noted, too: those of all pipelines that run on the Runtime meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from asyncdata.observe.line_table import TABLE_BYTES, Lines, LineTable, together
from asyncdata.observe.stack_sampler import SamplerThread, StackSampler
from asyncdata.observe.trace_ring import Profiled, TraceRing


class Workers(Protocol):
    """Processes that look at themselves."""

    def sample(self, every_s: float) -> None:
        """Has them look every so many seconds; 0: not any more."""

    def note_tasks(self, ring: TraceRing | None) -> None:
        """Has their tasks noted in a ring; None: not any more."""

    def lines(self) -> Lines:
        """What they saw."""


class LineSampling:
    """Looks at threads of this process, and has worker processes look at theirs. Stage loop only, but for `lines`.

    Args:
        threads: What each thread is for, by its identifier.
        trace_reads: Has reads noted in a ring, or no longer.
    """

    def __init__(
        self, threads: Callable[[], Mapping[int, str]], trace_reads: Callable[[TraceRing | None], None]
    ) -> None:
        self._table = LineTable(bytearray(TABLE_BYTES))
        self._sampler = StackSampler(threads, self._table)
        self._thread: SamplerThread | None = None
        self._workers: Workers | None = None
        self._wanted: list[Profiled] = []
        self._trace_reads = trace_reads

    def begin(self, wanted: Profiled) -> None:
        """One more pipeline wants so many looks per second, and a trace; the highest rate counts, and the last ring."""
        self._wanted.append(wanted)
        self._apply()

    def end(self, wanted: Profiled) -> None:
        """It does not any more."""
        self._wanted.remove(wanted)
        self._apply()

    def include(self, workers: Workers) -> None:
        """There are worker processes now."""
        self._workers = workers
        if self._wanted:
            self._apply()

    def _apply(self) -> None:
        hz = max((each.sample_hz for each in self._wanted), default=0.0)
        every_s = 1 / hz if hz else 0.0
        rings = [each.trace.ring for each in self._wanted if each.trace is not None]
        ring = rings[-1] if rings else None
        self._trace_reads(ring)
        if self._thread is None and every_s:
            self._thread = SamplerThread(self._sampler, "asyncdata-sampler")
        if self._thread is not None:
            self._thread.look_every(every_s)
        if self._workers is not None:
            self._workers.sample(every_s)
            self._workers.note_tasks(ring)

    def lines(self) -> Lines:
        """What was seen so far."""
        if self._thread is None:
            return {}
        return together(self._table.read(), {} if self._workers is None else self._workers.lines())

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.close()
