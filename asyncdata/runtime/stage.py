"""`Stage`: a running node of a plan.

Stages pull: the consumer's edge asks the last stage for a block, which asks the one before it, down to the sources.
Backpressure is therefore the absence of a question, and a chain of cheap stages costs a few function calls per block.
Stages that work ahead (reads, worker tasks, prefetch) do so in tasks of the pipeline's TaskGroup.

The laws every stage obeys, checked for each of them in the tests:

* *any blocking*: however the input is cut into blocks, the elements, the random draws and the folded state are the
  same;
* *no waiting for company*: `pull` returns as soon as it has a row, or news for the state;
* *leases*: what a stage takes from its input it passes on or releases, after the end, an error or a cancellation too.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeAlias

from asyncdata.memory.block import Block
from asyncdata.runtime.memory.activity import note_progress

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task of the pipeline's TaskGroup."""

BLOCK_ROWS: Final = 4096
"""Rows a stage asks for when it has no reason to ask for fewer."""

BLOCK_BYTES: Final = 16 << 20
"""What a block of new objects may take, when there is no reason for less; or it is one element."""

MARK_EVERY: Final = 1024
"""Stages write a mark at every so many rows of their output, counted from its beginning."""

LONG_STEP_S: Final = 0.002
"""The longest time that a stage keeps the loop to itself."""


class Stage(ABC):
    """One running step. Used from the stage loop only, by one caller at a time.

    Attributes:
        label: The stage's name in errors and reports.
    """

    def __init__(self, label: str, inputs: tuple[Stage, ...] = ()) -> None:
        self.label = label
        self.inputs = inputs

    @abstractmethod
    async def pull(self, limit: int) -> Block | None:
        """The next block, of 1 to `limit` rows, or of none when it only carries news; None at the end, and ever after.

        A pull is cancelled only when the pipeline ends, never by its consumer; what the stage holds while it waits is
        in its attributes, where `aclose` finds it.
        """

    def pull_ready(self, limit: int) -> Block | None:  # noqa: ARG002 -- for stages that can tell
        """As `pull`, for what is at hand: None when there is nothing without waiting, or only an error or the end."""
        return None

    def prepare(self) -> None:
        """Starts what takes time (opening files) because a pull will come soon. Does not block."""
        for stage in self.inputs:
            stage.prepare()

    @property
    def draining(self) -> bool:
        """Whether all sources behind this stage have begun their last piece of work."""
        return all(stage.draining for stage in self.inputs)

    async def aclose(self) -> None:
        """Releases everything; idempotent. Called after the pipeline's tasks have ended."""
        await close_all(self.inputs)

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
    """Leaves the loop to others now and then; for loops that may go round without ever waiting."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def __call__(self) -> None:
        """Lets every other task have its turn, if the last time was more than 2 ms ago."""
        if time.monotonic() - self._since > LONG_STEP_S:
            note_progress()
            await asyncio.sleep(0)
            self._since = time.monotonic()


def row_marks(start: int, rows: int, every: int = MARK_EVERY) -> range:
    """The rows of a block beginning at output position `start` where a mark belongs."""
    return range(-start % every, rows, every)
