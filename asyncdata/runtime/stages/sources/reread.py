"""A file that is read again from its beginning when its object was replaced: ``Options(on_change="restart")``.

::

    version 1   r0 r1 r2 r3 ✗ replaced
                handed out: r0 r1 r2
    version 2   R0 R1 R2 R3 R4 …            begun again, framed from its own first byte
                dropped      handed out: R3 R4 …

What always holds: every index of a record is handed out once at most, each record comes whole from one version, and no
read mixes two. What was handed out cannot be taken back; so of the new version the records up to the last such index
are dropped. When the new version has no more records than that, the file ends there. All of this holds for a file that
goes on from a state, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from asyncdata.errors import ObjectChangedError, StateError
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
        self._handed_out = 0
        self._to_drop = 0
        self._restarts = 0
        self._closed = False

    def restore(self, mark: Mark) -> None:
        """See `Stage`."""
        self._inner.restore(mark)
        self._handed_out = mark["record"]

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
            except (ObjectChangedError, StateError):  # since it was listed, or since the state was taken
                if self._restarts == MOST_RESTARTS or self._closed:
                    raise
                await self._begin_again()
                continue
            if block is None:
                return None
            indices = block.origin[:, 1]
            if dropped := int(np.searchsorted(indices, self._to_drop)):
                head, block = block.split(dropped)
                head.release()
            if len(block):
                self._handed_out = int(indices[-1]) + 1
            elif dropped:
                continue
            return block

    async def _begin_again(self) -> None:
        self._restarts += 1
        await self._inner.aclose()
        self._forget()
        self._inner = self._make()
        self._to_drop = self._handed_out

    async def aclose(self) -> None:
        self._retire()
        self._closed = True
        await self._inner.aclose()
