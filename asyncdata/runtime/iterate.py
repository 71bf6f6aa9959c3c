"""Iterators over a running pipeline: for plain loops, for asyncio programs, and to hold on to.

An iterator owns its pipeline, and its Runtime when it made one. Closing it (explicitly, by the end, by an error, or
because nobody refers to it any more) puts everything back. The finalizer only signals: it may run in any thread.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from types import TracebackType


from asyncdata.errors import PipelineClosedError
from asyncdata.options import Options
from asyncdata.plan.node import Node, walk
from asyncdata.plan.transformations import WithOptions
from asyncdata.runtime.delivery import Delivery
from asyncdata.runtime.edge import Edge
from asyncdata.runtime.pipeline import Pipeline
from asyncdata.runtime.runtime import Runtime, active_runtime
from asyncdata.types import Element


def options_of(plan: Node, runtime: Runtime | None) -> Options:
    """The options in force: the plan's outermost, else the Runtime's, else the defaults."""
    for node in walk(plan):
        if isinstance(node, WithOptions):
            return node.options
    return runtime.options if runtime is not None else Options()


class _Running:
    """A pipeline under way, and what must be closed after it. Outlives the iterator by a moment."""

    def __init__(self, plan: Node, epoch: int) -> None:
        shared = active_runtime()
        options = options_of(plan, shared)
        self.runtime = shared or Runtime(options)
        self.owns_runtime = shared is None
        self.edge = Edge(capacity=1)
        self.gone = threading.Event()
        self.runtime.start()
        pipeline = Pipeline(
            self.runtime,
            plan,
            options,
            seed=secrets.randbits(63),
            epoch=epoch,
            edge=self.edge,
            ended=self.gone.set,
        )
        self.runtime.run(pipeline.run())

    def signal(self) -> None:
        """Lets everything end; returns at once, from any thread."""
        self.edge.close()
        if self.owns_runtime:
            self.runtime.begin_close()

    def close(self) -> None:
        """Returns when everything has ended."""
        self.edge.close()
        if self.owns_runtime:
            self.runtime.close()
        elif not self.runtime.on_own_thread():
            self.gone.wait()

    async def aclose(self) -> None:
        """As `close`, without blocking the loop."""
        self.edge.close()
        if self.owns_runtime:
            await self.runtime.aclose()
        else:
            await asyncio.get_running_loop().run_in_executor(None, self.gone.wait)


class PipelineIterator(Iterator[Element], AsyncIterator[Element]):
    """Yields the elements of a dataset, one at a time, to a plain loop or to an asyncio task.

    Use it as a context manager, so that everything is closed when the block is left::

        with ds.iterator() as it:
            first = next(it)

    Attributes:
        epoch: Number of this iteration of the dataset.
    """

    def __init__(self, plan: Node, epoch: int) -> None:
        self.epoch = epoch
        self._running: _Running | None = _Running(plan, epoch)
        self._finalizer = weakref.finalize(self, _Running.signal, self._running)
        # At exit Runtimes are closed as a whole, and waited for.
        self._finalizer.atexit = False
        self._delivery: Delivery | None = None
        self._row = 0
        self._finished = False

    def __iter__(self) -> PipelineIterator:
        return self

    def __aiter__(self) -> PipelineIterator:
        return self

    def __next__(self) -> Element:
        delivery = self._current()
        while delivery is None:
            running = self._usable()
            if running is None:
                raise StopIteration
            try:
                delivery = self._begin(running.edge.take())
            except BaseException as error:
                if not isinstance(error, KeyboardInterrupt):
                    self._finished = True
                self.close()
                raise
            if delivery is None:
                self.close()
        return self._element(delivery)

    async def __anext__(self) -> Element:
        delivery = self._current()
        while delivery is None:
            running = self._usable()
            if running is None:
                raise StopAsyncIteration
            try:
                delivery = self._begin(await running.edge.take_async())
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._finished = True
                await self.aclose()
                raise
            if delivery is None:
                await self.aclose()
        return self._element(delivery)

    def _usable(self) -> _Running | None:
        if self._running is not None:
            self._running.runtime.check_process()
            return self._running
        if self._finished:
            return None
        raise PipelineClosedError("the iterator was closed; make a new one with iter(dataset) or dataset.iterator()")

    def _current(self) -> Delivery | None:
        if self._delivery is not None:
            running = self._running
            if running is not None:
                running.runtime.check_process()
        return self._delivery

    def _begin(self, delivery: Delivery | None) -> Delivery | None:
        self._delivery, self._row = delivery, 0
        if delivery is None:
            self._finished = True
        return delivery

    def _element(self, delivery: Delivery) -> Element:
        element = delivery.element(self._row)
        self._row += 1
        if self._row == len(delivery):
            self._delivery = None
        return element

    def close(self) -> None:
        """Ends the iteration; returns when no task, thread, process or memory of it is left. Idempotent.

        Raises:
            CloseTimeoutError: User code is stuck in a thread; the message holds its stack.
        """
        running, self._running = self._running, None
        self._delivery = None
        if running is not None:
            self._finalizer.detach()
            running.close()

    async def aclose(self) -> None:
        """As `close`, for asyncio programs: does not block the loop."""
        running, self._running = self._running, None
        self._delivery = None
        if running is not None:
            self._finalizer.detach()
            await running.aclose()

    def __enter__(self) -> PipelineIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> PipelineIterator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


