"""`Readings`: the statistics of one iteration, for its iterator and for a profile, which must not keep the iterator."""

from __future__ import annotations

import dataclasses
import os
import weakref
from typing import Any

from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.timeline import Arrivals
from asyncdata.runtime.consumer.waits import Waits
from asyncdata.runtime.life.running import Running
from asyncdata.runtime.tracing import TracedArrivals


class Readings:
    """What a pipeline and its consumer did so far; after the end, how it was then. Any thread may read.

    Args:
        running: The pipeline.
        finalizer: Of the iterator. A pipeline whose iterator nobody refers to any more is over, too; a weak reference
            would keep it for a moment whenever somebody looks.

    Attributes:
        elements: How many the consumer received in all; None as long as it may take more, or is gone without a word.
        waits: What the consumer did.
    """

    def __init__(self, running: Running, finalizer: weakref.finalize[..., Any]) -> None:
        self._running: Running | None = running
        self._finalizer = finalizer
        self._pid = os.getpid()
        self._stats = PipelineStats()
        self.elements: int | None = None
        self.waits = Waits()

    @property
    def is_over(self) -> bool:
        """Whether the numbers do not change any more."""
        return self._running is None or not self._finalizer.alive

    def record_arrivals(self) -> Arrivals:
        """Has the consumer's steps and waits kept one by one, from now on; by one record for all who want it."""
        arrivals = self.waits.arrivals
        if arrivals is None:
            trace = None if self._running is None else self._running.trace
            arrivals = Arrivals() if trace is None else TracedArrivals(trace)
            self.waits.record(arrivals)
        return arrivals

    def stats(self, elements: int | None = None) -> PipelineStats:
        """The numbers now.

        Args:
            elements: That the consumer received; by default counted a delivery at a time.
        """
        running = self._running
        if running is not None and os.getpid() == self._pid:
            now = running.stats()
            # A loader process that has ended, or does not answer, leaves the last answer as it was. So does a thread
            # whose answer is older than that, or comes after the end.
            if self._running is not None and now.window_s >= self._stats.window_s:
                self._stats = now
        if elements is None:
            elements = self.waits.elements if self.elements is None else self.elements
        consumer = self.waits.stats(elements)
        return dataclasses.replace(self._stats, elements=elements, consumer=consumer)

    def end(self, elements: int) -> None:
        """The pipeline has ended; what it counted stays."""
        self.elements = elements
        self.stats()
        self._running = None

    def leave(self) -> None:
        """As `end`, for a pipeline that cannot be asked any more."""
        self._running = None
