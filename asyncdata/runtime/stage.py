"""`Stage`: a running node of a plan, and the context that every stage gets.

Stages pull: the consumer's edge asks the last stage for a block, which asks the one before it, and so on up to the
sources. Backpressure therefore means that nobody asks, and a chain of cheap stages costs a few function calls per
block. Stages that work ahead (worker tasks, prefetch, async functions) do so in a task of the pipeline, see `Ahead`.

The tests check these laws for every stage:

* *any blocking*: however the input is divided into blocks, the elements, the random draws and the folded state are the
  same;
* *restore at every step*: a stage that is made anew, and brought back to a state folded at any row, gives exactly the
  rest; where rows have no fixed order, each comes once;
* *no waiting for company*: `pull` returns as soon as it has a row, or news for the state;
* *leases*: a stage passes on or releases what it takes from its input, also after the end, an error or a cancellation.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar

from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import Mark
from asyncdata.memory.block import Block
from asyncdata.observe.stopwatch import Stopwatch
from asyncdata.runtime.error_policy import Guard
from asyncdata.runtime.life.threads import Offload
from asyncdata.runtime.memory.activity import note_progress
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.meter import Meter
from asyncdata.runtime.reading.source_table import SourceTable
from asyncdata.runtime.state.choices import Choices
from asyncdata.workers.failure import annotate, as_raisable

T = TypeVar("T")

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task of the pipeline's TaskGroup."""

BLOCK_ROWS: Final = 4096
"""Rows a stage asks for when it has no reason to ask for fewer."""

BLOCK_BYTES: Final = 16 << 20
"""What a block of new objects may take, when there is no reason for less; or it is one element."""

LONG_STEP_S: Final = 0.002
"""The longest time that a stage keeps the loop to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """What a stage is given beside its inputs and its own parameters.

    Attributes:
        label: The stage's name in errors and reports.
        budget: The pipeline's memory.
        sources: For naming elements; files are entered here.
        threads: For what takes long.
        spawn: Starts a task of the pipeline.
        account: The account of this stage for a purpose, see `rows`, `tasks`, `inputs`, `ahead` and `kept`.
        path: Provenance of the elements that made the datasets around the stage; tells its sources from others.
        guard: Says whether an element that fails may be left out; None lets none.
        block_bytes: What a block of new objects may take, unless it is one element.
        ordered: Whether elements leave in the order in which they came, where the stage could do otherwise.
        meter: Counts what the step does.
        choices: The order in which a map passes elements on that are ready, where it is noted.
    """

    label: str
    budget: Budget
    sources: SourceTable
    threads: Offload
    spawn: Spawn
    account: Callable[[str], Account]
    path: tuple[int | str, ...] = ()
    guard: Guard | None = None
    block_bytes: int = BLOCK_BYTES
    ordered: bool = True
    meter: Meter = field(default_factory=Meter)
    choices: Choices | None = None

    @property
    def rows(self) -> Account:
        """Charged with slabs whose rows the stage collects for what it makes of them."""
        return self.account("rows")

    @property
    def kept(self) -> Account:
        """Charged with what the stage keeps for long: a shuffle's buffer, a cache."""
        return self.account("kept")

    @property
    def tasks(self) -> Account:
        """Charged with what the stage has made; there is room for the soonest of it."""
        return self.account("tasks")

    @property
    def inputs(self) -> Account:
        """Charged with rows that are packed for a worker."""
        return self.account("inputs")

    @property
    def ahead(self) -> Account:
        """Charged with elements that were made ahead."""
        return self.account("ahead")


class Stage(ABC):
    """One running step. Used from the stage loop only, by one caller at a time.

    Attributes:
        context: What it was given.
        label: Its name in errors and reports.
        inputs: The stages that it asks.
        meter: Counts what it hands on, where it is the stage of a node.
        sub_index: What the sub-indices of its elements are moved by (exclusive or), where the same elements come from
            other stages, too: in other repetitions, or from another dataset of the same files.
        _block: Rows of the input that it is in the middle of, for `aclose` to find.
    """

    def __init__(self, context: StageContext, inputs: tuple[Stage, ...] = ()) -> None:
        self.context = context
        self.label = context.label
        self.inputs = inputs
        self.meter: Meter | None = None
        self.sub_index = 0
        self._block: Block | None = None
        self._pause = Pause(context.meter.others)

    def pull(self, limit: int) -> Coroutine[Any, Any, Block | None]:
        """The next block, of 1 to `limit` rows, or of none when it only carries news; None at the end, and ever after.

        A pull is cancelled only when the pipeline ends, never by its consumer; what the stage holds while it waits is
        in its attributes, where `aclose` finds it.
        """
        if self.sub_index:
            return self._told_apart(limit)
        return self._pull(limit) if self.meter is None else self._metered(self.meter, limit)

    async def _told_apart(self, limit: int) -> Block | None:
        block = await (self._pull(limit) if self.meter is None else self._metered(self.meter, limit))
        if block is not None:
            block.move_sub_indices(self.sub_index)
        return block

    async def _metered(self, meter: Meter, limit: int) -> Block | None:
        pulls = meter.pulls
        began_s = pulls.begin()
        try:
            block = await self._pull(limit)
        finally:
            ended_s = pulls.end()
        if block is not None:
            meter.note(block, began_s, ended_s)
        return block

    @abstractmethod
    async def _pull(self, limit: int) -> Block | None:
        """See `pull`."""

    def pull_ready(self, limit: int) -> Block | None:
        """Like `pull`, without waiting: None if no rows are ready, or only an error or the end."""
        meter = self.meter
        if meter is None:
            block = self._pull_ready(limit)
        else:
            began_s = meter.pulls.begin()
            try:
                block = self._pull_ready(limit)
            finally:
                ended_s = meter.pulls.end()
            if block is not None:
                meter.note(block, began_s, ended_s)
        if block is not None:
            block.move_sub_indices(self.sub_index)
        return block

    def _pull_ready(self, limit: int) -> Block | None:  # noqa: ARG002 -- for stages that can tell
        """See `pull_ready`."""
        return None

    def prepare(self) -> None:
        """Starts what takes time (opening files) because a pull will come soon. Does not block."""
        for stage in self.inputs:
            stage.prepare()

    @property
    def draining(self) -> bool:
        """Whether all sources behind this stage have begun their last piece of work."""
        return self._block is None and all(stage.draining for stage in self.inputs)

    @property
    def exhausted(self) -> bool:
        """Whether the next pull is known to be the end, so that what comes behind need not wait for it."""
        return False

    @property
    def ordered(self) -> bool:
        """Whether rows come in the same order in every run, as far as that is known before they come."""
        return all(stage.ordered for stage in self.inputs)

    def restore(self, mark: Mark) -> None:
        """Goes on where it wrote a mark, as `runtime.state.resume` gives it; called before the first pull."""
        raise NotImplementedError(f"{type(self).__name__} writes no marks")

    async def aclose(self) -> None:
        """Releases everything; idempotent. Called after the pipeline's tasks have ended."""
        if self._block is not None:
            self._block.release()
            self._block = None
        self._retire()
        await close_all(self.inputs)

    def _retire(self) -> None:
        """The stage is no copy of its step any more."""
        if self.meter is not None:
            self.meter.alive.end()
            self.meter = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}>"


async def close_all(stages: Iterable[Stage]) -> None:
    """Closes every stage, also when one of them fails to; raises the first error afterwards."""
    error: Exception | None = None
    for stage in stages:
        try:
            await stage.aclose()
        except Exception as caught:  # noqa: BLE001 -- the others must be closed first
            error = error or caught
    if error is not None:
        raise error


class Pause:
    """Leaves the loop to others now and then; for loops that may go round without ever waiting.

    Args:
        others: Runs meanwhile: what others do is no work of the one who pauses.
    """

    def __init__(self, others: Stopwatch | None = None) -> None:
        self._others = Stopwatch() if others is None else others
        self._since = time.monotonic()

    async def __call__(self) -> None:
        """Lets every other task have its turn, if the last time was more than 2 ms ago."""
        if time.monotonic() - self._since > LONG_STEP_S:
            note_progress()
            with self._others:
                await asyncio.sleep(0)
            self._since = time.monotonic()


class Ahead(Generic[T]):
    """What a task makes ahead of the stage's pulls, and the waiting of the two for each other.

        fill():  await room(…) · put(item) · put(item) · … returns: the end · raises: an error, behind all items
        pull():  await wait() · take() · …

    Args:
        context: Of the stage.
        fill: The task.

    Attributes:
        items: Made, and not taken yet.
        ended: `fill` has returned or failed.
    """

    def __init__(self, context: StageContext, fill: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.items: deque[T] = deque()
        self.ended = False
        self._label = context.label
        self._spawn = context.spawn
        self._fill = fill
        self._meter = context.meter
        self._working = self._meter.works_ahead()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def _run(self) -> None:
        try:
            with self._working:
                await self._fill()
        except BaseException as error:
            if is_ended_by_pipeline(error):
                self._error = cancelled_task()
                annotate(self._error, f"in {self._label}")
                raise
            self._error = as_raisable(error)
        finally:
            self.ended = True
            self._news.set()

    # --- the task ----------------------------------------------------------------------------------------------

    async def room(self, is_full: Callable[[], bool], is_ready: Callable[[], bool] | None = None) -> None:
        """Waits until there is something to do; looks whenever something was taken.

        Args:
            is_full: Whether there is nothing to do.
            is_ready: Whether something could be taken, so that the consumer is waited for, and not the stage's calls;
                by default it is the consumer.
        """
        while is_full():
            self._room.clear()
            with self._meter.full if is_ready is None or is_ready() else self._meter.calls:
                await self._room.wait()

    def put(self, item: T) -> None:
        """One more."""
        self.items.append(item)
        self._news.set()

    def tell(self) -> None:
        """An item that was put in before has changed."""
        self._news.set()

    # --- pulls -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the task, at the first call; later ones let it look for room."""
        if self._task is None:
            self._task = self._spawn(self._run())
        self._room.set()

    async def wait(self, is_ready: Callable[[], bool] | None = None) -> bool:
        """Waits for an item, or what else is asked for; False at the end.

        Raises:
            BaseException: What the task raised; when nothing is left in front of it.
        """
        self.begin()
        while not (self.items if is_ready is None else is_ready()):
            if self.ended and not self.items:
                if self._error is not None:
                    raise self._error
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def take(self) -> T:
        """The first item."""
        self._room.set()
        return self.items.popleft()

    async def aclose(self) -> None:
        """Ends the task; what is left in `items` belongs to the stage."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def is_ended_by_pipeline(error: BaseException) -> bool:
    """Whether an error of the current task is its cancellation by the pipeline, which goes on at once.

    A function may also raise ``CancelledError`` by itself, by awaiting something that was cancelled: this is an error
    like any other. One that cancels the task in which it runs cannot be told from the pipeline: see `cancelled_task`.
    """
    task = asyncio.current_task()
    return issubclass(type(error), asyncio.CancelledError) and task is not None and bool(task.cancelling())


def cancelled_task() -> Exception:
    """What a task that was cancelled leaves to whoever still waits for what it makes.

    The pipeline cancels only tasks for which nobody waits any more; so a function cancelled the task in which it runs.
    """
    return as_raisable(asyncio.CancelledError("a function has cancelled the task in which it runs"))
