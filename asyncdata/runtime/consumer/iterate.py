"""Iterators over a running pipeline: for plain loops, for asyncio programs, and to hold on to.

An iterator owns its pipeline, and its Runtime when it made one. Closing it (explicitly, by the end, by an error, or
because nobody refers to it any more) puts everything back. The finalizer only signals: it may run in any thread, in
the middle of any code, so it takes no lock and waits for nothing.

Waiting and taking are two steps, and only waiting can be cancelled or interrupted. So nothing is lost by a cancelled
``__anext__``, and several tasks or threads may share one iterator: each element goes to one of them.

An error is raised once. Later calls raise `PipelineClosedError` with its text, because StopIteration would tell a loop
that catches errors and continues that the epoch is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import AsyncIterator, Generator, Iterator
from types import TracebackType
from typing import Final, NoReturn, Self

from asyncdata.errors import CloseTimeoutError, PipelineClosedError
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.plan.node import Node
from asyncdata.runtime.consumer.delivery import Delivery
from asyncdata.runtime.life.running import Running, prepare
from asyncdata.types import Element
from asyncdata.workers.failure import in_a_line

_NOTHING: Final = object()


class PipelineIterator(Iterator[Element], AsyncIterator[Element]):
    """Yields the elements of a dataset, one at a time, to a plain loop or to an asyncio task.

    Use it as a context manager, so that everything is closed when the block is left.

    Example:
        >>> import asyncdata as ad
        >>> with ad.Dataset.range(3).iterator() as it:
        ...     first = next(it)
        >>> int(first), it.epoch
        (0, 0)

    Attributes:
        epoch: Number of this iteration of the dataset.
    """

    def __init__(self, plan: Node, epoch: int) -> None:
        self.epoch = epoch
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a handler of signals may ask for stats in the middle of anything
        self._delivery: Delivery | None = None
        self._row = 0
        self._elements = 0
        self._stats = PipelineStats()
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        self._failure = ""
        running = prepare(plan, epoch)
        # First of all: whoever is interrupted from here on need not do anything more.
        self._finalizer = weakref.finalize(self, running.signal)
        # At exit Runtimes are closed as a whole, and waited for.
        self._finalizer.atexit = False
        try:
            running.start()
        except BaseException:
            self._finalizer()
            if running.owns_runtime:
                running.runtime.close()
            raise
        self._running: Running | None = running

    def __iter__(self) -> PipelineIterator:
        return self

    def __aiter__(self) -> PipelineIterator:
        return self

    def __next__(self) -> Element:
        while True:
            element = self._take()
            if element is not _NOTHING:
                return element
            if self._ended:
                with self._kept_error():
                    self.close()
                raise self._outcome(StopIteration())
            running = self._usable()
            try:
                running.edge.wait()
            except BaseException as error:
                self._failure = in_a_line(error)
                self.close()
                raise

    async def __anext__(self) -> Element:
        while True:
            element = self._take()
            if element is not _NOTHING:
                return element
            if self._ended:
                # Cancelled here, the next call comes back to this place: neither the end nor an error is lost.
                with self._kept_error():
                    await self.aclose()
                raise self._outcome(StopAsyncIteration())
            await self._usable().edge.wait_async()

    def _take(self) -> Element:
        """The next element if there is one; notes the end and errors."""
        running = self._running
        if running is not None and os.getpid() != self._pid:
            running.runtime.check_process()
        with self._lock:
            delivery = self._delivery
            if delivery is None:
                if running is None or self._closed or self._ended:
                    return _NOTHING
                try:
                    self._ended, delivery = _split(running.edge.pop())
                except BaseException as error:  # noqa: BLE001 -- raised once everything is put back
                    delivery = None
                    self._fail(error)
                if delivery is None:
                    return _NOTHING
                self._delivery, self._row = delivery, 0
                self._elements += len(delivery)
            row = self._row
            self._row += 1
            if self._row == len(delivery):
                self._delivery = None
        try:
            return delivery.element(row)
        except BaseException as error:  # noqa: BLE001 -- likewise: an element that cannot be made is not passed over
            with self._lock:
                self._delivery = None
                self._fail(error)
            return _NOTHING

    def _fail(self, error: BaseException) -> None:
        """Ends the iteration with an error."""
        self._ended, self._error, self._failure = True, error, in_a_line(error)

    def stats(self) -> PipelineStats:
        """What the pipeline did so far, and what limits it; of an iterator that is closed, how it was at the end.

        Takes well under a millisecond; a second where an isolated loader is in user code and does not answer.

        Example:
            >>> import asyncdata as ad
            >>> with ad.Dataset.range(10).batch(4).iterator() as it:
            ...     batches = list(it)
            >>> it.stats().elements
            3
        """
        running = self._running
        if running is not None and os.getpid() == self._pid:
            self._stats = running.stats()
        with self._lock:
            rest = 0 if self._delivery is None else len(self._delivery) - self._row
            return dataclasses.replace(self._stats, elements=self._elements - rest)

    def __repr__(self) -> str:
        running = self._running
        state = "closed" if running is None or self._closed else "at its end" if self._ended else "open"
        state = "failed" if self._failure else state
        where = "" if running is None or running.loader_pid is None else f", in process {running.loader_pid}"
        return f"<PipelineIterator of epoch {self.epoch}, {state}{where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an iterator cannot be copied or pickled; the Dataset it came from can")

    def _usable(self) -> Running:
        running = self._running
        if running is None or self._closed:
            if self._failure:
                raise self._failed_before()
            raise PipelineClosedError(
                "the iterator was closed; make a new one with iter(dataset) or dataset.iterator()"
            )
        return running

    @contextlib.contextmanager
    def _kept_error(self) -> Generator[None]:
        """What the pipeline raised is told first; that it could not be closed properly is a note on it."""
        try:
            yield
        except CloseTimeoutError as stuck:
            if self._error is None:
                raise
            self._error.add_note(str(stuck))

    def _outcome(self, end: Exception) -> BaseException:
        """What ended the iteration; an error is raised once, and named by every later call."""
        error, self._error = self._error, None
        if error is not None:
            return error
        return self._failed_before() if self._failure else end

    def _failed_before(self) -> PipelineClosedError:
        return PipelineClosedError(
            f"the iterator failed before, with {self._failure}. It gives no more elements: make a new one, or leave "
            "out elements that fail with Options(errors=ErrorPolicy(...))"
        )

    def _let_go(self, running: Running) -> None:
        """It has ended; what it counted stays."""
        self._stats = running.stats()
        self._forget()

    def _forget(self) -> None:
        self._running = None
        self._finalizer.detach()

    def close(self) -> None:
        """Ends the iteration; returns when no task, thread, process or memory of it is left. Idempotent.

        Raises:
            CloseTimeoutError: User code is stuck in a thread; the message holds its stack.
        """
        running = self._begin_close()
        if running is not None:
            with self._reported_once():
                running.close()
            self._let_go(running)

    async def aclose(self) -> None:
        """As `close`, for asyncio programs: does not block the loop."""
        running = self._begin_close()
        if running is not None:
            with self._reported_once():
                await running.aclose()
            self._let_go(running)

    @contextlib.contextmanager
    def _reported_once(self) -> Generator[None]:
        """Interrupted, closing is waited for again by the next call; a stuck thread is not."""
        try:
            yield
        except CloseTimeoutError:
            self._forget()
            raise

    def _begin_close(self) -> Running | None:
        """What is still to be waited for; in a forked child nothing is, it belongs to the parent."""
        running = self._running
        self._closed = True
        self._delivery = None
        if running is not None and os.getpid() != self._pid:
            self._forget()
            return None
        # Until it has ended the finalizer stays: whoever closes may be interrupted, and never come back.
        return running

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CloseTimeoutError as stuck:
            if error is None:
                raise
            error.add_note(str(stuck))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except CloseTimeoutError as stuck:
            if error is None:
                raise
            error.add_note(str(stuck))


def _split(answer: tuple[bool, Delivery | None]) -> tuple[bool, Delivery | None]:
    """Whether the pipeline is at its end, and its next delivery."""
    is_answer, delivery = answer
    return is_answer and delivery is None, delivery
