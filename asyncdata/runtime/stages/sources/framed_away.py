"""`FramedAway`: framing by worker processes, for the files of one step of the plan.

    file ── bytes that have arrived ──▶ worker: where the records are, whether checksums hold ──▶ rows of a block

Finding small records takes a good part of the stage loop, which is one thread. Whether workers do it is found while the
pipeline runs, as for ready-made parsers (`planner.placement`), and only where workers have other work to do: none are
started for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from asyncdata.formats.framing import Frames, Place
from asyncdata.formats.framing_task import FramingTask
from asyncdata.planner.placement import WORKERS
from asyncdata.runtime.meter import Meter
from asyncdata.runtime.stages.work.tasks import Executor
from asyncdata.runtime.tuning.knob import Knob


class FramedAway:
    """See the module's docstring.

    Args:
        task: What workers do.
        meter: Of the step.
        place: Says where the step is to run; None as long as that is no question.
        executor: Gives what runs tasks; called when workers are to do it for the first time.
    """

    def __init__(
        self,
        task: FramingTask,
        meter: Meter,
        place: Callable[[], Knob | None],
        executor: Callable[[], Executor],
    ) -> None:
        self._task = task
        self._meter = meter
        self._find_place = place
        self._place: Knob | None = None
        self._make_executor = executor
        self._executor: Executor | None = None

    @property
    def is_wished(self) -> bool:
        """Whether workers are to find the next records."""
        if self._place is None:
            self._place = self._find_place()
        if self._place is None or self._place.value != WORKERS:
            return False
        if self._executor is None:
            self._executor = self._make_executor()
        return self._executor.ready

    def here(self, framing: Callable[[], Frames]) -> Frames:
        """Finds them on the loop; what that costs is counted."""
        self._meter.runs = "loop"
        began_s = time.thread_time()
        frames = framing()
        self._meter.calls_s += time.thread_time() - began_s
        return frames

    async def frame(
        self, start: int, stop: int, *, limit: int, remaining: int | None, last: bool, place: Place
    ) -> Frames:
        """Has a worker find them, see `Framer.frame`."""
        assert self._executor is not None
        meter = self._meter
        meter.runs = "process"
        question = self._task.question(start, stop, limit=limit, remaining=remaining, last=last, place=place)
        with meter.calls:
            reply = await self._executor.run(question, _no_memory)
        answer = self._task.answer(reply, start)
        meter.calls_s += answer.cpu_s
        return answer.frames


async def _no_memory(nbytes: int, slot: int) -> tuple[int, int]:
    raise AssertionError(f"framing asked for {nbytes} bytes of memory, for {slot}")
