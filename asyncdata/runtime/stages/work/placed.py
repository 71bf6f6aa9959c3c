"""A `map` that runs on the stage loop or in workers, and may change its place at every block.

    input ──▶ gate ──▶ stage on the loop  ──▶ elements
                └────▶ stage of workers   ──▶

One of the two stages works at a time. Where the place changes, the gate tells it that the input has ended: it delivers
what it has taken, is closed, and the other one begins. So each element is in one place only, and all of them leave in
the order of the input. Until workers have started, the loop does the work.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncdata.memory.block import Block
from asyncdata.planner.placement import LOOP, WORKERS
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.stages.work.tasks import Executor
from asyncdata.runtime.tuning.knob import Knob


class PlacedStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        upstream: The input.
        place: Where it is to run.
        executor: Gives what runs tasks; called when workers are to do the work for the first time.
        on_loop: Makes the stage of an input that runs on the loop.
        in_workers: Makes the one that gives work to workers, and keeps the order.
    """

    def __init__(
        self,
        context: StageContext,
        upstream: Stage,
        *,
        place: Knob,
        executor: Callable[[], Executor],
        on_loop: Callable[[Stage], Stage],
        in_workers: Callable[[Stage], Stage],
    ) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._place = place
        self._make_executor = executor
        self._on_loop = on_loop
        self._in_workers = in_workers
        self._executor: Executor | None = None
        self._at = LOOP
        self._gate: _Gate | None = None
        self._working: Stage | None = None

    async def _pull(self, limit: int) -> Block | None:
        while True:
            if self._gate is None or self._working is None:
                self._gate, self._working = self._begin()
            block = await self._pull_from(self._working, limit)
            if block is not None or self._gate.ended:
                return block
            await self._working.aclose()
            self._working = None

    def _wished(self) -> int:
        """Where the next rows are to be worked on."""
        if self._place.value == LOOP:
            return LOOP
        if self._executor is None:
            self._executor = self._make_executor()
        return WORKERS if self._executor.ready else LOOP

    def _begin(self) -> tuple[_Gate, Stage]:
        self._at = self._wished()
        gate = _Gate(self.context, self._upstream, lambda: self._wished() == self._at)
        if self._at == WORKERS:
            return gate, self._in_workers(gate)
        self.context.meter.runs, self.context.meter.parallel = "loop", 1
        return gate, self._on_loop(gate)

    async def _pull_from(self, stage: Stage, limit: int) -> Block | None:
        meter = self.context.meter
        if self._at == WORKERS or meter.task is None:
            return await stage.pull(limit)
        # The meter goes by the time of the task that feeds workers, where there was one.
        with meter.works_ahead():
            return await stage.pull(limit)

    async def aclose(self) -> None:
        try:
            if self._working is not None:
                await self._working.aclose()
                self._working = None
        finally:
            await super().aclose()


class _Gate(Stage):
    """The rows of the input, until the place changes. At least one block comes through.

    Args:
        context: Of the stage.
        upstream: The input, which is not closed with the gate.
        is_open: Whether the place is still the same.

    Attributes:
        ended: The input has ended.
    """

    def __init__(self, context: StageContext, upstream: Stage, is_open: Callable[[], bool]) -> None:
        super().__init__(context)
        self.label = upstream.label
        self._upstream = upstream
        self._is_open = is_open
        self._passed = False
        self._shut = False
        self.ended = False

    async def _pull(self, limit: int) -> Block | None:
        self._shut = self._shut or (self._passed and not self._is_open())
        if self._shut:
            return None
        self._passed = True
        block = await self._upstream.pull(limit)
        self.ended = block is None
        return block

    @property
    def draining(self) -> bool:
        """That of the input."""
        return self._upstream.draining

    @property
    def ordered(self) -> bool:
        """That of the input."""
        return self._upstream.ordered
