"""A file that is read again from its beginning when its object was replaced: ``Options(on_change="restart")``.

::

    version 1   r0 r1 r2 r3 ✗ replaced
                handed out: r0 r1 r2
    version 2   R0 R1 R2 R3 R4 …            begun again, framed from its own first byte
                dropped      handed out: R3 R4 …

What always holds: every index of a record is handed out once at most, each record comes whole from one version, and no
read mixes two. What was handed out, or left out because it failed, cannot be taken back; so of the new version as many
leading records are dropped. When the new version has no more records than that, the file ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from asyncdata.errors import ObjectChangedError
from asyncdata.memory.advance import Mark
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Stage, StageContext

MOST_RESTARTS: Final = 3
"""Of one file in one epoch: an object that changes all the time would otherwise never end."""


class RestartStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        make: Makes the stage that reads the file, of whatever version is there then.
        forget: Called before that: what is known about the object is not true any more.
    """

    def __init__(self, context: StageContext, make: Callable[[], Stage], forget: Callable[[], None]) -> None:
        super().__init__(context)
        self._make = make
        self._forget = forget
        self._inner = make()
        self._used_up = 0
        self._to_drop = 0
        self._restarts = 0
        self._closed = False

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._inner.restore(mark)
        self._used_up = mark["record"]

    def prepare(self) -> None:
        """Starts reading."""
        self._inner.prepare()

    @property
    def draining(self) -> bool:
        """Of the version that is being read."""
        return self._inner.draining

    async def _pull(self, limit: int) -> Block | None:
        while True:
            try:
                block = await self._inner.pull(limit)
            except ObjectChangedError:
                if self._restarts == MOST_RESTARTS or self._closed:
                    raise
                await self._begin_again()
                continue
            if block is None:
                return None
            # The indices of records, those that were left out among them.
            used = block.advance.used_rows[:, 1]
            if len(used) and used[-1] < self._to_drop:
                # With their advance: they were used up when they, or their like, were handed out.
                block.release()
                continue
            if dropped := int(np.searchsorted(block.origin[:, 1], self._to_drop)):
                head, block = block.split(dropped)
                head.release()
            if len(used):
                self._used_up = int(used[-1]) + 1
            return block

    async def _begin_again(self) -> None:
        self._restarts += 1
        await self._inner.aclose()
        self._forget()
        self._inner = self._make()
        self._to_drop = self._used_up

    async def aclose(self) -> None:
        self._retire()
        self._closed = True
        await self._inner.aclose()
