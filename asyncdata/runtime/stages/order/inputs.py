"""One of several inputs of a stage: the rows available, and how far it was read."""

from __future__ import annotations

from typing import Final

from asyncdata.errors import MemoryLimitError
from asyncdata.memory.accounts import Account
from asyncdata.memory.advance import BEGINNING, EMPTY, Advance, Fold, State
from asyncdata.memory.block import Block
from asyncdata.memory.columns import RefColumn
from asyncdata.runtime.memory.landing import Landing
from asyncdata.runtime.stage import Pause, Stage, StageContext

_MOST_LOOSE_BYTES: Final = 1 << 20
_LOOSE_PART: Final = 512
"""Of the limit: so much may lie outside of slabs without being charged."""


class HandingOver(Stage):
    """Passes blocks on, and charges what is in them to the stage that collects it.

    Args:
        context: Of the stage that collects.
        upstream: Where they come from.
        rows: That stage's account.

    Attributes:
        together: That stage collects so many rows at a time. Where they are Python objects, and small together, they
            stay where they are: they are written into a slab soon.
    """

    def __init__(self, context: StageContext, upstream: Stage, rows: Account) -> None:
        super().__init__(context, (upstream,))
        self.label = upstream.label
        self._upstream = upstream
        self._landing = Landing(context.budget, rows)
        self._most_loose = min(_MOST_LOOSE_BYTES, context.budget.limit // _LOOSE_PART)
        self.together = 0

    async def _pull(self, limit: int) -> Block | None:
        self._block = await self._upstream.pull(limit)
        if self._block is not None and len(self._block) and not self._stays(self._block):
            try:
                await self._landing(self._block)
            except MemoryLimitError as error:
                self.context.sources.locate_rows(error, self.label, self._block.origin)
                raise
        block, self._block = self._block, None
        return block

    def _stays(self, block: Block) -> bool:
        if not self.together or any(isinstance(column, RefColumn) for column in block.columns):
            return False  # what rows pin is not known from their bytes
        if block.nbytes * self.together > self._most_loose * len(block):
            self.together = 0  # one batch with rows in slabs and rows elsewhere would be made of Python objects
        return self.together > 0

    async def aclose(self) -> None:
        self._landing.close()
        await super().aclose()


class Input:
    """See the module's docstring.

    Args:
        stage: What is read.

    Attributes:
        ended: It has no more rows than those available.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.ended = False
        self._block: Block | None = None
        self._fold = Fold()

    def begin(self, state: State | None) -> None:
        """The first row comes behind this state."""
        self._fold = Fold(state)

    @property
    def rows(self) -> int:
        """Rows available."""
        return 0 if self._block is None else len(self._block)

    async def more(self, limit: int, pause: Pause) -> bool:
        """Makes sure that there are rows, as long as there are any; says whether."""
        while not self.rows and not self.ended:
            await pause()
            self.add(await self.stage.pull(limit))
        return self.rows > 0

    def add(self, block: Block | None) -> None:
        """What a pull gave."""
        if block is None:
            self.ended = True
            return
        self._block = block if self._block is None else Block.concat([self._block, block])

    def take(self, rows: int) -> Block:
        """The first rows; what follows the last one stays with the rows that come next."""
        assert self._block is not None
        if rows == len(self._block) and not self._block.advance.has_news:
            head, self._block = self._block, None
        else:
            head, self._block = self._block.split(rows)
        self._fold.feed(head.advance)
        return head

    def skip(self, rows: int) -> Advance:
        """Takes the first rows and lets them go; says what they use up."""
        head = self.take(rows)
        head.release()
        return head.advance.dropped()

    def at(self, row: int) -> State:
        """The input's state after the first `row` of the rows available."""
        return self._fold.state if self._block is None else self._fold.in_front_of(self._block.advance, row)

    @property
    def tells_filling(self) -> bool:
        """Whether its first row comes next, and has a mark that says in which run what it reads was kept."""
        return self._fold.state == BEGINNING and self.at(0) != BEGINNING

    def peek(self) -> Block:
        """The rows available; there must be some."""
        assert self._block is not None
        return self._block

    def left_over(self) -> Advance:
        """What is used up behind the last row of an input that has ended."""
        return EMPTY if self._block is None else self._block.advance.dropped()

    def release(self) -> None:
        """Gives back what is available."""
        if self._block is not None:
            self._block.release()
            self._block = None
