"""`from_generator`: what a user's generator yields, read in a thread (plain generators) or on the loop (async ones)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import operator
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

from asyncdata.errors import StateError
from asyncdata.memory.advance import Mark
from asyncdata.memory.block import Block
from asyncdata.memory.own import settled
from asyncdata.memory.structure import element_bytes
from asyncdata.observe.parts import Runs
from asyncdata.runtime.memory.activity import Outside
from asyncdata.runtime.meter import Timed
from asyncdata.runtime.stage import BLOCK_ROWS, LONG_STEP_S, Ahead, StageContext
from asyncdata.runtime.stages.sources.arrays import CountedStage, Taken, columns_of
from asyncdata.runtime.state.json_codec import from_json, to_json
from asyncdata.runtime.state.marker import Marker
from asyncdata.wording import kind_of
from asyncdata.workers.calling import no_coroutine
from asyncdata.workers.failure import annotate, as_raisable

_END: Final = object()


class OwnState:
    """Where a generator says it is: the values that `get` returned, until marks contain them.

    Args:
        label: Of the step.
        get: Returns the value; called where the generator runs.
        restore: Called there with a saved value, before the first element.
        every: Elements from one call of `get` to the next.
        telling: The objects of the pipeline whose generators run, by id: each can speak for one generator only.
    """

    def __init__(
        self, label: str, get: Callable[[], Any], restore: Callable[[Any], Any], every: int, telling: set[int]
    ) -> None:
        self.every = every
        self._label = label
        self._get = get
        self._restore = restore
        self._telling = telling
        self._key: int | None = None
        self._begin: Mark = None
        self._values: deque[tuple[int, Any]] = deque()

    def begin(self, mark: Mark) -> None:
        """The first element is the one behind this mark."""
        self._begin = mark
        if mark["at"] % self.every == 0:
            self._values.append((mark["at"], mark["value"]))

    def mark(self, at: int) -> Mark:
        """What is written in front of the element of this number."""
        while self._values and self._values[0][0] < at:
            self._values.popleft()
        # In front of the first element `get` has not been called yet.
        known = self._values and self._values[0][0] == at
        return {"at": at, "value": self._values[0][1]} if known else {"at": at}

    def open(self) -> None:
        """The generator will run, until `close`."""
        key = id(getattr(self._get, "__self__", self._get))
        if key in self._telling:
            raise StateError(
                "the functions of state=(get, set) speak for another generator that runs already, and cannot tell the "
                "two apart: give each generator an object of its own, with get and set as methods. A dataset that a "
                "pipeline reads several times at once, as rejection_resample does, cannot have state=",
                stage=self._label,
            )
        self._telling.add(key)
        self._key = key

    def close(self) -> None:
        """It runs no more, and its elements were taken. Idempotent."""
        if self._key is not None:
            self._telling.discard(self._key)
            self._key = None

    def give_back(self) -> None:
        """Calls `set`, if the generator begins behind a mark."""
        if self._begin is None:
            return
        try:
            no_coroutine(self._restore(_copied(self._begin["value"])))
        except BaseException as error:
            annotate(error, f"set() of state=(get, set) was called with what get() told after element {self._at}")
            raise

    @property
    def _at(self) -> int:
        return int(self._begin["at"])

    def note(self, count: int) -> None:
        """So many elements were yielded; calls `get` if it is time."""
        if count % self.every:
            return
        try:
            self._values.append((count, _copied(no_coroutine(self._get()))))
        except BaseException as error:
            annotate(error, "get() of state=(get, set) was called to tell where the generator is")
            raise


def _copied(value: Any) -> Any:
    """A value as it will be read from a state, which what happens to the original does not change."""
    return from_json(to_json(value))


class _YieldingStage(CountedStage):
    """The frame of both: a generator runs while somebody waits for its elements.

    Args:
        context: What every stage is given.
        function: Returns an iterable.
        args: For the function.
        own: The generator's own state, if it tells it.
    """

    runs: Runs = "thread"

    def __init__(
        self,
        context: StageContext,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        own: OwnState | None = None,
    ) -> None:
        super().__init__(context)
        self._function = function
        self._args = args
        self._own = own
        if own is not None:
            self._marker = Marker(own.every)
        self._wanted = 0
        self._yielded = 0
        self._ahead: Ahead[Any] = Ahead(context, self._run)
        context.meter.runs = self.runs

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        assert self._own is not None, "it begins at its beginning"
        self._yielded = operator.index(mark["at"])
        self._own.begin(mark)
        super().restore(mark)

    def _mark(self, at: int) -> Mark:
        return super()._mark(at) if self._own is None else self._own.mark(at)

    @abstractmethod
    async def _fill(self) -> None:
        """Runs the generator, as long as there is room."""

    async def _run(self) -> None:
        if self._own is not None:
            self._own.open()
        await self._fill()

    async def aclose(self) -> None:
        """See `Stage`."""
        if self._own is not None:
            self._own.close()
        await super().aclose()

    def _started(self) -> Any:
        """What the function returns."""
        if self._own is not None:
            self._own.give_back()
        return self._function(*self._args)

    def _note(self) -> None:
        """The generator has yielded an element, and waits."""
        self._yielded += 1
        if self._own is not None:
            self._own.note(self._yielded)

    def take(self, start: int, limit: int) -> Taken | None:  # noqa: ARG002 -- in turn
        items = self._ahead.items
        count = min(limit, len(items))
        return (count, *columns_of([items.popleft() for _ in range(count)])) if count else None

    def _named(self, error: BaseException) -> Exception:
        """What a pull raises for an exception of the generator."""
        raised = as_raisable(error)
        if isinstance(raised, StateError):
            raised.complete(stage=self.label)
        annotate(raised, f"in {self.label}, after element {self._yielded}")
        return raised


class GeneratorStage(_YieldingStage):
    """Elements of a plain generator (or any iterable a function returns).

    What a slow generator has yielded is passed on after 2 ms instead of being collected, also while the generator is
    busy with its next element::

        pull ─▶ a call in a thread: next(), next(), … ─▶ items ─▶ the block, when the call returns or 2 ms are over
    """

    _iterator: Iterator[Any] | None = None
    _exhausted = False
    _calling = False
    _hungry = False

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._exhausted:
            await self._ahead.room(lambda: not self._wanted or len(self._ahead.items) > 0)
            self._calling = True
            try:
                seconds = await self.context.threads.run(self._collect, self._wanted, loop)
                self.context.meter.calls_s += seconds
            finally:
                self._calling = False
                self._ahead.tell()

    def _collect(self, limit: int, loop: asyncio.AbstractEventLoop) -> float:
        """In a thread: takes up to `limit` elements, for 2 ms or until the first one. Returns how long it took."""
        taken = nbytes = 0
        began = time.monotonic()
        try:
            if self._iterator is None:
                made = self._started()
                if not isinstance(made, Iterable) and not hasattr(made, "__getitem__"):
                    raise TypeError(f"a generator function must return an iterable, not {kind_of(made)}")
                self._iterator = iter(made)
            until = time.monotonic() + LONG_STEP_S
            while not taken or (taken < limit and nbytes < self.context.block_bytes and time.monotonic() < until):
                item = next(self._iterator, _END)
                if item is _END:
                    self._exhausted = True
                    break
                item = settled(item)
                self._ahead.items.append(item)
                taken += 1
                nbytes += element_bytes(item)
                if self._hungry:
                    self._hungry = False
                    loop.call_soon_threadsafe(self._ahead.tell)
                self._note()
        except BaseException as error:  # noqa: BLE001 -- named, and raised behind the elements before it
            named = self._named(error)
            raise named from named.__cause__
        return time.monotonic() - began

    async def _pull(self, limit: int) -> Block | None:
        if self._ahead.items:
            return self._pull_ready(limit)
        self._wanted = min(limit, BLOCK_ROWS)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONG_STEP_S):
                    await self._ahead.wait(lambda: not self._calling and len(self._ahead.items) > 0)
            # The thread wakes the stage for each element from here on.
            self._hungry = True
            if not await self._ahead.wait():
                return None
        finally:
            self._wanted, self._hungry = 0, False
        return self._pull_ready(limit)

    async def aclose(self) -> None:
        await self._ahead.aclose()
        self._ahead.items.clear()
        close = getattr(self._iterator, "close", None)
        if close is not None:
            await self.context.threads.run(close)
        self._iterator = None
        await super().aclose()


class AsyncGeneratorStage(_YieldingStage):
    """Elements of an async generator, awaited on the stage loop by a task of its own.

    By the time somebody waits for its elements it is at most one element ahead.
    """

    runs: Runs = "coroutine"
    _nbytes = 0
    _late: Exception | None = None

    async def _fill(self) -> None:
        iterator: AsyncIterator[Any] | None = None
        try:
            iterator = aiter(self._started())
            is_plain = inspect.isasyncgen(iterator)  # other iterators may have awaitables of any kind
            while True:
                try:
                    coming = anext(iterator)
                    with Outside():
                        item = await (Timed(coming, self.context.meter) if is_plain else coming)
                except StopAsyncIteration:
                    break
                item = settled(item)
                self._nbytes += element_bytes(item)
                self._ahead.put(item)
                self._note()
                await self._pause()
                await self._ahead.room(self._is_full)
        except BaseException as error:
            task = asyncio.current_task()
            leaving = task is not None and bool(task.cancelling())
            if isinstance(error, asyncio.CancelledError) and leaving:
                raise
            named = self._named(error)
            if not leaving:
                raise named from named.__cause__
            self._late = named  # nobody pulls any more
        finally:
            await self._close(iterator)

    def _is_full(self) -> bool:
        return len(self._ahead.items) >= self._wanted or self._nbytes >= self.context.block_bytes

    def take(self, start: int, limit: int) -> Taken | None:
        found = super().take(start, limit)
        self._nbytes = sum(map(element_bytes, self._ahead.items))
        return found

    async def _close(self, iterator: AsyncIterator[Any] | None) -> None:
        """Closes the user's generator; what it raises then is raised by `aclose`."""
        close = getattr(iterator, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- see above
            self._late = self._late or self._named(error)

    async def _pull(self, limit: int) -> Block | None:
        self._wanted = min(limit, BLOCK_ROWS)
        try:
            if not await self._ahead.wait():
                return None
        finally:
            self._wanted = 0
        return self._pull_ready(limit)

    async def aclose(self) -> None:
        await self._ahead.aclose()
        await super().aclose()
        late, self._late = self._late, None
        if late is not None:
            raise late
