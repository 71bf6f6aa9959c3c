"""`RepeatedOrderStage`: gives a map the rows of its input in the order in which a recorded run passed their results on.

    input   0 1 2 3 4 5 6 7          the recorded map had results of 2, 3 first, then of 0, 1, then of 4 …
    output  2 3 0 1 4 …              the map keeps this order now

So whatever runs the functions, how many at a time, and whichever elements fail, results come as they came then. What is
held here is what the recorded map had under way.
"""

from __future__ import annotations

from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Stage, StageContext
from asyncdata.runtime.state.choices import Choices


class RepeatedOrderStage(Stage):
    """See the module's docstring.

    Args:
        context: Of the map.
        upstream: Its input.
        choices: What it chose.
    """

    def __init__(self, context: StageContext, upstream: Stage, choices: Choices) -> None:
        super().__init__(context, (upstream,))
        self._upstream = upstream
        self._choices = choices
        self._rows = 0
        # Rows that came before their turn, by the number of their first one; none of them overlap.
        self._held: dict[int, Block] = {}

    async def _pull(self, limit: int) -> Block | None:
        while (wanted := self._choices.wanted) is not None:
            await self._pause()
            first, count = wanted
            if first < self._rows:
                part = self._cut(first, min(count, limit))
                part.advance = part.advance.unordered()
                self._choices.took(len(part), on=len(part))
                self._choices.note([(first, len(part))])
                return part
            block = await self._upstream.pull(limit)
            if block is None:
                raise self._choices.misses(self.label)
            if not len(block):
                return block
            self._held[self._rows] = block
            self._rows += len(block)
        if not self._held:
            block = await self._upstream.pull(1)
            if block is None or not len(block):
                return block
            block.release()
        raise self._choices.ends(self.label)

    def _cut(self, first: int, count: int) -> Block:
        """At most so many of the rows held, from this one on."""
        start = max((start for start in self._held if start <= first), default=first)
        if start not in self._held or first >= start + len(self._held[start]):
            raise self._choices.misses(self.label)
        block = self._held.pop(start)
        if first > start:
            self._held[start], block = block.split(first - start)
        if count < len(block):
            block, self._held[first + count] = block.split(count)
        return block

    @property
    def ordered(self) -> bool:
        """It is another order than that of a pipeline with a fixed one."""
        return False

    @property
    def draining(self) -> bool:
        """Whether the input drains, and nothing of it waits."""
        return not self._held and super().draining

    async def aclose(self) -> None:
        for block in self._held.values():
            block.release()
        self._held.clear()
        await super().aclose()
