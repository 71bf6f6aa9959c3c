"""A Runtime's memory limit in equal parts, one per pipeline that may be open at a time.

Pipelines do not share a part, because a paused pipeline keeps what it has made ahead and would starve the others. The
next pipeline reuses a part, with its slabs still warm.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from asyncdata.errors import PipelineError
from asyncdata.memory.accounts import Kind
from asyncdata.memory.arena import GRANULE, Arena
from asyncdata.runtime.memory.budget import Budget
from asyncdata.runtime.memory.compaction import Compaction
from asyncdata.wording import counted

_LEFT_OVER: Final = 8


class Budgets:
    """See the module's docstring. Stage loop only.

    Args:
        arena: Each part has its own region of it.
        limit_bytes: Of all parts together.
        parts: How many.
        aside_bytes: The part of the limit that is used elsewhere, for second attempts at reads.
        patience_s: How long the next pipeline waits for one that is about to end.
    """

    def __init__(
        self, arena: Arena, limit_bytes: int, parts: int, *, aside_bytes: int = 0, patience_s: float = 30.0
    ) -> None:
        self._arena = arena
        self._limit = limit_bytes
        self._parts = parts
        self._aside = -(-aside_bytes // parts)
        self._made: list[Budget] = []
        self._free: list[Budget] = []
        self._users: list[Callable[[], bool]] = []
        self._given = asyncio.Event()
        self._patience_s = patience_s

    async def take(self, is_leaving: Callable[[], bool]) -> Budget:
        """A part that no pipeline uses, the emptiest one; waits for pipelines that are about to end.

        One that was used before is preferred to a new one, for its memory is there already, unless a consumer still
        holds more of it than is set aside for consumers.

        Args:
            is_leaving: Says whether the pipeline that takes the part is about to end; asked by later ones.

        Raises:
            PipelineError: As many pipelines are open as the Runtime was made for.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                while self._is_waited_for() and not is_leaving():
                    self._given.clear()
                    await self._given.wait()
        budget = self._take_free()
        self._users.append(is_leaving)
        return budget

    def _is_waited_for(self) -> bool:
        return not self._free and len(self._made) == self._parts and any(leaving() for leaving in self._users)

    def _take_free(self) -> Budget:
        if len(self._made) < self._parts and not any(_used(free) <= free.limit // _LEFT_OVER for free in self._free):
            self._free.append(self._make(len(self._made)))
            self._made.append(self._free[-1])
        if not self._free:
            leaving = sum(leaving() for leaving in self._users)
            closed = f" ({leaving} of them closed, but held by a function that does not return)" if leaving else ""
            raise PipelineError(
                f"{counted(self._parts, 'pipeline is', 'pipelines are')} open in this Runtime{closed}, the most that "
                "it allows: close one (leave its loop, or call close() on its iterator), or make the Runtime with "
                f"pipelines={self._parts + 1}"
            )
        chosen = min(self._free, key=_used)
        self._free.remove(chosen)
        return chosen

    def _make(self, index: int) -> Budget:
        region = self._arena.nbytes // self._parts // GRANULE * GRANULE
        limit = self._limit // self._parts
        budget = Budget(self._arena, limit, start=index * region, stop=(index + 1) * region, parts=self._parts)
        budget.relieve = Compaction(budget)
        if self._aside:
            # Nearer the consumer than everybody: nobody borrows what it reserves.
            budget.open("second attempts at reads", rank=-1, kind=Kind.FLOW, reserved_bytes=self._aside)
        return budget

    def give(self, budget: Budget, is_leaving: Callable[[], bool]) -> None:
        """A pipeline has ended; what its consumer still holds stays charged to the part."""
        self._free.append(budget)
        self._users.remove(is_leaving)
        self._given.set()

    @property
    def used_bytes(self) -> int:
        """Bytes of slabs in use."""
        return sum(budget.ledger.used for budget in self._made)

    @property
    def slabs_in_use(self) -> int:
        """How many slabs that is."""
        return sum(len(budget.slabs) for budget in self._made)

    def __repr__(self) -> str:
        return f"<Budgets {self._made!r}>"

    def end(self) -> None:
        """The arena is given up."""
        for budget in self._made:
            budget.end()


def _used(budget: Budget) -> int:
    return budget.ledger.used
