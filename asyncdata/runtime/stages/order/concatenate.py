"""`concatenate`: one input after the other; the next is prepared while the last shards of this one are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncdata.memory.advance import Fold
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Pause, Stage, close_all, row_marks


class ConcatenateStage(Stage):
    """See the module's docstring.

    Args:
        label: The stage's name.
        makes: Makes each of the inputs; called when its time comes.
        ended: Told the number of each input that has ended and is closed.
    """

    def __init__(
        self, label: str, makes: Sequence[Callable[[], Stage]], ended: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(label)
        self._makes = makes
        self._told = ended
        self._number = 0
        self._current: Stage | None = makes[0]()
        self._next: Stage | None = None
        self._out = 0
        self._fold = Fold()
        self._pause = Pause()

    @property
    def draining(self) -> bool:
        """In the last input, when its sources drain."""
        return self._current is None or (not self._is_more() and self._current.draining)

    def prepare(self) -> None:
        """Prepares the first input."""
        if self._current is not None:
            self._current.prepare()

    def _is_more(self) -> bool:
        return self._number + 1 < len(self._makes)

    async def pull(self, limit: int) -> Block | None:
        while self._current is not None:
            await self._pause()
            block = await self._current.pull(limit)
            if block is not None:
                if self._next is None and self._is_more() and self._current.draining:
                    self._next = self._makes[self._number + 1]()
                    self._next.prepare()
                return self._marked(block)
            await self._turn_over()
        return None

    async def _turn_over(self) -> None:
        assert self._current is not None
        # Both stay where `aclose` finds them until this one is closed.
        await self._current.aclose()
        if self._told is not None:
            self._told(self._number)
        if not self._is_more():
            self._current = None
            return
        self._number += 1
        self._current, self._next = self._next or self._makes[self._number](), None
        self._fold = Fold()

    def _marked(self, block: Block) -> Block:
        marks = tuple(
            (row, {"input": self._number, "state": self._fold.at(block.advance, row)})
            for row in row_marks(self._out, len(block))
        )
        self._fold.feed(block.advance)
        self._out += len(block)
        block.advance = block.advance.with_marks(marks)
        return block

    async def aclose(self) -> None:
        await close_all(stage for stage in (self._current, self._next) if stage is not None)
        self._current = self._next = None
