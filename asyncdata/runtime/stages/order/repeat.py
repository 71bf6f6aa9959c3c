"""`repeat`: the input over and over, each time a fresh one with the next number in its epoch path."""

from __future__ import annotations

from collections.abc import Callable

from asyncdata.memory.advance import Fold
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Pause, Stage, close_all, row_marks

MakeEpoch = Callable[[int], Stage]


class RepeatStage(Stage):
    """See the module's docstring.

    The next epoch's sources are prepared while the last shards of this one are still being read. An input that turns
    out empty ends a repetition for ever, which would otherwise never end; of a given number every epoch counts.

    Args:
        label: The stage's name.
        make: Makes the input of epoch i.
        count: How often; None for ever.
    """

    def __init__(self, label: str, make: MakeEpoch, count: int | None) -> None:
        super().__init__(label)
        self._current: Stage | None = make(0) if count != 0 else None
        self._make = make
        self._count = count
        self._epoch = 0
        self._rows_of_epoch = 0
        self._next: Stage | None = None
        self._out = 0
        self._fold = Fold()
        self._pause = Pause()

    @property
    def draining(self) -> bool:
        """In the last epoch, when its sources drain."""
        return not self._more() and (self._current is None or self._current.draining)

    def prepare(self) -> None:
        """Prepares the first epoch."""
        if self._current is not None:
            self._current.prepare()

    def _more(self) -> bool:
        return self._current is not None and (self._count is None or self._epoch + 1 < self._count)

    async def pull(self, limit: int) -> Block | None:
        while self._current is not None:
            await self._pause()
            block = await self._current.pull(limit)
            if block is not None:
                self._rows_of_epoch += len(block)
                if self._next is None and self._more() and self._current.draining:
                    self._next = self._make(self._epoch + 1)
                    self._next.prepare()
                return self._marked(block)
            await self._turn_over()
        return None

    async def _turn_over(self) -> None:
        assert self._current is not None
        more = self._more() and (self._rows_of_epoch > 0 or self._count is not None)
        # Both stay where `aclose` finds them until they are closed.
        await self._current.aclose()
        if not more:
            if self._next is not None:
                await self._next.aclose()
            self._current = self._next = None
            return
        self._epoch += 1
        self._current, self._next = self._next or self._make(self._epoch), None
        self._rows_of_epoch = 0
        self._fold = Fold()

    def _marked(self, block: Block) -> Block:
        marks = tuple(
            (row, {"epoch": self._epoch, "input": self._fold.at(block.advance, row)})
            for row in row_marks(self._out, len(block))
        )
        self._fold.feed(block.advance)
        self._out += len(block)
        block.advance = block.advance.with_marks(marks)
        return block

    async def aclose(self) -> None:
        await close_all(stage for stage in (self._current, self._next) if stage is not None)
        self._current = self._next = None
