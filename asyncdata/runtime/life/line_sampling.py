"""`LineSampling`: looks at what user code of a Runtime does, while a pipeline that is profiled runs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from asyncdata.observe.line_table import TABLE_BYTES, Lines, LineTable, together
from asyncdata.observe.stack_sampler import SamplerThread, StackSampler


class Workers(Protocol):
    """Processes that look at themselves."""

    def sample(self, every_s: float) -> None:
        """Has them look every so many seconds; 0: not any more."""

    def lines(self) -> Lines:
        """What they saw."""


class LineSampling:
    """Looks at threads of this process, and has worker processes look at theirs. Stage loop only, but for `lines`.

    Args:
        threads: What each thread is for, by its identifier.
    """

    def __init__(self, threads: Callable[[], Mapping[int, str]]) -> None:
        self._table = LineTable(bytearray(TABLE_BYTES))
        self._sampler = StackSampler(threads, self._table)
        self._thread: SamplerThread | None = None
        self._workers: Workers | None = None
        self._rates: list[float] = []

    def begin(self, hz: float) -> None:
        """One more pipeline wants so many looks per second; the highest rate counts."""
        self._rates.append(hz)
        self._apply()

    def end(self, hz: float) -> None:
        """It does not any more."""
        self._rates.remove(hz)
        self._apply()

    def include(self, workers: Workers) -> None:
        """There are worker processes now."""
        self._workers = workers
        if self._rates:
            self._apply()

    def _apply(self) -> None:
        every_s = 1 / max(self._rates) if self._rates else 0.0
        if self._thread is None and every_s:
            self._thread = SamplerThread(self._sampler, "asyncdata-sampler")
        if self._thread is not None:
            self._thread.look_every(every_s)
        if self._workers is not None:
            self._workers.sample(every_s)

    def lines(self) -> Lines:
        """What was seen so far."""
        if self._thread is None:
            return {}
        return together(self._table.read(), {} if self._workers is None else self._workers.lines())

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.close()
