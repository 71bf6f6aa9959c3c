"""`concatenate`, `repeat`: one input after the other; a repetition is the same one with the next epoch number.

The next input is prepared while the last shards of this one are read.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncdata.memory.advance import Mark
from asyncdata.memory.block import Block
from asyncdata.runtime.stage import Stage, StageContext, close_all
from asyncdata.runtime.state.marker import Marker
from asyncdata.runtime.state.tracks import Track


class ConcatenateStage(Stage):
    """See the module's docstring.

    Args:
        context: What every stage is given.
        make: Makes the input with this number; called when its time comes.
        count: How many there are; None for ever, until one of them turns out empty, which would otherwise never end.
        ended: Told the number of each input that has ended and is closed.
        first: The input to begin with.
        track: Of the inputs, where their elements have no fixed order.
    """

    def __init__(
        self,
        context: StageContext,
        make: Callable[[int], Stage],
        count: int | None,
        ended: Callable[[int], None] | None = None,
        first: int = 0,
        track: Track | None = None,
    ) -> None:
        super().__init__(context)
        self._make = make
        self._count = count
        self._told = ended
        self._track = track
        self._number = first if track is None else max(first, track.saved.at)
        self._current: Stage | None = make(self._number) if count is None or self._number < count else None
        self._next: Stage | None = None
        self._refused = False
        self._rows = self._given_before()
        self._in_order = True
        self._marker = Marker(follows=True)

    def restore(self, mark: Mark) -> None:
        """See `Stage`; the input is the one that the mark names."""
        self._rows = 1  # it is not empty
        self._marker.begin(mark["row"], mark["input"])

    @property
    def draining(self) -> bool:
        """In the last input, when its sources drain."""
        return self._current is None or (not self._is_more() and self._current.draining)

    @property
    def ordered(self) -> bool:
        """Until an input is not, which says so before its rows come."""
        return self._in_order and (self._current is None or self._current.ordered)

    def prepare(self) -> None:
        """Prepares the first input."""
        if self._current is not None:
            self._current.prepare()

    def _given_before(self) -> int:
        """Not none where a state had begun the input: it is not empty, whether or not anything of it is left."""
        return int(self._track is not None and self._number in self._track.begun)

    def _following(self) -> int:
        number = self._number + 1
        while self._track is not None and self._track.was_delivered(number):
            number += 1
        return number

    def _is_more(self) -> bool:
        return self._count is None or self._following() < self._count

    async def _pull(self, limit: int) -> Block | None:
        while self._current is not None:
            await self._pause()
            block = await self._current.pull(limit)
            if block is not None:
                self._rows += len(block)
                if self._next is None and not self._refused and self._is_more() and self._current.draining:
                    self._make_ahead()
                return self._marked(block)
            await self._turn_over(self._current)
        return None

    def _make_ahead(self) -> None:
        try:
            self._next = self._make(self._following())
        except Exception:  # noqa: BLE001 -- raised when its turn comes, behind the rows before it
            self._refused = True
            return
        self._next.prepare()

    def _marked(self, block: Block) -> Block:
        before = self._marker.rows
        return self._marker.mark(
            block, lambda row, state: {"number": self._number, "row": before + row, "input": state}
        )

    async def _turn_over(self, ended: Stage) -> None:
        more = self._is_more() and (self._rows > 0 or self._count is not None)
        self._in_order = self._in_order and ended.ordered
        # Both stay where `aclose` finds them until they are closed.
        await ended.aclose()
        if self._told is not None:
            self._told(self._number)
        if self._track is not None:
            self._track.closes(self._number)
        if not more:
            if self._next is not None:
                await self._next.aclose()
            self._current = self._next = None
            if self._track is not None:
                self._track.ends(self._following())
            return
        self._number = self._following()
        self._refused = False
        self._current, self._next = self._make(self._number) if self._next is None else self._next, None
        self._rows = self._given_before()
        self._marker.next_input()

    async def aclose(self) -> None:
        self._retire()
        await close_all(stage for stage in (self._current, self._next) if stage is not None)
        self._current = self._next = None
