"""A running plan: lowers it, pumps its output to the consumer's edge, and puts everything back.

    run() ── TaskGroup ┬─ pump: root.pull ─▶ deliver ─▶ edge
                       └─ tasks of stages (feeders, worker tasks, prefetch, sloppy slots)

The group ends before the stages are closed; so when `aclose` releases what stages hold, no task touches it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from asyncdata.errors import PipelineClosedError
from asyncdata.memory.accounts import Account, Kind
from asyncdata.memory.advance import EMPTY, NO_ORIGINS, Advance
from asyncdata.memory.block import Block
from asyncdata.memory.short_blocks import SHORT_BYTES, SHORT_ROWS, short_bytes
from asyncdata.memory.structure import LEAF
from asyncdata.observe.snapshot import PipelineStats
from asyncdata.observe.trace_ring import Profiled
from asyncdata.options import Options
from asyncdata.plan.node import Node
from asyncdata.planner.fingerprint import fingerprint
from asyncdata.planner.rules import rewrite
from asyncdata.planner.sharing import readers_of
from asyncdata.planner.sizes import divide, worker_stages
from asyncdata.runtime.consumer.delivery import Deliverer, Delivery
from asyncdata.runtime.consumer.edge import Exit
from asyncdata.runtime.consumer.gauges import Gauges
from asyncdata.runtime.life.runtime import Runtime
from asyncdata.runtime.lower.depth import lower_whole
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.scope import Scope, Services
from asyncdata.runtime.settings import behind_plans
from asyncdata.runtime.stage import BLOCK_ROWS, Pause, Stage, cancelled_task
from asyncdata.runtime.state.document import Start
from asyncdata.runtime.state.news import News
from asyncdata.runtime.state.tracks import Owner
from asyncdata.runtime.tracing import TracedDeliverer
from asyncdata.runtime.tuning.knob import Knobs
from asyncdata.workers.failure import as_raisable

_LOGGER: Final = logging.getLogger(__name__)
_QUICK_S: Final = 500e-6
"""A block that took no longer was made about as quickly as it is handed over."""
_MOST_CHOICES: Final = 4096
"""Notes of what steps chose that wait for the next element; where a filter drops everything they do not."""


class Pipeline:
    """One iteration of one plan on one Runtime.

    Args:
        runtime: Whose loops, memory and workers are used.
        plan: The last node.
        options: In force.
        seed: Stands in for seeds that were not given.
        epoch: Number of this iteration.
        start: The state that it is brought back to; None: it begins.
        edge: Where deliveries go.
        ended: Called on the stage loop when everything is put back.
        remote: The consumer is another process.
        profiled: What is recorded of it.
    """

    def __init__(
        self,
        runtime: Runtime,
        plan: Node,
        options: Options,
        *,
        seed: int,
        epoch: int,
        edge: Exit,
        ended: Callable[[], None],
        start: Start | None = None,
        remote: bool = False,
        profiled: Profiled = Profiled(),  # noqa: B008 -- a tuple, which nothing changes
    ) -> None:
        self._runtime = runtime
        self._written = plan
        self._behind = behind_plans()
        self._plan = rewrite(plan, options, self._behind)
        self._options = options
        self._seed = seed
        self._epoch = epoch
        self._start = start or Start()
        self._readers = readers_of(self._plan, deterministic=options.deterministic)
        self._tracks = self._start.state.running_tracks(ordered=not self._readers.part.causes)
        self._edge = edge
        self._ended = ended
        self._remote = remote
        self._profiled = profiled
        self._is_sampled = False
        self._gauges: Gauges | None = None
        self._last_stats = PipelineStats()
        self._root: Stage | None = None
        self._root_ended = False
        self._budget: Budget | None = None
        self._knobs: Knobs | None = None

    async def run(self) -> None:
        """Runs to the end, or until the edge is closed, or until cancelled, which the Runtime does when it closes."""
        error: BaseException | None
        services: list[Services] = []
        try:
            error = await self._run_group(services)
        except Exception as refused:  # noqa: BLE001 -- raised by the iterator, which must not wait for ever
            error = refused
        except asyncio.CancelledError:
            error = cancelled_task()
            if not self._runtime.is_usable():
                error = PipelineClosedError("the Runtime was closed while the pipeline was running")
        self._root_ended = True
        # A task of its own: whoever cancels this one does not keep it from putting everything back.
        put_back = self._runtime.spawn_on_stage(self._put_back(services, error))
        del error
        while not put_back.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(put_back)

    def _is_leaving(self) -> bool:
        return self._root_ended or self._edge.is_closed

    async def _run_group(self, services: list[Services]) -> BaseException | None:
        error: BaseException | None = None
        task = asyncio.current_task()
        assert task is not None
        # A consumer that leaves does not wait for what its pipeline waits for: its memory, slow reads, slow functions.
        self._edge.attach(asyncio.get_running_loop(), self._hear, left=task.cancel)
        budget = self._budget = await self._runtime.budgets.take(self._is_leaving)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = _Tasks(group)
                services.append(
                    Services(
                        self._runtime,
                        budget,
                        self._options,
                        self._seed,
                        tasks.spawn,
                        self._tracks,
                        self._start,
                        self._runtime.found(fingerprint(self._written)),
                        self._profiled.trace,
                    )
                )
                error = await self._work(services[0])
                # Told at once: a task that does not end (user code) must not keep the consumer from hearing of it.
                self._edge.finish(error)
                tasks.cancel()
        except BaseExceptionGroup as ended:
            return error or _single(ended)
        return error

    async def _work(self, services: Services) -> BaseException | None:
        """The pump; returns the pipeline's error, if any."""
        error: BaseException | None = None
        try:
            shares = divide(services.options, current_shards=1)
            consumer = services.account(
                "consumer", "consumer", rank=0, kind=Kind.ASSEMBLER, reserved_bytes=shares.consumer_bytes
            )
            services.budget.adopt(consumer)
            services.budget.activity.enter()
            services.budget.activity.consume(True)
            self._knobs = services.knobs
            self._edge.remind()
            trace = self._profiled.trace
            make = Deliverer if trace is None else functools.partial(TracedDeliverer, trace)
            deliverer = make(
                services.budget,
                consumer,
                self._runtime.returns,
                shares.lease_bytes,
                fine_share_bytes=shares.fine_lease_bytes,
                remote=self._remote,
            )
            if any(self._profiled):
                self._is_sampled = True
                self._runtime.sampling.begin(self._profiled)
            self._gauges = Gauges(self._runtime, services, deliverer)
            await services.begin()
            self._root = lower_whole(self._plan, self._scope(services, consumer))
            await self._pump(self._root, deliverer, services)
        except asyncio.CancelledError as caught:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error = as_raisable(caught)  # user code raised it by itself
        except BaseException as caught:  # noqa: BLE001 -- raised by the iterator
            error = as_raisable(caught)
        # What steps chose behind the last element: a run that repeats it comes as far.
        self._tell_choices(services, least=1)
        return error

    def _tell_choices(self, services: Services, *, least: int) -> None:
        """Delivers what steps chose without an element, if it is so much."""
        if services.choices is not None and services.choices.pending >= least:
            told = Delivery(LEAF, (), None, NO_ORIGINS, EMPTY)
            told.news = services.news()
            self._edge.put(told)

    def _scope(self, services: Services, consumer: Account) -> Scope:
        return Scope(
            services=services,
            place="plan",
            element=(),
            seed=services.seed,
            epoch=(self._epoch,),
            rank=1,
            rows_account=consumer,
            shards=1,
            worker_stages=worker_stages(self._plan),
            ordered=self._options.deterministic,
            errors=services.errors,
            behind=self._behind,
            state=self._start.state.state,
            part=self._readers.part,
            within=Owner() if self._readers.is_tracked else None,
        )

    async def _pump(self, root: Stage, deliverer: Deliverer, services: Services) -> None:
        pause = Pause()
        dropped: list[Advance] = []
        more = 0
        while await self._edge.wait_for_room(more):
            began = time.monotonic()
            block = await root.pull(BLOCK_ROWS)
            if block is None:
                return
            more = _more(block, time.monotonic() - began)
            if not len(block):
                self._edge.remind()
                self._tell_choices(services, least=_MOST_CHOICES)
                if self._readers.is_tracked:
                    # What nothing was made of is used up with the next element.
                    dropped.append(block.advance)
                elif block.advance.marks:
                    # Else a state would go back to a mark that came together with an element.
                    dropped = [block.advance]
            else:
                if dropped:
                    block.advance = Advance.concat([*dropped, block.advance])
                    dropped = []
                await self._deliver(block, deliverer, services.news, more)
            del block
            await pause()

    async def _deliver(self, block: Block, deliverer: Deliverer, news: Callable[[], News | None], more: int) -> None:
        """Delivers a block in as many parts as the consumer's memory asks for, until the consumer is gone."""
        rest: Block | None = block
        del block
        try:
            while rest is not None and await self._edge.wait_for_room(more):
                delivery, rest = deliverer.deliver(rest)
                delivery.news = news()
                self._edge.put(delivery)
                del delivery
        finally:
            if rest is not None:
                rest.release()

    def _hear(self, starving: bool) -> None:
        """Whether the consumer waits for the next element; a pipeline that has ended does not care."""
        if self._budget is not None:
            self._budget.activity.consume(not starving)
        if self._knobs is not None:
            self._knobs.consume(waits=starving)

    def stats(self) -> PipelineStats:
        """The state of the pipeline now, or when it was put back; from any thread."""
        gauges = self._gauges
        return self._last_stats if gauges is None else gauges.read()

    async def _put_back(self, services: list[Services], error: BaseException | None) -> None:
        closed: list[BaseException] = []
        try:
            self._last_stats = self.stats()
            if self._is_sampled:
                self._runtime.sampling.end(self._profiled)
        except BaseException as caught:  # noqa: BLE001 -- raised by the iterator
            closed.append(caught)
        self._gauges = None
        try:
            if self._root is not None:
                await self._root.aclose()
        except BaseException as caught:  # noqa: BLE001 -- raised by the iterator
            closed.append(caught)
        try:
            await self._close(services)
        except BaseException as caught:  # noqa: BLE001 -- raised by the iterator
            closed.append(caught)
        self._root = None
        # A frame that an error's traceback may keep for long must not keep the pipeline.
        services.clear()
        late = error or (as_raisable(closed[0]) if closed else None)
        heard = self._edge.finish(late) and not self._edge.is_closed and error is None
        if closed and not heard:
            _LOGGER.warning("while a pipeline was closed: %s", closed[0], exc_info=closed[0])
        self._ended()

    async def _close(self, services: list[Services]) -> None:
        """Closes services; whatever fails, the Runtime gets its memory back."""
        budget, self._budget = self._budget, None
        try:
            if budget is not None:
                budget.activity.consume(False)
            for service in services:
                try:
                    service.close()
                finally:
                    await service.end()
                # Only now is it known how many lines of the quarantine list were written.
                self._last_stats = dataclasses.replace(self._last_stats, skipped=service.skipped())
        finally:
            if budget is not None:
                self._runtime.budgets.give(budget, self._is_leaving)


class _Tasks:
    """The tasks that a pipeline's stages have started, so that those which still work ahead can be ended."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task; one that starts while all are being ended is ended, too."""
        task = self._group.create_task(_raisable_only(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Cancelled before its first step, the task does not touch the coroutine.
        task.add_done_callback(lambda _task: coroutine.close())
        if self._cancelled:
            task.cancel()
        return task

    def cancel(self) -> None:
        """Ends them all."""
        self._cancelled = True
        for task in list(self._tasks):
            task.cancel()


def _more(block: Block, seconds: float) -> int:
    """How many elements like these may wait for the consumer beyond one delivery.

    A few that are small and quickly made. Otherwise pipeline and consumer would wait for each other at every one of
    them, which takes longer than to make it.

    Args:
        block: Some of them.
        seconds: In which they were made.
    """
    if seconds >= _QUICK_S or (nbytes := short_bytes(block)) > SHORT_BYTES:
        return 0
    return min(SHORT_ROWS, SHORT_BYTES * len(block) // max(nbytes, 1))


async def _raisable_only(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs a task of a stage; what would end the event loop (SystemExit, KeyboardInterrupt) only ends the pipeline."""
    try:
        await coroutine
    except asyncio.CancelledError:
        pass
    except BaseException as error:  # noqa: BLE001 -- raised by the iterator
        raise as_raisable(error) from None
    else:
        return
    # A new one: the task keeps it, and with it would keep every frame that the first one came through.
    raise asyncio.CancelledError


def _single(group: BaseExceptionGroup[BaseException] | None) -> BaseException | None:
    """The only exception of a group, or else the group."""
    while isinstance(group, BaseExceptionGroup) and len(group.exceptions) == 1:
        inner = group.exceptions[0]
        if not isinstance(inner, BaseExceptionGroup):
            return inner
        group = inner
    return group
