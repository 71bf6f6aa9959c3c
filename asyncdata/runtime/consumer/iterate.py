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
import functools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from asyncdata import arguments
from asyncdata.errors import CloseTimeoutError, PipelineClosedError, StateError
from asyncdata.memory.advance import State
from asyncdata.observe.profile import active_profile
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.plan.label import steps_of
from asyncdata.plan.node import Node
from asyncdata.planner.fingerprint import drawn_seeds
from asyncdata.planner.sharing import readers_of
from asyncdata.runtime.consumer.delivery import Delivery
from asyncdata.runtime.consumer.edge import OwnLoopError
from asyncdata.runtime.consumer.positions import Positions
from asyncdata.runtime.consumer.readings import Readings
from asyncdata.runtime.life.running import Running, prepare
from asyncdata.runtime.state.document import PlanLines, SavedState, from_document, to_document
from asyncdata.runtime.state.filling import fillings_of, memory_cells, put_back
from asyncdata.runtime.state.news import NOTHING, News
from asyncdata.runtime.state.order_log import OrderLogWriter
from asyncdata.runtime.state.tracks import UNTOUCHED, Saved, SavedTrack
from asyncdata.types import Element
from asyncdata.wording import counted
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

    def __init__(
        self,
        plan: Node,
        epoch: int,
        state: Mapping[str, Any] | None = None,
        next_epoch: Callable[[int], None] = lambda _epoch: None,
    ) -> None:
        self._plan = plan
        self._next_epoch = next_epoch
        self._lock = threading.RLock()  # a handler of signals may ask for stats in the middle of anything
        self._begin(epoch, None if state is None else from_document(state, plan))

    def _begin(self, epoch: int, saved: SavedState | None, position: int = 0) -> None:
        """Starts a pipeline, at the beginning of an epoch, at a state, or where a run that is repeated began."""
        self._pid = os.getpid()  # of the pipeline: a forked child may load a state, and has one of its own then
        self._fillings = fillings_of(self._plan)
        running = prepare(self._plan, epoch, saved, position)
        self._cells = memory_cells(running.cargo.plan)
        self._filled_before = tuple(cell.filling for cell in self._cells)
        saved, self._until = running.saved, running.until
        self.epoch = epoch if saved is None else saved.epoch
        self._delivery: Delivery | None = None
        self._row = 0
        self._handed = 0
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        self._failure = ""
        self._news = self._news_before = NOTHING if saved is None else saved.news
        options = running.cargo.options
        self._readers = readers_of(running.cargo.plan, deterministic=options.deterministic)
        self._positions = Positions(
            0 if saved is None else saved.position,
            UNTOUCHED if saved is None else saved.state,
            options.state_history,
            tracked=self._readers.is_tracked,
            bound=None if saved is None else saved.division.get("refused"),
        )
        # First of all: whoever is interrupted from here on need not do anything more.
        self._finalizer = weakref.finalize(self, running.signal)
        # At exit Runtimes are closed as a whole, and waited for.
        self._finalizer.atexit = False
        self._readings = Readings(running, self._finalizer)
        self._made = running.cargo
        self._drawn = tuple(drawn_seeds(running.cargo.plan))
        self._log: OrderLogWriter | None = None
        try:
            if (path := running.cargo.options.order_log) is not None:
                state = self._document(0, UNTOUCHED, NOTHING) if saved is None else to_document(saved, self._lines)
                self._log = OrderLogWriter(os.fspath(path), state)
            running.start()
            for recorder in (active_profile(), running.runtime.profile_socket):
                if recorder is not None:
                    recorder.watch(self._readings, steps_of(self._plan), self.epoch, options)
        except BaseException:
            self._finalizer()
            if running.owns_runtime:
                running.runtime.close()
            raise
        self._running: Running | None = running
        if saved is not None:
            self._next_epoch(saved.epoch + 1)

    def __iter__(self) -> PipelineIterator:
        return self

    def __aiter__(self) -> PipelineIterator:
        return self

    def __next__(self) -> Element:
        try:
            element = self._take()
            while element is _NOTHING and not self._ended:
                if (old := self._interrupted()) is not None:
                    with self._reported_once():
                        old.close()
                    self._take_over(old)
                elif (running := self._usable()) is None:
                    break
                else:
                    with self._readings.waits.waiting():
                        running.edge.wait()
                element = self._take()
        except OwnLoopError:
            raise  # in a function of the pipeline, which reports it to whoever iterates
        except BaseException as error:
            # A signal handler may raise at any step; a traceback that is kept must not keep the pipeline open.
            if not self._closed and os.getpid() == self._pid:
                self._failure = in_a_line(error)
                self.close()
            raise
        if element is not _NOTHING:
            return element
        with self._kept_error():
            self.close()
        raise self._outcome(StopIteration())

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
            if (old := self._interrupted()) is not None:
                with self._reported_once():
                    await old.aclose()
                self._take_over(old)
            elif (running := self._usable()) is not None:
                with self._readings.waits.waiting():
                    await running.edge.wait_async()

    def _interrupted(self) -> Running | None:
        """The pipeline, if the run that is repeated was interrupted here and went on from its state."""
        with self._lock:
            is_here = self._until is not None and self.position == self._until
            return self._running if is_here and not self._closed and not self._ended else None

    def _take_over(self, old: Running) -> None:
        """Goes on where the run did; the old pipeline is closed. Several may come here, and the first one does it."""
        with self._lock:
            if self._running is old and not self._closed:
                self._readings.waits.end()
                self._end_log()
                self._let_go()
                positions, news, filled = self._positions, self._news_before, self._filled_before
                self._begin(self.epoch, None, self._until or 0)
                # For the consumer it is one run: what it holds of the elements before can be committed.
                self._positions.follow(positions)
                self._news_before, self._filled_before = news, filled

    def _take(self) -> Element:
        """The next element if there is one; notes the end and errors."""
        running = self._running
        if running is not None and os.getpid() != self._pid:
            running.runtime.check_process()
        taken = 0
        try:
            with self._lock:
                if self._until is not None and self.position == self._until:
                    return _NOTHING  # what the pipeline has beyond this was never delivered
                running = self._running  # another thread may have gone on with another one
                delivery = self._delivery
                if delivery is None:
                    if running is None or self._closed or self._ended:
                        return _NOTHING
                    has_ended, delivery = _split(running.edge.pop())
                    if self._closed:
                        return _NOTHING  # in the middle of this, by a handler of signals: the epoch is not complete
                    self._ended = has_ended
                    if delivery is None:
                        return _NOTHING
                    self._delivery, self._row = delivery, 0
                    news = delivery.news or NOTHING
                    if self._log is not None:
                        self._log.append(news)
                    self._news = self._news.then(news)
                    self._positions.receive(delivery.advance, news.events)
                    if not len(delivery):
                        self._delivery = None
                        return _NOTHING  # it only has news
                    self._readings.waits.received(len(delivery))
                row = self._row
                taken = 1
                self._row += taken
                self._handed += taken
                if self._row == len(delivery):
                    self._delivery = None
            return delivery.element(row)
        except BaseException as error:  # noqa: BLE001 -- raised once everything is put back; no element is passed over
            with self._lock:
                self._delivery = None
                self._handed -= taken
                self._fail(error)
            return _NOTHING

    def _fail(self, error: BaseException) -> None:
        """Ends the iteration with an error."""
        self._ended, self._error, self._failure = True, error, in_a_line(error)
        if isinstance(error, StateError):
            put_back(self._fillings)

    # --- state -------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Elements of the epoch that were delivered, those before a state was loaded included.

        Example:
            >>> import asyncdata as ad
            >>> with ad.Dataset.range(3).iterator() as it:
            ...     number = next(it)
            >>> it.position
            1
        """
        with self._lock:
            return self._positions.first + self._handed

    def commit(self, position: int) -> None:
        """Says how many elements of the epoch were really used: `state_dict` means the state after these from now on.

        A trainer that reads ahead commits the `position` that it had when it was given the batch it has used.

        Args:
            position: Not more than were delivered, and not less than the last time.

        Example:
            >>> import asyncdata as ad
            >>> with ad.Dataset.range(10).iterator() as it:
            ...     ahead = [next(it) for _ in range(3)]
            ...     it.commit(1)
            ...     it.state_dict()["position"]
            1
        """
        position = arguments.integer("position", position, least=0)
        with self._lock:
            self._check_position(position)
            before = self._positions.least
            if position < before:
                raise ValueError(f"position {position} was committed after {before}")
            self._positions.commit(position)

    def _check_position(self, position: int) -> None:
        if position > self.position:
            delivered = counted(self.position, "element was", "elements were")
            raise ValueError(f"position {position} is not reached: {delivered} delivered")

    def state_dict(self, at: int | None = None) -> dict[str, Any]:
        """Where the iteration is: what a new iterator needs to give exactly the elements that are left.

        It describes what was delivered, not what was read ahead, and never stops the pipeline. It is
        JSON-serializable, and can be asked for at any time, also of an iterator that is closed.

        Args:
            at: How many delivered elements it counts, one of the last ``Options(state_history=...)``; by default those
                that were committed, see `commit`, or else all.

        Raises:
            StateError: The pipeline passes elements on as they are ready, which no position describes; or the state
                is of longer ago than states are kept.

        Example:
            >>> import asyncdata as ad
            >>> ds = ad.Dataset.range(6).shuffle(6, seed=1).batch(2)
            >>> with ds.iterator() as it:
            ...     first = next(it)
            ...     state = it.state_dict()
            ...     rest = [batch.tolist() for batch in it]
            >>> with ds.iterator(state=state) as it:
            ...     [batch.tolist() for batch in it] == rest
            True
        """
        with self._lock:
            if at is None:
                committed = self._positions.committed
                at = self.position if committed is None else committed
            else:
                at = arguments.integer("at", at, least=0)
                self._check_position(at)
            # In front of the first element nothing was taken from a listing: a new one is as good.
            news = self._news if at else self._news_before
            readers = self._readers
            refused = readers.part.refused
            bound: str | None = None
            tracks: tuple[SavedTrack, ...] = ()
            state: State | None
            state, ordered = self._positions.at(at)
            in_order = ordered and not readers.part.causes
            if readers.is_tracked:
                delivered = self._positions.delivered(at)
                refused, bound = delivered.refused, delivered.bound
                tracks = delivered.saved(in_order=in_order) if refused is None else ()
            elif not readers.part.steps:
                refused = (
                    "a step of an inner dataset passes elements on as they are ready: no position describes which "
                    "of them were delivered"
                )
            if not in_order:
                if refused is not None:
                    raise StateError(f"{refused}. deterministic=True keeps the order")
                state = None
        return self._document(at, Saved(state, tracks), news, refused or bound)

    def _document(self, at: int, state: Saved, news: News, refused: str | None = None) -> dict[str, Any]:
        made = self._made
        return to_document(
            SavedState(
                epoch=self.epoch,
                position=at,
                seed=made.seed,
                drawn=self._drawn,
                state=state,
                causes=self._readers.part.causes,
                news=news,
                division=self._readers.division(made.options.seed, refused),
                # In front of the first element none counts that was filled ahead of it.
                caches=tuple(cell.filling for cell in self._cells) if at else self._filled_before,
            ),
            self._lines,
        )

    @functools.cached_property
    def _lines(self) -> PlanLines:
        return PlanLines.of(self._plan)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state: what is running is closed, and the next element is the one after the state.

        The dataset's next epoch follows the state's.

        Args:
            state: Of `state_dict`, from this or another process; of the same steps. Parallelism, prefetching and
                memory may differ, and the number of readers if the state is one of `asyncdata.state.split`.

        Raises:
            StateError: It does not fit; the message names the first difference.

        Example:
            >>> import asyncdata as ad
            >>> it = iter(ad.Dataset.range(4))
            >>> state = it.state_dict()
            >>> [int(x) for x in it]
            [0, 1, 2, 3]
            >>> it.load_state_dict(state)
            >>> [int(x) for x in it]
            [0, 1, 2, 3]
        """
        saved = from_document(state, self._plan)
        self.close()
        self._begin(self.epoch, saved)

    # --- stats -------------------------------------------------------------------------------------------------

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
        return self._readings.stats(self._handed)

    def __repr__(self) -> str:
        running = self._running
        state = "closed" if running is None or self._closed else "at its end" if self._ended else "open"
        state = "failed" if self._failure else state
        where = "" if running is None or running.loader_pid is None else f", in process {running.loader_pid}"
        return f"<PipelineIterator of epoch {self.epoch}, {state}{where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an iterator cannot be copied or pickled; the Dataset it came from can")

    def _usable(self) -> Running | None:
        """What is to be waited for; None if another thread has met the end meanwhile, and closed the iterator."""
        with self._lock:  # another thread may be going on with another pipeline
            running, is_closed = self._running, self._closed
        if running is None or is_closed:
            if self._ended and not self._failure:
                return None
            if self._failure:
                raise self._failed_before()
            raise PipelineClosedError(
                "the iterator was closed; make a new one with iter(dataset) or dataset.iterator()"
            )
        return running

    @contextlib.contextmanager
    def _kept_error(self) -> Generator[None]:
        """Raises what the pipeline raised; a failure to close it becomes a note on that error."""
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

    def _let_go(self) -> None:
        """It has ended; what it counted stays."""
        self._readings.end(self._handed)
        self._forget()

    def _forget(self) -> None:
        self._running = None
        self._readings.leave()
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
            self._let_go()

    async def aclose(self) -> None:
        """As `close`, for asyncio programs: does not block the loop."""
        running = self._begin_close()
        if running is not None:
            with self._reported_once():
                await running.aclose()
            self._let_go()

    def abandon(self) -> None:
        """Ends the iteration without waiting for its end, as when nobody refers to the iterator any more.

        A finalizer may call it, in any thread. The state can still be asked for, and `close` can still be called.

        Example:
            >>> import asyncdata as ad
            >>> it = ad.Dataset.range(3).iterator()
            >>> first = next(it)
            >>> it.abandon()
            >>> it.state_dict()["position"]
            1
        """
        self._closed = True
        self._delivery = None
        self._readings.elements = self._handed
        if os.getpid() == self._pid:
            self._finalizer()
        # Whoever takes an element meanwhile may be writing to the log: it is closed with the iterator then.
        if self._lock.acquire(blocking=False):
            try:
                self._end_log()
            finally:
                self._lock.release()

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
        if running is not None and os.getpid() != self._pid:
            # A thread of the parent may have had the lock.
            self._closed = True
            self._delivery = None
            self._forget()
            return None
        with self._lock:
            self._closed = True
            self._readings.waits.end()
            self._delivery = None
            self._end_log()
        # Until it has ended the finalizer stays: whoever closes may be interrupted, and never come back.
        return running

    def _end_log(self) -> None:
        """Another iterator may write the order log from now on; with the lock only."""
        if self._log is not None:
            self._log.close()
            self._log = None

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
